"""Loss curves of several runs, and a timeline of the group operations that a run really did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from preduce.report.grid import PALETTE
from preduce.report.picture import INK, PALE, new_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from preduce.demo.results import Result


def draw_curves(measured: Sequence[Result], target: float) -> Figure:
    """Loss of the mean model over steps (left) and over seconds (right), the target as a line."""
    figure = new_figure(11, 4)
    for axis, word in zip(figure.subplots(1, 2, sharey=True), ("steps", "seconds"), strict=True):
        for index, result in enumerate(measured):
            across = result.steps if word == "steps" else result.seconds
            axis.plot(across, result.loss, color=PALETTE[index], linewidth=2, label=result.name)
            reached = result.reached(target)
            if reached is not None:
                place = reached[0] if word == "steps" else reached[1]
                axis.plot(place, result.loss[result.steps == reached[0]], "o", ms=7, color=PALETTE[index], mec="white")
        axis.axhline(target, color=PALE, linewidth=1, linestyle="--")
        axis.set_yscale("log")
        axis.set_xlim(left=0)
        axis.set_xlabel(word, color=INK)
        axis.grid(visible=True, which="major", color="#ececec")
        _plain(axis)
    figure.axes[0].set_ylabel("training loss of the mean model", color=INK)
    figure.axes[0].legend(frameon=False, fontsize=9)
    return figure


def draw_operations(runs: Sequence[tuple[str, list[dict[str, Any]]]], num_workers: int, *, rounds: int = 10) -> Figure:
    """One panel per run: each worker's group operations (waiting included) in some rounds from the middle.

    The first round shown is a multiple of `rounds`: evaluations then fall outside.
    """
    figure = new_figure(11, len(runs) * (0.7 + 0.17 * num_workers))
    numbers: dict[tuple[int, ...], int] = {}
    panels = figure.subplots(len(runs), 1, squeeze=False).flat
    widths = []
    for axis, (name, events) in zip(panels, runs, strict=True):
        kept = [event for event in events if event["kind"] in {"average", "gradient average"}]
        middle = max((event["round"] for event in kept), default=0) // 2
        first = middle // rounds * rounds
        shown = [event for event in kept if first <= event["round"] < first + rounds]
        origin = min((event["start"] for event in shown), default=0.0)
        for event in shown:
            colour = PALETTE[numbers.setdefault(event["members"], len(numbers)) % len(PALETTE)]
            span = ((event["start"] - origin) * 1e3, (event["end"] - event["start"]) * 1e3)
            axis.broken_barh([span], (event["rank"] + 0.1, 0.8), facecolors=colour, linewidth=0)
        widths.append(max(((event["end"] - origin) * 1e3 for event in shown), default=1.0))
        axis.set_ylim(num_workers, 0)
        axis.set_yticks(
            [rank + 0.5 for rank in range(num_workers)], [str(rank) for rank in range(num_workers)], fontsize=7
        )
        axis.set_ylabel("worker", fontsize=8, color=INK)
        axis.set_title(f"{name}: rounds {first} to {first + rounds - 1}", fontsize=9, loc="left", color=PALE)
        _plain(axis)
    for axis in figure.axes:
        axis.set_xlim(0, max(widths))
    figure.axes[-1].set_xlabel("time (ms)", color=INK)
    return figure


def _plain(axis: Axes) -> None:
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.tick_params(colors=PALE)
