"""Hold the timeline of a run in virtual time: when every worker computed, waited and communicated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.simulator.record import AsynchronousMetrics


@dataclass(frozen=True, slots=True)
class Timeline:
    """What every worker did in every round; all arrays have shape (rounds, num_workers), in seconds.

    A worker computes from `compute_start` to `compute_end` and communicates from `communicate_start` to
    `communicate_end` (equal when it is in no group); what lies between is waiting. `finish` is the end of its round.
    With `is_delayed` an operation runs during computing. `free_running` says that workers do not go from round to round
    together (groups on request, pairs): row r then holds every worker's own round r.

    Round r ends with the operation of row `awaited[r]`: its own, unless a pipeline of gradients awaits an older one, or
    none (-1) while it fills. `drained` (num_workers,) is when each worker is done with what its last rounds left under
    way; with `finish[-1]` unless something is. `operating` holds the seconds that the links of an operation were busy,
    where it was sent in pieces with pauses between them; elsewhere they were busy from its start to its end. `observed`
    is there for kinds without fixed phases. `exchanging` and `waited` are there where tables go their own way: seconds
    of a round, between `compute_start` and `compute_end`, in which a worker's rows were exchanged, and in which it
    waited for others to come to that.
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
        """Whether operations run during computing, rather than between one round's and the next."""
        return self.is_delayed or self.operating is not None

    @property
    def outlasts_rounds(self) -> bool:
        """Whether an operation may begin amid a round's computing, or end after its round."""
        if self.operating is not None:
            return True
        return self.awaited is not None and bool((self.awaited != np.arange(self.num_rounds)).any())

    @property
    def num_rounds(self) -> int:
        return len(self.finish)

    @property
    def makespan(self) -> float:
        """When the last worker had finished its last round, and applied what was still under way."""
        ended = self.finish[-1] if self.drained is None else self.drained
        return float(ended.max(initial=0.0))

    def round_seconds(self) -> npt.NDArray[np.float64]:
        """Seconds that each round added to the slowest worker's clock, shape (rounds,)."""
        return np.asarray(np.diff(self.finish.max(axis=1), prepend=0.0))

    def per_step(self, *, warm_up: int = 0) -> float:
        """Mean seconds per step of the workers with most steps per round, after `warm_up` rounds.

        Of workers that run freely it is the mean over the steps of all: n divided by the steps per second of all.
        """
        if self.free_running:
            begun = self.finish[warm_up - 1] if warm_up else np.zeros(len(self.worker_steps))  # (num_workers,)
            # A step of each worker.
            seconds = (self.finish[-1] - begun) / (self.num_rounds - warm_up) / self.worker_steps
            return float(len(seconds) / (1 / seconds).sum()) if seconds.all() else 0.0
        latest = self.finish.max(axis=1)
        start = latest[warm_up - 1] if warm_up else 0.0
        return float((latest[-1] - start) / (self.num_rounds - warm_up) / self.worker_steps.max())

    def computing(self) -> npt.NDArray[np.float64]:
        """Seconds that each worker computed, shape (num_workers,)."""
        return np.asarray((self.compute_end - self.compute_start).sum(axis=0)) - self._apart() - self._met()

    def _apart(self) -> npt.NDArray[np.float64]:
        """Seconds that rows of tables were exchanged, shape (num_workers,)."""
        return np.zeros(len(self.worker_steps)) if self.exchanging is None else np.asarray(self.exchanging.sum(axis=0))

    def _met(self) -> npt.NDArray[np.float64]:
        """Seconds that each worker waited for others to exchange rows, shape (num_workers,)."""
        return np.zeros(len(self.worker_steps)) if self.waited is None else np.asarray(self.waited.sum(axis=0))

    def communicating(self) -> npt.NDArray[np.float64]:
        """Seconds that each worker's group operations took (under overlap partly behind its computing), and tables."""
        if self.operating is not None:
            return np.asarray(self.operating.sum(axis=0)) + self._apart()
        return np.asarray((self.communicate_end - self.communicate_start).sum(axis=0)) + self._apart()

    def waiting(self) -> npt.NDArray[np.float64]:
        """Seconds that each worker neither computed nor communicated, shape (num_workers,).

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
        waited = waited + self._met()
        # Differences of long sums: what rounding leaves is no waiting, and never less than none.
        return np.where(waited > 1e-9 * self.finish[-1], waited, 0.0)
