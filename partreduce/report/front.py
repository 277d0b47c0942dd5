"""Picture of a plan: time to a loss, and what it costs in consensus distance or drift, against communication."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from partreduce.planner.job import Data
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.plan import Plan
from partreduce.report.axes import COMMUNICATION, CONSENSUS_DISTANCE, DRIFT, logarithmic, quiet
from partreduce.report.palette import ALARM, GRAY, INK, PALE, style
from partreduce.report.picture import legend_below, new_figure
from partreduce.topo.describe import describe

TIME = "predicted time to a loss\n(ms per step of All-Reduce)"
PLACES = tuple(
    (across * sign, up, side)
    for up in (0, 14, -14, 28, -28, 42, -42)
    for across, sign, side in ((12, 1, "left"), (12, -1, "right"), (0, 1, "center"))
)
"""Where a name may stand next to its point, best first: points along and upwards, and its side that they measure to."""
NAME = 32
"""Characters of a line of what a schedule does."""

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox


def draw_front(planned: Plan, data: Data) -> Figure:
    """The picture. Sorted `data` makes drift matter.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    figure = new_figure(6.4, 8.8)  # narrow, so that its type can be read on a telephone
    axes = figure.subplots(2, 1)
    shuffled = data is Data.SHUFFLED
    values = [float(option.consensus_distance if shuffled else option.drift) for option in planned.options]
    _panel(axes[0], planned, TIME, [option.time * 1e3 for option in planned.options])
    _panel(axes[1], planned, CONSENSUS_DISTANCE if shuffled else DRIFT, values)
    legend_below(figure, axes[0], columns=2)
    cluster = planned.recommendation.schedule.cluster
    figure.suptitle(
        f"{cluster}: what communication costs and buys", x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK
    )
    figure.draw_without_rendering()  # settles where everything lies
    _label(axes[0], planned)
    return figure


def _label(axis: Axes, planned: Plan) -> None:
    """Names next to the points that decide: the recommendation, and baselines as far as there is room for their names.

    A name stands where it covers no point and no other name; only the recommendation's may cover points.
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
            va="center",
            path_effects=[withStroke(linewidth=3, foreground="white")], color=ALARM if is_first else INK,
            weight="bold" if is_first else "normal",
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


def _panel(axis: Axes, planned: Plan, label: str, values: Sequence[float]) -> None:
    """A scatter on logarithmic axes: front large, the rest small and pale, recommendation ringed, baselines crossed."""
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
                [x for x, _ in chosen], [y for _, y in chosen], look.marker, linestyle="none", label=words,
                ms=7 if on_front else 4, mfc=look.color if on_front else "none", mec="black" if on_front else GRAY,
                mew=0.6, zorder=3 if on_front else 2,
            )  # fmt: skip
    baselines = {id(option) for option in [*planned.baselines, planned.recommendation]}
    crossed = [(x, y) for option, x, y in points if any(option is one for one in planned.baselines)]
    axis.plot(
        [x for x, _ in crossed], [y for _, y in crossed], "+", ms=11, mec=INK, mew=1.2, linestyle="none",
        label="baseline", zorder=5,
    )  # fmt: skip
    recommendation: CandidateSchedule = planned.recommendation
    value = next((y for option, _, y in points if option is recommendation), None)
    if value is not None:
        axis.plot(
            [recommendation.communication * 1e3], [value], "o", ms=15, mfc="none", mec=ALARM, mew=2.2, linestyle="none",
            label="recommendation", zorder=4,
        )  # fmt: skip
    quiet(axis, across=COMMUNICATION, up=label)
    shown = [point for point in points if id(point[0]) in kept | baselines] or points
    logarithmic(axis, "x", [x for _, x, _ in shown])  # what is beaten and lies farther out stays outside
    logarithmic(axis, "y", [y for _, _, y in shown])
