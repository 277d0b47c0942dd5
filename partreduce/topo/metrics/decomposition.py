"""Which sectors a schedule is split into: the cheapest direct decomposition, within limits on what metrics may cost.

All-reduce with equal steps_per_round has two, a rule one per character class, a round that looks the same from every
worker one per frequency. What has no such structure is a single sector of size n, as long as that is not too large.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partreduce.topo.metrics.circulant import circulant_sectors
from partreduce.topo.metrics.classes import rule_sectors
from partreduce.topo.metrics.round_steps import RoundSteps, group_worker_steps
from partreduce.topo.metrics.sectors import Batch, Sectors
from partreduce.topo.mixing import mixing_matrix
from partreduce.topo.schedule import Schedule


@dataclass(frozen=True, slots=True)
class MetricLimits:
    """Up to which size schedules without structure are solved directly: their workers, and numbers of all matrices."""

    dense_workers: int = 512
    dense_entries: int = 2**27


DEFAULT = MetricLimits()


def sectors_of(schedule: Schedule, limit: MetricLimits = DEFAULT) -> Sectors | None:
    """The cheapest direct decomposition, None if the schedule is too large for each: classes, Fourier, dense.

    Raises:
        ScheduleError: overlapping groups, or a strategy without fixed phases.
        UndecidedError: a rule with too many character classes.
    """
    period = schedule.period
    structured = uniform_sectors(schedule) or rule_sectors(schedule) or circulant_sectors(schedule)
    if structured is not None:
        return structured
    n = schedule.num_workers
    if n <= limit.dense_workers and period * n * n <= limit.dense_entries:
        return dense_sectors(schedule)
    return None


def dense_sectors(schedule: Schedule) -> Sectors:
    """All workers as one sector. O(T n²) memory; every metric then costs O((T + 30) n³).

    Raises:
        InputError: more than 20,000 workers.
        ScheduleError: overlapping groups, or a strategy without fixed phases.
    """
    n, steps = schedule.num_workers, schedule.steps()
    strategy = schedule.mixing
    matrices = np.empty((len(steps), 1, n, n))
    made = {step: mixing_matrix(step) for step in set(steps)}
    for t, step in enumerate(steps):
        matrices[t, 0] = made[step]
        # Π W instead of W − J: the same for doubly stochastic W, and for others still what moves distances to the mean.
        matrices[t, 0] -= matrices[t, 0].mean(axis=0, keepdims=True)
    worker_steps = schedule.worker_steps()
    round_steps = RoundSteps.of(
        worker_steps, group_worker_steps(steps, worker_steps), strategy.averaging, int(worker_steps.max())
    )
    node_of = schedule.cluster.node_of()
    columns = np.zeros((1, n, schedule.cluster.num_nodes))
    columns[0, np.arange(n), node_of] = 1.0
    batch = Batch(np.ones(1), matrices, np.full((1, n), 1 / np.sqrt(n)), round_steps, columns)
    return Sectors(n, [batch], strategy.mixes_late, f"dense matrices of all {n} workers")


def uniform_sectors(schedule: Schedule) -> Sectors | None:
    """The sectors of an all-reduce with the same steps_per_round for all workers, None for anything else. O(num_nodes).

    Off the mean W is 0 and steps a multiple of the identity, so of the node covariance C only its trace counts
    there: tr C − tr JC = n − Σ (workers on a node)² / n, spread over n − 1 directions.
    """
    strategy = schedule.strategy
    if not strategy.averages_everyone or strategy.sync.kept or not isinstance(strategy.steps_per_round, int):
        return None
    n, sizes = schedule.num_workers, schedule.cluster.node_sizes().astype(np.float64)
    along = float((sizes**2).sum()) / n
    columns = np.sqrt(np.maximum(0.0, [along, (n - along) / (n - 1)])).reshape(2, 1, 1)
    steps_per_round = strategy.steps_per_round
    round_steps = RoundSteps.of(
        np.array([steps_per_round]), np.full((1, 1), float(steps_per_round)), strategy.averaging, steps_per_round
    )
    mean = np.array([[1.0], [0.0]])
    batch = Batch(np.array([1.0, n - 1.0]), np.zeros((1, 2, 1, 1)), mean, round_steps, columns)
    return Sectors(n, [batch], strategy.mixes_late, "all-reduce: zero off the mean")
