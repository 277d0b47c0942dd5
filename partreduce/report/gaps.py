"""Gap matrices as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partreduce.report.palette import ALARM, INK, PALE, SEQUENTIAL
from partreduce.report.picture import new_figure, save

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

    from partreduce.verify.gaps import Gaps
    from partreduce.verify.gaps.paper import Matrix

MAX_NUMBERED = 20
"""Workers up to which every cell shows its number; beyond them a scale stands beside the matrices."""


def draw_gaps(gaps: Gaps, path: Path, *, title: str) -> None:
    """Draw the published, exact and (if explored) attained gap matrices side by side.

    Raises:
        InputError: a file name that is no picture.
        FileProblem: the file cannot be written.
        MissingFeatureError: matplotlib is not installed.
    """
    panels = [("paper bound", gaps.paper_bound), ("exact bound", gaps.exact_bound)]
    if gaps.attained is not None:
        panels.append(("attained by exploration", gaps.attained))
    n = gaps.graph.num_workers
    side = max(2.4, 0.34 * min(n, 32))
    figure = new_figure((side + 0.5) * len(panels), side + 0.9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    top = max((value for _, matrix in panels for row in matrix for value in row if value is not None), default=1)
    for axis, (name, matrix) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        shown = _draw_matrix(axis, matrix, name, max(1, top))
    if n > MAX_NUMBERED:
        figure.colorbar(
            shown, ax=figure.axes, label="Step(i) − Step(j) at most (steps; tip: no bound)", shrink=0.7, extend="max"
        )
    save(figure, path)


def _draw_matrix(axis: Axes, matrix: Matrix, name: str, top: int) -> AxesImage:
    from matplotlib import colormaps

    n = len(matrix)
    # An unbounded pair is drawn beyond the end of the scale, in its "over" colour.
    shades = [[top * 2 if value is None else value for value in row] for row in matrix]
    colours = colormaps[SEQUENTIAL].with_extremes(over=ALARM)
    image = axis.imshow(shades, cmap=colours, vmin=0, vmax=top * 1.25)
    if n <= MAX_NUMBERED:
        for i, row in enumerate(matrix):
            for j, value in enumerate(row):
                dark = value is None or value > 0.7 * top
                text = "∞" if value is None else str(value)
                axis.text(j, i, text, ha="center", va="center", fontsize=7, color="white" if dark else INK)
    axis.set_title(f"{name} (steps)", fontsize=9, color=PALE, loc="left")
    axis.set_xlabel("worker j", fontsize=8)
    axis.set_ylabel("worker i", fontsize=8)
    step = max(1, n // 16)
    axis.set_xticks(range(0, n, step))
    axis.set_yticks(range(0, n, step))
    axis.tick_params(length=0, labelsize=7)
    return image
