"""Picture of a plan: time to a loss, and what it costs in consensus distance or drift, against communication."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from partreduce.planner.job import Data
from partreduce.report.axes import COMMUNICATION, CONSENSUS_DISTANCE, DRIFT, logarithmic, quiet
from partreduce.report.palette import ALARM, GREY, INK, style

TIME = "predicted time to a loss (ms per step of All-Reduce)"
WIDE, HIGH = 2.0, 0.2
"""Names of points that are closer than this along and upwards, in logarithms of the axes, would meet."""

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from partreduce.planner.option import Option
    from partreduce.planner.plan import Plan


def draw_front(planned: Plan, data: Data, path: Path) -> None:
    """Write the picture; the format is that of the file's suffix. Sorted `data` makes drift matter.

    Raises:
        InputError: a suffix that is no picture format.
        FileProblem: the file cannot be written.
        MissingFeatureError: matplotlib is not installed.
    """
    from partreduce.report.picture import legend_below, new_figure, save

    figure = new_figure(12.0, 5.2)
    axes = figure.subplots(1, 2)
    shuffled = data is Data.SHUFFLED
    values = [float(option.consensus_distance if shuffled else option.drift) for option in planned.options]
    _panel(axes[0], planned, TIME, [option.time * 1e3 for option in planned.options])
    _label(axes[0], planned)
    _panel(axes[1], planned, CONSENSUS_DISTANCE if shuffled else DRIFT, values)
    legend_below(figure, axes[0])
    cluster = planned.recommendation.schedule.cluster
    figure.suptitle(
        f"{cluster}: what communication costs and buys", x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK
    )
    save(figure, path)


def _label(axis: Axes, planned: Plan) -> None:
    """Names beside the points that decide: the recommendation, and baselines as far as their names do not meet."""
    from matplotlib.patheffects import withStroke

    seen: list[tuple[float, float]] = []
    for option in [planned.recommendation, *sorted(planned.baselines, key=lambda one: one.time)]:
        x, y = option.communication * 1e3, option.time * 1e3
        if x <= 0 or any(abs(math.log(x / a)) < WIDE and abs(math.log(y / b)) < HIGH for a, b in seen):
            continue
        is_first = not seen
        axis.annotate(
            option.name, (x, y), (9, -14 if is_first else 6), textcoords="offset points", fontsize=8, zorder=6,
            path_effects=[withStroke(linewidth=3, foreground="white")], color=ALARM if is_first else INK,
            weight="bold" if is_first else "normal",
        )  # fmt: skip
        seen.append((x, y))


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
        for words, on_front in ((f"{name}, beaten by another (where it fits)", False), (f"{name}, on the front", True)):
            chosen = [(x, y) for option, x, y in mine if (id(option) in kept) == on_front]
            axis.plot(
                [x for x, _ in chosen], [y for _, y in chosen], look.marker, linestyle="none", label=words,
                ms=7 if on_front else 4, mfc=look.colour if on_front else "none", mec="black" if on_front else GREY,
                mew=0.6, zorder=3 if on_front else 2,
            )  # fmt: skip
    baselines = {id(option) for option in [*planned.baselines, planned.recommendation]}
    crossed = [(x, y) for option, x, y in points if any(option is one for one in planned.baselines)]
    axis.plot(
        [x for x, _ in crossed], [y for _, y in crossed], "+", ms=11, mec=INK, mew=1.2, linestyle="none",
        label="baseline", zorder=5,
    )  # fmt: skip
    recommendation: Option = planned.recommendation
    value = next((y for option, _, y in points if option is recommendation), None)
    if value is not None:
        axis.plot(
            [recommendation.communication * 1e3], [value], "o", ms=15, mfc="none", mec=ALARM, mew=2.2, linestyle="none",
            label=f"recommendation: {recommendation.name}", zorder=4,
        )  # fmt: skip
    quiet(axis, across=COMMUNICATION, up=label)
    shown = [point for point in points if id(point[0]) in kept | baselines] or points
    logarithmic(axis, "x", [x for _, x, _ in shown])  # what is beaten and lies farther out stays outside
    logarithmic(axis, "y", [y for _, _, y in shown])
