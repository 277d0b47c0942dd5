"""Picture of `partreduce simulate` of several schedules: what the communication of each schedule buys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partreduce.report.axes import COMMUNICATION, CONSENSUS_DISTANCE, DRIFT, logarithmic, quiet
from partreduce.report.palette import style
from partreduce.report.picture import legend_below, new_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure


def draw_comparison(rows: Sequence[dict[str, Any]]) -> Figure:
    """Communication against consensus distance and drift, one marker for each row of `partreduce simulate --json`.

    Raises:
        MissingFeatureError: matplotlib is not installed.
    """
    figure = new_figure(10, 4.4 + 0.2 * (-(-len(rows) // 3)))
    axes = figure.subplots(1, 2)
    for axis, label, values in zip(
        axes,
        (CONSENSUS_DISTANCE, DRIFT),
        ([row["consensus_distance"] for row in rows], [row["drift"]["worker"] for row in rows]),
        strict=True,
    ):
        across = [row["communication_seconds_per_step"] * 1e3 for row in rows]
        for index, (row, x, y) in enumerate(zip(rows, across, values, strict=True)):
            look = style(index)
            # A schedule without this figure keeps its place in the legend.
            axis.plot(
                [x] if y is not None else [], [y] if y is not None else [], look.marker, ms=9, color=look.colour,
                mec="black", mew=0.6, label=row["name"], linestyle="none",
            )  # fmt: skip
        quiet(axis, across=COMMUNICATION, up=label)
        shown = [(x, y) for x, y in zip(across, values, strict=True) if y is not None]
        logarithmic(axis, "x", [x for x, _ in shown])
        logarithmic(axis, "y", [y for _, y in shown])
    legend_below(figure, axes[0])
    return figure
