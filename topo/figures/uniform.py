"""All-reduce at one pace on any cluster: two sectors, the mean and everything else."""

from __future__ import annotations

import numpy as np

from partreduce.topo.figures.round_steps import RoundSteps
from partreduce.topo.figures.sectors import Batch, Sectors
from partreduce.topo.schedule import Schedule


def uniform_sectors(schedule: Schedule) -> Sectors | None:
    """The sectors of an all-reduce with one pace for all workers, None for anything else. O(num_nodes).

    Off the mean W is 0 and steps a multiple of the identity, so of the node covariance C only its trace counts
    there: tr C − tr JC = n − Σ (workers on a node)² / n, spread over n − 1 directions.
    """
    strategy = schedule.strategy
    if not strategy.averages_everyone or strategy.when.kept or not isinstance(strategy.pace, int):
        return None
    n, sizes = schedule.num_workers, schedule.cluster.node_sizes().astype(np.float64)
    along = float((sizes**2).sum()) / n
    columns = np.sqrt(np.maximum(0.0, [along, (n - along) / (n - 1)])).reshape(2, 1, 1)
    pace = strategy.pace
    round_steps = RoundSteps.of(np.array([pace]), np.full((1, 1), float(pace)), strategy.averaging, pace)
    mean = np.array([[1.0], [0.0]])
    batch = Batch(np.array([1.0, n - 1.0]), np.zeros((1, 2, 1, 1)), mean, round_steps, columns)
    return Sectors(n, [batch], strategy.mixes_late, "all-reduce: zero off the mean")
