"""Compute the costs of thousands of phases at once, with partitions as rows of labels.

The label of a worker is the smallest worker of its group, its own number where it skips. Shapes: N partitions of n
workers.
"""

from __future__ import annotations

from collections.abc import Sequence
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
Groups = tuple[tuple[int, ...], ...]
"""The groups of one phase."""

COPIES = 256
"""Partitions whose costs are found in one call."""


def labels_of(num_workers: int, phases: Sequence[Groups]) -> Labels:
    """The smallest worker of each worker's group, its own number where it skips; one row per phase, (A, n)."""
    rows = np.tile(np.arange(num_workers), (len(phases), 1))
    for row, groups in zip(rows, phases, strict=True):
        for group in groups:
            row[list(group)] = group[0]
    return rows


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
        self.places = (num_nodes, len(hardware.shared_switches(num_nodes)) or num_nodes, num_nodes)

    def seconds(self, labels: Labels) -> Floats:
        """Seconds of one round of each partition, (N, n) → (N,)."""
        return self.seconds_and_loads(labels)[0]

    def seconds_and_loads(self, labels: Labels) -> tuple[Floats, Floats]:
        """Seconds as `seconds`, and those for which each shared place is busy, (N,) and (N, places).

        Places are the nodes' NICs, then uplinks and buses as far as there are any. What groups put on one place adds
        up, and no phase ends before it is done.
        """
        seconds, busy = np.zeros(len(labels)), []
        for start in range(0, len(labels), COPIES):
            part = labels[start : start + COPIES]
            count, n = part.shape
            phase = Phase.from_labels((part + n * np.arange(count)[:, None]).ravel())
            link_loads = loads.of_phase(
                phase,
                self.cluster,
                self.hardware,
                model_bytes=self.problem.size,
                algorithm=self.problem.algorithm.value,
            )
            copy = phase.members[phase.offsets[:-1]] // n
            np.maximum.at(seconds, start + copy, link_loads.seconds())
            shared = []
            for one, places in zip((link_loads, *link_loads.besides), self.places, strict=False):
                weights = one.bytes_ / one.num_nics * one.inverse
                total = np.bincount(one.node, weights, minlength=COPIES * places)
                shared.append(total.reshape(COPIES, places)[:count])
            busy.append(np.concatenate(shared, axis=1))
        return seconds, np.concatenate(busy)
