"""A picture of a run under a quorum: who is in which round as time goes by, how many, and how old gradients are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partreduce.report.over_time import clock, draw_workers, panels, plain, write
from partreduce.report.palette import ALARM, COMPUTE, INK, MESSAGE, PALE, SEQUENTIAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from partreduce.runtime.virtual_time.record import QuorumRecord

INSTANTS = 600
SHOWN = 80
"""Rounds of which a curve can show each; of more it shows every few as one."""


def draw_quorum_over_time(
    record: QuorumRecord, title: str, *, needed: int | None = None, bound: int | None = None
) -> Figure:
    """Three panels over one clock: each worker's gradients in the rounds, how many workers have any, and their ages.

    Beside them the share of gradients of each age. `needed` is how many workers a round asks for, `bound` how many
    rounds late a gradient may be, where these are known.
    """
    count = record.gradients.shape[1]
    begun, end = record.summed[0], float(record.summed[1, -1]) or 1.0
    scale, unit = clock(end)
    figure, grid = panels(title)
    active = figure.add_subplot(grid[1, 0])
    _who(figure, figure.add_subplot(grid[0, 0]), record, end * scale)
    _rounds(active, begun * scale, record.active.astype(float), MESSAGE)
    asked = "" if needed is None else f"; a round asks for {needed} (dotted)"
    active.set_title(f"workers active in a round, of {count}{asked}", loc="left", fontsize=9, color=PALE)
    active.set_ylabel("workers", fontsize=8, color=INK)
    active.set_ylim(0, count * 1.05)
    if needed is not None:
        active.axhline(needed, color=ALARM, linewidth=1.2, linestyle=":")
    active.tick_params(labelbottom=False)
    ages = figure.add_subplot(grid[2, 0], sharex=active)
    _ages(ages, record, begun * scale, bound)
    ages.set_xlabel(f"time ({unit})", color=INK)
    ages.set_xlim(0, end * scale)
    share, shares = figure.add_subplot(grid[0, 1]), record.shares_of_ages()
    share.barh(np.arange(len(shares)), shares * 100, color=COMPUTE, edgecolor="white")
    share.set_title("% of gradients of an age", loc="left", fontsize=9, color=PALE)
    share.set_ylabel("age (rounds)", fontsize=8, color=INK)
    if len(shares) <= 12:
        share.set_yticks(np.arange(len(shares)))
    plain(share)
    write(figure.add_subplot(grid[1:, 1]), _words(record))
    return figure


def _who(figure: Figure, axis: Axes, record: QuorumRecord, end: float) -> None:
    """Each worker's gradients in the round that was begun last at an instant, up to `end` on the axis."""
    most = max(1, int(record.gradients.max()))
    seconds = (np.arange(INSTANTS) + 0.5) / INSTANTS * float(record.summed[1, -1])
    last = np.clip(np.searchsorted(record.summed[0], seconds, side="right") - 1, 0, None)
    ticks = np.unique(np.linspace(0, most, min(most, 4) + 1).round().astype(int))
    draw_workers(figure, axis, record.gradients[last], end=end, colours=SEQUENTIAL, limits=(0, most), ticks=ticks)
    axis.set_title("gradients of a worker in the round that was begun last", loc="left", fontsize=9, color=PALE)


def _ages(axis: Axes, record: QuorumRecord, seconds: np.ndarray, bound: int | None) -> None:
    """How old the gradients of each round are, with the bound where it would not press all else flat."""
    oldest = record.oldest()
    _rounds(axis, seconds, oldest, MESSAGE, label="oldest")
    _rounds(axis, seconds, record.mean_ages(), COMPUTE, label="mean", dash="--")
    is_near = bound is not None and bound <= 3 * max(1, int(oldest.max()))
    known = "" if bound is None else f", proved to be at most {bound}" + (" (dotted)" if is_near else "")
    axis.set_title(f"age of gradients{known}", loc="left", fontsize=9, color=PALE)
    axis.set_ylabel("rounds", fontsize=8, color=INK)
    if is_near and bound is not None:
        axis.axhline(bound, color=ALARM, linewidth=1.2, linestyle=":")
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2, fontsize=8, frameon=False, borderpad=0)
    axis.set_ylim(bottom=0)


def _rounds(
    axis: Axes, seconds: np.ndarray, values: np.ndarray, colour: str, *, label: str | None = None, dash: str = "-"
) -> None:
    """A value of each round from when it was begun on; of many rounds the mean of each few, of integers the largest."""
    few = -(-len(values) // SHOWN)
    starts = np.arange(0, len(values), few)
    if values.dtype.kind == "f":
        shown = np.add.reduceat(values, starts) / np.diff([*starts, len(values)])
    else:
        shown = np.maximum.reduceat(values, starts)
    axis.plot(seconds[starts], shown, color=colour, linewidth=1.3, linestyle=dash, drawstyle="steps-post", label=label)
    plain(axis)


def _words(record: QuorumRecord) -> list[str]:
    """A few numbers for the corner that is left; of all but the first quarter of the rounds."""
    first = len(record.gradients) // 4
    rounds, gradients = record.rates(warm_up=first)
    share = record.gradients.sum(axis=0) / record.gradients.sum() * record.gradients.shape[1]
    return [
        f"rounds a second: {rounds:.4g}",
        f"gradients a second: {gradients:.4g}",
        f"active in a round: {record.active[first:].mean():.3g}",
        f"age: {record.ages.mean():.2g} rounds, at most {record.ages.max()}",
        f"gradients of a worker: {share.min():.2g} to",
        f"{share.max():.2g} of an even share",
    ]
