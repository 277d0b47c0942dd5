"""Pictures of the explorer's answers: gap matrices, and a trace as a diagram of messages between processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partreduce.report.palette import ALARM, GREY, INK, MESSAGE, PALE, SEQUENTIAL
from partreduce.report.picture import new_figure, save

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

    from partreduce.verify.explore import Trace
    from partreduce.verify.gaps import Gaps
    from partreduce.verify.gaps.paper import Matrix

MAX_STEPS = 80
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


def draw_trace(trace: Trace, path: Path, *, title: str) -> None:
    """Draw a trace as a sequence diagram: one line per process, one row per thing that happens, time going down.

    Raises:
        InputError: a file name that is no picture.
        FileProblem: the file cannot be written.
        MissingFeatureError: matplotlib is not installed.
    """
    steps = trace.steps[-MAX_STEPS:]
    dropped = len(trace.steps) - len(steps)
    figure = new_figure(max(6.0, 1.5 * trace.num_processes + 4.5), 1.2 + 0.3 * (len(steps) + 1))
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    axis = figure.subplots()
    for process in range(trace.num_processes):
        axis.plot([process, process], [-0.8, len(steps)], color=GREY, linewidth=1, zorder=0)
        axis.text(process, -1.1, str(process), ha="center", va="bottom", fontsize=9, color=INK)
    for row, step in enumerate(steps):
        number = dropped + row
        if trace.loop is not None and number == trace.loop:
            axis.axhline(row - 0.5, color=ALARM, linewidth=0.8, linestyle="--")
        if step.source >= 0:
            colour = ALARM if step.verb in ("lose", "repeat") else MESSAGE
            axis.annotate(
                "", (step.process, row), (step.source, row),
                arrowprops={"arrowstyle": "->", "color": colour, "linestyle": ":" if step.verb == "lose" else "-"},
            )  # fmt: skip
        else:
            axis.plot([step.process], [row], marker="X" if step.verb == "crash" else "o", color=INK, markersize=4)
        axis.text(trace.num_processes - 0.4, row, f"{number + 1}. {step.text}", va="center", fontsize=7, color=INK)
    axis.set_xlim(-0.5, trace.num_processes + 3.2)
    axis.set_ylim(len(steps), -1.8)
    axis.axis("off")
    if dropped:
        figure.supxlabel(f"the first {dropped} steps are not drawn", x=0.01, ha="left", fontsize=8, color=PALE)
    save(figure, path)
