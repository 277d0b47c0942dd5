"""BlueFog: weighted networkx DiGraphs and its one-peer generators, sampled over their period."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import islice
from math import lcm
from typing import TYPE_CHECKING, Any

from partreduce.schedulers.imports.base import schedule
from partreduce.topo.errors import ScheduleError
from partreduce.topo.round import Round

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import networkx as nx

    from partreduce.topo.cluster import Cluster
    from partreduce.topo.graphs.base import Graph
    from partreduce.topo.schedule import Schedule

    Ranks = tuple[Sequence[int], Sequence[int]]

MAX_PERIOD = 10_000


def one_peer_rounds(graph: Graph) -> list[Round]:
    """BlueFog's one-peer rule over a graph: in round t every worker sends to one of its out-neighbours.

    A worker's out-neighbours are sorted clockwise, from itself upwards and around, and taken in turn, number
    t mod their count. Whoever hears from r workers gives each of them and itself the weight 1/(r + 1), as BlueFog's
    examples do. Where degrees differ (star, mesh) several workers send to one: such rounds are not doubly stochastic,
    and the workers agree on a biased average. `verify` says so.

    Raises:
        ScheduleError: a worker without out-neighbours, or a period above 10,000 rounds.
    """
    n = graph.num_workers
    targets: list[list[int]] = [[] for _ in range(n)]
    for source, target in zip(graph.sources.tolist(), graph.targets.tolist(), strict=True):
        targets[source].append(target)
    for worker, heard_by in enumerate(targets):
        if not heard_by:
            raise ScheduleError(f"worker {worker}: sends to nobody; every worker of a one-peer schedule sends")
        heard_by.sort(key=lambda other, own=worker: (other - own) % n)  # type: ignore[misc]
    period = lcm(*(len(heard_by) for heard_by in targets))
    if period > MAX_PERIOD:
        raise ScheduleError(
            f"one-peer: the period is {period} rounds, the least common multiple of the degrees; "
            f"at most {MAX_PERIOD} are read"
        )
    return [_round(n, [(i, heard_by[t % len(heard_by)]) for i, heard_by in enumerate(targets)]) for t in range(period)]


def one_peer(
    graph: nx.DiGraph[Any] | nx.Graph[Any], *, name: str = "bluefog-one-peer", cluster: Cluster | None = None
) -> Schedule:
    """The one-peer schedule that BlueFog runs over a topology.

    Raises:
        ScheduleError: as `one_peer_rounds`, or a cluster of another size.
    """
    from partreduce.topo.graphs.base import Graph

    return schedule(name, one_peer_rounds(Graph.from_networkx(graph)), cluster)


def sampled_generator(
    make: Callable[[int], Iterator[Ranks]],
    num_workers: int,
    rounds: int,
    *,
    name: str = "bluefog-generator",
    cluster: Cluster | None = None,
) -> Schedule:
    """The schedule of a dynamic generator: `make(rank)` yields (send ranks, receive ranks) for every round.

    Take its period for `rounds`. Weights are 1/(number of receive ranks + 1), as BlueFog's examples set them.

    Raises:
        ScheduleError: a generator that ends early or fails, ranks out of range, or senders and receivers that do not
            match; the message names round and rank.
    """
    if not 1 <= rounds <= MAX_PERIOD:
        raise ScheduleError(f"rounds: is {rounds}; sample between 1 and {MAX_PERIOD}")
    sampled = [_sample(make, worker, num_workers, rounds) for worker in range(num_workers)]
    collected = []
    for t in range(rounds):
        sent = {(worker, other) for worker in range(num_workers) for other in sampled[worker][t][0]}
        heard = {(other, worker) for worker in range(num_workers) for other in sampled[worker][t][1]}
        if sent != heard:
            a, b = min(sent ^ heard)
            done, missing = (
                ("sends to", "does not receive from") if (a, b) in sent else ("is not sending to", "waits for")
            )
            raise ScheduleError(f"round {t}: worker {a} {done} worker {b}, which {missing} worker {a}")
        collected.append(_round(num_workers, sorted(sent)))
    return schedule(name, collected, cluster)


def _sample(make: Callable[[int], Iterator[Ranks]], worker: int, count: int, rounds: int) -> list[Ranks]:
    try:
        sampled = list(islice(make(worker), rounds))
    except Exception as error:
        raise ScheduleError(f"generator of worker {worker}: fails with {type(error).__name__}: {error}") from error
    if len(sampled) < rounds:
        raise ScheduleError(f"generator of worker {worker}: ends after {len(sampled)} rounds; {rounds} are asked for")
    for t, pair in enumerate(sampled):
        for other in (*pair[0], *pair[1]):
            if not 0 <= other < count or other == worker:
                what = "itself" if other == worker else f"rank {other}; ranks are 0..{count - 1}"
                raise ScheduleError(f"round {t}: worker {worker} is paired with {what}")
    return sampled


def _round(count: int, arcs: Sequence[tuple[int, int]]) -> Round:
    heard = Counter(target for _, target in arcs)
    weights = [Fraction(1, 1 + r) for r in range(max(heard.values(), default=0) + 1)]
    return Round.from_arrays(
        count, [a for a, _ in arcs], [b for _, b in arcs], weights, [heard[target] for _, target in arcs]
    )
