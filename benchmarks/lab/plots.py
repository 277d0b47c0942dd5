"""The lab's pictures: time per step, loss against time, bytes per NIC, where the time went."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

from partreduce.report.axes import logarithmic
from partreduce.report.palette import COMMUNICATE, COMMUNICATE_HATCH, COMPUTE, DASHES, EDGE, INK, OKABE_ITO, WAIT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.lab.results import Row

PARTS = (
    ("compute", COMPUTE, ""), ("wait", WAIT, ""), ("communicate", COMMUNICATE, COMMUNICATE_HATCH),
    ("blocked", OKABE_ITO[3], "..."),
)  # fmt: skip
LINES = tuple(zip([OKABE_ITO[place] for place in (5, 1, 2, 3, 6, 0)], (*DASHES, *DASHES), strict=False))
"""Colors and dashes of at most six lines; yellow is too pale for one."""
MOST_LINES = len(LINES)
WORDS = {"blocked": "waiting or communicating"}


def draw_setting(path: Path, title: str, rows: list[Row], target: float, limit_ms: float) -> None:
    plt = pyplot()
    figure, axes = plt.subplots(2, 2, figsize=(17, 12), layout="constrained")
    figure.suptitle(title)
    names = [row.contestant for row in rows]
    places = range(len(rows))
    speed = axes[0][0]
    values = [row.step_ms for row in rows]
    below = [row.step_ms - min(c.step_ms for c in row.cells) for row in rows]
    above = [max(c.step_ms for c in row.cells) - row.step_ms for row in rows]
    speed.barh(places, values, xerr=[below, above], color=COMPUTE, ecolor=INK, capsize=2)
    speed.axvline(limit_ms, color=INK, linestyle=":")
    speed.set(
        xlabel=f"ms per step (median, smallest and largest); dotted: {limit_ms:.3g} ms, free network, nobody waits"
    )
    speed.set_title("time per step")
    _label(speed, names)
    _loss(axes[0][1], rows, target)
    wire = axes[1][0]
    wire.barh(places, [row.nic_mb for row in rows], color=OKABE_ITO[2])
    wire.set(xlabel="MB sent by a node's NIC per step of all workers", title="bytes per NIC")
    _label(wire, names)
    _shares(axes[1][1], rows, names)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _loss(axis: Any, rows: list[Row], target: float) -> None:  # noqa: ANN401 - matplotlib has no stubs
    """The fastest of each family to the target, at most six lines, each named where it ends."""
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


def name_ends(
    axis: Any,  # noqa: ANN401 - as above
    ends: Sequence[tuple[str, float, float, str]],
    *,
    line: float = 0.045,
) -> None:
    """The name of each line beside the axes, at the height of its end or as near as the others' names leave it.

    A dot marks the end, so that the thin line to the name is not taken for more of the curve.

    Args:
        axis: with its final scales and limits.
        ends: name, x, y and color of each line.
        line: height of a line of text, as a share of the axis.
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
        # Not clipped by the text's own box, at whose edge a steep one would end beside another's name.
        leader = {"arrowstyle": "-", "color": color, "linewidth": 0.8, "relpos": (0, 0.5), "shrinkB": 0, "patchA": None}
        axis.plot(*point, "o", color=color, markersize=4)
        axis.annotate(
            text, point, (1.04, height), textcoords="axes fraction", va="center", color=INK, arrowprops=leader
        )


def _shares(axis: Any, rows: list[Row], names: list[str]) -> None:  # noqa: ANN401 - as above
    left = [0.0] * len(rows)
    for part, color, hatch in PARTS:
        widths = []
        for row in rows:
            ordered = sorted(row.cells, key=lambda cell: cell.step_ms)
            widths.append(1e3 * ordered[len(ordered) // 2].shares.get(part, 0.0))
        if any(widths):
            axis.barh(
                range(len(rows)),
                widths,
                left=left,
                color=color,
                hatch=hatch,
                edgecolor=EDGE,
                label=WORDS.get(part, part),
            )
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axis.set(xlabel="ms per step, mean over workers", title="where the time went")
    if any(row.cells[0].shares for row in rows):
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=len(PARTS))
    _label(axis, names)


def _label(axis: Any, names: list[str]) -> None:  # noqa: ANN401 - as above
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()


def pyplot() -> Any:  # noqa: ANN401 - as above
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt
