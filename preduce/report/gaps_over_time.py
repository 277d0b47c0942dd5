"""A picture of a run that keeps a gap: who is ahead of whom as time goes by, and how much of the bound is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from preduce.report.palette import ALARM, COMPUTE, DIVERGING, GREY, GRID, INK, MESSAGE, PALE
from preduce.report.picture import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from preduce.runtime.virtual_time.gap_record import GapRecord

MAX_ROWS = 512
INSTANTS = 400


def draw_gaps_over_time(
    record: GapRecord, title: str, *, over_edges: int | None = None, over_pairs: int | None = None
) -> Figure:
    """Three panels over one clock: each worker's lead over the mean, and gaps over edges and over all pairs.

    Beside them the share of edges at each gap. `over_edges` and `over_pairs` are the proved bounds, where known.
    """
    count = record.finish.shape[1]
    rows = np.arange(count) if count <= MAX_ROWS else np.unique(np.linspace(0, count - 1, MAX_ROWS).astype(int))
    seen, shares = record.over_time(INSTANTS), record.distribution(INSTANTS)
    end = float(seen.seconds[-1]) or 1.0
    scale, unit = (1.0, "s") if end >= 2 else (1e3, "ms")
    figure = new_figure(11, 6.4)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    grid = figure.add_gridspec(3, 2, width_ratios=(5, 1.35), height_ratios=(2.2, 1, 1))
    leads, edges = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0])
    pairs, share = figure.add_subplot(grid[2, 0], sharex=edges), figure.add_subplot(grid[0, 1])

    steps = record.steps_at(seen.seconds)  # (instants, num_workers)
    lead = (steps - steps.mean(axis=1, keepdims=True))[:, rows].T
    most = float(np.abs(lead).max()) or 1.0
    place = (0.0, end * scale, len(rows) - 0.5, -0.5)
    image = leads.imshow(
        lead, aspect="auto", cmap=DIVERGING, vmin=-most, vmax=most, extent=place, interpolation="nearest"
    )
    leads.set_ylabel("worker" if len(rows) == count else f"{len(rows)} of {count} workers", color=INK)
    leads.set_title("steps ahead of the mean (blue), or behind it (red)", loc="left", fontsize=9, color=PALE)
    leads.tick_params(labelbottom=False, colors=PALE, labelsize=8)
    if len(rows) <= 24:
        leads.set_yticks(range(len(rows)))
    elif len(rows) < count:
        marks = np.linspace(0, len(rows) - 1, 5).astype(int)
        leads.set_yticks(marks, [str(rows[mark]) for mark in marks])
    figure.colorbar(image, cax=leads.inset_axes((1.012, 0.0, 0.014, 1.0))).ax.tick_params(labelsize=8, colors=PALE)

    seconds = seen.seconds * scale
    _lines(edges, "over an edge", over_edges, int(seen.edge_largest.max()))
    edges.plot(seconds, seen.edge_largest, color=MESSAGE, linewidth=1.2, drawstyle="steps-mid", label="largest")
    edges.plot(seconds, seen.edge_mean, color=COMPUTE, linewidth=1.4, linestyle="--", label="mean")
    edges.legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2, fontsize=8, frameon=False, borderpad=0)
    edges.tick_params(labelbottom=False)
    _lines(pairs, "between any two", over_pairs, int(seen.pair_largest.max()))
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
    _words(figure.add_subplot(grid[1:, 1]), record)
    return figure


def _lines(axis: Axes, what: str, bound: int | None, seen: int) -> None:
    """What both panels of gaps share: the name, and the proved bound, drawn where it would not press all else flat."""
    is_near = bound is not None and bound <= 3 * seen
    known = "" if bound is None else f", proved to be at most {bound}" + (" (dotted)" if is_near else "")
    axis.set_ylabel("steps", fontsize=8, color=INK)
    axis.set_title(f"gap {what}{known}", loc="left", fontsize=9, color=PALE)
    if is_near and bound is not None:
        axis.axhline(bound, color=ALARM, linewidth=1.2, linestyle=":")
    axis.set_ylim(bottom=0)
    plain(axis)


def plain(axis: Axes) -> None:
    """The frame that panels over one clock share: two sides, a pale grid behind what is drawn."""
    axis.grid(color=GRID, linewidth=0.6)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color(GREY)
    axis.tick_params(colors=PALE, labelsize=8)


def _words(axis: Axes, record: GapRecord) -> None:
    """A few numbers in the corner that is left."""
    axis.axis("off")
    steps = record.finish.size
    lines = [
        f"largest over an edge: {record.largest_over_edges()}",
        f"between any two: {record.largest_over_pairs()}",
        f"skipped: {int(record.skipped.sum()) / steps:.1%} of all steps",
        f"longest queue: {int(record.fill.max())} updates",
        f"waiting for updates: {_share(record.for_updates, record):.0%}",
        f"waiting for tokens: {_share(record.for_tokens, record):.0%}",
    ]
    axis.text(0, 0.5, "\n".join(lines), fontsize=8, color=INK, va="center", linespacing=1.7, transform=axis.transAxes)


def _share(waited: np.ndarray, record: GapRecord) -> float:
    return float(waited.sum() / (record.finish[-1].sum() or 1.0))
