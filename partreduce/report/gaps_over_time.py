"""A picture of a run that keeps a gap: who is ahead of whom as time goes by, and how much of the bound is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partreduce.report.over_time import clock, draw_workers, panels, plain, write
from partreduce.report.palette import ALARM, COMPUTE, DIVERGING, INK, MESSAGE, PALE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from partreduce.runtime.virtual_time.record import GapRecord

INSTANTS = 400


def draw_gaps_over_time(
    record: GapRecord, title: str, *, over_edges: int | None = None, over_pairs: int | None = None
) -> Figure:
    """Three panels over one clock: each worker's lead over the mean, and gaps over edges and over all pairs.

    Beside them the share of edges at each gap. `over_edges` and `over_pairs` are the proved bounds, where known.
    """
    seen, shares = record.over_time(INSTANTS), record.distribution(INSTANTS)
    end = float(seen.seconds[-1]) or 1.0
    scale, unit = clock(end)
    figure, grid = panels(title)
    leads, edges = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0])
    pairs, share = figure.add_subplot(grid[2, 0], sharex=edges), figure.add_subplot(grid[0, 1])

    steps = record.steps_at(seen.seconds)  # (instants, num_workers)
    lead = steps - steps.mean(axis=1, keepdims=True)
    most = float(np.abs(lead).max()) or 1.0
    draw_workers(figure, leads, lead, end=end * scale, colours=DIVERGING, limits=(-most, most))
    leads.set_title("steps ahead of the mean (blue), or behind it (red)", loc="left", fontsize=9, color=PALE)

    seconds = seen.seconds * scale
    _lines(edges, "over an edge", over_edges, record.largest_over_edges())
    edges.plot(seconds, seen.edge_largest, color=MESSAGE, linewidth=1.2, drawstyle="steps-mid", label="largest")
    edges.plot(seconds, seen.edge_mean, color=COMPUTE, linewidth=1.4, linestyle="--", label="mean")
    edges.legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2, fontsize=8, frameon=False, borderpad=0)
    edges.tick_params(labelbottom=False)
    _lines(pairs, "between any two", over_pairs, record.largest_over_pairs())
    pairs.plot(seconds, seen.pair_largest, color=MESSAGE, linewidth=1.2, drawstyle="steps-mid")
    pairs.set_xlabel(f"time ({unit})", color=INK)
    pairs.set_xlim(0, end * scale)

    gaps = np.arange(len(shares))
    share.barh(gaps, shares * 100, color=COMPUTE, edgecolor="white")
    share.set_title("% of the time at a gap", loc="left", fontsize=9, color=PALE)
    share.set_ylabel("gap over an edge (steps)", fontsize=8, color=INK)
    if len(shares) <= 12:
        share.set_yticks(gaps)
    plain(share)
    write(figure.add_subplot(grid[1:, 1]), _words(record, drawn=int(seen.edge_largest.max())))
    return figure


def _lines(axis: Axes, what: str, bound: int | None, seen: int) -> None:
    """What both panels of gaps share: the name, and the proved bound, drawn where it would not press all else flat."""
    is_near = bound is not None and bound <= 3 * seen
    known = "" if bound is None else f", proved to be at most {bound}" + (" (dotted)" if is_near else "")
    axis.set_ylabel("steps", fontsize=8, color=INK)
    axis.set_title(f"gap {what}{known}", loc="left", fontsize=9, color=PALE)
    if is_near and bound is not None:
        axis.axhline(bound, color=ALARM, linewidth=1.2, linestyle=":")
    axis.set_ylim(0, 1.08 * max(seen, bound if is_near and bound is not None else 0, 1))
    plain(axis)


def _words(record: GapRecord, drawn: int) -> list[str]:
    """Numbers of the whole run; the largest that the curve shows is `drawn`."""
    steps, most = record.finish.size, record.largest_over_edges()
    return [
        f"largest over an edge: {most}" + " (too brief to draw)" * (most > drawn),
        f"between any two: {record.largest_over_pairs()}",
        f"skipped: {int(record.skipped.sum()) / steps:.1%} of all steps",
        f"longest queue: {int(record.fill.max())} updates",
        f"waiting for updates: {_share(record.for_updates, record):.0%}",
        f"waiting for tokens: {_share(record.for_tokens, record):.0%}",
    ]


def _share(waited: np.ndarray, record: GapRecord) -> float:
    return float(waited.sum() / (record.finish[-1].sum() or 1.0))
