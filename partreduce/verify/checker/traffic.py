"""Facts `memory` and `sent-bytes`: the arrays and communicators that a run keeps, and the bytes that it sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain
from math import prod
from operator import mul
from typing import Any, NamedTuple

from .refusal import Work
from .rounds import fragments
from .schedule import BLOCKS, PLAIN, Average, Edge, Numbers, Schedule

Groups = frozenset[tuple[tuple[int, ...], tuple[int, ...]]]
"""The distinct groups, or blocks of a rule, of a phase, each as (members, across)."""


def memory(schedule: Schedule, _: Work) -> Numbers:
    """Fact `memory`: return the number of communicators and arrays of the busiest worker.

    * `groups`: the most distinct groups (communicators) that one worker is in, over the period and the prologue, whose
      rounds have one group of all workers. 0 for weighted graphs, which exchange with single workers. With the codecs
      int8 and int4 a group that a ring sums counts twice: a thread sums it over a separate communicator.
    * `connections`: the most other members that one worker has in its distinct groups, counted once for each group; for
      weighted graphs the most workers that it sends to or receives from.
    * `splits`: the distinct phases (or graphs) of the period that have a group (or an edge).
    * `arrays`: the most arrays of the parameters' size that are kept in addition to the parameters: one for the sums,
      or K in a pipeline of width K (K − 1 in flight, one that is applied or filled); the parameters at the start of a
      round, if averages are late or progress is normalized; in a weighted graph one for each in-neighbor of the largest
      round; the reference that all workers share, with a codec of parameters or with outer steps, and the momentum of
      outer steps; two for error feedback: the rounding errors of the values that the worker sends, and those of the
      shards that it sums and sends (at most a half and a quarter of the size).

    Two blocks of a rule that are equal make equal groups. Unequal blocks make no equal groups: their local ranks
    differ or, as all radices are 2 or more, their nodes.

    *Not counted:* what is allocated inside an operation (codes of a codec are up to half as large as their input), two
    more communicators of a group with the algorithm `hierarchical`, activations, gradients and optimizer state.
    """
    transport = schedule.transport
    sums = schedule.lag + 1 if schedule.pipeline else 1
    outer = schedule.outer
    has_reference = (transport["codec"] != "none" or not outer.is_plain) and not schedule.averages_gradients
    arrays = sums + int(schedule.is_late or schedule.is_step_normalized) + int(has_reference) + int(outer.momentum > 0)
    arrays += 2 * int(transport["error_feedback"])
    if schedule.form == "graph":
        groups, connections = 0, most_neighbors(schedule.rounds)
        splits = len({tuple(edges) for edges in schedule.rounds if edges})
        sources = (Counter(edge.target for edge in edges) for edges in schedule.rounds)
        arrays += max(max(count.values(), default=0) for count in sources)
    else:
        phases = {
            frozenset((tuple(members), tuple(across)) for members, across, _ in phase if len(members) > 1 or across)
            for phase in schedule.phases
        } - {frozenset()}
        groups, connections = _most_groups(schedule, phases)
        splits = len(phases)  # the relaxation makes no difference
    return {"groups": groups, "connections": connections, "splits": splits, "arrays": arrays}


def _most_groups(schedule: Schedule, phases: Iterable[Groups]) -> tuple[int, int]:
    """Return the most distinct groups of one worker (local rank, for rules), and the most other members in them."""
    kinds: dict[tuple[int, int], list[Sequence[int]]] = {}  # members, by communicators and workers of a group
    for members, across in Groups().union(*phases):
        size = len(members) * prod(map(schedule.radices.__getitem__, across))
        kinds.setdefault((_communicators(schedule, members, across), size), []).append(members)
    counts = [(times, size, Counter(chain.from_iterable(listed))) for (times, size), listed in kinds.items()]
    groups = _largest([(times, count) for times, _, count in counts])
    others = _largest([(times * (size - 1), count) for times, size, count in counts])
    if schedule.prologue and all(size < schedule.num_workers for _, size in kinds):
        times = _communicators(schedule, (), ())
        groups, others = groups + times, others + times * (schedule.num_workers - 1)
    return groups, others


def _largest(counts: Sequence[tuple[Any, Counter[int]]]) -> Any:  # noqa: ANN401 - of integers or of fractions
    """Return the largest total of one key: the sum, over all (number, counts) pairs, of number · counts[key]."""
    keys = set().union(*(count for _, count in counts))
    different = set(zip(*(map(count.__getitem__, keys) for _, count in counts), strict=True))  # few, of many keys
    return max((sum(map(mul, times, (each for each, _ in counts))) for times in different), default=0)


def _communicators(schedule: Schedule, members: Sequence[int], across: Sequence[int]) -> int:
    """Return the communicators of a group (no members: all workers): two if a ring sums blocks, otherwise one."""
    if schedule.transport["codec"] not in BLOCKS:
        return 1
    inside, nodes = schedule.on_nodes(Average(members, across, PLAIN) if members else None)
    has_stages = schedule.transport["algorithm"] == "hierarchical" and inside > 1 and nodes > 1
    return 1 if has_stages else 2


def most_neighbors(rounds: Sequence[Sequence[Edge]]) -> int:
    """Return the most distinct workers with which one worker exchanges in a period."""
    neighbors: dict[int, set[int]] = {}
    for target, source, _ in chain.from_iterable(rounds):
        neighbors.setdefault(target, set()).add(source)
        neighbors.setdefault(source, set()).add(target)
    return max(map(len, neighbors.values()), default=0)


Sent = tuple[Fraction, Fraction]
"""Bytes that leave the busiest worker, and the busiest node, for each byte that is averaged."""


class Spread(NamedTuple):
    """A group of k = `size` workers, `inside` on each of `nodes` nodes (0: unequal numbers), as seen from one node.

    h = `here` members are on that node; the ring successors of c = `leaving` of these are on another node.
    """

    size: int
    inside: int
    nodes: int
    here: int
    leaving: int


NOTHING: Sent = (Fraction(0), Fraction(0))


def sent_bytes(schedule: Schedule, work: Work) -> Numbers:
    """Fact `sent-bytes`: the bytes that one step sends, and those in flight, for each byte that an operation averages.

    An operation averages the model or, where it is cut into `parts` fragments, one of them, whose largest has at least
    a `parts`-th of the model's bytes. For each byte of that, of parameters or gradients in float32, at most

    * `of_worker` bytes leave a worker, and `of_node` bytes a node by its link to the others, in the operations of one
      round: with fragments in those of one fragment. A worker begins at most one operation in a step (of fragments,
      `fragments` says why), so where all have the same steps_per_round these are the most that one step sends;
    * `in_flight` bytes are the payload, as it is first written, of the operations that a worker has begun at one time
      and not yet waited for, each counted once for any number of receivers: `flying` fragments, K − 1 gradients in a
      pipeline of width K, or one operation.

    *Theorem.* Let w bytes be written for each of float32: 1, in 16 bits 1/2, in int8 1/4 + 1/b and in int4 1/8 + 1/b
    with a scale of 4 bytes for each block of b numbers. An operation of k workers, of which h stand on a node and c of
    these have their successor on another node, in the order of ranks around a ring, lets leave

        operation                                      each worker                             the node
        ring, also of 16 bits                          2w(k−1)/k                               c·2w(k−1)/k
        int8 and int4                                  2w(k−1)/k                               w·h(k−h)/k + c·w(k−1)/k
        hierarchical, l on each of m nodes             (l−1)/l·(f + w) + 2w(m−1)/(ml)          2w(m−1)/m

    where f is w, or 1 where only what crosses nodes is coded; groups inside a node then have w = 1. *Proof.* Around a
    ring each part of 1/k goes k − 1 steps to be summed and k − 1 to be handed out, so a worker sends 2(k−1) parts to
    its successor. Codecs of blocks sum by an all_to_all, each worker sending a part to every other, and hand out around
    the ring. In stages a worker sends l − 1 parts of 1/l inside its node, before and after; between, its own l-th is
    summed by one of these two ways over m nodes, of which each has one worker there: 2(m−1) of its parts leave, and l
    workers of a node do that. Groups of a phase are disjoint, so a worker's bytes are those of its group, and a node's
    the sum over all that it has workers in. A weighted graph sends the whole to each out-neighbor.

    *Not counted:* what cutting into parts of whole numbers and blocks adds, and tags and messages of some bytes.
    *Assumed of the backend:* it sums around one ring, in the order of ranks.
    Returns `parts`, `of_worker`, `of_node` and `in_flight`.
    """
    of_worker, of_node = map(max, zip(NOTHING, *_of_phases(schedule), *_of_graphs(schedule), strict=True))
    flying = (fragments(schedule, work) or {"flying": max(1, schedule.lag)})["flying"]
    w = written(schedule.transport)  # above 1 if blocks are of one number
    in_flight = flying * (max(Fraction(1), w) if schedule.transport["where"] == "across-nodes" else w)
    named = {"of_worker": of_worker, "of_node": of_node, "in_flight": in_flight}
    return {"parts": schedule.num_fragments, **{name: str(number) for name, number in named.items()}}


def written(transport: Mapping[str, Any]) -> Fraction:
    """Return w, the bytes that a codec writes for each byte of float32."""
    scales = Fraction(1, transport["block"])
    codecs = {"none": Fraction(1), "int8": Fraction(1, 4) + scales, "int4": Fraction(1, 8) + scales}
    return codecs.get(transport["codec"], Fraction(1, 2))


def of_operation(transport: Mapping[str, Any], group: Spread) -> Sent:
    """Return the bytes that leave each worker of a group, and the node of `Spread`, for each byte averaged."""
    size, inside, nodes, here, leaving = group
    is_coded = transport["codec"] != "none" and not (transport["where"] == "across-nodes" and nodes == 1)
    w = written(transport) if is_coded else Fraction(1)
    around = 2 * w * Fraction(size - 1, size)
    if transport["algorithm"] == "hierarchical" and inside > 1 and nodes > 1:
        first = 1 if transport["where"] == "across-nodes" else w
        across = 2 * w * Fraction(nodes - 1, nodes)
        return Fraction(inside - 1, inside) * (first + w) + across / inside, across
    if is_coded and transport["codec"] in BLOCKS:
        return around, w * Fraction(here * (size - here), size) + leaving * around / 2
    return around, leaving * around


def _of_phases(schedule: Schedule) -> Iterator[Sent]:
    if schedule.prologue:
        yield _of_everybody(schedule)
    everybody = schedule.averages_of_all
    for number, phase in enumerate(schedule.phases):
        if number in everybody:
            yield _of_everybody(schedule)
        elif schedule.form == "rule":
            yield _of_blocks(schedule, phase)
        else:
            yield _of_groups(schedule, phase)


def _of_everybody(schedule: Schedule) -> Sent:
    if schedule.nodes:
        return _of_groups(schedule, [Average(range(schedule.num_workers), (), PLAIN)])
    return of_operation(schedule.transport, _alike(schedule.num_workers, schedule.on_nodes(None)[1]))


def _of_blocks(schedule: Schedule, phase: Sequence[Average]) -> Sent:
    """Return what a rule's phase sends, per byte. Every node is in one group of each block; rings follow the ranks."""
    of_worker, of_node = NOTHING
    for members, across, _ in phase:
        nodes = prod(schedule.radices[digit] for digit in across)
        sent = of_operation(schedule.transport, _alike(len(members) * nodes, nodes))
        of_worker, of_node = max(of_worker, sent[0]), of_node + sent[1]
    return of_worker, of_node


def _of_groups(schedule: Schedule, phase: Sequence[Average]) -> Sent:
    nodes_of: dict[Spread, list[int]] = {}  # a node for each group of a kind that it has
    by_size: dict[int, list[Average]] = {}
    for average in phase:
        by_size.setdefault(len(average.members), []).append(average)
    for size, groups in by_size.items():
        places = schedule.nodes_of(chain.from_iterable(members for members, _, _ in groups))
        inside, apart = (nodes_of.setdefault(_alike(size, nodes), []) for nodes in (1, size))
        for average, nodes in zip(groups, zip(*[iter(places)] * size, strict=True), strict=True):
            different = len(set(nodes))
            if different == size:  # nearly all are like this or the next, and counting takes ten times as long
                apart += nodes
            elif different == 1:
                inside.append(nodes[0])
            else:
                for node, spread in _spreads(schedule, average, nodes):
                    nodes_of.setdefault(spread, []).append(node)
    counts = [(of_operation(schedule.transport, spread), Counter(nodes)) for spread, nodes in nodes_of.items() if nodes]
    of_worker = max((own for (own, _), _ in counts), default=Fraction(0))
    return of_worker, Fraction(_largest([(each, count) for (_, each), count in counts if each]))


def _alike(size: int, nodes: int) -> Spread:
    """Return the `Spread` of `size` workers, equally many on each of `nodes` nodes, in the order of ranks."""
    return Spread(size, size // nodes, nodes, size // nodes, int(nodes > 1))


def _spreads(schedule: Schedule, average: Average, nodes: Sequence[int]) -> Iterator[tuple[int, Spread]]:
    """Yield each node (its number) of a group, with the group's `Spread` as seen from that node."""
    inside, num_nodes = schedule.on_nodes(average)
    leaving = Counter(one for one, after in zip(nodes, (*nodes[1:], nodes[0]), strict=True) if one != after)
    for node, count in Counter(nodes).items():
        yield node, Spread(len(nodes), inside, num_nodes, count, leaving[node])


def _of_graphs(schedule: Schedule) -> Iterator[Sent]:
    for edges in schedule.rounds:
        sources = [edge.source for edge in edges]
        nodes = zip(schedule.nodes_of(sources), schedule.nodes_of(edge.target for edge in edges), strict=True)
        of_worker = Counter(sources)
        of_node = Counter(source for source, target in nodes if source != target)
        yield Fraction(max(of_worker.values(), default=0)), Fraction(max(of_node.values(), default=0))
