"""A timeline of workers: as a picture, and as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from partreduce.report.palette import COMMUNICATE, COMMUNICATE_HATCH, COMPUTE, INK, PALE, WAIT
from partreduce.report.picture import new_figure
from partreduce.schedulers.simulator.timeline import Timeline
from partreduce.topo.cluster import Cluster

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Times = npt.NDArray[np.float64]

MAX_ROWS = 40
MAX_EVENTS = 500_000
MAX_STEPS = 8
"""Of a round: more are not told apart."""


def draw_timeline(
    timeline: Timeline, title: str, *, worker_steps: Sequence[int] = (), max_rows: int = MAX_ROWS, max_rounds: int = 24
) -> Figure:
    """A figure with one row per worker: computing, waiting and communicating of the first rounds.

    An operation that runs while its worker computes is drawn in the lower half of its row, beneath what hides it. With
    `worker_steps` white lines part the steps of a round.
    """
    count = timeline.finish.shape[1]
    rows = np.arange(count) if count <= max_rows else np.unique(np.linspace(0, count - 1, max_rows).astype(int))
    rounds = min(timeline.num_rounds, max_rounds)
    ends = (timeline.finish[rounds - 1, rows], timeline.communicate_end[rounds - 1, rows])
    longest = float(np.maximum(*ends).max()) or 1.0
    scale, unit = (1.0, "s") if longest >= 2 else (1e3, "ms")
    figure = new_figure(10, 1.3 + 0.2 * len(rows))
    axis = figure.subplots()
    begin = np.concatenate([np.zeros((1, count)), timeline.finish[:-1]])
    for row, worker in enumerate(rows.tolist()):

        def bars(
            start: Times, end: Times, low: float, high: float, color: str, *, hatch: str = "", row: int = row,
            worker: int = worker,
        ) -> None:  # fmt: skip
            spans = [
                (a * scale, (b - a) * scale)
                for a, b in zip(start[:rounds, worker].tolist(), end[:rounds, worker].tolist(), strict=True)
                if b > a
            ]
            place = (row + low, high - low)
            axis.broken_barh(spans, place, facecolors=color, hatch=hatch, edgecolor="white", linewidth=0.4)

        below = 0.5 if timeline.runs_beside else 0.9
        bars(begin, timeline.finish, 0.1, 0.9, WAIT)
        steps_per_round = int(worker_steps[worker]) if len(worker_steps) and max(worker_steps) <= MAX_STEPS else 1
        length = (timeline.compute_end - timeline.compute_start) / steps_per_round
        for step in range(steps_per_round):
            since = timeline.compute_start + step * length
            bars(since, since + length, 0.1, below, COMPUTE)
        bars(
            timeline.communicate_start, timeline.communicate_end, 0.5 if timeline.runs_beside else 0.1, 0.9,
            COMMUNICATE, hatch=COMMUNICATE_HATCH,
        )  # fmt: skip
    axis.set_ylim(len(rows), 0)
    axis.set_xlim(0, longest * scale)
    step = max(1, len(rows) // 32)
    axis.set_yticks(
        [row + 0.5 for row in range(0, len(rows), step)], [str(rows[r]) for r in range(0, len(rows), step)], fontsize=7
    )
    axis.set_xlabel(f"time ({unit})", color=INK)
    axis.set_ylabel("worker", color=INK)
    left_out = [f"{len(rows)} of {count} workers"] * (len(rows) < count) + [
        f"first {rounds} of {timeline.num_rounds} rounds"
    ] * (rounds < timeline.num_rounds)
    axis.set_title(title + (f"   ({', '.join(left_out)})" if left_out else ""), loc="left", fontsize=10, color=INK)
    _legend(figure)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.tick_params(colors=PALE)
    return figure


def _legend(figure: Figure) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(color=COMPUTE, label="compute"),
        Patch(facecolor=COMMUNICATE, edgecolor="white", hatch=COMMUNICATE_HATCH, label="group operation"),
        Patch(color=WAIT, label="wait"),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=3, fontsize=8, frameon=False)


def perfetto(timeline: Timeline, cluster: Cluster) -> str:
    """The timeline as trace events: nodes are processes, workers threads; times in microseconds."""
    count, rounds = timeline.finish.shape[1], timeline.num_rounds
    kept = max(1, min(rounds, MAX_EVENTS // (3 * count)))
    node_of = cluster.node_of().tolist()
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": node, "name": "process_name", "args": {"name": f"node {node}"}}
        for node in sorted(set(node_of))
    ]
    for worker in range(count):
        place = {"pid": node_of[worker], "tid": worker}
        events.append({"ph": "M", **place, "name": "thread_name", "args": {"name": f"worker {worker}"}})
        # Spans of one track must not cross, so what outlasts its round has a track of its own.
        beside = {"pid": node_of[worker], "tid": count + worker} if timeline.outlasts_rounds else place
        if beside is not place:
            events.append({"ph": "M", **beside, "name": "thread_name", "args": {"name": f"sums of worker {worker}"}})
        for round_ in range(kept):
            events += _spans(timeline, round_, worker, place, beside)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n"


def _spans(
    timeline: Timeline, round_: int, worker: int, place: dict[str, int], beside: dict[str, int]
) -> list[dict[str, Any]]:
    """A worker's computing, waiting and group operation of one round."""
    columns = (timeline.compute_start, timeline.compute_end, timeline.communicate_start, timeline.communicate_end)
    begun, computed, start, end = (float(column[round_, worker]) for column in columns)
    waited = (begun if timeline.is_delayed else computed, start)
    if beside is not place:
        waited = (computed, float(timeline.finish[round_, worker]))
    spans = [(place, "compute", begun, computed), (place, "wait", *waited), (beside, "group operation", start, end)]
    return [
        {"ph": "X", **track, "name": name, "ts": a * 1e6, "dur": (b - a) * 1e6, "args": {"round": round_}}
        for track, name, a, b in spans
        if b > a
    ]
