"""Whether a fault shows on a device that is late, also where the host itself gets no processor for a while."""

FIRST_SECONDS = 0.02


def shows_by_delay(compare, cell, place):
    """Whether numbers differ at some delay: the longer it is, the less a host that was kept waiting hides the fault."""
    return any(compare(cell, "pretended", place=place, seconds=FIRST_SECONDS * 4**k) > 1e-3 for k in range(4))
