"""Prove claims about iteration gaps (strategy `neighbor` with `sync.iteration_gap`), with Hop's settings.

If every reduce takes all updates of its step, rounds are D-PSGD's recursion, and the claims about matrices hold. With
staleness, backup workers or skips a reduce takes the available updates, and only the claims of this module hold. In
both cases the event graph determines which worker waits for which. The theorems and numbers are in
`verify/checker/gaps.py` and `verify/checker/events.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.iteration_gap import EdgeWeighting, IterationGap
from partreduce.verify.base import SHOWN, Claim, not_proved, refuted, some
from partreduce.verify.checker.claims import MAX_WORK
from partreduce.verify.checker.gaps import two_closed_sets
from partreduce.verify.checker.refusal import Work
from partreduce.verify.consensus import out_tree_of, why_no_average
from partreduce.verify.facts import NONE, If, Numbers, ScheduleFacts, Statement, always, fact

EXPLORED = (
    " That the program obeys these rules is assumed; the machine that it runs was explored for small graphs "
    "(docs/internals/explorer.md)."
)


def gap_of(schedule: Schedule) -> IterationGap:
    """Return the iteration-gap settings of a schedule whose protocol is an iteration gap."""
    assert isinstance(schedule.strategy.sync, IterationGap), "as its protocol says"
    return schedule.strategy.sync


BETWEEN_WORKERS = (
    fact(
        "deadlock-free",
        (
            (
                "Of the events of all workers (enter, send, reduce) take one that has happened least often, a send "
                "before a reduce before an enter: everything that it waits for has happened, so no worker waits for "
                "ever."
            ),
            If(
                lambda s, _: gap_of(s).skip is not None,
                " No worker waits for a skipped update: those that could use it have left its step.",
            ),
            EXPLORED,
        ),
        essential=always,
    ),
    fact(
        "queues",
        (
            "At most {updates} updates of an in-neighbor wait for a worker",
            If(lambda _, n: "token" in n, ", and at most {tokens} tokens of an out-neighbor"),
            If(lambda _, n: NONE in n.get("token", ()), "; {free} of {edges} queues of tokens have no bound"),
            ".",
        ),
        lambda _, n: {
            "updates": max(n["update"], default=0),
            "tokens": max(n.get("token", ()), default=0),
            "free": n.get("token", []).count(NONE),
            "edges": len(n["update"]),
        },
        essential=always,
    ),
    fact(
        "gap",
        If(
            lambda _, n: n["bound"] == NONE,
            "One end of an edge can get ahead of the other without limit where no path leads back.",
            "The two ends of an edge are never more than {bound} rounds apart, and can be; each edge's bound is exact.",
        ),
    ),
)
"""Statements about waiting, queues and the distance between workers, for any kind of reduce."""

STALENESS_OF_UPDATES = fact(
    "staleness",
    (
        "A reduce averages updates of its own round",
        If(
            lambda s, _: gap_of(s).staleness,
            ", of at most {late} rounds before it, and of workers that are ahead at most {ahead} after it",
        ),
        If(
            lambda s, _: s.strategy.sync.lag,
            "; an update is what its worker had before it entered the round.",
            ".",
        ),
    ),
    lambda s, _: {"late": gap_of(s).staleness},
)

MEMORY_OF_QUEUES = fact(
    "memory",
    (
        "A worker keeps at most {places} models of its in-neighbors",
        If(lambda s, _: gap_of(s).staleness, ", the newest of each,"),
        (
            " in buffers allocated at the start, and has at most {connections} neighbors. The transport bounds the "
            "updates that it has in transit."
        ),
    ),
)


def _prove_mean_preserved(facts: ScheduleFacts) -> Claim | None:
    """Refute `mean-preserved` by an edge whose target may average without the source's update; None without any."""
    schedule, gap = facts.schedule, gap_of(facts.schedule)
    spare = gap.backups(schedule.num_workers)
    listened = (edge for edge in schedule.strategy.graphs[0].edges() if edge[2] and (gap.staleness or spare[edge[1]]))
    source, target, weight = next(listened, (0, 0, 0))
    if not weight:
        return None
    if gap.skip is not None:
        how = "A worker that skips leaves out updates that its neighbors averaged"
    elif gap.staleness:
        how = "A worker may average an update of another step than its neighbor averages, or none"
    else:
        how = "A worker may average without an update whose sender averages that of the worker"
    text = (
        f"{how}: the columns of such a round do not sum to 1, and the mean of all workers moves. Over edge "
        f"{source}→{target} with weight {weight} worker {target} may keep what worker {source} gives away."
    )
    claim = refuted("mean-preserved", text, {"edge": [int(source), int(target)], "weight": str(weight)})
    return replace(claim, is_property=True)


ALL_LISTEN = (
    "Of any two disjoint sets of workers one has a member with more in-neighbors outside than it has backup workers: "
    "all workers reach one common value whichever updates are late, and however late. It need not be the mean."
)


def _prove_consensus(facts: ScheduleFacts) -> Claim | None:
    """Prove that all workers reach one value, or refute it by two sets of workers that need no update from outside.

    Without backup workers a tree of edges proves it. With them, some run fails exactly if two disjoint sets of workers
    need no update from outside. This is a worst case: in a run in which every edge delivers again and again, all
    workers agree even if two of these sets exist.
    """
    schedule, gap = facts.schedule, gap_of(facts.schedule)
    is_weighted = gap.weights is EdgeWeighting.GRAPH
    if not gap.has_backup:
        return out_tree_of(schedule, counts_weights=is_weighted)
    if is_weighted and (why := why_no_average(schedule.strategy.graphs)):
        return not_proved("consensus", why)
    n, spare = schedule.num_workers, gap.backups(schedule.num_workers)
    sources: list[list[int]] = [[] for _ in range(n)]
    for source, target, weight in schedule.strategy.graphs[0].edges():
        if weight > 0 or not is_weighted:
            sources[target].append(source)
    pair = halves(sources, spare)
    if pair is None and (claim := facts.claim("consensus", ALL_LISTEN)) is not None:
        return claim
    pair = pair or two_closed_sets(sources, spare, Work("consensus", MAX_WORK))
    assert pair is not None, "the checker found them, too"
    one, other = (sorted(half) for half in pair)
    text = (
        f"no worker of {some(one)} has more in-neighbors outside the set than it has backup workers, and none of "
        f"{some(other)}: while updates from outside are late at every reduce, each set keeps its own value. A run in "
        "which every edge is used again and again reaches consensus."
    )
    summary = f"workers {some(one, SHOWN)} may never average with {some(other, SHOWN)}"
    return refuted("consensus", text, {"closed_sets": [one, other]}, summary)


def halves(sources: Sequence[Sequence[int]], spare: Sequence[int]) -> tuple[set[int], set[int]] | None:
    """Return two disjoint sets of workers that need no update from outside; None if a quick search finds none.

    A set needs none if each member has at most as many in-neighbors outside as it has backup workers (updates that it
    need not wait for): the set can then train for ever without the others, so two of these sets refute consensus.
    `sources` holds the in-neighbors of every worker, `spare` each worker's number of backup workers.
    """
    n = len(sources)
    targets: list[list[int]] = [[] for _ in sources]
    for v, listed in enumerate(sources):
        for u in listed:
            targets[u].append(v)

    def largest_in(allowed: set[int]) -> set[int]:
        """Return the largest subset of `allowed` that needs no update from outside; O(edges)."""
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


def _needs_consensus(schedule: Schedule, _: Numbers) -> bool:
    """Return whether consensus is essential: not if backup workers make it depend on which updates are late.

    With backup workers it is essential only if a weight is negative, or a worker keeps no weight on its own model.
    """
    gap = gap_of(schedule)
    is_average = gap.weights is not EdgeWeighting.GRAPH or schedule.strategy.graphs[0].keeps_something
    return not (gap.has_backup and is_average)


LOSSY_GAP = (
    Statement("mean-preserved", _prove_mean_preserved),
    Statement(
        "consensus",
        _prove_consensus,
        If(
            lambda s, _: not gap_of(s).has_backup,
            " Every edge is used again and again, with a delay that staleness and gap bound, so all workers reach one "
            "common value. It need not be the mean.",
        ),
        essential=_needs_consensus,
    ),
    *BETWEEN_WORKERS,
    STALENESS_OF_UPDATES,
    MEMORY_OF_QUEUES,
)
"""Statements for reduces that average only the updates available at the time."""
