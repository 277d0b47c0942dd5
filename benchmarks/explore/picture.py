"""A trace as a diagram of messages between processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partreduce.report.palette import ALARM, GREY, INK, MESSAGE, PALE
from partreduce.report.picture import new_figure, save

if TYPE_CHECKING:
    from pathlib import Path

    from partreduce.verify.explore import Trace

MAX_STEPS = 80


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
