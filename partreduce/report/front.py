"""Picture of a plan: communication against consensus distance and drift, found schedules beside the catalogue's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from partreduce.report.axes import COMMUNICATION, CONSENSUS_DISTANCE, DRIFT, logarithmic, quiet
from partreduce.report.palette import ALARM, GREY, INK, style

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from partreduce.planner.option import Option
    from partreduce.planner.plan import Plan


def draw_front(planned: Plan, path: Path) -> None:
    """Write the picture; the format is that of the file's suffix.

    Raises:
        InputError: a suffix that is no picture format.
        FileProblem: the file cannot be written.
        MissingFeatureError: matplotlib is not installed.
    """
    from partreduce.report.picture import legend_below, new_figure, save

    figure = new_figure(12.0, 5.2)
    axes = figure.subplots(1, 2)
    _panel(axes[0], planned, CONSENSUS_DISTANCE, [float(option.consensus_distance) for option in planned.options])
    _panel(axes[1], planned, DRIFT, [float(option.drift) for option in planned.options])
    legend_below(figure, axes[0])
    cluster = planned.recommendation.schedule.cluster
    figure.suptitle(
        f"{cluster}: what less communication costs", x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK
    )
    save(figure, path)


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
        for words, on_front in ((f"{name}, beaten in everything by another", False), (f"{name}, on the front", True)):
            chosen = [(x, y) for option, x, y in mine if (id(option) in kept) == on_front]
            axis.plot(
                [x for x, _ in chosen], [y for _, y in chosen], look.marker, linestyle="none", label=words,
                ms=7 if on_front else 4, mfc=look.colour if on_front else "none", mec="black" if on_front else GREY,
                mew=0.6, zorder=3 if on_front else 2,
            )  # fmt: skip
    baselines = {id(option) for option in planned.baselines}
    crossed = [(x, y) for option, x, y in points if id(option) in baselines]
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
    logarithmic(axis, "x", [x for _, x, _ in points])
    logarithmic(axis, "y", [y for _, _, y in points])
