"""Picture of a proof: the witness of its most telling claim, beside the decay of consensus distance where there is one.

A conflict shows both groups and the worker they share; refuted consensus shows the workers that nobody else ever meets;
proved consensus shows the spanning tree of first meetings, one colour per phase.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from partreduce.report.axes import logarithmic, quiet
from partreduce.report.decay import decay
from partreduce.report.palette import ALARM, INK, PALE, SURFACE, style
from partreduce.report.picture import new_figure, save
from partreduce.topo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from matplotlib.axes import Axes

    from partreduce.topo.schedule import Schedule
    from partreduce.verify.base import Claim, Proof

MAX_WORKERS = 256
Meeting = tuple[int, int, int]


def meetings(schedule: Schedule) -> list[Meeting]:
    """The spanning tree (or forest) of first meetings as (phase, worker, worker), phase by phase. O(size · α)."""
    parent = list(range(schedule.num_workers))

    def root(worker: int) -> int:
        while parent[worker] != worker:
            parent[worker] = parent[parent[worker]]
            worker = parent[worker]
        return worker

    found = []
    for phase, a, b in _pairs(schedule):
        if root(a) != root(b):
            parent[root(a)] = root(b)
            found.append((phase, a, b))
    return found


def _pairs(schedule: Schedule) -> Iterable[Meeting]:
    for index in range(schedule.period):
        if graphs := schedule.strategy.graphs:
            edges = graphs[index]
            yield from ((index, int(a), int(b)) for a, b in zip(edges.sources, edges.targets, strict=True))
        else:
            for group in schedule.phase(index):
                if 0 < group.relax < 2:
                    yield from ((index, group.members[0], other) for other in group.members[1:])


def draw_witness(schedule: Schedule, proof: Proof, path: Path) -> None:
    """Write the picture; the format is that of the file's suffix.

    Raises:
        InputError: a suffix that is no picture format, or more workers than can be drawn.
        ScheduleError: the strategy has no phases to draw.
    """
    if schedule.num_workers > MAX_WORKERS:
        raise InputError(
            f"--plot: {schedule.num_workers} workers cannot be told apart in a picture (at most {MAX_WORKERS}); "
            "design the same rule for fewer nodes to see its witness"
        )
    claims = {claim.claim: claim for claim in proof.claims}
    conflict = claims.get("conflict-free")
    is_conflict = conflict is not None and conflict.status.value == "refuted"
    width = min(14.0, 2.5 + 0.7 * schedule.cluster.num_nodes)
    figure = new_figure(width if is_conflict else width + 5.0, 4.5)
    figure.suptitle(f"{schedule.name}: {proof.verdict.value}", x=0.01, ha="left", fontweight="bold", color=INK)
    if is_conflict and conflict is not None:
        _draw_conflict(figure.subplots(), schedule, conflict)
    else:
        left, right = figure.subplots(1, 2, width_ratios=[width, 5.0])
        _draw_tree(left, schedule, claims.get("consensus"))
        _draw_decay(right, schedule)
    save(figure, path)


def _places(schedule: Schedule) -> list[tuple[float, float]]:
    """Nodes from left to right, local ranks downwards, slightly staggered so that lines inside a node stay apart."""
    nodes, locals_ = schedule.cluster.node_of(), schedule.cluster.local_rank_of()
    return [
        (node + 0.14 * (local % 2), float(local)) for node, local in zip(nodes.tolist(), locals_.tolist(), strict=True)
    ]


def _dots(axes: Axes, schedule: Schedule, alarmed: set[int]) -> list[tuple[float, float]]:
    places = _places(schedule)
    for worker, (x, y) in enumerate(places):
        colour = ALARM if worker in alarmed else SURFACE
        axes.plot(x, y, "s" if worker in alarmed else "o", ms=15, mfc=colour, mec=PALE, zorder=3)
        axes.text(x, y, str(worker), ha="center", va="center_baseline", fontsize=7, zorder=4, color=INK)
    axes.invert_yaxis()
    axes.set_xlabel("node", color=INK)
    axes.set_ylabel("local rank", color=INK)
    axes.set_xticks(range(schedule.cluster.num_nodes))
    axes.set_yticks(sorted({int(y) for _, y in places}))
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return places


def _draw_conflict(axes: Axes, schedule: Schedule, claim: Claim) -> None:
    witness = claim.witness or {}
    places = _dots(axes, schedule, {int(witness["worker"])})
    for index, group in enumerate(witness["groups"]):
        look, members = style(index), [int(member) for member in group]
        for a, b in pairwise(members):
            (x0, y0), (x1, y1) = places[a], places[b]
            axes.plot([x0, x1], [y0 + 0.08 * index, y1 + 0.08 * index], look.dash, color=look.colour, linewidth=4)
        name = "group {" + ",".join(map(str, members)) + "}"
        axes.plot([], [], look.dash, color=look.colour, linewidth=4, label=name)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False, ncols=1, fontsize=9, handlelength=3.6)
    axes.set_title(
        f"phase {witness['phase']}: worker {witness['worker']} stands in two groups", color=ALARM, fontsize=10
    )


def _draw_tree(axes: Axes, schedule: Schedule, claim: Claim | None) -> None:
    refuted = claim is not None and claim.status.value == "refuted"
    witness = (claim.witness if claim is not None else None) or {}
    inside = {int(worker) for worker in (witness.get("workers") or witness.get("closed") or ())} if refuted else set()
    places = _dots(axes, schedule, inside)
    tree = meetings(schedule)
    for phase, a, b in tree:
        (x0, y0), (x1, y1) = places[a], places[b]
        bow = 0.0 if abs(x0 - x1) < 1.5 and abs(y0 - y1) < 1.5 else min(0.8, max(0.2, 0.12 * abs(x0 - x1)))
        share = np.linspace(0, 1, 25)
        axes.plot(
            x0 + (x1 - x0) * share, y0 + (y1 - y0) * share - 4 * bow * share * (1 - share),
            style(phase).dash, color=style(phase).colour, linewidth=2.2, zorder=2,
        )  # fmt: skip
    for phase in sorted({phase for phase, _, _ in tree}):
        axes.plot([], [], style(phase).dash, color=style(phase).colour, linewidth=3, label=f"phase {phase}")
    if tree:
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False, ncols=6, fontsize=8, handlelength=3.6
        )
    title = "nobody else ever meets the square workers" if refuted else f"spanning tree of {len(tree)} first meetings"
    axes.set_title(title, color=ALARM if refuted else INK, fontsize=10)


def _draw_decay(axes: Axes, schedule: Schedule) -> None:
    values = np.maximum(decay(schedule), 1e-16)
    axes.step(range(len(values)), values, where="post", color=style(5).colour, linewidth=2)
    logarithmic(axes, "y", values.tolist())
    quiet(axes, across="round", up="mean squared distance to the mean (start: 1)")
    axes.set_title("decay without new noise", color=INK, fontsize=10)
