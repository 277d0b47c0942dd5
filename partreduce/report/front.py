"""Draw the Pareto front of a plan: time to a loss, and consensus distance or drift, over communication."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from partreduce.planner.job import Data
from partreduce.planner.plan import Plan
from partreduce.report.palette import (
    ALARM,
    COMMUNICATION,
    CONSENSUS_DISTANCE,
    DRIFT,
    GRAY,
    INK,
    PALE,
    logarithmic,
    quiet,
    style,
)
from partreduce.report.picture import legend_below, new_figure
from partreduce.topo.describe import describe

TIME = "predicted time to a loss\n(ms per step of All-Reduce)"
PLACES = tuple(
    (across * sign, up, side)
    for up in (0, 14, -14, 28, -28, 42, -42)
    for across, sign, side in ((12, 1, "left"), (12, -1, "right"), (0, 1, "center"))
)
"""Positions of a name next to its point, best first: typographic points to the right, and up; and the alignment."""
NAME = 32
"""Characters per line of a schedule's description."""

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox


def draw_front(planned: Plan, data: Data) -> Figure:
    """Draw the Pareto front of a plan: predicted time to a loss (upper panel), and a metric (lower panel).

    The metric is the consensus distance if `data` is shuffled, else drift.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    title = f"{planned.recommendation.schedule.cluster}: what communication costs and buys"
    figure = new_figure(6.4, 8.8, title)  # narrow, so that its text is readable on a phone
    axes = figure.subplots(2, 1)
    shuffled = data is Data.SHUFFLED
    values = [float(option.consensus_distance if shuffled else option.drift) for option in planned.options]
    _panel(axes[0], planned, TIME, [option.time * 1e3 for option in planned.options])
    _panel(axes[1], planned, CONSENSUS_DISTANCE if shuffled else DRIFT, values)
    legend_below(figure, axes[0], columns=2)

    figure.draw_without_rendering()  # fixes the position of every artist
    _label(axes[0], planned)
    return figure


def _label(axis: Axes, planned: Plan) -> None:
    """Name the most important points: the recommendation, and baselines as far as there is room for their names.

    A name covers no point and no other name; only the recommendation's may cover points.
    """
    from matplotlib.patheffects import withStroke

    lines = [np.asarray(line.get_xydata()) for line in axis.lines]
    points = np.concatenate([axis.transData.transform(line) for line in lines if len(line)])
    taken: list[Bbox] = []
    baselines = [one for one in planned.baselines if one is not planned.recommendation]
    for option in [planned.recommendation, *sorted(baselines, key=lambda one: one.time)]:
        x, y = option.communication * 1e3, option.time * 1e3
        is_first = option is planned.recommendation
        name = axis.annotate(
            fill(describe(option.schedule), NAME), (x, y), (0, 0), textcoords="offset points", fontsize=8, zorder=6,
            va="center", path_effects=[withStroke(linewidth=3, foreground="white")],
            color=ALARM if is_first else INK, weight="bold" if is_first else "normal",
        )  # fmt: skip
        covered = {}
        for across, up, side in PLACES:
            name.set(position=(across, up), ha=side)
            box = name.get_window_extent()
            if axis.bbox.containsx(box.x0) and axis.bbox.containsx(box.x1) and not box.count_overlaps(taken):
                covered[across, up, side] = int(np.sum(np.all((points > box.min) & (points < box.max), axis=1)))
        place = min(covered, key=lambda place: covered[place], default=None)
        if place is None or (covered[place] and not is_first):
            name.remove()
            continue
        name.set(position=place[:2], ha=place[2])
        leader = {"arrowstyle": "-", "color": PALE, "linewidth": 0.8}
        axis.annotate("", (x, y), place[:2], textcoords="offset points", arrowprops=leader)
        taken.append(name.get_window_extent())


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _panel(axis: Axes, planned: Plan, label: str, values: Sequence[float]) -> None:
    """Draw a logarithmic scatter plot of all candidates: `values`, with the axis label `label`, over communication.

    Points on the front are large, others small and pale; the recommendation is ringed, baselines are crossed.
    """
    kept = {id(option) for option in planned.front}
    points = [
        (option, option.communication * 1e3, value)
        for option, value in zip(planned.options, values, strict=True)
        if math.isfinite(value) and math.isfinite(option.communication)
    ]
    for index, (name, wanted) in enumerate((("catalogue", True), ("found by the search", False))):
        look = style(index)
        mine = [point for point in points if (point[0].status == "catalogue") == wanted]
        for words, on_front in ((f"{name}, beaten by another", False), (f"{name}, on the front", True)):
            chosen = [(x, y) for option, x, y in mine if (id(option) in kept) == on_front]
            axis.plot(
                *_columns(chosen), look.marker, linestyle="none", label=words, ms=7 if on_front else 4, mew=0.6,
                mfc=look.color if on_front else "none", mec="black" if on_front else GRAY, zorder=3 if on_front else 2,
            )  # fmt: skip
    baselines = {id(option) for option in planned.baselines}
    crossed = [(x, y) for option, x, y in points if id(option) in baselines]
    ring = [(x, y) for option, x, y in points if option is planned.recommendation]
    draw = partial(axis.plot, linestyle="none")
    draw(*_columns(crossed), "+", ms=11, mec=INK, mew=1.2, label="baseline", zorder=5)
    if ring:
        draw(*_columns(ring), "o", ms=15, mfc="none", mec=ALARM, mew=2.2, label="recommendation", zorder=4)
    quiet(axis, across=COMMUNICATION, up=label)
    kept |= baselines | {id(planned.recommendation)}
    shown = [point for point in points if id(point[0]) in kept] or points
    logarithmic(axis, "x", [x for _, x, _ in shown])  # dominated points farther out stay outside
    logarithmic(axis, "y", [y for _, _, y in shown])
