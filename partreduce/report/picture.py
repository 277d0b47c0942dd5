"""Draw a schedule with matplotlib: the worker × phase table, and the groups of each phase over the nodes."""

from __future__ import annotations

from functools import partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from partreduce.report.grid import Grid, runs_of
from partreduce.report.palette import EDGE, FRAME, GRAY, INK, OKABE_ITO, PALE, SURFACE, style
from partreduce.topo.describe import describe
from partreduce.topo.document.writer import write_file
from partreduce.topo.errors import InputError
from partreduce.topo.extras import require
from partreduce.topo.schedule import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANELS, MAX_ROUNDS, MAX_WORKERS = 12, 12, 512
UNIT = 0.42
FORMATS = ("png", "svg", "pdf")


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """Return an empty titled figure, width × height in inches, that needs no display and no global state.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    require("matplotlib", purpose="a picture")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    return figure


def format_title(name: str, words: str, inches: float) -> str:
    """Return a schedule's title: its name, and below it its description `words`, wrapped to a width in inches."""
    return f"{name}\n{fill(words, max(24, int(9 * inches)))}"


def legend_below(figure: Figure, axis: Axes, *, columns: int = 3) -> None:
    """Draw one legend for the whole figure below it, so that it covers no data."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower left", ncols=min(columns, max(1, len(labels))), fontsize=8, frameon=False,
        handlelength=3.2,
    )  # fmt: skip


def check(path: Path | None) -> None:
    """Check, before any work, that a picture can be written to this path.

    Raises:
        InputError: the file name has no picture format.
        MissingDependencyError: matplotlib is not installed.
    """
    if path is not None:
        check_ending(path)
        require("matplotlib", purpose="a picture")


def check_ending(path: Path) -> str:
    """Return the picture format of a file name's ending, such as "svg".

    Raises:
        InputError: the ending is no picture format.
    """
    ending = path.suffix.lower().lstrip(".")
    if ending not in FORMATS:
        what = f"ends in {path.suffix!r}" if path.suffix else "has no ending"
        raise InputError(f"{path}: {what}; pictures are written as .png, .svg or .pdf")
    return ending


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file in the format of the file name's ending.

    Raises:
        InputError: the ending is no picture format.
        FileError: the file cannot be written.
    """
    ending = check_ending(path)
    write_file(path, render(figure, ending))


def render(figure: Figure, ending: str) -> bytes:
    """Return a figure as the bytes of a file in the format `ending`; equal figures give equal bytes."""
    import matplotlib as mpl

    buffer = BytesIO()
    metadata = {"Date": None} if ending == "svg" else {"CreationDate": None} if ending == "pdf" else None
    with mpl.rc_context({"svg.hashsalt": "partreduce", "svg.fonttype": "none"}):
        figure.savefig(buffer, format=ending, dpi=150, metadata=metadata)
    return buffer.getvalue()


def draw_schedule(grid: Grid) -> Figure:
    """Draw the worker × phase table on the left and, for few nodes, the groups of each distinct phase over nodes."""
    nodes = sorted(set(grid.nodes))
    phases_of: dict[bytes, list[int]] = {}  # shown phases with equal groups, in order of first appearance
    for t in range(grid.num_phases):
        phases_of.setdefault(grid.group[:, t].tobytes(), []).append(t)
    distinct = list(phases_of.values())[:MAX_PANELS] if len(nodes) <= 16 else []
    columns = min(len(distinct), 4 if len(nodes) <= 6 else 2)
    rows = -(-len(distinct) // columns) if columns else 0
    left = 1.4 + 0.42 * min(32, max(4, grid.num_phases))
    panel = 0.7 + UNIT * len(nodes)
    needed = rows * (0.75 + UNIT * (max(grid.locals_) + 1))
    height = max(1.0 + 0.24 * len(grid.workers), needed + 0.2) + 0.5
    width = left + columns * panel
    figure = new_figure(width, height, format_title(grid.title, grid.words, width))
    if columns:
        split = figure.add_gridspec(1, 2, width_ratios=[left, columns * panel])
        _draw_table(figure.add_subfigure(split[0, 0]).subplots(), grid)
        beside = figure.add_subfigure(split[0, 1])
        halves = beside.add_gridspec(2, 1, height_ratios=[needed, max(0.01, height - 0.5 - needed)])
        axes = beside.add_subfigure(halves[0, 0]).subplots(rows, columns, squeeze=False)
        for index, axis in enumerate(axes.flat):
            if index < len(distinct):
                _draw_nodes(axis, grid, distinct[index], nodes)
                if index % columns == 0:
                    axis.set_ylabel("local rank", fontsize=8, color=INK)
            else:
                axis.axis("off")
    else:
        _draw_table(figure.subplots(), grid)
    if grid.note:
        figure.supxlabel(grid.note, x=0.01, ha="left", fontsize=8, color=PALE)
    return figure


def _draw_table(axis: Axes, grid: Grid) -> None:
    from matplotlib.patches import Rectangle

    count = len(grid.workers)
    for row in range(count):
        for t in range(grid.num_phases):
            index = int(grid.group[row, t])
            if index < 0:
                continue
            look = grid.styles[index]
            hatch = look.hatch if grid.num_phases <= 24 else ""
            cell = Rectangle((t, row), 1, 1, facecolor=look.color, edgecolor=EDGE, linewidth=1.2, hatch=hatch)
            axis.add_patch(cell)
            if grid.num_phases <= 24 and count <= 64:
                clear = {"boxstyle": "round,pad=0.25", "facecolor": look.color, "linewidth": 0}
                axis.text(
                    t + 0.5, row + 0.52, grid.letter(index), ha="center", va="center", fontsize=7, color=look.text,
                    bbox=clear if look.hatch else None,
                )  # fmt: skip
    starts = [row for row in range(1, count) if grid.nodes[row] != grid.nodes[row - 1]]
    for row in starts:
        axis.axhline(row, color=INK, linewidth=0.8)
    for row, nxt in zip([0, *starts], [*starts, count], strict=True):
        axis.annotate(
            f"node {grid.nodes[row]}", (0, (row + nxt) / 2), (-14 - 6 * len(str(grid.workers[-1])), 0),
            xycoords=("axes fraction", "data"), textcoords="offset points", rotation=90, ha="center", va="center",
            fontsize=8, color=PALE,
        )  # fmt: skip
    axis.set_xlim(0, grid.num_phases)
    axis.set_ylim(count, 0)
    ticks = range(0, grid.num_phases, max(1, grid.num_phases // 16))
    axis.set_xticks([t + 0.5 for t in ticks], [str(t) for t in ticks])
    axis.set_yticks([row + 0.5 for row in range(count)], [str(worker) for worker in grid.workers], fontsize=7)
    axis.tick_params(length=0)
    axis.set_xlabel("round", color=INK)
    axis.set_title("worker × round", fontsize=9, color=PALE, loc="left")
    for side in axis.spines.values():
        side.set_color(PALE)


def _draw_nodes(axis: Axes, grid: Grid, phases: list[int], nodes: list[int]) -> None:
    """Draw one phase: nodes from left to right, local ranks downwards, the members of a group joined in its color."""
    from matplotlib.patches import Rectangle

    place = {node: index for index, node in enumerate(nodes)}
    points: dict[int, list[tuple[int, int]]] = {}
    deepest = max(grid.locals_) + 1
    for node in nodes:
        axis.add_patch(Rectangle((place[node] - 0.4, -0.5), 0.8, deepest, facecolor=SURFACE, edgecolor=FRAME, zorder=0))
    for row, node in enumerate(grid.nodes):
        index = int(grid.group[row, phases[0]])
        spot = (place[node], grid.locals_[row])
        if index < 0:
            axis.plot(*spot, "o", markersize=9, markerfacecolor="white", markeredgecolor=FRAME, zorder=2)
        else:
            points.setdefault(index, []).append(spot)
    for index, spots in points.items():
        look = grid.styles[index]
        _join(axis, spots, look.color)
        axis.plot([x for x, _ in spots], [y for _, y in spots], "o", ms=13, color=look.color, zorder=3, mec=EDGE)
        letter = partial(axis.text, ha="center", va="center_baseline", fontsize=7, color=look.text, zorder=4)
        for x, y in spots:
            letter(x, y, grid.letter(index))
    parts = runs_of(phases)
    title = f"round{'s' * (len(phases) > 1)} {', '.join(parts[:6])}{', …' * (len(parts) > 6)}"
    axis.set_title(title, fontsize=9, color=PALE, loc="left")
    axis.set_xlim(-0.6, len(nodes) - 0.4)
    axis.set_ylim(deepest - 0.4, -0.6)
    axis.set_aspect("equal", anchor="NW")
    long = max(len(str(node)) for node in nodes) > 3
    axis.set_xticks(range(len(nodes)), [str(node) for node in nodes], fontsize=7, rotation=60 if long else 0)
    axis.set_yticks(range(deepest), [str(local) for local in range(deepest)], fontsize=7)
    axis.tick_params(length=0)
    for side in axis.spines.values():
        side.set_visible(False)
    axis.set_xlabel("node", fontsize=8, color=INK)


def _join(axis: Axes, spots: list[tuple[int, int]], color: str) -> None:
    """Connect a group's `spots`, as (node's position, local rank): thick lines inside nodes, thin ones across nodes.

    The thin lines run along the group's lowest local rank, and bend around nodes that are not in the group.
    """
    for column in {x for x, _ in spots}:
        inside = sorted(y for x, y in spots if x == column)
        axis.plot([column] * len(inside), inside, color=color, linewidth=6, alpha=0.7, zorder=1)
    level = min(y for _, y in spots)
    across = sorted({x for x, _ in spots})
    share = [i / 24 for i in range(25)]
    for start, end in pairwise(across):
        bow = 0.0 if end - start == 1 else 0.24 + 0.05 * (start % 4)
        xs, ys = [start + (end - start) * s for s in share], [level - 4 * bow * s * (1 - s) for s in share]
        axis.plot(xs, ys, color=color, linewidth=2.5, alpha=0.8, zorder=1.5)


def draw_rounds(schedule: Schedule) -> Figure:
    """Draw the first rounds over graphs, with an edge for each message; the workers of a node share a color.

    Raises:
        InputError: too many workers for a picture of a graph.
    """
    count = schedule.num_workers
    if count > MAX_WORKERS:
        raise InputError(f"{schedule.name}: {count} workers; graphs of at most {MAX_WORKERS} workers are drawn")
    shown = schedule.strategy.graphs[:MAX_ROUNDS]
    columns = min(len(shown), 4)
    rows = -(-len(shown) // columns)
    width = 3.2 * columns + 0.4
    figure = new_figure(width, 3.3 * rows + 0.5, format_title(schedule.name, describe(schedule), width))
    angles = np.pi / 2 - 2 * np.pi * np.arange(count) / count
    spots = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    node_of = schedule.cluster.node_of()
    for index, axis in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        axis.axis("off")
        if index >= len(shown):
            continue
        axis.set_aspect("equal")
        axis.set_xlim(-1.2, 1.2)
        axis.set_ylim(-1.2, 1.2)
        axis.set_title(f"round {index}", fontsize=9, color=PALE, loc="left")
        pairs = set(zip(shown[index].sources.tolist(), shown[index].targets.tolist(), strict=True))
        for source, target in sorted(pairs):
            both = (target, source) in pairs
            if both and source > target:
                continue
            arrow = "-" if both else "-|>"
            axis.annotate(
                "", spots[target], spots[source],
                arrowprops={"arrowstyle": arrow, "color": GRAY, "shrinkA": 6, "shrinkB": 6, "lw": 0.9},
            )  # fmt: skip
        for worker in range(count):
            look = style(int(node_of[worker]))
            axis.plot(*spots[worker], "o", ms=11 if count <= 32 else 5, color=look.color, mec="white")
            if count <= 32:
                axis.text(*spots[worker], str(worker), ha="center", va="center_baseline", fontsize=6, color=look.text)
    nodes = schedule.cluster.num_nodes
    if 1 < nodes < count:
        if nodes <= len(OKABE_ITO):
            for node in range(nodes):
                figure.axes[0].plot([], [], "o", ms=8, color=style(node).color, linestyle="none", label=f"node {node}")
            legend_below(figure, figure.axes[0], columns=min(nodes, 3 * columns))
        else:
            words = f"Workers of one node have one color; colors repeat after {len(OKABE_ITO)} nodes."
            figure.supxlabel(words, x=0.01, ha="left", fontsize=8, color=PALE)
    return figure
