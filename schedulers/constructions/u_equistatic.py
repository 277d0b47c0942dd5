"""U-EquiStatic graph: the undirected one."""

from preduce.schedulers.shifts import equistatic

ENTRY = equistatic(
    name="u-equistatic",
    summary="A few random cyclic shifts at once (undirected): a gap that does not shrink with n.",
    degree="2M",
    undirected=True,
)
