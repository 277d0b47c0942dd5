"""Fact `consensus` where workers do without some of their in-neighbors (backup workers), whichever come late.

Let b(v) be the backup workers of v. Say that a set of workers *can close itself* if every member has at most b(v)
in-neighbors outside: it can then go on for ever on what its members send one another.

*Theorem.* All workers come to one value in every run if and only if no two disjoint sets can close themselves. A *run*
is one of the asynchronous model: a message takes any time, as long as the needs of events.py are kept.

*Only if,* in that model: let members of A start with 0 and those of B with 1, and let what comes from outside come late
to every reduce, which it may; A stays at 0 and B at 1. On machines whose messages never take that long such a run need
not exist, and they may agree all the same. *If:* in a stretch of so many steps as staleness, gap and longest skip
are together every worker averages something of all its in-neighbors but b(v) at most (consensus.py says why, under
staleness). Draw these edges. A set that no edge enters can close itself, so of the strongly connected parts of the
drawing only one has no edge into it, and from it edges lead to everyone. Own weights are positive, so n² such
stretches have in them n with one root in common, and with it a positive column, as in consensus.py. The value need not
be the mean.

Edges of weight 0 carry nothing and are left out, where the file's weights count. (For values that lie, LeBlanc, Zhang,
Koutsoukos and Sundaram ask likewise for two disjoint sets: Resilient asymptotic consensus in robust networks, IEEE
Journal on Selected Areas in Communications 31, 2013.)

**By degrees.** Of two disjoint sets one has at most n div 2 workers, so a member has at most n div 2 − 1
in-neighbors inside. If every worker has n div 2 or more besides its backups, no such set closes itself.

**By search.** Else: the union of sets that can close themselves can do so too. So each set U of workers holds a largest
one: strike workers that have more than b(v) in-neighbors outside what is left, until none has. Disjoint A and B lie in
U and V, both all workers at first; strike as said in each; a worker in both is struck from the one or from the other,
both are tried, and neither may become empty. What is left disjoint would be a counter-example.

It is stated where degrees or the search say so, and nothing is where the search finds two sets, or takes too long.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..averages import keeps_something
from ..refusal import Work
from ..schedule import Numbers, Schedule


def numbers(schedule: Schedule, work: Work) -> Numbers | None:
    """Nothing besides."""
    gap, edges = schedule.gap, schedule.rounds[0]
    assert gap is not None, "of a schedule that has no backup workers it is a claim"
    counts_weights = gap.weights == "graph"
    if not gap.has_backup or (counts_weights and not keeps_something(edges)):
        return None
    sources: list[list[int]] = [[] for _ in range(schedule.num_workers)]
    for target, source, weight in edges:
        if weight > 0 or not counts_weights:
            sources[target].append(source)
    spare = gap.backups(schedule.num_workers)
    if all(len(listed) - b >= len(sources) // 2 for listed, b in zip(sources, spare, strict=True)):
        return {}
    return None if two_closed_sets(sources, spare, work) else {}


def two_closed_sets(
    sources: Sequence[Sequence[int]], spare: Sequence[int], work: Work
) -> tuple[set[int], set[int]] | None:
    """Two disjoint sets of workers that can close themselves, None if there are none."""
    targets: list[list[int]] = [[] for _ in sources]
    for v, listed in enumerate(sources):
        for u in listed:
            targets[u].append(v)

    def struck(kept: set[int], without: set[int]) -> set[int]:
        """The largest set in `kept` less `without` that can close itself; `kept` can."""
        work.spend(1000 + 50 * len(kept))
        left = kept - without
        waiting = {v for u in without for v in targets[u] if v in left}
        while waiting:
            v = waiting.pop()
            if sum(u not in left for u in sources[v]) > spare[v]:
                left.discard(v)
                waiting.update(w for w in targets[v] if w in left)
        return left

    everybody = set(range(len(sources)))
    open_pairs = [(everybody, everybody)]
    while open_pairs:
        one, other = open_pairs.pop()
        shared = one & other
        if not shared:
            return one, other
        worker = min(shared)
        for first, second in ((struck(one, {worker}), other), (one, struck(other, {worker}))):
            if first and second:
                open_pairs.append((first, second))
    return None
