"""The lab's pictures: time per step, and loss over time."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

from partreduce.report.palette import COMPUTE, DASHES, INK, OKABE_ITO, logarithmic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.lab.results import Row

LINES = tuple(zip([OKABE_ITO[place] for place in (5, 1, 2, 3, 6, 0)], (*DASHES, *DASHES), strict=False))
"""Colors and dashes of at most six lines; yellow is too pale for a line."""
MOST_LINES = len(LINES)


def draw_setting(path: Path, title: str, rows: list[Row], target: float, limit_ms: float) -> None:
    plt = pyplot()
    figure, (speed, loss) = plt.subplots(1, 2, figsize=(17, 6), layout="constrained")
    figure.suptitle(title)
    below = [row.step_ms - min(c.step_ms for c in row.cells) for row in rows]
    above = [max(c.step_ms for c in row.cells) - row.step_ms for row in rows]
    speed.barh(range(len(rows)), [row.step_ms for row in rows], xerr=[below, above], color=COMPUTE, ecolor=INK)
    speed.axvline(limit_ms, color=INK, linestyle=":")
    speed.set_yticks(range(len(rows)), [row.contestant for row in rows])
    speed.invert_yaxis()
    words = f"ms per step (median, smallest and largest); dotted: {limit_ms:.3g} ms, free network, no one waits"
    speed.set(xlabel=words, title="time per step")
    _loss(loss, rows, target)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _loss(axis: Any, rows: list[Row], target: float) -> None:
    """Draw the fastest of each family to the target, at most six lines, each named where it ends."""
    fastest: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: (row.seconds is None, row.seconds or 0.0)):
        fastest.setdefault(row.family, row)
    ends = []
    for row, (color, dash) in zip(fastest.values(), LINES, strict=False):
        ordered = sorted(row.cells, key=lambda cell: cell.step_ms)
        curve = ordered[len(ordered) // 2].curve
        axis.plot([p[1] for p in curve], [p[2] for p in curve], dash, color=color, linewidth=2)
        ends.append((row.contestant, *curve[-1][1:], color))
    axis.axhline(target, color=INK, linewidth=0.8)
    axis.set(xlabel="seconds", ylabel="training loss of the mean model")
    logarithmic(axis, "y", [loss for line in axis.lines for loss in line.get_ydata()])
    axis.set_title(f"loss against time; line: the loss that counts, {target:g}")
    axis.set_xlim(left=0)
    name_ends(axis, ends)


def name_ends(axis: Any, ends: Sequence[tuple[str, float, float, str]], *, line: float = 0.045) -> None:
    """Write the name of each line next to the axes, at the height of its end or as near as other names allow.

    `ends` are (name, x, y, color) of each line; `line` is the height of a line of text as a share of the axis, which
    must have its final scales and limits. A dot marks the end, so that the thin line to the name does not seem part of
    the curve.
    """
    axis.get_xlim(), axis.get_ylim()  # settles the limits, on which the transformation depends
    to_axes = axis.transData + axis.transAxes.inverted()
    named = sorted((float(to_axes.transform((x, y))[1]), fill(name, 26), (x, y), color) for name, x, y, color in ends)
    needed = [line * (1 + text.count("\n")) for _, text, *_ in named]
    middles: list[float] = []
    for (height, *_), size in zip(named, needed, strict=True):
        lowest = middles[-1] + (needed[len(middles) - 1] + size) / 2 if middles else size / 2
        middles.append(max(height, lowest))
    ceiling = 1.0
    for place in reversed(range(len(middles))):  # what was pushed out above comes down again
        middles[place] = min(middles[place], ceiling - needed[place] / 2)
        ceiling = middles[place] - needed[place] / 2
    for (_, text, point, color), height in zip(named, middles, strict=True):
        # Not clipped by the text's own box, at whose edge a steep one would end next to another's name.
        leader = {"arrowstyle": "-", "color": color, "linewidth": 0.8, "relpos": (0, 0.5), "shrinkB": 0, "patchA": None}
        axis.plot(*point, "o", color=color, markersize=4)
        axis.annotate(
            text, point, (1.04, height), textcoords="axes fraction", va="center", color=INK, arrowprops=leader
        )


def pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt
