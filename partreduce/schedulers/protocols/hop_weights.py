"""Compute the weight of each update in an average of a worker that keeps a gap, for runtime and simulator.

Hop's paper (Luo et al., ASPLOS 2019) has equation 1, uniform, and equation 2, by iteration; the weights of the graph
are those of D-PSGD, so that without staleness, backup workers and skips the averages are exactly D-PSGD's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from partreduce.topo.strategies.iteration_gap import EdgeWeighting, IterationGap


def weights_of(
    gap: IterationGap,
    edge_weights: Mapping[int, Fraction],
    step: int,
    own_step: int,
    used: Sequence[tuple[int, int]],
) -> tuple[Fraction, list[Fraction]]:
    """The weight of a worker's own parameters, and of each update that it takes; together they are 1, exactly.

    By the graph, the weight of an update that is not taken stays with the worker. By iteration, an update of step i
    counts i − (k − s) + 1 times in step k, one's own too; before a skip, when k is the step before the one that is
    skipped to and one's own parameters are older than s steps, they still count once. O(in-neighbors).

    Args:
        gap: says which weights.
        edge_weights: of each in-neighbor, as the graph has them.
        step: whose reduce this is (k), or the last skipped one.
        own_step: the step that one's own parameters come from.
        used: (source, step of its update), ascending.
    """
    if gap.weights is EdgeWeighting.GRAPH:
        taken = [edge_weights[source] for source, _ in used]
        return 1 - sum(taken, Fraction(0)), taken
    if gap.weights is EdgeWeighting.UNIFORM:
        share = Fraction(1, len(used) + 1)
        return share, [share] * len(used)
    oldest = step - gap.staleness
    counts = [max(1, own_step - oldest + 1), *(of - oldest + 1 for _, of in used)]
    shares = [Fraction(count, sum(counts)) for count in counts]
    return shares[0], shares[1:]
