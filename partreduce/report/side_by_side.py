"""Picture of several schedules on one cluster: what a step takes, and the predicted time to a loss."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from partreduce.report.axes import quiet
from partreduce.report.palette import COMMUNICATE, COMMUNICATE_HATCH, COMPUTE, EDGE, INK, OKABE_ITO, PALE
from partreduce.report.picture import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOM = 1.25
"""Of the longest bar, for the number behind it."""


def draw_side_by_side(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    """A bar a schedule in each of two panels, with its number behind it; `rows` as `simulate --json` lists them."""
    figure = new_figure(11, 1.5 + 0.5 * len(rows))
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
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
