"""Neighbors that keep a gap (strategy `neighbor` with `sync.iteration_gap`): Hop's settings as they run.

Where every reduce takes all updates of its step, rounds are D-PSGD's recursion, and what holds of matrices holds. With
staleness, backup workers or skips a reduce takes what is there, and these claims are all there is. In both cases who
waits for whom is the event graph's matter. The theorems and numbers stand in `verify/checker/gaps.py`
and `verify/checker/events.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.iteration_gap import EdgeWeighting, IterationGap
from partreduce.verify.base import SHOWN, Claim, not_proved, refuted, some
from partreduce.verify.consensus import out_tree_of
from partreduce.verify.facts import (
    NONE,
    If,
    Numbers,
    ScheduleFacts,
    Statement,
    always,
    fact,
    sets_that_close_themselves,
)

EXPLORED = (
    " That the program obeys these rules is assumed; the machine that it runs was explored for small graphs "
    "(docs/internals/explorer.md)."
)


def gap_of(schedule: Schedule) -> IterationGap:
    """The setting of a schedule that has one."""
    assert isinstance(schedule.strategy.sync, IterationGap), "as its protocol says"
    return schedule.strategy.sync


BETWEEN_WORKERS = (
    fact(
        "deadlock-free",
        (
            (
                "Of the events of all workers (enter, send, reduce) take one that has happened least often, a send "
                "before a reduce before an enter: what it waits for without a token has happened, so nobody waits for "
                "ever."
            ),
            If(
                lambda s, _: gap_of(s).skip is not None,
                " Nobody waits for a skipped update: whoever could use it has left its step.",
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
            "One end of an edge can get ahead of the other without limit, where no path leads back.",
            "The two ends of an edge are never more than {bound} rounds apart, and can be; each edge's bound is exact.",
        ),
    ),
    fact(
        "gap-of-pairs",
        (
            "Worker {to} ",
            If(
                lambda _, n: n["bound"] == NONE,
                "gets ahead without limit of",
                "is at most {bound} rounds ahead of",
            ),
            " worker {from}; no two are further apart. Such a run exists.",
        ),
        witness=lambda n: {"from": n["from"], "to": n["to"]},
    ),
    fact(
        "skip",
        "No worker skips more than {most} steps at once, and none passes an out-neighbor.",
        lambda _, n: {"most": max(n["longest"])},
    ),
)
"""How far workers get apart, and what that takes, whatever a reduce averages."""

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
            " in places that are set aside at the start, and has at most {connections} neighbors. What it has on the "
            "way to others is bounded by the transport."
        ),
    ),
)


def _prove_mean_preserved(facts: ScheduleFacts) -> Claim | None:
    """Why the mean of all parameters moves: a property that a lossy setting cannot have, unless nobody listens."""
    schedule, gap = facts.schedule, gap_of(facts.schedule)
    spare = gap.backups(schedule.num_workers)
    listened = (edge for edge in schedule.strategy.graphs[0].edges() if edge[2] and (gap.staleness or spare[edge[1]]))
    source, target, weight = next(listened, (0, 0, 0))
    if not weight:
        return None
    if gap.skip is not None:
        how = "a worker that skips leaves updates out that its neighbors took in its stead"
    elif gap.staleness:
        how = "a worker may average an update of another step than its neighbor averages of it, or none"
    else:
        how = "a worker may do without an update while the one it came from takes its own"
    text = (
        f"{how}: the columns of such a round do not sum to 1, and the mean of all workers moves. Over edge "
        f"{source}→{target} with weight {weight} worker {target} may keep what worker {source} gives away."
    )
    claim = refuted("mean-preserved", text, {"edge": [int(source), int(target)], "weight": str(weight)})
    return replace(claim, is_property=True)


def _prove_consensus(facts: ScheduleFacts) -> Claim | None:
    """That all come to one value, by a tree of edges, or because no two sets can do without each other."""
    schedule, gap = facts.schedule, gap_of(facts.schedule)
    if gap.has_backup:
        return _prove_without_backup(facts, gap)
    return out_tree_of(schedule, counts_weights=gap.weights == "graph")


ALL_LISTEN = (
    "Of any two disjoint sets of workers one has a member with more in-neighbors outside than it may do without: all "
    "come to one common value whichever updates come late, and however late. It need not be the mean."
)


def _prove_without_backup(facts: ScheduleFacts, gap: IterationGap) -> Claim:
    """As the checker decides it; two sets that close themselves are the witness against it.

    It is a property of the worst case: which updates come late is up to the machines, and a fair run agrees although
    two such sets exist.
    """
    schedule = facts.schedule
    n, spare = schedule.num_workers, gap.backups(schedule.num_workers)
    sources: list[list[int]] = [[] for _ in range(n)]
    kept = [1.0] * n
    is_weighted = gap.weights is EdgeWeighting.GRAPH
    for source, target, weight in schedule.strategy.graphs[0].edges():
        if weight < 0 and is_weighted:
            return not_proved("consensus", f"the weight of edge {source}→{target} is negative.")
        kept[target] -= float(weight) if is_weighted else 0.0
        if weight > 0 or not is_weighted:
            sources[target].append(source)
    if min(kept) <= 1e-12:
        return not_proved(
            "consensus", f"worker {kept.index(min(kept))} keeps no weight on itself when all updates are there."
        )
    pair = halves(sources, spare)
    if pair is None and (claim := facts.claim("consensus", ALL_LISTEN)) is not None:
        return claim
    pair = pair or sets_that_close_themselves(sources, spare)
    assert pair is not None, "the checker found them, too"
    one, other = (sorted(half) for half in pair)
    text = (
        f"no worker of {some(one)} has more in-neighbors outside than it may do without, and none of {some(other)}: "
        "while updates from outside come late to every reduce, each set goes on by itself and keeps its own value. A "
        "run in which every edge is taken again and again agrees all the same."
    )
    summary = f"workers {some(one, SHOWN)} may never average with {some(other, SHOWN)}"
    return refuted("consensus", text, {"closed_sets": [one, other]}, summary)


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


def _needs_consensus(schedule: Schedule, _: Numbers) -> bool:
    """Unless it depends on what comes late; where a reduce is no average a worker may run off all the same."""
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
            " Every edge is followed again and again, with a delay that staleness and gap bound, so all workers come "
            "to one common value. It need not be the mean.",
        ),
        essential=_needs_consensus,
    ),
    *BETWEEN_WORKERS,
    STALENESS_OF_UPDATES,
    MEMORY_OF_QUEUES,
)
"""Where a reduce averages what is there."""
