"""Loss curves of several runs, and a timeline of the group operations that a run really did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from partreduce.demo.results import Result
from partreduce.report.grid import Grid
from partreduce.report.palette import EDGE, GRAY, INK, PALE, logarithmic, quiet, style
from partreduce.report.picture import legend_below, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_curves(measured: Sequence[Result], target: float) -> Figure:
    """Loss of the mean model over steps (left) and over seconds (right: a line a turn), the target as a line."""
    figure = new_figure(11, 4.4)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, word in zip(axes, ("steps", "seconds"), strict=True):
        for index, result in enumerate(measured):
            look = style(index)
            turns = [result.steps] if word == "steps" else list(result.seconds)
            wide = 2.0 if len(turns) == 1 else 1.2
            for number, across in enumerate(turns):
                name = result.name if number == 0 else None
                axis.plot(across, result.loss, look.dash, color=look.color, linewidth=wide, label=name)
            reached = result.reached(target)
            if reached is not None:
                places = [reached[0]] if word == "steps" else list(reached[1])
                losses = [*result.loss[result.steps == reached[0]]] * len(places)
                dots = {"ms": 7, "color": look.color, "mec": "black", "mew": 0.8, "zorder": 3}
                axis.plot(places, losses, look.marker, linestyle="none", **dots)
        axis.axhline(target, color=INK, linewidth=1, linestyle=":", label=f"target: loss {target:g}")
        quiet(axis, across="training steps" if word == "steps" else "training time (s)")
        logarithmic(axis, "y", [*(loss for result in measured for loss in result.loss.tolist()), target])
        axis.set_xlim(left=0)
    axes[0].set_ylabel("training loss of the mean model", color=INK)
    legend_below(figure, axes[0], columns=4)
    return figure


def draw_operations(
    runs: Sequence[tuple[Grid, str, list[dict[str, Any]]]], num_workers: int, *, rounds: int = 10
) -> Figure:
    """One panel per run: each worker's group operations (waiting included) in some rounds from the middle.

    A group looks as in the grid of its schedule; gray stands for a group that the grid does not show.
    The first round shown is a multiple of `rounds`: evaluations then fall outside.
    """
    figure = new_figure(11, len(runs) * (0.7 + 0.17 * num_workers))
    panels = figure.subplots(len(runs), 1, squeeze=False).flat
    widths = []
    for axis, (grid, name, events) in zip(panels, runs, strict=True):
        kept = [event for event in events if event["kind"] in {"average", "gradient average"}]
        middle = max((event["round"] for event in kept), default=0) // 2
        first = middle // rounds * rounds
        shown = [event for event in kept if first <= event["round"] < first + rounds]
        origin = min((event["start"] for event in shown), default=0.0)
        for event in shown:
            index = grid.index_of(event["members"])
            color, hatch = (GRAY, "") if index is None else (grid.styles[index].color, grid.styles[index].hatch)
            span = ((event["start"] - origin) * 1e3, (event["end"] - event["start"]) * 1e3)
            place = (event["rank"] + 0.1, 0.8)
            axis.broken_barh([span], place, facecolors=color, edgecolor=EDGE, linewidth=0.3, hatch=hatch)
        widths.append(max(((event["end"] - origin) * 1e3 for event in shown), default=1.0))
        axis.set_ylim(num_workers, 0)
        axis.set_yticks(
            [rank + 0.5 for rank in range(num_workers)], [str(rank) for rank in range(num_workers)], fontsize=7
        )
        axis.set_title(f"{name}: rounds {first} to {first + rounds - 1}", fontsize=9, loc="left", color=PALE)
        quiet(axis, up="worker", grid=False)
    for axis in figure.axes:
        axis.set_xlim(0, max(widths))
    figure.axes[-1].set_xlabel("time (ms)", color=INK)
    return figure
