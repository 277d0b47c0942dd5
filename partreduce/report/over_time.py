"""What pictures of runs have in common: panels over one clock, with a row for each worker in the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from partreduce.report.palette import GREY, GRID, INK, PALE
from partreduce.report.picture import new_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import GridSpec

MAX_ROWS = 512


def panels(title: str) -> tuple[Figure, GridSpec]:
    """A figure with room for three panels over one clock, and for others beside them: (3, 2)."""
    figure = new_figure(11, 6.4)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    return figure, figure.add_gridspec(3, 2, width_ratios=(5, 1.35), height_ratios=(2.2, 1, 1))


def clock(end: float) -> tuple[float, str]:
    """By what seconds are multiplied where a run ends after so many, and the unit that this gives."""
    return (1.0, "s") if end >= 2 else (1e3, "ms")


def draw_workers(
    figure: Figure,
    axis: Axes,
    values: npt.NDArray[Any],
    *,
    end: float,
    colours: str,
    limits: tuple[float, float],
    ticks: npt.NDArray[Any] | None = None,
) -> None:
    """A row for each worker, or for some of very many, with a colour for its value at each instant, and their bar.

    Args:
        figure: of the axis.
        axis: where to draw.
        values: (instants, num_workers)
        end: of the clock, on the axis.
        colours: matplotlib's name of a colour map.
        limits: the values of its two ends.
        ticks: of the bar.
    """
    count = values.shape[1]
    rows = np.arange(count) if count <= MAX_ROWS else np.unique(np.linspace(0, count - 1, MAX_ROWS).astype(int))
    image = axis.imshow(
        values[:, rows].T,
        aspect="auto",
        cmap=colours,
        vmin=limits[0],
        vmax=limits[1],
        extent=(0.0, end, len(rows) - 0.5, -0.5),
        interpolation="nearest",
    )
    axis.set_ylabel("worker" if len(rows) == count else f"{len(rows)} of {count} workers", color=INK)
    axis.tick_params(labelbottom=False, colors=PALE, labelsize=8)
    if len(rows) <= 24:
        axis.set_yticks(range(len(rows)))
    elif len(rows) < count:
        marks = np.linspace(0, len(rows) - 1, 5).astype(int)
        axis.set_yticks(marks, [str(rows[mark]) for mark in marks])
    bar = figure.colorbar(image, cax=axis.inset_axes((1.012, 0.0, 0.014, 1.0)), ticks=ticks)
    bar.ax.tick_params(labelsize=8, colors=PALE)


def plain(axis: Axes) -> None:
    """The frame that panels over one clock share: two sides, a pale grid behind what is drawn."""
    axis.grid(color=GRID, linewidth=0.6)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color(GREY)
    axis.tick_params(colors=PALE, labelsize=8)


def write(axis: Axes, lines: Sequence[str]) -> None:
    """A few numbers in the corner that is left."""
    axis.axis("off")
    axis.text(0, 0.5, "\n".join(lines), fontsize=8, color=INK, va="center", linespacing=1.7, transform=axis.transAxes)
