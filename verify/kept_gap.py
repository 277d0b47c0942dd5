"""Claims about neighbours that keep a gap (strategy `neighbor` with `when.gap`): Hop's settings as they run.

Where every reduce takes all updates of its step, rounds are D-PSGD's recursion, and what holds of matrices holds. With
staleness, backup workers or skips a reduce takes what is there, and these claims are all there is. In both cases who
waits for whom is the event graph's matter (`verify.gaps`). The theorems stand in `verify/checker/claims/apart.py` and
`verify/checker/gaps/events.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.topo.strategies.gap import Gap, Weights
from partreduce.verify.base import Claim, Status, not_proved, proved, refuted
from partreduce.verify.gaps.certificate import NONE, queues_entry, ticks, worst_pair
from partreduce.verify.gaps.event_graph import event_graph
from partreduce.verify.gaps.liveness import dead_cycle
from partreduce.verify.gaps.skip import longest_skips_by_edges
from partreduce.verify.graph import out_tree_of, prove_graph
from partreduce.verify.stochastic import DOUBLY, keeps_something
from partreduce.verify.without_backup import prove_without_backup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partreduce.topo.schedule import Schedule

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
    events = event_graph(graph, gap)
    cycle = dead_cycle(events)
    if cycle is not None:
        names = [events.name(event) for event in cycle]
        return [refuted("deadlock-free", "waiting in a circle: " + " → ".join(names) + ".", {"circle": names})]
    live = (
        "Every worker's events (enter, send, reduce) carry ticks that grow along everything that waits without a "
        "token: of the workers that did least, the one with the earliest tick can go on, so nobody waits for ever."
    )
    if gap.skip is not None:
        live += " Nobody waits for a skipped update: whoever could use it has left its step."
    claims = [proved("deadlock-free", live, method="events", ticks=ticks(events))]
    entry = queues_entry(graph, gap, events)
    bounds: list[list[int]] = entry["bounds"]
    both = [bound for pair in bounds for bound in pair]
    free = sum(pair.count(NONE) for pair in bounds)
    most = max(entry["update"], default=0)
    text = f"At most {most} updates of an in-neighbour wait for a worker"
    if gap.max_ig is not None:
        text += f", and at most {max(entry['token'], default=0)} tokens of an out-neighbour"
    text += f"; {free} of {len(both)} gaps over an edge have no bound." if free else "."
    claims.append(proved("queues", text, **{k: v for k, v in entry.items() if k != "claim"}, method="events"))
    claims.append(_gap(both))
    if schedule.num_workers <= MAX_PAIRS:
        claims.append(_gap_of_pairs(graph, events))
    if gap.skip is not None:
        longest = longest_skips_by_edges(graph, gap, bounds)
        text = f"No worker skips more than {max(longest)} steps at once, and none passes an out-neighbour."
        claims.append(proved("skip", text, longest=list(longest)))
    if not gap.takes_all:
        claims.append(_staleness(schedule, gap, bounds))
    claims.append(_memory(graph, gap, entry["update"]))
    return claims


def _gap(both: Sequence[int]) -> Claim:
    if NONE in both:
        text = "One end of an edge can get ahead of the other without limit, where no path leads back."
        return proved("gap", text, bound=NONE)
    bound = max(both, default=0)
    text = f"The two ends of an edge are never more than {bound} rounds apart, and can be; each edge's bound is exact."
    return proved("gap", text, bound=bound)


def _gap_of_pairs(graph: Digraph, events: object) -> Claim:
    entry = worst_pair(graph, events)  # type: ignore[arg-type]
    bound = entry["bound"]
    says = "gets ahead without limit of" if bound == NONE else f"is at most {bound} rounds ahead of"
    text = f"Worker {entry['to']} {says} worker {entry['from']}; no two are further apart. Such a run exists."
    return proved("gap-of-pairs", text, **{k: v for k, v in entry.items() if k != "claim"})


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
    if any(pair[0] == NONE for pair in bounds):
        return not_proved("staleness", "an update queue has no bound.")
    steps = gap.staleness + schedule.strategy.when.lag
    ahead = max((pair[0] for pair in bounds), default=0) if gap.staleness else 0
    text = "A reduce averages updates of its own round"
    if gap.staleness:
        text += f", of at most {gap.staleness} rounds before it, and of workers that are ahead at most {ahead} after it"
    text += "; an update is what its worker had before it entered the round." if schedule.strategy.when.lag else "."
    return proved("staleness", text, method="events", steps=steps, ahead=ahead)


def _memory(graph: Digraph, gap: Gap, update: Sequence[int]) -> Claim:
    if NONE in update:
        return not_proved("memory", "an update queue has no bound.")
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
    return proved("memory", text, method="events", places=most, connections=connections)
