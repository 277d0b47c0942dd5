"""Metrics of asynchronous runs: repeat the averages of a simulated run on noise and unit vectors.

If a gap lets workers miss updates, or use old ones, the mixing matrices are only known from a simulated run. The
same averages are then applied to stand-ins for gradients: fresh noise (consensus distance), and one unit vector for
each worker, in each of its steps (drift, and how far the mean gets). If every update is used, this gives the metrics of
the graph's matrix (`topo.metrics`) up to sampling errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.protocols.hop import weights_of
from partreduce.schedulers.simulator.staleness import SentValues
from partreduce.topo.cluster import Cluster
from partreduce.topo.round import Round
from partreduce.topo.strategies.iteration_gap import IterationGap

COLUMNS = 96
"""Columns of noise: with 16 workers and 60 steps the consensus distance then has an error of a few percent."""
MEETING_COLUMNS, MEETINGS_WARM_UP = 64, 4
"""For `Meetings`: the columns of noise, and the warm-up as 1/`MEETINGS_WARM_UP` of the run."""
WARM_UP = 1 / 3
"""The share of the steps in which the vectors approach their steady state; it is left out."""


def squares_apart(off: npt.NDArray[np.float64], on_node: npt.NDArray[np.float64]) -> list[float]:
    """Return mean squared distances to the mean: of noise, and of zero-mean pushes by worker and by node.

    A push is a constant gradient of one worker, a stand-in for data that differ. The rows of `off` are workers'
    distances to the mean: numbers of noise, then one for each worker's push; `on_node`, shape (num_workers, num_nodes),
    is 1 where a worker is on a node.
    """
    columns = off.shape[1] - len(on_node)
    pushed = off[:, columns:] - off[:, columns:].mean(axis=1, keepdims=True)
    squares = (off[:, :columns] ** 2).sum() / columns, (pushed**2).sum(), ((pushed @ on_node) ** 2).sum()
    return [float(square) / len(off) for square in squares]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The metrics of a simulated asynchronous run, after its warm-up.

    `consensus_distance` and the drifts (for data that differ by worker, and by node) are the metrics of `topo.metrics`,
    of the parameters with which workers enter the same step. `progress` is how far a step moves the mean if every
    gradient is 1, where synchronous rounds give 1: less if averaged values are old, more if newer updates are used than
    the worker's own. `gradients` is the number of workers whose gradients, averaged synchronously, would leave as much
    noise in the mean: below n if some count more than others. `shares` (num_workers,) is each worker's share of the
    progress, and `computed` the share of all steps in which gradients were computed, rather than skipped.
    """

    consensus_distance: float
    drift_worker: float
    drift_node: float
    progress: float
    gradients: float
    shares: npt.NDArray[np.float64]
    computed: float


class Replay(SentValues):
    """A listener of `run_gaps` (Hop) that applies the run's averages to vectors. O(degree · numbers in a row) per call.

    Every worker has `COLUMNS` numbers of noise and then n, of which entry i is the contribution of worker i's
    gradients. `now` (num_workers, numbers) are the workers' parameters, `update` (same shape) the progress of their
    steps.
    """

    def __init__(self, round_: Round, gap: IterationGap, *, seed: int = 0) -> None:
        count = round_.num_workers
        self._weight: list[dict[int, Fraction]] = [{} for _ in range(count)]
        targets: list[list[int]] = [[] for _ in range(count)]
        for source, target, weight in round_.edges():
            self._weight[target][source] = weight
            targets[source].append(target)
        super().__init__(targets, gap.staleness)
        self.gap, self.now, self.update = gap, *np.zeros((2, count, COLUMNS + count))
        self._rng = np.random.default_rng(seed)
        self._entered: list[dict[int, npt.NDArray[np.float64]]] = [{} for _ in range(count)]
        for worker in range(count):
            self.enters(worker, 0)

    def enters(self, worker: int, step: int) -> None:
        super().enters(worker, step)
        self._entered[worker][step] = self.now[worker].copy()
        self.update[worker, :COLUMNS] = self._rng.standard_normal(COLUMNS)
        self.update[worker, COLUMNS:] = np.arange(len(self.step)) == worker

    def sends(self, worker: int, step: int, *, adds_own: bool) -> None:
        """Record what a worker sends: its parameters, with its update included if `adds_own`."""
        if adds_own:
            self.now[worker] += self.update[worker]
        self.keep(worker, step, self.now[worker])

    def averages(self, worker: int, step: int, used: Sequence[tuple[int, int]], *, adds_own: bool) -> None:
        """Average a worker's parameters with updates, `used` as (source, step); if `adds_own`, then add its own."""
        own, weights = weights_of(self.gap, self._weight[worker], step, self.step[worker], used)
        now = self.now[worker]
        now *= float(own)
        for (source, taken), weight in zip(used, weights, strict=True):
            now += float(weight) * self.sent[source][taken]
        if adds_own:
            now += self.update[worker]

    def replayed(self, node_of: npt.NDArray[np.int32], *, last: int | None = None) -> ReplayResult:
        """Return the metrics over the steps up to `last` (default: the last that all workers reached), after warm-up.

        `node_of` (num_workers,) is the node of each worker.
        """
        count, last = len(self.step), min(self.step) if last is None else last
        on_node = np.eye(int(node_of.max()) + 1)[node_of]  # (num_workers, num_nodes)
        steps = range(int(last * WARM_UP), last + 1)
        means = np.empty((len(steps), COLUMNS + count))
        squares = np.zeros((len(steps), 3))
        for index, step in enumerate(steps):
            rows = np.array([entered[step] for entered in self._entered if step in entered])  # without skippers
            means[index] = rows.mean(axis=0)
            squares[index] = squares_apart(rows - means[index], on_node)
        centered = np.arange(len(steps)) - (len(steps) - 1) / 2
        gained = centered @ means[:, COLUMNS:] / max(float(centered @ centered), 1.0)  # the slope by each worker's push
        progress = float(gained.sum())
        walked = float(((means[-1] - means[0])[:COLUMNS] ** 2).mean()) / max(len(steps) - 1, 1)
        noise, by_worker, by_node = squares.mean(axis=0).tolist()
        return ReplayResult(
            consensus_distance=noise,
            drift_worker=by_worker,
            drift_node=by_node,
            progress=progress,
            gradients=min(progress**2 / walked, float(count)) if walked else float(count),
            shares=gained / progress if progress else gained,
            computed=sum(map(len, self._entered)) / (sum(self.step) + count),
        )


class Meetings:
    """A listener that estimates consensus distance and drift of a run without common rounds.

    It applies the run's averages to stand-ins for gradients: `MEETING_COLUMNS` numbers of noise (consensus distance),
    and one unit vector for each worker, the constant gradient of its data (drift). O(n · numbers in a row) per average.

    `apart` holds, after each average, the mean and the largest number of rounds that workers have ended, and squared
    distances to the mean: of noise, and of zero-mean pushes by worker and by node.
    """

    def __init__(self, cluster: Cluster, *, seed: int) -> None:
        count = cluster.num_workers
        self._rng = np.random.default_rng(seed)
        self._on_node = np.eye(cluster.num_nodes)[cluster.node_of()]  # (num_workers, num_nodes)
        self._now, self._done = np.zeros((count, MEETING_COLUMNS + count)), np.zeros(count, dtype=np.int64)
        self.apart: list[tuple[float, float, float, float, float]] = []

    def meet(self, members: Sequence[int], done: npt.NDArray[np.int64]) -> None:
        now, count, listed = self._now, len(done), list(members)
        steps = done - self._done
        self._done = done.copy()
        now[:, :MEETING_COLUMNS] += np.sqrt(steps)[:, None] * self._rng.standard_normal((count, MEETING_COLUMNS))
        now[np.arange(count), MEETING_COLUMNS + np.arange(count)] += steps
        now[listed] = now[listed].mean(axis=0)
        noise, by_worker, by_node = squares_apart(now[listed] - now.mean(axis=0), self._on_node)
        self.apart.append((float(done.mean()), float(done.max()), noise, by_worker, by_node))

    def mean(self, num_rounds: int, part: int = 1) -> tuple[float, float, float]:
        """Return mean squared distances (of noise, pushes by worker, pushes by node) in the first 1/`part` of the run.

        The warm-up is left out; all are 0 without averages. Only the time until a worker has ended the run, of
        `num_rounds` rounds, counts, since that worker takes no more steps.
        """
        apart = np.array(self.apart).reshape(-1, 5)
        apart = apart[apart[:, 1] < num_rounds]
        ended, last = apart[:, 0], float(apart[:, 0].max(initial=0.0)) / part
        kept = apart[(ended >= last / MEETINGS_WARM_UP) & (ended <= last), 2:]
        noise, by_worker, by_node = kept.mean(axis=0).tolist() if len(kept) else (0.0, 0.0, 0.0)
        return noise, by_worker, by_node
