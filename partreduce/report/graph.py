"""Pictures of `neighbor` schedules: the workers on a circle, one panel per round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partreduce.report.palette import GRAY, INK, OKABE_ITO, PALE, style
from partreduce.report.picture import legend_below, new_figure, titled
from partreduce.topo.describe import describe
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MAX_WORKERS = 512
MAX_ROUNDS = 12
NUM_COLORS = len(OKABE_ITO)


def draw_rounds(schedule: Schedule) -> Figure:
    """A figure with the first rounds; nodes of the cluster have one color each.

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
    figure = new_figure(width, 3.3 * rows + 0.5)
    title = titled(schedule.name, describe(schedule), width)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
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
        if nodes <= NUM_COLORS:
            for node in range(nodes):
                figure.axes[0].plot([], [], "o", ms=8, color=style(node).color, linestyle="none", label=f"node {node}")
            legend_below(figure, figure.axes[0], columns=min(nodes, 3 * columns))
        else:
            words = f"Workers of one node have one color; colors repeat after {NUM_COLORS} nodes."
            figure.supxlabel(words, x=0.01, ha="left", fontsize=8, color=PALE)
    return figure
