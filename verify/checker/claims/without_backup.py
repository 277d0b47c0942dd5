"""Claim `consensus` where workers do without some of their in-neighbours (backup workers), whichever come late.

Let b(v) be the backup workers of v. Say that a set of workers *can close itself* if every member has at most b(v)
in-neighbours outside: it can then go on for ever on what its members send one another.

*Theorem.* All workers come to one value in every run if and only if no two disjoint sets can close themselves.

*Only if:* let members of A start with 0 and those of B with 1, and let what comes from outside come late to every
reduce, which it may; A stays at 0 and B at 1. *If:* in a stretch of so many steps as staleness, gap and longest skip
are together every worker averages something of all its in-neighbours but b(v) at most (consensus.py says why, under
staleness). Draw these edges. A set that no edge enters can close itself, so of the strongly connected parts of the
drawing only one has no edge into it, and from it edges lead to everyone. Own weights are positive, so n² such
stretches have in them n with one root in common, and with it a positive column, as in consensus.py. The value need not
be the mean.

Edges of weight 0 carry nothing and are left out, where the file's weights count. (For values that lie, LeBlanc, Zhang,
Koutsoukos and Sundaram ask likewise for two disjoint sets: Resilient asymptotic consensus in robust networks, IEEE
Journal on Selected Areas in Communications 31, 2013.)

**Method `degrees`.** Of two disjoint sets one has at most n div 2 workers, so a member has at most n div 2 − 1
in-neighbours inside. If every worker has n div 2 or more besides its backups, no such set closes itself.

**Method `search`.** The union of sets that can close themselves can do so too. So each set U of workers holds a largest
one: strike workers that have more than b(v) in-neighbours outside what is left, until none has. Disjoint A and B lie in
U and V, both all workers at first; strike as said in each; a worker in both is struck from the one or from the other,
both are tried, and neither may become empty. What is left disjoint would be a counter-example.

*The checks are sound because* they read the degrees off the schedule, or try everything themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..refusal import Work, confirm
from .consensus import keeps_something

if TYPE_CHECKING:
    from ..schedule import Schedule


def check_by_degrees(schedule: Schedule, entry: dict[str, Any], place: str) -> None:  # noqa: ARG001 - as the others
    """Nothing besides: the degrees are in the schedule."""
    sources = _sources(schedule, place)
    spare = schedule.events.backup
    are_enough = all(len(s) - b >= schedule.num_workers // 2 for s, b in zip(sources, spare, strict=True))
    confirm(are_enough, place, "degrees", "n div 2 in-neighbours or more besides the backups at every worker")


def check_by_search(schedule: Schedule, entry: dict[str, Any], place: str) -> None:  # noqa: ARG001 - as the others
    """Nothing besides: the search is done again."""
    sources, spare, work = _sources(schedule, place), schedule.events.backup, Work()
    targets: list[list[int]] = [[] for _ in sources]
    for v, listed in enumerate(sources):
        for u in listed:
            targets[u].append(v)

    def struck(kept: set[int], without: set[int]) -> set[int]:
        """The largest set in `kept` less `without` that can close itself; `kept` can."""
        work.spend(1000 + 50 * len(kept), place)
        left = kept - without
        waiting = {v for u in without for v in targets[u] if v in left}
        while waiting:
            v = waiting.pop()
            if v in left and sum(u not in left for u in sources[v]) > spare[v]:
                left.discard(v)
                waiting.update(w for w in targets[v] if w in left)
        return left

    everybody = set(range(schedule.num_workers))
    open_pairs = [(everybody, everybody)]
    while open_pairs:
        one, other = open_pairs.pop()
        shared = one & other
        confirm(shared, place, [sorted(one)[:20], sorted(other)[:20]], "no two sets that can close themselves")
        worker = min(shared)
        for first, second in ((struck(one, {worker}), other), (one, struck(other, {worker}))):
            if first and second:
                open_pairs.append((first, second))


def _sources(schedule: Schedule, place: str) -> list[list[int]]:
    """Of every worker the in-neighbours whose updates weigh something."""
    gap = schedule.gap
    counts_weights = gap is not None and gap.weights == "graph"
    edges = schedule.rounds[0]
    is_sound = not counts_weights or keeps_something(edges)
    confirm(is_sound, place, "a weight", "positive weights on oneself, and none negative")
    sources: list[list[int]] = [[] for _ in range(schedule.num_workers)]
    for target, source, weight in edges:
        if weight > 0 or not counts_weights:
            sources[target].append(source)
    return sources
