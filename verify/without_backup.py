"""Claim `consensus` where workers do without some in-neighbours: no two disjoint sets of workers can close themselves.

The theorem, and why the search decides it, stand in `verify/checker/facts/without_backup.py`. It is a property of the
worst case: which updates come late is up to the machines, and a fair run agrees although two such sets exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.gap import Gap, Weights
from partreduce.verify.base import Claim, follows, not_proved, refuted, some

NAME = "consensus"
MAX_SEARCHED = 200_000
"""Workers struck from sets before the search is given up: about a second."""


def prove_without_backup(schedule: Schedule, gap: Gap) -> Claim:
    """Decide it by degrees or by search; two sets that close themselves are the witness against it."""
    return replace(_decided(schedule, gap), is_property=True)


def _decided(schedule: Schedule, gap: Gap) -> Claim:
    n, spare = schedule.num_workers, gap.backups(schedule.num_workers)
    sources: list[list[int]] = [[] for _ in range(n)]
    kept = [1.0] * n
    is_weighted = gap.weights is Weights.GRAPH
    for source, target, weight in schedule.strategy.graphs[0].edges():
        if weight < 0 and is_weighted:
            return not_proved(NAME, f"the weight of edge {source}→{target} is negative.")
        kept[target] -= float(weight) if is_weighted else 0.0
        if weight > 0 or not is_weighted:
            sources[target].append(source)
    if min(kept) <= 1e-12:
        return not_proved(NAME, f"worker {kept.index(min(kept))} keeps no weight on itself when all updates are there.")
    late = "whichever updates come late, and however late"
    if all(len(listed) - b >= n // 2 for listed, b in zip(sources, spare, strict=True)):
        text = (
            f"Every worker hears of {n // 2} others or more besides its backup workers, so of two disjoint sets one "
            f"has a member that must hear of the other workers: all come to one common value {late}. It need not be "
            "the mean."
        )
        return follows(NAME, text)
    search = Closing(sources, spare)
    try:
        pair = search.halves() or search.two_sets()
    except SearchTooLongError:
        return not_proved(NAME, "two sets of workers that could close themselves were neither found nor excluded.")
    if pair is None:
        text = (
            "Of any two disjoint sets of workers one has a member with more in-neighbours outside than it may do "
            f"without (all sets searched): all come to one common value {late}. It need not be the mean."
        )
        return follows(NAME, text)
    one, other = (sorted(half) for half in pair)
    text = (
        f"no worker of {some(one)} has more in-neighbours outside than it may do without, and none of {some(other)}: "
        "while updates from outside come late to every reduce, each set goes on by itself and keeps its own value. A "
        "run in which every edge is taken again and again agrees all the same."
    )
    return refuted(NAME, text, {"closed_sets": [one, other]})


class SearchTooLongError(Exception):
    """The search was given up."""


class Closing:
    """Sets of workers that can close themselves: every member has at most `spare` in-neighbours outside."""

    def __init__(self, sources: Sequence[Sequence[int]], spare: Sequence[int]) -> None:
        self.sources, self.spare = sources, spare
        self.targets: list[list[int]] = [[] for _ in sources]
        for v, listed in enumerate(sources):
            for u in listed:
                self.targets[u].append(v)
        self.struck = 0

    def largest_in(self, allowed: AbstractSet[int], *, changed: Sequence[int] | None = None) -> set[int]:
        """The largest set inside `allowed` that can close itself; O(edges).

        Args:
            allowed: the workers that may be in it.
            changed: workers just taken out of a set that could close itself; all that is left but them is looked at
                only where they send to.
        """
        left = set(allowed)
        waiting = list(left) if changed is None else [v for u in changed for v in self.targets[u] if v in left]
        while waiting:
            v = waiting.pop()
            if v in left and sum(1 for u in self.sources[v] if u not in left) > self.spare[v]:
                left.discard(v)
                self.struck += 1
                waiting += [w for w in self.targets[v] if w in left]
        return left

    def halves(self) -> tuple[set[int], set[int]] | None:
        """Two sets that are quickly found: a worker with those nearest to it, and the rest."""
        n = len(self.sources)
        for root in range(0, n, max(1, n // 8)):
            order, seen = [root], {root}
            for v in order:
                for u in (*self.sources[v], *self.targets[v]):
                    if u not in seen:
                        seen.add(u)
                        order.append(u)
            for listed in (order, list(range(root, n)) + list(range(root))):
                one = self.largest_in(set(listed[: len(listed) // 2]))
                other = self.largest_in(set(range(n)) - one) if one else set()
                if other:
                    return one, other
        return None

    def two_sets(self) -> tuple[set[int], set[int]] | None:
        """Two disjoint sets, or None if there are none. Exponential at worst.

        Raises:
            SearchTooLongError: it is the worst.
        """
        everybody = set(range(len(self.sources)))
        open_pairs = [(everybody, everybody)]
        steps = 0
        while open_pairs:
            one, other = open_pairs.pop()
            steps += len(one) + len(other)
            if steps + self.struck > MAX_SEARCHED:
                raise SearchTooLongError
            shared = one & other
            if not shared:
                return one, other
            worker = min(shared)
            less = self.largest_in(one - {worker}, changed=[worker])
            if less:
                open_pairs.append((less, other))
            less = self.largest_in(other - {worker}, changed=[worker])
            if less:
                open_pairs.append((one, less))
        return None
