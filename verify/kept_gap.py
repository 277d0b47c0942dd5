"""Claims about neighbours that keep a gap (strategy `neighbor` with `when.gap`): Hop's settings as they run.

Where every reduce takes all updates of its step, rounds are D-PSGD's recursion, and what holds of matrices holds. With
staleness, backup workers or skips a reduce takes what is there, and these claims are all there is. In both cases who
waits for whom is the event graph's matter (`verify.gaps`). The theorems stand in `verify/checker/facts/kept_gap.py` and
`verify/checker/events.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from operator import itemgetter

from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.gap import Gap, Weights
from partreduce.verify.base import Claim, Status, follows, refuted
from partreduce.verify.gaps.exact import ENTER, distances_near, events_near
from partreduce.verify.gaps.skip import longest_skips
from partreduce.verify.graph import out_tree_of, prove_graph
from partreduce.verify.stochastic import DOUBLY, keeps_something
from partreduce.verify.without_backup import prove_without_backup

EXPLORED = (
    "That the program obeys these rules is assumed; the machine that it runs was explored for small graphs "
    "(docs/internals/explorer.md)."
)
NONE = -1
"""There is no bound."""

MAX_PAIRS = 256
"""Workers up to which the gap of every two of them is bounded; over edges it is for any number."""


def prove_kept_gap(schedule: Schedule) -> tuple[Claim, ...]:
    """All claims; near-linear in edges but for those of matrices and of all pairs, which stop at stated sizes."""
    gap = schedule.strategy.when
    assert isinstance(gap, Gap), "as its protocol says"
    claims: list[Claim | None] = [_mean(schedule, gap), _consensus(schedule, gap)]
    if gap.takes_all:
        claims = list(prove_graph(schedule))
    kept = (claim for claim in claims if claim is not None and claim.claim != "deadlock-free")
    return (*kept, *_apart(schedule, gap, Digraph.from_edges_of(schedule.strategy.graphs[0])))


def essential_of_kept_gap(schedule: Schedule) -> frozenset[str]:
    """Besides order and queues: what must hold of matrices; that all agree, unless it depends on what comes late."""
    gap = schedule.strategy.when
    if schedule.is_mixing:
        return frozenset({DOUBLY, "consensus"})
    assert isinstance(gap, Gap), "as its protocol says"
    # Where a reduce is no average a worker may run off, whichever updates come late.
    is_average = gap.weights is not Weights.GRAPH or keeps_something(schedule.strategy.graphs[0])
    return frozenset() if gap.has_backup and is_average else frozenset({"consensus"})


def _apart(schedule: Schedule, gap: Gap, graph: Digraph) -> list[Claim]:
    live = (
        "Of the events of all workers (enter, send, reduce) take one that has happened least often, a send before a "
        "reduce before an enter: what it waits for without a token has happened, so nobody waits for ever."
    )
    if gap.skip is not None:
        live += " Nobody waits for a skipped update: whoever could use it has left its step."
    claims = [follows("deadlock-free", f"{live} {EXPLORED}")]
    bounds = _bounds(graph, gap)
    both = [bound for pair in bounds for bound in pair]
    update = [_plus(ahead, 1) for ahead, _ in bounds]
    numbers = {"update": update}
    text = f"At most {max(update, default=0)} updates of an in-neighbour wait for a worker"
    if gap.max_ig is not None:
        numbers["token"] = [_plus(back, gap.max_ig) for _, back in bounds]
        text += f", and at most {max(numbers['token'], default=0)} tokens of an out-neighbour"
    free = both.count(NONE)
    text += f"; {free} of {len(both)} gaps over an edge have no bound." if free else "."
    claims += [follows("queues", text, **numbers), _gap(both)]
    if schedule.num_workers <= MAX_PAIRS:
        claims.append(_gap_of_pairs(graph, gap))
    if gap.skip is not None:
        longest = longest_skips(graph, gap, bounds)
        text = f"No worker skips more than {max(longest)} steps at once, and none passes an out-neighbour."
        claims.append(follows("skip", text, longest=list(longest)))
    if not gap.takes_all:
        claims.append(_staleness(schedule, gap, bounds))
    claims.append(_memory(graph, gap, update))
    return claims


def _bounds(graph: Digraph, gap: Gap) -> list[list[int]]:
    """[Step(u) − Step(v), Step(v) − Step(u)] at most over every edge (u, v), from what is near each worker."""
    spare = gap.backups(graph.num_workers)
    near = [events_near(graph, gap, v, {*graph.sources[v], *graph.targets[v]}, spare) for v in range(graph.num_workers)]
    return [[near[v].get((ENTER, u), NONE), near[u].get((ENTER, v), NONE)] for u, v in graph.edges]


def _plus(bound: int, amount: int) -> int:
    return NONE if bound == NONE else bound + amount


def _gap(both: Sequence[int]) -> Claim:
    if NONE in both:
        text = "One end of an edge can get ahead of the other without limit, where no path leads back."
        return follows("gap", text, bound=NONE)
    bound = max(both, default=0)
    text = f"The two ends of an edge are never more than {bound} rounds apart, and can be; each edge's bound is exact."
    return follows("gap", text, bound=bound)


def _gap_of_pairs(graph: Digraph, gap: Gap) -> Claim:
    """The two workers that can be furthest apart. O(n · arcs · log)."""
    worst = (-1.0, 0, 0)
    everybody = range(graph.num_workers)
    for j in everybody:
        for i, lead in sorted(distances_near(graph, gap, j, everybody).items()):
            worst = max(worst, (inf if lead is None else lead, j, i), key=itemgetter(0))
    ahead, start, end = worst
    bound = NONE if ahead == inf else int(ahead)
    says = "gets ahead without limit of" if bound == NONE else f"is at most {bound} rounds ahead of"
    text = f"Worker {end} {says} worker {start}; no two are further apart. Such a run exists."
    return follows("gap-of-pairs", text, {"from": start, "to": end}, **{"from": start, "to": end, "bound": bound})


def _mean(schedule: Schedule, gap: Gap) -> Claim | None:
    """Why the mean of all parameters moves: a property that a lossy setting cannot have, unless nobody listens."""
    spare = gap.backups(schedule.num_workers)
    listened = (edge for edge in schedule.strategy.graphs[0].edges() if edge[2] and (gap.staleness or spare[edge[1]]))
    source, target, weight = next(listened, (0, 0, 0))
    if not weight:
        return None
    if gap.skip is not None:
        how = "a worker that skips leaves updates out that its neighbours took in its stead"
    elif gap.staleness:
        how = "a worker may average an update of another step than its neighbour averages of it, or none"
    else:
        how = "a worker may do without an update while the one it came from takes its own"
    text = (
        f"{how}: the columns of such a round do not sum to 1, and the mean of all workers moves. Over edge "
        f"{source}→{target} with weight {weight} worker {target} may keep what worker {source} gives away."
    )
    claim = refuted("mean-preserved", text, {"edge": [int(source), int(target)], "weight": str(weight)})
    return replace(claim, is_property=True)


def _consensus(schedule: Schedule, gap: Gap) -> Claim:
    if gap.has_backup:
        return prove_without_backup(schedule, gap)
    claim = out_tree_of(schedule, counts_weights=gap.weights == "graph")
    if claim.status is not Status.PROVED:
        return claim
    text = (
        f"{claim.explanation} Every edge is followed again and again, with a delay that staleness and gap bound, so "
        "all workers come to one common value. It need not be the mean."
    )
    return Claim(claim.claim, claim.status, text, claim.witness, claim.entry)


def _staleness(schedule: Schedule, gap: Gap, bounds: Sequence[Sequence[int]]) -> Claim:
    steps = gap.staleness + schedule.strategy.when.lag
    ahead = max((pair[0] for pair in bounds), default=0) if gap.staleness else 0
    text = "A reduce averages updates of its own round"
    if gap.staleness:
        text += f", of at most {gap.staleness} rounds before it, and of workers that are ahead at most {ahead} after it"
    text += "; an update is what its worker had before it entered the round." if schedule.strategy.when.lag else "."
    return follows("staleness", text, steps=steps, ahead=ahead)


def _memory(graph: Digraph, gap: Gap, update: Sequence[int]) -> Claim:
    places = [0] * graph.num_workers
    for (_, v), capacity in zip(graph.edges, update, strict=True):
        places[v] += 1 if gap.staleness else capacity
    neighbours = (len({*graph.sources[v], *graph.targets[v]}) for v in range(graph.num_workers))
    most, connections = max(places), max(neighbours)
    text = (
        f"A worker keeps at most {most} models of its in-neighbours"
        + (", the newest of each," if gap.staleness else "")
        + f" in places that are set aside at the start, and has at most {connections} neighbours. What it has on the "
        "way to others is bounded by the transport."
    )
    return follows("memory", text, places=most, connections=connections)
