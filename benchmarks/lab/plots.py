"""What pictures of measurements share: lines, the names at their ends, and pyplot without a display."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

from partreduce.report.palette import DASHES, INK, OKABE_ITO

if TYPE_CHECKING:
    from collections.abc import Sequence

LINES = tuple(zip([OKABE_ITO[place] for place in (5, 1, 2, 3, 6, 0)], (*DASHES, *DASHES), strict=False))
"""Colors and dashes of at most six lines; yellow is too pale for a line."""
MOST_LINES = len(LINES)


def name_ends(axis: Any, ends: Sequence[tuple[str, float, float, str]], *, line: float = 0.062) -> None:
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
