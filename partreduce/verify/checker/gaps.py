"""Facts of iteration gaps, by the rules of Hop: rounds between workers, queues, and the age of averaged updates.

The needs of events.py are the rules that the program is assumed to obey; the theorems stand there. A worker is in a
round from the instant it enters it.

* `deadlock-free`: no worker waits for ever.
* `gap`: the two ends of an edge are never more than `bound` rounds apart; −1 where one can get ahead without limit.
  It is attained.
* `queues`: at v, for every edge (u, v) in order, an update waits for each of the rounds Round(v) … Round(u), at most
  (Round(u) − Round(v)) + 1 = `update`; max_ig + Round(v) − Round(u) tokens wait, at most `token` (−1: no limit).
* `staleness`: a reduce of round k averages updates of round k − `steps` at the earliest, and k + `ahead` at the latest:
  without staleness of round k only; with it, of a round that the setting admits, and of which a worker so far ahead can
  have sent the update. In the parallel order an update holds its worker's steps before it entered the round, so one
  round less.
* `memory`: the most `places` for payloads that one worker has for all its in-neighbors, and its `connections`. An
  in-neighbor has as many places as its updates can wait; under staleness one, because a newer update replaces an older
  one, and a reduce needs only the newest. Models in flight are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import inf

from .events import KeptGap
from .refusal import Work
from .rounds import NONE
from .schedule import Numbers, Schedule, keeps_something
from .traffic import most_neighbors


def gap(schedule: Schedule, work: Work) -> Numbers:
    """Fact `gap`: return `bound`, the most rounds between the two ends of an edge; −1 without limit."""
    return {"bound": _number(max(chain.from_iterable(schedule.events.bounds(work).values()), default=0))}


def queues(schedule: Schedule, work: Work) -> Numbers:
    """Fact `queues`: return for each edge the most waiting updates (`update`) and, with max_ig, tokens (`token`)."""
    bounds, max_ig = schedule.events.bounds(work), _setting(schedule).max_ig
    update = {"update": [_number(ahead + 1) for ahead, _ in bounds.values()]}
    return update if max_ig is None else update | {"token": [_number(back + max_ig) for _, back in bounds.values()]}


def staleness(schedule: Schedule, work: Work) -> Numbers:
    """Fact `staleness`: return by how many rounds at most an averaged update is older (`steps`) or newer (`ahead`)."""
    late = _setting(schedule).staleness
    ahead = max((pair[0] for pair in schedule.events.bounds(work).values()), default=0) if late else 0
    return {"steps": late + schedule.lag, "ahead": int(ahead)}


def memory(schedule: Schedule, work: Work) -> Numbers:
    """Fact `memory`: return the most updates that a worker stores (`places`) and its most neighbors (`connections`)."""
    places = [0] * schedule.num_workers
    for (_, v), (ahead, _) in schedule.events.bounds(work).items():
        places[v] += 1 if _setting(schedule).staleness else int(ahead) + 1
    return {"places": max(places), "connections": most_neighbors(schedule.rounds)}


def _setting(schedule: Schedule) -> KeptGap:
    assert schedule.gap is not None, "these facts are of nothing else"
    return schedule.gap


def _number(bound: float) -> int:
    return NONE if bound == inf else int(bound)


def consensus(schedule: Schedule, work: Work) -> Numbers | None:
    """Fact `consensus`, by the rules, where reduces may leave out the latest in-neighbors (backup workers).

    Let b(v) be the number of backup workers of v. A set of workers *can close itself* if every member has at most b(v)
    in-neighbors outside: it can continue for ever on the updates of its own members.

    *Theorem.* All workers reach a common value in every run if and only if no two disjoint sets can close themselves. A
    *run* is one of the asynchronous model: a message takes any time, as long as the needs of `events.py` are kept.

    *Only if,* in that model: let A and B be two such sets. Let members of A start with 0 and those of B with 1, and let
    updates from outside arrive late for every reduce; A stays at 0 and B at 1. On machines whose messages never take
    that long such a run need not exist. *If:* in a stretch of as many steps as staleness, gap and longest skip are
    together, every worker averages an update of each of its in-neighbors but b(v) at most (`consensus.py`, under
    staleness). Take the graph of these edges. A set that no edge enters can close itself, so only one strongly
    connected component of the graph has no edge into it, and from it edges lead to all workers. Own weights are
    positive, so n² such stretches contain n with one root in common, and with it a positive column, as in
    `consensus.py`. The value need not be the mean.

    Edges of weight 0 carry nothing and are left out, where the file's weights count. (For values that lie, LeBlanc,
    Zhang, Koutsoukos and Sundaram have a similar condition on two disjoint sets: Resilient asymptotic consensus in
    robust networks, IEEE Journal on Selected Areas in Communications 31, 2013.)

    **By degrees.** Of two disjoint sets one has at most n div 2 workers, so a member has at most n div 2 − 1
    in-neighbors inside. If every worker has n div 2 or more in-neighbors besides its backups, no such set closes
    itself.

    **By search.** The union of sets that can close themselves can do so too. So each set U of workers contains a
    largest one: remove workers that have more than b(v) in-neighbors outside the remaining set, until there are none.
    Disjoint A and B lie in U and V, both all workers at first; remove workers in this way from each; a worker in both
    is removed from one or the other, both cases are tried, and neither set may become empty. Disjoint remaining sets
    are a counterexample.

    The fact is stated if degrees or the search prove it; there is no statement if the search finds two sets, or takes
    too long.
    """
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
    """Return two disjoint sets in which each member v has at most spare[v] sources outside (`consensus`), or None."""
    targets: list[list[int]] = [[] for _ in sources]
    for v, listed in enumerate(sources):
        for u in listed:
            targets[u].append(v)

    def struck(kept: set[int], without: set[int]) -> set[int]:
        """Return the largest subset of `kept` less `without` whose members v have at most spare[v] sources outside."""
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
