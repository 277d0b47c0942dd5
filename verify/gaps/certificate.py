"""The certificate of iteration gaps, in the closed format that `verify/checker/` reads."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from partreduce.schedulers.protocols.hop import check_setting
from partreduce.verify.gaps.event_graph import event_graph
from partreduce.verify.gaps.exact import Distances
from partreduce.verify.gaps.liveness import dead_cycle
from partreduce.verify.gaps.one_worker import events_near
from partreduce.verify.gaps.skip import longest_skips

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from partreduce.schedulers.protocols.digraph import Digraph
    from partreduce.topo.strategies.gap import Gap
    from partreduce.verify.gaps.event_graph import EventGraph
    from partreduce.verify.gaps.lengths import Length
    from partreduce.verify.gaps.need import Need

FORMAT = "partreduce.gaps-certificate"
VERSION = 1
NONE = -1
"""Stands for an infinite distance and a missing bound: the format has no null."""


def gap_certificate(graph: Digraph, setting: Gap, *, every_pair: bool = False) -> dict[str, Any]:
    """Liveness, queue capacities, longest skips and the worst gap, each with what a stranger needs to confirm it.

    The part on queues is as long as the shortest paths between neighbours: without backup workers linear in edges on
    undirected graphs and with token queues; the part on the worst pair has 3n numbers, and `every_pair` adds 3n².
    O(n · arcs · log).

    Raises:
        ScheduleError: the setting does not fit the graph.
    """
    check_setting(graph, setting)
    n = graph.num_workers
    events = event_graph(graph, setting)
    distances = Distances(events)
    columns = [distances.from_event(j) for j in range(n)]
    is_live = dead_cycle(events) is None
    claims: list[dict[str, Any]] = [{"claim": "live", "ticks": ticks(events)}] if is_live else []
    claims.append(queues_entry(graph, setting, events))
    if setting.skip is not None:
        ahead = tuple(zip(*columns, strict=True))[:n]  # ahead[i][j] bounds Step(i) − Step(j)
        claims.append({"claim": "skip", "longest": list(longest_skips(graph, setting, ahead))})
    bounded = all(columns[j][i] is not None for j in range(n) for i in range(n))
    if bounded or is_live:  # that there is no bound follows from liveness only
        j, i = max(((j, i) for j in range(n) for i in range(n)), key=lambda pair: _height(columns[pair[0]][pair[1]]))
        bound, dense = _number(columns[j][i]), [[_number(d) for d in column] for column in columns]
        claims.append({"claim": "pair", "from": j, "to": i, "bound": bound, "distances": list(dense[j])})
        if every_pair:
            claims.append({"claim": "every-pair", "bound": bound, "distances": dense})
    described: dict[str, Any] = {"staleness": setting.staleness, "backup": list(setting.backups(n))}
    described["notify_ack"] = int(setting.notify_ack)
    if setting.max_ig is not None:
        described["max_ig"] = setting.max_ig
    if setting.skip is not None:
        described["skip"] = [setting.skip.limit, setting.skip.trigger]
    return {
        "format": FORMAT,
        "version": VERSION,
        "graph": {"num_workers": n, "edges": [list(edge) for edge in graph.edges]},
        "setting": described,
        "claims": claims,
    }


def _number(length: Length) -> int:
    return NONE if length is None else length


def _height(length: Length) -> float:
    return float("inf") if length is None else length


def _queues(graph: Digraph, setting: Gap, events: EventGraph, columns: Sequence[Mapping[int, int]]) -> dict[str, Any]:
    """The gaps over every edge (u, v), [Step(u) − Step(v), Step(v) − Step(u)], and the capacities of its queues.

    `columns[j]` has the finite distances from worker j's enter, of all events that are no further than its neighbours.
    """
    bounds = [[columns[v].get(u, NONE), columns[u].get(v, NONE)] for u, v in graph.edges]
    needs: list[list[Need]] = [[] for _ in range(events.num_events)]
    for need in events.needs:
        needs[need.event].append(need)
    support = []
    for j, column in enumerate(columns):
        ends = {*graph.sources[j], *graph.targets[j]}
        listed = _support(needs, column, j, (end for end in ends if end in column))
        support.append([[event, column[event]] for event in sorted(listed)])
    entry: dict[str, Any] = {"claim": "queues", "bounds": bounds, "support": support}
    entry["update"] = [NONE if ahead == NONE else ahead + 1 for ahead, _ in bounds]
    if setting.max_ig is not None:
        entry["token"] = [NONE if back == NONE else back + setting.max_ig for _, back in bounds]
    return entry


def _support(needs: Sequence[Sequence[Need]], column: Mapping[int, int], start: int, ends: Iterable[int]) -> set[int]:
    """The events that the distances of `ends` rest on: of each, spare + 1 sources of the first need that limits it."""
    found: set[int] = set()
    waiting = list(ends)
    while waiting:
        event = waiting.pop()
        if event in found or event == start:
            continue
        found.add(event)
        for need in needs[event]:
            nearest = sorted((column.get(y, inf) + tokens, y) for y, tokens in need.sources)[: need.spare + 1]
            if nearest[-1][0] == column[event]:
                waiting += [y for _, y in nearest]
                break
    return found


def worst_pair(graph: Digraph, events: EventGraph) -> dict[str, Any]:
    """The entry of the two workers that can be furthest apart. O(n · arcs · log)."""
    distances = Distances(events)
    worst: tuple[float, int, int, list[Length]] = (-1.0, 0, 0, [])
    for j in range(graph.num_workers):
        column = distances.from_event(j)
        i = max(range(graph.num_workers), key=lambda v, column=column: _height(column[v]))  # type: ignore[misc]
        if _height(column[i]) > worst[0]:
            worst = (_height(column[i]), j, i, column)
    _, j, i, column = worst
    return {"claim": "pair", "from": j, "to": i, "bound": _number(column[i]), "distances": list(map(_number, column))}


def queues_entry(graph: Digraph, setting: Gap, events: EventGraph) -> dict[str, Any]:
    """The entry of all gaps over edges and their queues, from the distances near each worker: near-linear in edges."""
    n, spare = graph.num_workers, setting.backups(graph.num_workers)
    columns: list[dict[int, int]] = []
    for j in range(n):
        near = events_near(graph, setting, j, {*graph.sources[j], *graph.targets[j]}, spare)
        columns.append({kind * n + worker: distance for (kind, worker), distance in near.items()})
    return _queues(graph, setting, events, columns)


def ticks(events: EventGraph) -> list[int]:
    """For every event 1 + the largest tick among its sources without tokens, 0 without such sources."""
    before: list[list[int]] = [[] for _ in range(events.num_events)]
    after: list[list[int]] = [[] for _ in range(events.num_events)]
    for need in events.needs:
        for source, tokens in need.sources:
            if tokens == 0:
                before[need.event].append(source)
                after[source].append(need.event)
    left = [len(sources) for sources in before]
    ticks = [0] * events.num_events
    waiting = [event for event, count in enumerate(left) if not count]
    while waiting:
        event = waiting.pop()
        ticks[event] = max((ticks[source] + 1 for source in before[event]), default=0)
        for target in after[event]:
            left[target] -= 1
            if not left[target]:
                waiting.append(target)
    return ticks
