"""The phases of a schedule as a worker × phase table, with a color and a letter for each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from partreduce.report.palette import NUM_STYLES, Style, style
from partreduce.topo.describe import describe
from partreduce.topo.schedule import Schedule

MAX_WORKERS = 64
MAX_PHASES = 48


@dataclass(frozen=True, slots=True)
class Grid:
    """The shown part of a schedule as a table of workers × phases.

    `words` describe the schedule. `numbers` maps the bytes of a group's members to its number, and `styles` holds the
    style of each numbered group in all drawings. `workers` are the ranks shown, in node order; `nodes` the node and
    `locals_` the local rank of each. `group[i, t]`, shape (workers, phases), is the number of the group of the i-th
    shown worker in phase t, in the order of first appearance, −1 for a skip. `note` describes the omitted part, empty
    if there is none.
    """

    title: str
    words: str
    numbers: dict[bytes, int]
    styles: tuple[Style, ...]
    workers: tuple[int, ...]
    nodes: tuple[int, ...]
    locals_: tuple[int, ...]
    group: npt.NDArray[np.int64]

    note: str

    @property
    def num_phases(self) -> int:
        return int(self.group.shape[1])

    def index_of(self, members: Sequence[int]) -> int | None:
        """Return the number of a group with these members; None if it does not appear in the shown part."""
        return self.numbers.get(np.asarray(members, dtype=np.int32).tobytes())

    def letter(self, index: int) -> str:
        """Return the letter of a numbered group: A, …, Z, AA, …, for readers who cannot distinguish the colors."""
        text = ""
        while index >= 0:
            index, text = index // 26 - 1, chr(65 + index % 26) + text
        return text


def grid_of(
    schedule: Schedule,
    *,
    max_workers: int = MAX_WORKERS,
    max_phases: int = MAX_PHASES,
    known: dict[bytes, int] | None = None,
) -> Grid:
    """Return the table of a schedule; of a large one only nodes from its start and middle, and the first phases.

    A report with several schedules passes the same dict as `known` for each, so that a group looks the same in all.

    Raises:
        ScheduleError: the strategy has no groups, or groups of one phase overlap.
    """
    cluster, nodes = schedule.cluster, _shown_nodes(schedule, max_workers)
    places = [(node, local, w) for node in nodes for local, w in enumerate(cluster.workers_of(node))]
    shown_nodes, locals_, workers = zip(*places[: max(max_workers, 1)], strict=True)
    period = min(schedule.phased.period, max_phases)
    numbers: dict[bytes, int] = {}
    table = np.full((len(workers), period), -1, dtype=np.int64)
    for t in range(period):
        phase = schedule.phase(t)
        labels = phase.labels()
        for row, worker in enumerate(workers):
            if (label := int(labels[worker])) >= 0:
                members = phase.members[phase.offsets[label] : phase.offsets[label + 1]]
                table[row, t] = numbers.setdefault(members.tobytes(), len(numbers))
    parts = []
    if len(workers) < schedule.num_workers:
        runs = ", ".join(runs_of(nodes))
        parts.append(f"{len(workers)} of {schedule.num_workers} workers (nodes {runs} of {cluster.num_nodes})")
    if period < (whole := schedule.phased.period):
        parts.append(f"the first {period} of {whole} phases")
    return Grid(
        title=schedule.name,
        words=describe(schedule),
        numbers=numbers,
        styles=_styles(table, list(numbers), {} if known is None else known),
        workers=workers,
        nodes=shown_nodes,
        locals_=locals_,
        group=table,
        note="Shown: " + " and ".join(parts) if parts else "",
    )


def _styles(table: npt.NDArray[np.int64], groups: list[bytes], chosen: dict[bytes, int]) -> tuple[Style, ...]:
    """Choose a style (color and hatch) for each group, as far as possible unlike others in its first phase.

    `table` is `Grid.group`. `groups` lists each group's members as bytes; `chosen` maps these to the index of a style,
    and new choices are added to it.
    """
    used = [0] * NUM_STYLES
    for number in chosen.values():
        used[number] += 1
    for t in range(table.shape[1]):
        present = [groups[index] for index in dict.fromkeys(table[:, t].tolist()) if index >= 0]
        taken = {chosen[group] for group in present if group in chosen}
        for group in present:
            if group not in chosen:
                free = [c for c in range(NUM_STYLES) if c not in taken] or list(range(NUM_STYLES))
                chosen[group] = min(free, key=lambda c: (used[c], c))
                used[chosen[group]] += 1
                taken.add(chosen[group])
    return tuple(style(chosen[group]) for group in groups)


def _shown_nodes(schedule: Schedule, max_workers: int) -> list[int]:
    """Return the nodes to show: all, or as many as fit into `max_workers` workers, from the start and from the middle.

    Many groups join two nodes that are half the cluster apart.
    """
    cluster = schedule.cluster
    if cluster.num_workers <= max_workers:
        return list(range(cluster.num_nodes))
    largest = int(cluster.node_sizes().max())
    count = max(1, min(cluster.num_nodes, max_workers // 2 // max(1, largest)))
    middle = cluster.num_nodes // 2
    first = (count + 1) // 2
    return sorted({*range(first), *(min(cluster.num_nodes - 1, middle + i) for i in range(count - first))})


def runs_of(numbers: Sequence[int]) -> list[str]:
    """Format increasing numbers, with ranges such as `3-5` for consecutive ones."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(a) if a == b else f"{a}-{b}" for a, b in runs]
