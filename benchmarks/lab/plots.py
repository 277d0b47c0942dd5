"""The lab's pictures: time per step, loss against time, bytes per NIC, where the time went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partreduce.report.palette import INK, style

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.lab.table import Row

PARTS = (("compute", "#4c78a8"), ("wait", "#f58518"), ("communicate", "#e45756"), ("blocked", "#b279a2"))
MOST_LINES = 6
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
    speed.barh(places, values, xerr=[below, above], color="#4c78a8", ecolor="#333333", capsize=2)
    speed.axvline(limit_ms, color="#333333", linestyle=":", label="free network, nobody waits")
    speed.set(xlabel="ms per step (median, smallest and largest)", title="time per step")
    speed.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1))
    _label(speed, names)
    _loss(axes[0][1], rows, target)
    wire = axes[1][0]
    wire.barh(places, [row.nic_mb for row in rows], color="#72b7b2")
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
    for index, row in enumerate([*fastest.values()][:MOST_LINES]):
        ordered = sorted(row.cells, key=lambda cell: cell.step_ms)
        curve, look = ordered[len(ordered) // 2].curve, style(index)
        axis.plot([p[1] for p in curve], [p[2] for p in curve], look.dash, color=look.colour, linewidth=2)
        axis.annotate(
            row.contestant, curve[-1][1:], (4, 0), textcoords="offset points", color=INK, fontsize=8, va="center"
        )
    axis.axhline(target, color="#333333", linewidth=0.8)
    axis.set(xlabel="seconds", ylabel="training loss of the mean model", title="loss against time", yscale="log")
    axis.margins(x=0.2)
    axis.set_xlim(left=0)


def _shares(axis: Any, rows: list[Row], names: list[str]) -> None:  # noqa: ANN401 - as above
    left = [0.0] * len(rows)
    for part, colour in PARTS:
        widths = []
        for row in rows:
            ordered = sorted(row.cells, key=lambda cell: cell.step_ms)
            widths.append(1e3 * ordered[len(ordered) // 2].shares.get(part, 0.0))
        if any(widths):
            axis.barh(range(len(rows)), widths, left=left, color=colour, label=WORDS.get(part, part))
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
