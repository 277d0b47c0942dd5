"""All schedules of plain means with short periods on a few workers: what a proof about such schedules has to allow.

Nothing here is shared with the search: partitions are listed here, mixing matrices and the consensus distance are
computed from their definitions, only the seconds of one phase are the cost model's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.static import GroupPhases, StaticGroups
from partreduce.topo.timing.cost import communication

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from partreduce.topo.cluster import Cluster
    from partreduce.topo.strategies.axes import AllReduceAlgorithm

    Floats = npt.NDArray[np.float64]

DOUBLINGS = 40
"""Periods are squared so often: 2^40 of them."""


@dataclass(frozen=True)
class Everything:
    """Per schedule: seconds per step, consensus distance (infinite without consensus), period, largest group."""

    communication: Floats
    consensus_distance: Floats
    period: npt.NDArray[np.int64]
    largest: npt.NDArray[np.int64]
    distinct: npt.NDArray[np.int64]


def all_schedules(cluster: Cluster, algorithm: AllReduceAlgorithm, max_period: int) -> Everything:
    """Every schedule of synchronous plain means of groups, with a period of at most `max_period` phases."""
    n = cluster.num_workers
    partitions = list(_partitions(n))
    matrices = np.stack([_mixing(n, groups) for groups in partitions])  # (A, n, n)
    seconds = np.array([_seconds(cluster, groups, algorithm) for groups in partitions])
    sizes = np.array([max((len(group) for group in groups), default=0) for groups in partitions])
    silent = sizes == 0
    rows: list[tuple[Floats, ...]] = []
    for period in range(1, max_period + 1):
        table = np.array(list(product(range(len(partitions)), repeat=period)))  # (N, period)
        values = np.concatenate(
            [_consensus_distance(matrices[part]) for part in np.array_split(table, 1 + len(table) // 4000)]
        )
        distinct = np.array([len({i for i in row if not silent[i]}) for row in table.tolist()])
        rows.append((seconds[table].mean(1), values, np.full(len(table), period), sizes[table].max(1), distinct))
    return Everything(*(np.concatenate(column) for column in zip(*rows, strict=True)))


def _partitions(n: int) -> Iterator[list[list[int]]]:
    """Every partition of the workers, as the groups of two or more."""

    def extend(worker: int, blocks: list[list[int]]) -> Iterator[list[list[int]]]:
        if worker == n:
            yield [list(block) for block in blocks if len(block) > 1]
            return
        for block in blocks:
            block.append(worker)
            yield from extend(worker + 1, blocks)
            block.pop()
        yield from extend(worker + 1, [*blocks, [worker]])

    yield from extend(0, [])


def _mixing(n: int, groups: list[list[int]]) -> Floats:
    matrix = np.eye(n)
    for group in groups:
        matrix[np.ix_(group, group)] = 1.0 / len(group)
    return matrix


def _seconds(cluster: Cluster, groups: list[list[int]], algorithm: AllReduceAlgorithm) -> float:
    phases = GroupPhases((Phase.from_groups(cluster.num_workers, groups),))
    schedule = Schedule("one", cluster, StaticGroups(phases=phases))
    assert cluster.hardware is not None
    return communication(schedule, cluster.hardware, algorithm=algorithm).per_step


def _consensus_distance(matrices: Floats) -> Floats:
    """The steady mean of tr Σ / n over the phases, Σ ← W (Σ + I) Wᵀ off the mean; matrices (N, T, n, n) → (N,)."""
    n = matrices.shape[-1]
    center = np.eye(n) - 1.0 / n
    power = np.broadcast_to(center, matrices[:, 0].shape)
    noise = np.zeros_like(power)
    for t in range(matrices.shape[1]):
        w = matrices[:, t]
        power, noise = w @ power, w @ (noise + center) @ w.swapaxes(1, 2)
    spread = noise
    for _ in range(DOUBLINGS):
        spread = spread + power @ spread @ power.swapaxes(1, 2)
        power = power @ power
        spread = np.minimum(np.maximum(spread, -1e12), 1e12)
    total = np.zeros(len(matrices))
    for t in range(matrices.shape[1]):
        w = matrices[:, t]
        spread = w @ (spread + center) @ w.swapaxes(1, 2)
        total += np.trace(spread, axis1=1, axis2=2)
    settled = np.abs(power).max(axis=(1, 2)) < 1e-6
    return np.where(settled, total / (n * matrices.shape[1]), np.inf)
