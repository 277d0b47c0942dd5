"""One sector of size n: the figures of any schedule, by dense matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from preduce.topo.figures.progress import Progress
from preduce.topo.figures.sectors import Batch, Sectors
from preduce.topo.mixing import mixing_matrix
from preduce.topo.phase import Phase

if TYPE_CHECKING:
    import numpy.typing as npt

    from preduce.topo.mixing import Step
    from preduce.topo.schedule import Schedule


def dense_sectors(schedule: Schedule) -> Sectors:
    """All workers as one sector. O(T n²) memory; every figure then costs O((T + 30) n³).

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
    paces = schedule.paces()
    progress = Progress.of(paces, group_paces(steps, paces), strategy.averaging, int(paces.max()))
    node_of = schedule.cluster.node_of()
    columns = np.zeros((1, n, schedule.cluster.num_nodes))
    columns[0, np.arange(n), node_of] = 1.0
    batch = Batch(np.ones(1), matrices, np.full((1, n), 1 / np.sqrt(n)), progress, columns)
    return Sectors(n, [batch], strategy.overlap, f"dense matrices of all {n} workers")


def group_paces(steps: tuple[Step, ...], paces: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The mean pace of each worker's group in each phase, shape (T, n); a worker that skips is its own group.

    Rounds of weighted averaging have no groups: there the mean pace of all workers stands.
    """
    result = np.empty((len(steps), len(paces)))
    for t, step in enumerate(steps):
        if not isinstance(step, Phase):
            result[t] = paces.mean()
            continue
        result[t] = paces
        if len(step):
            means = np.add.reduceat(paces[step.members], step.offsets[:-1]) / step.sizes
            result[t, step.members] = np.repeat(means, step.sizes)
    return result
