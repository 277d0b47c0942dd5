"""Fact `memory`: what a run of this schedule asks of its busiest worker.

* `groups`: the most distinct groups (communicators) that one worker is in, over the period and the prologue, whose
  rounds have one group of all workers. 0 for weighted graphs, which exchange with single workers. With the codecs int8
  and int4 a group that goes as a ring counts twice: a thread sums it over a communicator of its own.
* `connections`: the most other members that one worker has in its distinct groups, counted once for each group; for
  weighted graphs the most workers that it sends to or hears from.
* `splits`: the distinct phases (or graphs) of the period that have a group (or an edge).
* `arrays`: arrays of the size of the parameters that are kept besides them, at most. One takes the sums; another keeps
  the parameters with which a round began, where averages are late or progress is normalized; and a weighted graph
  keeps one for each in-neighbor of the largest round. A pipeline of width K keeps K arrays for sums: those of K − 1 in
  flight, and one that is being applied or filled. A codec of parameters, or outer steps, keep the reference that all
  share, and the momentum of outer steps is one more. Error feedback keeps two: what roundings left over of what the
  worker gave, and of the shards that it sums and hands on (a half and a quarter at most). So `arrays` is also scratch
  bytes for each byte of parameters.

Equal blocks of a rule make equal groups, and unequal ones make none in common: their local ranks or, as all radices
are 2 or more, their nodes differ. A block of one local rank across no digit makes no group.

*Assumed of the runtime:* it makes one communicator for each distinct set of members (the algorithm `hierarchical` makes
three for a group that fits it) and keeps the arrays above; what is allocated inside an operation is not counted (a
codec's codes are up to half of what they code), nor are activations, gradients and optimizer state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import prod

from ..averages import PLAIN, Average, Edge
from ..axes import BLOCKS
from ..refusal import Work
from ..schedule import Numbers, Schedule

Group = tuple[tuple[int, ...], tuple[int, ...]]
"""(members, across)."""


def numbers(schedule: Schedule, _: Work) -> Numbers:
    """`groups`, `connections`, `splits`, `arrays`."""
    transport = schedule.transport
    sums = schedule.lag + 1 if schedule.pipeline else 1
    outer = schedule.tables.outer
    has_reference = (transport["codec"] != "none" or not outer.is_plain) and not schedule.averages_gradients
    arrays = sums + int(schedule.is_late or schedule.is_step_normalized) + int(has_reference) + int(outer.momentum > 0)
    arrays += 2 * int(transport["error_feedback"])
    if schedule.form == "graph":
        groups, connections = 0, _most_neighbors(schedule.rounds)
        splits = len({tuple(edges) for edges in schedule.rounds if edges})
        arrays += max(map(_most_sources, schedule.rounds))
    else:
        phases = {frozenset(_distinct_groups(phase)) for phase in schedule.phases} - {frozenset()}
        groups, connections = _most_groups(schedule, phases)
        splits = len(phases)  # the relaxation makes no difference
    return {"groups": groups, "connections": connections, "splits": splits, "arrays": arrays}


def _distinct_groups(phase: Sequence[Average]) -> Iterator[Group]:
    """Everything in a phase that makes groups."""
    return ((tuple(members), tuple(across)) for members, across, _ in phase if len(members) > 1 or across)


def _most_groups(schedule: Schedule, phases: Iterable[frozenset[Group]]) -> tuple[int, int]:
    """The most distinct groups of a worker (of a local rank, for rules), and the most other members in them."""
    all_groups = all_others = 0  # what everybody has; nearly all schedules of millions of groups are like this
    groups: dict[int, int] = {}  # and what some have besides: a file of a few lines may name a billion workers
    others: dict[int, int] = {}
    seen: set[Group] = set()
    has_everybody = False
    for phase in phases:
        alike: dict[tuple[int, int], list[Sequence[int]]] = {}  # members, by communicators and workers of a group
        for members, across in phase - seen:
            size = len(members) * prod(map(schedule.radices.__getitem__, across))
            alike.setdefault((_communicators(schedule, members, across), size), []).append(members)
        seen |= phase
        has_everybody = has_everybody or any(size == schedule.num_workers for _, size in alike)
        for (times, size), listed in alike.items():
            if sum(map(len, listed)) == schedule.width:
                all_groups, all_others = all_groups + times, all_others + times * (size - 1)
                continue
            for worker in chain.from_iterable(listed):
                groups[worker] = groups.get(worker, 0) + times
                others[worker] = others.get(worker, 0) + times * (size - 1)
    if schedule.prologue and not has_everybody:
        times = _communicators(schedule, (), ())
        all_groups, all_others = all_groups + times, all_others + times * (schedule.num_workers - 1)
    return all_groups + max(groups.values(), default=0), all_others + max(others.values(), default=0)


def _communicators(schedule: Schedule, members: Sequence[int], across: Sequence[int]) -> int:
    """How many a group has (no members: the group of all workers): a second one where blocks are summed as a ring."""
    if schedule.transport["codec"] not in BLOCKS:
        return 1
    inside, nodes = schedule.on_nodes(Average(members, across, PLAIN) if members else None)
    has_stages = schedule.transport["algorithm"] == "hierarchical" and inside > 1 and nodes > 1
    return 1 if has_stages else 2


def _most_neighbors(rounds: Sequence[Sequence[Edge]]) -> int:
    """The most different workers that one worker exchanges with in a period."""
    neighbors: dict[int, set[int]] = {}
    for target, source, _ in chain.from_iterable(rounds):
        neighbors.setdefault(target, set()).add(source)
        neighbors.setdefault(source, set()).add(target)
    return max(map(len, neighbors.values()), default=0)


def _most_sources(edges: Sequence[Edge]) -> int:
    """The most workers that one worker hears from in a round."""
    return max(Counter(edge.target for edge in edges).values(), default=0)
