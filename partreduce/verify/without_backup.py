"""Claim `consensus` where workers do without some in-neighbors: no two disjoint sets of workers can close themselves.

The theorem, and the search that decides it, stand in `verify/checker/gaps.py`. It is a property of the
worst case: which updates come late is up to the machines, and a fair run agrees although two such sets exist.
"""

from __future__ import annotations

from collections.abc import Sequence

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.iteration_gap import EdgeWeighting, IterationGap
from partreduce.verify.base import Claim, not_proved, refuted, some
from partreduce.verify.checker.facts import MAX_WORK
from partreduce.verify.checker.gaps import two_closed_sets
from partreduce.verify.checker.refusal import Work
from partreduce.verify.stated import Stated

NAME = "consensus"
HOLDS = (
    "Of any two disjoint sets of workers one has a member with more in-neighbors outside than it may do without: all "
    "come to one common value whichever updates come late, and however late. It need not be the mean."
)


def prove_without_backup(schedule: Schedule, gap: IterationGap, stated: Stated) -> Claim:
    """As the checker decides it; two sets that close themselves are the witness against it."""
    n, spare = schedule.num_workers, gap.backups(schedule.num_workers)
    sources: list[list[int]] = [[] for _ in range(n)]
    kept = [1.0] * n
    is_weighted = gap.weights is EdgeWeighting.GRAPH
    for source, target, weight in schedule.strategy.graphs[0].edges():
        if weight < 0 and is_weighted:
            return not_proved(NAME, f"the weight of edge {source}→{target} is negative.")
        kept[target] -= float(weight) if is_weighted else 0.0
        if weight > 0 or not is_weighted:
            sources[target].append(source)
    if min(kept) <= 1e-12:
        return not_proved(NAME, f"worker {kept.index(min(kept))} keeps no weight on itself when all updates are there.")
    pair = halves(sources, spare)
    if pair is None and (claim := stated.claim(NAME, HOLDS)) is not None:
        return claim
    pair = pair or two_closed_sets(sources, spare, Work(NAME, MAX_WORK))
    assert pair is not None, "the checker found them, too"
    one, other = (sorted(half) for half in pair)
    text = (
        f"no worker of {some(one)} has more in-neighbors outside than it may do without, and none of {some(other)}: "
        "while updates from outside come late to every reduce, each set goes on by itself and keeps its own value. A "
        "run in which every edge is taken again and again agrees all the same."
    )
    return refuted(NAME, text, {"closed_sets": [one, other]})


def halves(sources: Sequence[Sequence[int]], spare: Sequence[int]) -> tuple[set[int], set[int]] | None:
    """Two disjoint sets that can close themselves and are quickly found: a worker with those near it, and the rest."""
    n = len(sources)
    targets: list[list[int]] = [[] for _ in sources]
    for v, listed in enumerate(sources):
        for u in listed:
            targets[u].append(v)

    def largest_in(allowed: set[int]) -> set[int]:
        """The largest set inside `allowed` that can close itself; O(edges)."""
        left, waiting = set(allowed), list(allowed)
        while waiting:
            v = waiting.pop()
            if v in left and sum(u not in left for u in sources[v]) > spare[v]:
                left.discard(v)
                waiting += [w for w in targets[v] if w in left]
        return left

    for root in range(0, n, max(1, n // 8)):
        order, seen = [root], {root}
        for v in order:
            for u in (*sources[v], *targets[v]):
                if u not in seen:
                    seen.add(u)
                    order.append(u)
        for near in (order, list(range(root, n)) + list(range(root))):
            one = largest_in(set(near[: len(near) // 2]))
            other = largest_in(set(range(n)) - one) if one else set()
            if other:
                return one, other
    return None
