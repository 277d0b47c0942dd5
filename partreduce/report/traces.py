"""Read the traces of a run: seconds per step, waiting, bytes across nodes, consensus distance, logged losses."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from partreduce.runtime.recorder import read_traces
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import FileError, PartreduceError
from partreduce.topo.hardware import Hardware
from partreduce.topo.phase import Phase
from partreduce.topo.strategies.axes import Transport
from partreduce.topo.timing.coding import Coding
from partreduce.topo.timing.loads import of_phase

Event = dict[str, Any]

OUTSIDE_TRAINING = ("initial broadcast", "reference", "mean model")
"""Operations outside of training steps: at the start, and for evaluation.

Operations named after a call, with `()`, are also outside.
"""
CODED = ("average", "gradient average", "partial sum")
"""Operations that use the schedule's all-reduce algorithm and codec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The measurements of one run; `words` describe the schedule. Seconds and bytes are means per step.

    `step_seconds` are those of the fastest worker, without evaluations. `operation_seconds` (time in group operations)
    and `waiting_seconds` (the part of it spent waiting for the last member) are means over the workers. `nic_bytes`
    counts the bytes that leave all nodes, by the schedule's algorithm and codec. `distances` and `losses` are pairs
    (seconds of training, mean over the workers).
    """

    folder: Path
    schedule: str
    words: str
    num_workers: int
    steps: int
    step_seconds: float
    operation_seconds: float
    waiting_seconds: float
    nic_bytes: float
    distances: tuple[tuple[float, float], ...]
    losses: tuple[tuple[float, float], ...]

    @property
    def consensus_distance(self) -> float | None:
        """The mean of the consensus distances recorded at each `mean_model()`; None if there is none."""
        return float(np.mean([value for _, value in self.distances])) if self.distances else None

    @property
    def smooth_losses(self) -> list[tuple[float, float]]:
        """The logged losses as moving averages over a twentieth of them, since losses of single batches vary."""
        width, values = max(1, len(self.losses) // 20), [value for _, value in self.losses]
        means = [float(np.mean(values[max(0, end - width) : end])) for end in range(1, len(values) + 1)]
        return [(seconds, mean) for (seconds, _), mean in zip(self.losses, means, strict=True)]

    def seconds_to(self, loss: float) -> float | None:
        """Return the seconds of training at which the smoothed losses reached `loss`; None if never."""
        return next((seconds for seconds, value in self.smooth_losses if value <= loss), None)


def events_of(folder: Path) -> tuple[list[Event], dict[str, Any]]:
    """Return all events of a folder's traces, sorted by start time, and the run's metadata from the first trace.

    Raises:
        FileError: the folder has no trace, or a trace of another program.
    """

    def parse(trace: dict[str, Any]) -> tuple[list[Event], dict[str, Any]]:
        about = trace["otherData"].get("run", {})
        if about:
            _check_has(about, "node_of")
            about = {**about, "network": _network(about)}
        return [_event(event) for event in trace["traceEvents"] if event["ph"] in {"X", "C"}], about

    traces = read_traces(folder, parse)
    events = [event for own, _ in traces for event in own]
    about = next((about for _, about in traces if about), {})
    return sorted(events, key=lambda event: (event["start"], event["rank"])), about


def _check_has(entry: dict[str, Any], *keys: str) -> None:
    """Raise KeyError unless an entry of a trace has all these keys."""
    if missing := [key for key in keys if key not in entry]:
        raise KeyError(missing[0])


def _event(event: Event) -> Event:
    if event.get("cat") == "communication":
        _check_has(event["args"], "round", "step", "bytes")
    kind, _, members = event["name"].partition(" {")
    start = event["ts"] / 1e6
    return {
        **event["args"],
        "kind": kind,
        "members": tuple(int(rank) for rank in members.rstrip("}").split(",") if rank),
        "is_operation": event.get("cat") == "communication",
        "rank": event["pid"],
        "start": start,
        "end": start + event.get("dur", 0.0) / 1e6,
    }


def operations(folder: Path) -> list[Event]:
    """Return every traced group operation: kind, members, bytes, rank, start and end in seconds since the first."""
    found = [event for event in events_of(folder)[0] if event["is_operation"]]
    first = min((event["start"] for event in found), default=0.0)
    return [event | {"start": event["start"] - first, "end": event["end"] - first} for event in found]


def bytes_across(event: Event, cluster: Cluster, transport: Transport) -> float:
    """Return the bytes that one operation sends between nodes: averages with this transport, others as a plain ring.

    Only the event of the operation's lowest rank counts; it is 0 in the events of other ranks.
    """
    if event["rank"] != event["members"][0]:
        return 0.0
    sent_by = transport if event["kind"] in CODED else Transport()
    return _count_bytes(event["members"], float(event["bytes"]), cluster, sent_by)


@lru_cache(maxsize=4096)
def _count_bytes(members: tuple[int, ...], num_bytes: float, cluster: Cluster, transport: Transport) -> float:
    phase, hardware = Phase.from_groups(cluster.num_workers, [members]), Hardware()
    coding = Coding.of(transport, hardware)
    loads = of_phase(phase, cluster, hardware, model_bytes=num_bytes, algorithm=transport.algorithm, coding=coding)
    return float(loads.bytes_.sum())


def _network(about: dict[str, Any]) -> tuple[Cluster, Transport]:
    """Return the cluster and the transport that a trace's metadata state; a plain ring if it states no transport."""
    nodes: dict[int, list[int]] = {}
    for rank, node in enumerate(about["node_of"]):
        nodes.setdefault(node, []).append(rank)
    try:
        return Cluster.irregular(list(nodes.values())), Transport(**about.get("transport", {}))
    except PartreduceError as error:
        raise ValueError(str(error)) from None


def is_training(event: Event) -> bool:
    """Return whether an operation belongs to a training step, and not to an evaluation."""
    return event["is_operation"] and event["kind"] not in OUTSIDE_TRAINING and not event["kind"].endswith("()")


def read_run(folder: Path) -> Run:
    """Read a run from its folder of traces.

    Raises:
        FileError: the folder has no trace, a trace of another program, or no two steps with an operation.
    """
    events, about = events_of(folder)
    ranks = sorted({event["rank"] for event in events})
    own = {rank: [e for e in events if e["rank"] == rank and is_training(e)] for rank in ranks}
    if not own or not all(len(mine) > 1 and mine[-1]["step"] > mine[0]["step"] for mine in own.values()):
        raise FileError(f"{folder}: its workers took no two steps with a group operation, so no step can be timed")
    pauses = {rank: [e for e in events if e["rank"] == rank and e["kind"] == "evaluation"] for rank in ranks}

    def trained_for(rank: int, since: float, until: float) -> float:
        """Return the seconds of training between two instants, without evaluations."""
        return until - since - math.fsum(e["end"] - e["start"] for e in pauses[rank] if since <= e["start"] < until)

    count = {rank: mine[-1]["step"] - mine[0]["step"] for rank, mine in own.items()}
    step = {r: trained_for(r, mine[0]["start"], mine[-1]["start"]) / count[r] for r, mine in own.items()}
    timed = [event for mine in own.values() for event in mine[:-1]]
    last = {key: max(e["start"] for e in group) for key, group in groupby(sorted(timed, key=_meeting), key=_meeting)}
    waiting = sum(max(0.0, min(last[_meeting(e)], e["end"]) - e["start"]) for e in timed)
    steps, all_steps = max(count.values()), sum(count.values())
    begin = {rank: mine[0]["start"] for rank, mine in own.items()}

    def series(name: str) -> tuple[tuple[float, float], ...]:
        """Return a number in the traces, such as "loss", as pairs (seconds of training, mean over the workers).

        The k-th entries of all workers are combined: the latest instant, and the mean.
        """
        noted = [
            (e["rank"], trained_for(e["rank"], begin[e["rank"]], e["start"]), e[name]) for e in events if name in e
        ]
        rows = zip(*([(at, value) for rank, at, value in noted if rank == r] for r in ranks), strict=False)
        return tuple((max(at for at, _ in row), float(np.mean([value for _, value in row]))) for row in rows)

    return Run(
        folder=folder,
        schedule=about.get("schedule", folder.name),
        words=about.get("words", ""),
        num_workers=len(ranks),
        steps=steps,
        step_seconds=min(step.values()),
        operation_seconds=sum(e["end"] - e["start"] for e in timed) / all_steps,
        waiting_seconds=waiting / all_steps,
        nic_bytes=sum(bytes_across(e, *about["network"]) for e in timed) / steps if about else 0.0,
        distances=series("distance"),
        losses=series("loss"),
    )


def _meeting(event: Event) -> tuple[Any, ...]:
    return event["kind"], event["members"], event["round"]


UNDECIDED = "the runs decide nothing: repeat them"
ONE_EACH = "one run each shows no spread: repeat them"


def with_worker_counts(runs: list[Run]) -> list[Run]:
    """Return the runs with the number of workers in the name of a schedule that ran on different numbers of workers."""
    counts = {run.schedule: {one.num_workers for one in runs if one.schedule == run.schedule} for run in runs}
    return [
        replace(run, schedule=f"{run.schedule} of {run.num_workers}") if len(counts[run.schedule]) > 1 else run
        for run in runs
    ]


def verdict(base: list[Run], others: list[Run], loss: float | None) -> str:
    """Return a clause on how the runs `others` of a schedule compare with those of `base`, and which is faster.

    It has the ratios of seconds per step, bytes and, unless `loss` is None, seconds to that loss. A schedule
    that never reached the loss is not called faster, and neither is one by a single run of each.
    """
    name, of = others[0].schedule, base[0].schedule
    ratios, decided = [run.step_seconds / one.step_seconds for run in others for one in base], ""
    clauses = [f"{name} takes {_span(ratios)} of {of}'s seconds a step"]
    if all(one.nic_bytes for one in base):
        clauses.append(f"sends {_span([run.nic_bytes / one.nic_bytes for run in others for one in base])} of its bytes")
    if loss is not None:
        reached, ours = ([run.seconds_to(loss) for run in runs] for runs in (base, others))
        if None in reached or None in ours:
            mine, its = (f"{len(runs) - runs.count(None)} of {len(runs)}" for runs in (ours, reached))
            clauses.append(f"reached a loss of {loss:.4g} in {mine} of its runs, {of} in {its}")
            ever = [which for which, runs in ((name, ours), (of, reached)) if runs.count(None) < len(runs)]
            decided = f"only {ever[0]} reached it" if len(ever) == 1 else UNDECIDED
        else:
            to_loss = [mine / its for mine in ours for its in reached if mine is not None and its]
            clauses.append(f"takes {_span(to_loss)} of its seconds to a loss of {loss:.4g}")
            ratios = to_loss or ratios
    faster, slower = max(ratios) < 1, min(ratios) > 1
    if not decided and len(base) == len(others) == 1:
        decided = ONE_EACH
    decided = decided or (f"{name} is {'faster' if faster else 'slower'}" if faster or slower else UNDECIDED)
    return f"{', '.join(clauses)}: {decided}"


def _span(values: list[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"
