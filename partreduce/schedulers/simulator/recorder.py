"""Record a run without fixed phases in virtual time, in the same form for every kind of protocol."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.simulator.case import Case
from partreduce.schedulers.simulator.machine import Timing
from partreduce.schedulers.simulator.record import AsynchronousMetrics, GapRecord, QuorumRecord
from partreduce.schedulers.simulator.staleness import Ages
from partreduce.schedulers.simulator.timeline import Timeline


class Recorder(Timing):
    """A timing that records rounds, in arrays of shape (num_rounds, num_workers), in seconds.

    A worker began to compute its round at `begun` and had `computed` it; from `start` to `end` it communicated, and its
    round was over at `finish`.

    Args:
        seconds: that each worker computes in each round, of the same shape; after them it rests.
    """

    def __init__(self, seconds: npt.NDArray[np.float64]) -> None:
        self.seconds: list[list[float]] = seconds.tolist()
        self.begun, self.computed, self.start, self.end, self.finish = np.full((5, *seconds.shape), np.nan)

    def timeline(
        self,
        case: Case,
        nic_bytes: npt.NDArray[np.float64],
        ages: Ages | None,
        *,
        is_delayed: bool = False,
        free_running: bool = True,
        gaps: GapRecord | None = None,
        quorum: QuorumRecord | None = None,
    ) -> Timeline:
        """What is recorded once the machine has run.

        Args:
            case: what was run.
            nic_bytes: that left each node meanwhile, shape (num_nodes,).
            ages: of what workers use, where they are followed; those of a quorum are in its record.
            is_delayed: communicating runs during computing.
            free_running: workers do not go from round to round together.
            gaps: what a gap's run shows in addition.
            quorum: what a quorum's run shows in addition.
        """
        assert not np.isnan(self.finish).any(), "the protocol never halts before the end"
        largest, mean = (None, None) if ages is None else (ages.largest, ages.mean)
        if quorum is not None:
            largest, mean = float(quorum.ages.max()), float(quorum.ages.mean())
        rows = self.begun, self.computed, self.start, self.end, self.finish
        observed = AsynchronousMetrics(nic_bytes, largest, mean, gaps, quorum)
        return Timeline(case.worker_steps(), *rows, is_delayed=is_delayed, free_running=free_running, observed=observed)
