"""Draw a timeline of workers, or write it as a trace for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from partreduce.report.palette import COMMUNICATE, COMMUNICATE_HATCH, COMPUTE, EDGE, INK, OKABE_ITO, PALE, WAIT, quiet
from partreduce.report.picture import new_figure
from partreduce.schedulers.simulator.timeline import Timeline
from partreduce.topo.cluster import Cluster

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Times = npt.NDArray[np.float64]

MAX_ROWS, MAX_ROUNDS = 40, 24
MAX_EVENTS = 500_000
MAX_STEPS = 8
"""The most steps per round that are drawn separately."""


def draw_timeline(timeline: Timeline, title: str, *, worker_steps: Sequence[int] = ()) -> Figure:
    """Draw one row per worker: computing, waiting and communicating in the first `MAX_ROUNDS` rounds.

    Of more than `MAX_ROWS` workers, evenly spaced ones are drawn. An operation that runs while its worker computes is
    drawn in the lower half of the row. With `worker_steps`, each worker's steps per round, white lines separate up to
    `MAX_STEPS` steps.
    """
    count = timeline.finish.shape[1]
    rows = np.arange(count) if count <= MAX_ROWS else np.unique(np.linspace(0, count - 1, MAX_ROWS).astype(int))
    rounds = min(timeline.num_rounds, MAX_ROUNDS)
    ends = (timeline.finish[rounds - 1, rows], timeline.communicate_end[rounds - 1, rows])
    longest = float(np.maximum(*ends).max()) or 1.0
    scale, unit = (1.0, "s") if longest >= 2 else (1e3, "ms")
    figure = new_figure(10, 1.3 + 0.2 * len(rows))
    from matplotlib.patches import Patch

    axis = figure.subplots()
    begin = np.concatenate([np.zeros((1, count)), timeline.finish[:-1]])
    for row, worker in enumerate(rows.tolist()):

        def bars(
            start: Times, end: Times, low: float, high: float, color: str, *, hatch: str = "", row: int = row,
            worker: int = worker,
        ) -> None:  # fmt: skip
            ends = zip(start[:rounds, worker].tolist(), end[:rounds, worker].tolist(), strict=True)
            spans, place = [(a * scale, (b - a) * scale) for a, b in ends if b > a], (row + low, high - low)
            axis.broken_barh(spans, place, facecolors=color, hatch=hatch, edgecolor="white", linewidth=0.4)

        below = 0.5 if timeline.runs_concurrently else 0.9
        bars(begin, timeline.finish, 0.1, 0.9, WAIT)
        steps_per_round = int(worker_steps[worker]) if len(worker_steps) and max(worker_steps) <= MAX_STEPS else 1
        length = (timeline.compute_end - timeline.compute_start) / steps_per_round
        for step in range(steps_per_round):
            since = timeline.compute_start + step * length
            bars(since, since + length, 0.1, below, COMPUTE)
        bars(
            timeline.communicate_start, timeline.communicate_end, 0.5 if timeline.runs_concurrently else 0.1, 0.9,
            COMMUNICATE, hatch=COMMUNICATE_HATCH,
        )  # fmt: skip
    axis.set_ylim(len(rows), 0)
    axis.set_xlim(0, longest * scale)
    ticks = range(0, len(rows), max(1, len(rows) // 32))
    axis.set_yticks([row + 0.5 for row in ticks], [str(rows[row]) for row in ticks], fontsize=7)
    axis.set_xlabel(f"time ({unit})", color=INK)
    axis.set_ylabel("worker", color=INK)
    left_out = [f"{len(rows)} of {count} workers"] * (len(rows) < count)
    left_out += [f"first {rounds} of {timeline.num_rounds} rounds"] * (rounds < timeline.num_rounds)
    axis.set_title(title + (f"   ({', '.join(left_out)})" if left_out else ""), loc="left", fontsize=10, color=INK)
    handles = [
        Patch(color=COMPUTE, label="compute"),
        Patch(facecolor=COMMUNICATE, edgecolor="white", hatch=COMMUNICATE_HATCH, label="group operation"),
        Patch(color=WAIT, label="wait"),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=3, fontsize=8, frameon=False)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.tick_params(colors=PALE)
    return figure


def perfetto(timeline: Timeline, cluster: Cluster) -> str:
    """Return the first rounds as a JSON trace, at most `MAX_EVENTS` events: nodes are processes, workers threads."""
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
        # Spans of one track must not cross, so an operation that outlasts its round has a separate track.
        beside = {"pid": node_of[worker], "tid": count + worker} if timeline.outlasts_rounds else place
        if beside is not place:
            events.append({"ph": "M", **beside, "name": "thread_name", "args": {"name": f"sums of worker {worker}"}})
        for round_ in range(kept):
            events += _spans(timeline, round_, worker, place, beside)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n"


def _spans(
    timeline: Timeline, round_: int, worker: int, place: dict[str, int], other: dict[str, int]
) -> list[dict[str, Any]]:
    columns = (timeline.compute_start, timeline.compute_end, timeline.communicate_start, timeline.communicate_end)
    begun, computed, start, end = (float(column[round_, worker]) for column in columns)
    waited = (begun if timeline.is_delayed else computed, start)
    if other is not place:
        waited = (computed, float(timeline.finish[round_, worker]))
    spans = [(place, "compute", begun, computed), (place, "wait", *waited), (other, "group operation", start, end)]
    return [
        {"ph": "X", **track, "name": name, "ts": a * 1e6, "dur": (b - a) * 1e6, "args": {"round": round_}}
        for track, name, a, b in spans
        if b > a
    ]


ROOM = 1.25
"""Axis length relative to the longest bar, with room for its number."""


def draw_side_by_side(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    """Draw a bar per schedule for time per step, and one for time to a loss; `rows` are those of `simulate --json`."""
    figure = new_figure(11, 1.5 + 0.5 * len(rows), title)
    steps, times = figure.subplots(1, 2, sharey=True)
    places = range(len(rows))
    whole = [1e3 * row["seconds_per_step"] for row in rows]
    sent = [1e3 * row["communication_seconds_per_step"] for row in rows]
    steps.barh(places, whole, height=0.7, color=COMPUTE)
    steps.barh(places, sent, height=0.25, color=COMMUNICATE, hatch=COMMUNICATE_HATCH, edgecolor=EDGE)
    known = [1e3 * (row["seconds_to_a_loss"] or 0.0) for row in rows]
    times.barh(places, known, height=0.7, color=OKABE_ITO[2])
    for place, row in enumerate(rows):
        steps.text(whole[place], place, f" {whole[place]:.4g}", va="center", fontsize=9, color=INK)
        words = f" {known[place]:.4g}: {row['steps_ratio']:.2f} × steps" if known[place] else " no prediction"
        times.text(known[place], place, words, va="center", fontsize=9, color=INK if known[place] else PALE)
    steps.set_yticks(places, [fill(row["runs"], 40) for row in rows], fontsize=8)
    steps.invert_yaxis()
    steps.set_xlim(0, ROOM * max(*whole, *sent, 1e-9))
    times.set_xlim(0, 1.7 * max(*known, 1e-9))
    quiet(steps, across="ms per step; hatched: communication, part of it or in parallel", grid=False)
    quiet(times, across="predicted ms to a loss for each step of All-Reduce", grid=False)
    return figure
