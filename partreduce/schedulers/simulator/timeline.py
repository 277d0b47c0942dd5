"""The timeline of a simulated run, with records of bytes, ages, gaps and a quorum's rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class GapRecord:
    """The times at which workers left their steps, and the filling of their queues, in a run with an iteration gap.

    `finish` (num_rounds, num_workers) is when each worker left each step; `order` (the same shape) numbers these
    instants: of two entries of the same time the one with the smaller number was first. A step that was skipped is
    left together with the one before it. `sources` and `targets` (edges,) are the graph.

    For each worker (num_workers,): `skipped` steps, `fill` the largest number of updates that one of its queues held,
    and the seconds that it waited for updates or acknowledgements (`for_updates`), and then for tokens (`for_tokens`).
    """

    finish: npt.NDArray[np.float64]
    order: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    skipped: npt.NDArray[np.int64]
    fill: npt.NDArray[np.int64]
    for_updates: npt.NDArray[np.float64]
    for_tokens: npt.NDArray[np.float64]

    def largest_over_edges(self) -> int:
        """Return the largest gap in steps between the two ends of an edge; exact. O(gap · num_rounds · edges)."""
        one, other = self.order[:, self.sources], self.order[:, self.targets]
        ahead, behind = np.hstack([one, other]), np.hstack([other, one])  # (num_rounds, 2 · edges)
        # Leaving row r means entering step r+1; a worker that does so before another has left row r-g+1 is >= g ahead.
        for gap in range(1, len(self.order) + 1):
            if not (ahead[gap - 1 :] < behind[: len(behind) - gap + 1]).any():
                return gap - 1
        return len(self.order)

    def largest_over_pairs(self) -> int:
        """Return the largest gap in steps between any two workers; exact. O(num_rounds · num_workers)."""
        first, last = self.order.min(axis=1), self.order.max(axis=1)  # (num_rounds,)
        # The number of rows that all workers have left when the first one leaves row r.
        left_by_all = np.searchsorted(last, first, side="left")
        return int((np.arange(1, len(first) + 1) - left_by_all).max(initial=0))

    def steps_at(self, seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        columns = [np.searchsorted(self.finish[:, w], seconds, side="right") for w in range(self.finish.shape[1])]
        return np.stack(columns, axis=1)

    def instants(self, count: int = 200) -> npt.NDArray[np.float64]:
        """Return `count` equidistant instants in seconds, up to when the first worker reaches the end."""
        end = float(self.finish[-1].min())
        return (np.arange(count) + 0.5) / count * end

    def distribution(self, count: int = 200) -> npt.NDArray[np.float64]:
        """Return the shares of pairs (edge, instant) with a gap of 0, 1, 2, … steps, from `count` instants."""
        steps = self.steps_at(self.instants(count))
        gaps = np.abs(steps[:, self.sources] - steps[:, self.targets])
        return np.asarray(np.bincount(gaps.ravel()) / gaps.size)


@dataclass(frozen=True, slots=True)
class QuorumRecord:
    """The rounds of a run of partial all-reduce.

    `summed` (2, num_rounds) is when each all-reduce began and ended, `gradients` (num_rounds, num_workers) how many
    gradients each worker had in it. For every gradient, `rounds` (num_gradients,) is its round and `ages` the number of
    rounds between the weights that it was computed with and its round; 0 in synchronous rounds.
    """

    summed: npt.NDArray[np.float64]
    gradients: npt.NDArray[np.int64]
    rounds: npt.NDArray[np.int64]
    ages: npt.NDArray[np.int64]

    @property
    def active(self) -> npt.NDArray[np.int64]:
        return np.asarray((self.gradients > 0).sum(axis=1))

    def oldest(self) -> npt.NDArray[np.int64]:
        oldest = np.zeros(len(self.gradients), dtype=np.int64)
        np.maximum.at(oldest, self.rounds, self.ages)
        return oldest

    def shares_of_ages(self, *, warm_up: int = 0) -> npt.NDArray[np.float64]:
        """Return the share of gradients of age 0, 1, 2, … rounds, after `warm_up` rounds; sums to 1."""
        ages = self.ages[self.rounds >= warm_up]
        return np.asarray(np.bincount(ages) / len(ages))

    def rates(self, *, warm_up: int = 0) -> tuple[float, float]:
        """Return (rounds per second, gradients per second) after `warm_up` rounds; infinite if they take no time."""
        begun = self.summed[1, warm_up - 1] if warm_up else 0.0
        passed = float(self.summed[1, -1] - begun)
        rounds, gradients = len(self.gradients) - warm_up, int(self.gradients[warm_up:].sum())
        return (rounds / passed, gradients / passed) if passed else (float("inf"), float("inf"))


@dataclass(frozen=True, slots=True)
class AsynchronousMetrics:
    """Metrics of a run without common rounds that no formula predicts.

    `nic_bytes` (num_nodes,) left each node through its NICs. Ages are in steps of a worker, None if not measured: after
    an average, how many steps of another worker are missing in a worker's parameters; at a server, how many steps are
    missing in the parameters with which a worker computed, compared with those to which its progress is added; under a
    quorum, the rounds between a gradient's weights and its own round. `gaps` is set under an iteration gap, `quorum`
    under a quorum.
    """

    nic_bytes: npt.NDArray[np.float64]
    largest_age: float | None = None
    mean_age: float | None = None
    gaps: GapRecord | None = None
    quorum: QuorumRecord | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """The times of every worker in every round, in seconds; arrays have shape (rounds, num_workers) unless stated.

    A worker computes from `compute_start` to `compute_end` and communicates from `communicate_start` to
    `communicate_end` (equal if it is in no group); between them it waits. `finish` is the end of its round. With
    `is_delayed` an operation runs during computing. With `free_running` workers have no common rounds (groups at run
    time, pairs): row r then holds every worker's own round r.

    `worker_steps` (num_workers,) are the steps per round. Round r ends with the operation of row `awaited[r]`, shape
    (rounds,): its own, unless a pipeline of gradients awaits an older one, or none (-1) while it fills. `drained`
    (num_workers,) is when the last operations of each worker have ended, which is `finish[-1]` unless some are in
    flight. `operating` holds the seconds that the links of an operation were busy, if it was sent in pieces with
    pauses; otherwise they were busy from its start to its end. `observed` is set for kinds without fixed phases.
    `exchanging` and `waited` are set if rows of embedding tables are exchanged: seconds of a round, between
    `compute_start` and `compute_end`, in which a worker's rows were exchanged, and in which it waited for others to
    start the exchange.
    """

    worker_steps: npt.NDArray[np.int64]
    compute_start: npt.NDArray[np.float64]
    compute_end: npt.NDArray[np.float64]
    communicate_start: npt.NDArray[np.float64]
    communicate_end: npt.NDArray[np.float64]
    finish: npt.NDArray[np.float64]
    is_delayed: bool
    free_running: bool = False
    awaited: npt.NDArray[np.int64] | None = None
    drained: npt.NDArray[np.float64] | None = None
    operating: npt.NDArray[np.float64] | None = None
    observed: AsynchronousMetrics | None = None
    exchanging: npt.NDArray[np.float64] | None = None
    waited: npt.NDArray[np.float64] | None = None

    @property
    def runs_concurrently(self) -> bool:
        """Whether operations run during computing, rather than between the computing of two rounds."""
        return self.is_delayed or self.operating is not None

    @property
    def outlasts_rounds(self) -> bool:
        """Whether an operation may begin during a round's computing, or end after its round."""
        if self.operating is not None:
            return True
        return self.awaited is not None and bool((self.awaited != np.arange(self.num_rounds)).any())

    @property
    def num_rounds(self) -> int:
        return len(self.finish)

    @property
    def makespan(self) -> float:
        """The time at which the last worker has finished its last round and applied all results in flight."""
        ended = self.finish[-1] if self.drained is None else self.drained
        return float(ended.max(initial=0.0))

    def round_seconds(self) -> npt.NDArray[np.float64]:
        """Return the seconds that each round adds to the time of the slowest worker, shape (rounds,)."""
        return np.asarray(np.diff(self.finish.max(axis=1), prepend=0.0))

    def per_step(self, *, warm_up: int = 0) -> float:
        """Return the mean seconds per step of the workers with most steps per round, after `warm_up` rounds.

        For workers without common rounds it is n divided by the steps per second of all workers.
        """
        if self.free_running:
            begun = self.finish[warm_up - 1] if warm_up else np.zeros(len(self.worker_steps))  # (num_workers,)
            # Seconds per step of each worker.
            seconds = (self.finish[-1] - begun) / (self.num_rounds - warm_up) / self.worker_steps
            return float(len(seconds) / (1 / seconds).sum()) if seconds.all() else 0.0
        latest = self.finish.max(axis=1)
        start = latest[warm_up - 1] if warm_up else 0.0
        return float((latest[-1] - start) / (self.num_rounds - warm_up) / self.worker_steps.max())

    def computing(self) -> npt.NDArray[np.float64]:
        """Return the seconds that each worker computed, shape (num_workers,)."""
        computed = self._sum(self.compute_end - self.compute_start)
        return computed - self._sum(self.exchanging) - self._sum(self.waited)

    def _sum(self, rows: npt.NDArray[np.float64] | None) -> npt.NDArray[np.float64]:
        """Return the sum over rounds for each worker, shape (num_workers,); zeros for None."""
        return np.zeros(len(self.worker_steps)) if rows is None else np.asarray(rows.sum(axis=0))

    def communicating(self) -> npt.NDArray[np.float64]:
        """Return the seconds of each worker's operations and table exchanges, even during computing, (num_workers,)."""
        operating = self.communicate_end - self.communicate_start if self.operating is None else self.operating
        return self._sum(operating) + self._sum(self.exchanging)

    def waiting(self) -> npt.NDArray[np.float64]:
        """Return the seconds that each worker neither computed nor communicated, shape (num_workers,).

        Pieces of an operation count as if they were sent as late as possible, without pauses.
        """
        start = np.concatenate([np.zeros((1, self.finish.shape[1])), self.finish[:-1]])
        if self.runs_concurrently:
            busy_to = np.maximum(self.compute_end, start)
            begun = self.communicate_start if self.operating is None else self.communicate_end - self.operating
            if self.awaited is not None:
                begun = np.where(self.awaited[:, None] >= 0, begun[self.awaited], self.finish)
            hidden = np.maximum(self.finish - np.maximum(begun, busy_to), 0.0)
            waited = (self.finish - busy_to - hidden).sum(axis=0)
        else:
            waited = (self.communicate_start - self.compute_end).sum(axis=0)
        waited = waited + self._sum(self.waited)
        # Differences of long sums: rounding errors count as no waiting, and never as negative waiting.
        return np.where(waited > 1e-9 * self.finish[-1], waited, 0.0)
