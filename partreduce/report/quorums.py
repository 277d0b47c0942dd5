"""Picture of quorums for a job: which one pays for which imbalance, and what each brings at its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partreduce.report.axes import quiet
from partreduce.report.palette import ALARM, GRID, INK, PALE, style

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from partreduce.planner.imbalance import Imbalances
    from partreduce.planner.plan import Plan


def draw_quorums(planned: Plan, found: Imbalances, path: Path) -> None:
    """Write the picture; the format is that of the file's suffix.

    Raises:
        InputError: a suffix that is no picture format.
        FileProblem: the file cannot be written.
        MissingFeatureError: matplotlib is not installed.
    """
    from partreduce.report.picture import new_figure, save

    figure = new_figure(12.0, 5.0)
    left, right = figure.subplots(1, 2)
    _by_imbalance(left, found)
    _by_number(right, planned, found)
    cluster = planned.recommendation.schedule.cluster
    figure.suptitle(
        f"{cluster}: which quorum pays for which imbalance",
        x=0.01,
        ha="left",
        fontsize=12,
        fontweight="bold",
        color=INK,
    )
    save(figure, path)


def _by_imbalance(axis: Axes, found: Imbalances) -> None:
    """The predicted speed of each quorum, from workers that are alike to such as are more unlike than the job's."""
    for index, (words, speeds) in enumerate(found.speeds.items()):
        look = style(index)
        axis.plot(
            found.waits, speeds, color=look.colour, linestyle=look.dash, marker=look.marker, ms=5, lw=1.6, label=words
        )
    axis.axhline(1.0, color=PALE, linewidth=1.2)
    axis.annotate(
        "All-Reduce", (1.0, 1.0), xycoords=("axes fraction", "data"), xytext=(-2, 3), textcoords="offset points",
        ha="right", fontsize=8, color=PALE,
    )  # fmt: skip
    axis.axvline(found.own, color=ALARM, linewidth=1.2, linestyle=":")
    axis.annotate(
        "this job", (found.own, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -10),
        textcoords="offset points", fontsize=8, color=ALARM,
    )  # fmt: skip
    quiet(axis, across="longest of all workers' steps ÷ a usual step", up="predicted speed to a loss ÷ All-Reduce's")
    axis.set_ylim(bottom=0)
    if not found.speeds:
        axis.set_title("too many workers to run any quorum under others", loc="left", fontsize=9, color=PALE)
        return
    axis.set_title("late gradients counted; each with a queue that suits it", loc="left", fontsize=9, color=PALE)
    axis.legend(fontsize=8, frameon=False, loc="upper left")


def _by_number(axis: Axes, planned: Plan, found: Imbalances) -> None:
    """At the job's own imbalance: gradients a second between both extremes, and what was run."""
    numbers = np.arange(1, len(found.free) + 1)
    low, high = np.minimum(found.free, found.steps), np.maximum(found.free, found.steps)
    axis.fill_between(numbers, low, high, color=GRID, label="gradients a second, workers in step or free")
    by_time = sorted((option for option in planned.options if option.quorum), key=lambda option: option.time)
    of_groups = [option for option in by_time if option.quorum and option.quorum.of][:1]
    measured = [option for option in by_time if option.quorum and not option.quorum.of] + of_groups
    for index, (words, look) in enumerate((("gradients a second, run", style(0)), ("speed to a loss", style(1)))):
        points = []
        for option in measured:
            facts = option.quorum
            assert facts is not None, "kept above"
            rate = facts.gradients_per_second * found.lockstep / option.schedule.num_workers
            points.append((facts.active, found.lockstep / option.time if index else rate))
        axis.plot(
            *zip(*points, strict=True), look.marker, linestyle="none", ms=7, mfc=look.colour, mec="black", mew=0.6,
            label=words,
        )  # fmt: skip
    for option in measured:
        facts = option.quorum
        assert facts is not None, "kept above"
        short = f"{facts.words.partition(' each')[0]} each group" if facts.of else facts.words
        axis.annotate(
            short, (facts.active, found.lockstep / option.time), xytext=(0, -14), textcoords="offset points",
            ha="center", fontsize=8, color=INK, fontweight="bold" if option is planned.recommendation else "normal",
        )  # fmt: skip
    axis.axhline(1.0, color=PALE, linewidth=1.2)
    quiet(axis, across="workers active in a round", up="speed to a loss, gradients per second ÷ All-Reduce's")
    axis.set_ylim(bottom=0)
    axis.set_title("at this job's imbalance; the recommendation in bold", loc="left", fontsize=9, color=PALE)
    axis.legend(fontsize=8, frameon=False, loc="best")
