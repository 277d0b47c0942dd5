"""What is attained: the gaps that exhaustive exploration of Hop's worker reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedulers.protocols.hop import Hop
from verify.explore import Network, NoDeadlock, explore

if TYPE_CHECKING:
    from schedulers.protocols.digraph import Digraph
    from schedulers.protocols.hop import HopSetting
    from verify.explore import Exploration, View
    from verify.gaps.paper import Matrix


def attained_gaps(
    graph: Digraph, setting: HopSetting, bounds: Matrix, *, max_states: int = 100_000
) -> tuple[Matrix | None, Exploration]:
    """Entry [i][j] is the largest Step(i) − Step(j) over all reachable states; None where it grows without limit.

    Messages are delivered at once: a late message only delays, so the same gaps are reached (the tests compare the two
    where both can be explored). Where some pair is unbounded the states are those in which nobody is further ahead of
    the slowest than one step more than the largest finite bound; a pair that reaches this fence counts as unbounded.
    The matrix is None when `max_states` did not suffice.
    """
    finite = [value for row in bounds for value in row if value is not None]
    unbounded = any(value is None for row in bounds for value in row)
    fence = max(finite, default=0) + 1

    def inside(view: View) -> bool:
        steps = [state.step for state in view.processes]
        return max(steps) - min(steps) <= fence

    found = explore(
        Hop(graph, setting),
        properties=(NoDeadlock(),),
        network=Network(delay=False),
        max_states=max_states,
        symmetry=False,
        within=inside if unbounded else None,
    )
    if not found.complete or found.gaps is None:
        return None, found
    gaps = tuple(tuple(None if unbounded and gap >= fence else gap for gap in row) for row in found.gaps)
    return gaps, found
