"""Partitions as rows of labels: thousands of phases at once, their neighbours, their matrices and their costs.

The label of a worker is the smallest worker of its group, its own number where it skips. So a row of labels is one
phase, equal phases are equal rows, and what changes one worker's label is again a phase. Shapes: N partitions of n
workers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis.problem import Problem
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Switch
from partreduce.topo.phase import Phase
from partreduce.topo.timing import loads

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

COPIES = 256
"""Partitions whose costs are found in one call."""


def canonical(names: npt.ArrayLike) -> Labels:
    """The labels of partitions given by any names of groups, (N, n) → (N, n). O(N·n²)."""
    rows = np.asarray(names)
    return np.asarray((rows[:, :, None] == rows[:, None, :]).argmax(axis=2), dtype=np.int64)


def labels_of(phase: Phase) -> Labels:
    """The labels of one phase, (n,)."""
    labels = np.arange(phase.num_workers, dtype=np.int64)
    labels[phase.members] = np.repeat(phase.members[phase.offsets[:-1]], phase.sizes)
    return labels


def largest_groups(labels: Labels) -> Labels:
    """The number of workers in the largest group of each partition, (N,)."""
    return np.asarray((labels[:, :, None] == labels[:, None, :]).sum(axis=2).max(axis=1), dtype=np.int64)


def matrices_of(labels: Labels) -> Floats:
    """The mixing matrices of plain means, the mean projected out, (N, n, n)."""
    together = labels[:, :, None] == labels[:, None, :]
    return np.asarray(together / together.sum(axis=2, keepdims=True) - 1.0 / labels.shape[1])


def neighbours(
    labels: Labels,
    node_of: Labels,
    max_group: int | None = None,
    *,
    most: int | None = None,
    rng: np.random.Generator | None = None,
) -> Labels:
    """The partitions one change away from the given one (n,), each once, itself left out; (N, n).

    The changes: one worker moves to another group or leaves its own; two workers of different groups swap; two groups
    merge, or all groups of a node do; a group splits by nodes, into one of its nodes and the rest, or into halves, or
    falls apart. None makes a group of more than `max_group` workers. O(n²) partitions of O(n²) work each; of more than
    `most` some are drawn by `rng`.
    """
    n = len(labels)
    apart = np.arange(n, 2 * n)  # a name for each worker that no group has
    groups = np.unique(labels)
    workers = np.arange(n)
    made: list[Labels] = []

    def with_names(changed: Labels, names: npt.ArrayLike) -> None:
        """Rows that give the workers in `changed`, (N, n) booleans, the names, (N, 1) or (n,)."""
        made.append(np.where(changed, names, labels))

    worker, group = (index.ravel() for index in np.meshgrid(workers, groups, indexing="ij"))
    with_names(workers == worker[:, None], labels[group][:, None])
    with_names(workers == workers[:, None], apart)
    first, second = np.triu_indices(n, 1)
    swapped = np.tile(labels, (len(first), 1))
    rows = np.arange(len(first))
    swapped[rows, first], swapped[rows, second] = labels[second], labels[first]
    made.append(swapped)
    low, high = (groups[index] for index in np.triu_indices(len(groups), 1))
    with_names(labels == high[:, None], low[:, None])
    for group in groups[np.bincount(labels, minlength=n)[groups] > 1].tolist():
        here = labels == group
        nodes = np.unique(node_of[here])
        with_names(here & (node_of == nodes[:, None]), apart[group])
        rank = np.cumsum(here) - 1
        halves = np.stack([rank >= here.sum() // 2, rank % 2 == 1])
        with_names(here & halves, apart[group])
        with_names(here[None], n + node_of)
        with_names(here[None], apart)
    nodes = np.unique(node_of)
    with_names(node_of == nodes[:, None], (n + nodes)[:, None])
    named = np.concatenate(made)
    if most is not None and len(named) > most and rng is not None:
        named = named[rng.choice(len(named), most, replace=False)]
    result = np.unique(canonical(named), axis=0)
    kept = (result != labels).any(axis=1)
    if max_group is not None:
        kept &= largest_groups(result) <= max_group
    return np.asarray(result[kept])


class PartitionCosts:
    """Seconds of many phases in one call of `topo.timing`: as one phase on many copies of the cluster side by side."""

    def __init__(self, problem: Problem) -> None:
        """The copies are made once: O(copies · workers)."""
        cluster, hardware, self.problem = problem.cluster, problem.hardware, problem
        n, num_nodes = cluster.num_workers, cluster.num_nodes
        nodes = [cluster.workers_of(v) for v in range(num_nodes)]
        copies = range(COPIES)
        self.cluster = Cluster.irregular([[w + c * n for w in node] for c in copies for node in nodes])
        self.hardware = replace(
            hardware,
            node_nic=tuple((v + c * num_nodes, link) for c in copies for v, link in hardware.node_nic),
            node_inside=tuple((v + c * num_nodes, link) for c in copies for v, link in hardware.node_inside),
            switches=tuple(
                Switch(tuple(v + c * num_nodes for v in switch.nodes), switch.uplink)
                for c in copies
                for switch in hardware.shared_switches(num_nodes)
            ),
        )

    def seconds(self, labels: Labels) -> Floats:
        """Seconds of one round of each partition, (N, n) → (N,)."""
        count, n = labels.shape
        result = np.zeros(count)
        for start in range(0, count, COPIES):
            part = labels[start : start + COPIES]
            phase = Phase.from_labels((part + n * np.arange(len(part))[:, None]).ravel())
            link_loads = loads.of_phase(
                phase, self.cluster, self.hardware, model_bytes=self.problem.size, form=self.problem.form.value
            )
            copy = phase.members[phase.offsets[:-1]] // n
            np.maximum.at(result, start + copy, link_loads.seconds())
        return result
