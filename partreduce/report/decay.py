"""How fast consensus distance decays: the mean squared distance to the mean, round by round, without new noise."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from partreduce.topo.schedule import Schedule


def decay(schedule: Schedule, *, num_rounds: int = 64, columns: int = 32, seed: int = 0) -> npt.NDArray[np.float64]:
    """Mean squared distance to the mean after 0, 1, …, num_rounds rounds from unit noise, shape (num_rounds + 1,).

    Raises:
        ScheduleError: the strategy has no fixed phases.
    """
    count = schedule.num_workers
    values = np.random.default_rng(seed).standard_normal((count, max(1, min(columns, 4_000_000 // count))))
    values -= values.mean(axis=0)
    result = [float(np.mean(values**2))]
    for round_ in range(num_rounds):
        values = _averaged(schedule, round_, values)
        result.append(float(np.mean((values - values.mean(axis=0)) ** 2)))
    return np.array(result) / result[0]


def _averaged(schedule: Schedule, round_: int, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if graphs := schedule.strategy.graphs:
        edges = graphs[round_ % len(graphs)]
        weights = edges.edge_weights()[:, None]
        result = values.copy()
        np.add.at(result, edges.targets, weights * (values[edges.sources] - values[edges.targets]))
        return result
    if round_ < schedule.prologue:
        return np.broadcast_to(values.mean(axis=0), values.shape).copy()
    return schedule.phase(round_ - schedule.prologue).apply(values)
