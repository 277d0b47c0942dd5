"""D-EquiStatic graph: the directed one."""

from preduce.schedulers.shifts import equistatic

ENTRY = equistatic(
    name="d-equistatic",
    summary="A few random cyclic shifts at once (directed): a gap that does not shrink with n.",
    degree="M",
    undirected=False,
)
