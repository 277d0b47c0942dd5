"""How fast workers that keep a gap agree: numbers that they average as the protocol object says, in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partreduce.runtime.virtual_time.carrying import Carrying
from partreduce.runtime.virtual_time.gaps import GapTiming
from partreduce.runtime.virtual_time.in_turn import InTurn
from partreduce.runtime.virtual_time.machine import VirtualMachine
from partreduce.schedulers.protocols.hop import hop_of
from partreduce.topo.hardware import Hardware
from partreduce.topo.strategies.gap import Gap

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from partreduce.runtime.virtual_time.record import GapRecord
    from partreduce.topo.round import Round
    from partreduce.topo.schedule import Schedule

NUMBERS = 32
"""So many numbers of each worker are followed, so that the start is no matter of luck."""


class Averaging(Carrying):
    """Every worker has numbers that are never changed but by averaging.

    They are drawn when all have left step `after`, so that gaps are by then what they are in the long run; updates that
    wait in queues hold the new numbers, too. `seen` holds (seconds since then, the numbers' standard deviation over the
    workers).
    """

    def __init__(self, round_: Round, gap: Gap, after: int) -> None:
        super().__init__(round_, gap, np.zeros((round_.num_workers, NUMBERS)))
        self.timing: GapTiming
        self.begun_at = -1.0
        self.seen: list[tuple[float, float]] = []
        self._after, self._reduces = after, 0

    def spread(self) -> float:
        """The standard deviation over the workers."""
        return float(np.sqrt(self.now.var(axis=0).mean()))

    def enters(self, worker: int, step: int) -> None:
        """Draw the numbers when it is time."""
        super().enters(worker, step)
        self._begin_if_due()

    def averages(self, worker: int, step: int, used: Sequence[tuple[int, int]], *, adds_own: bool) -> None:
        """Average, and look at the numbers as often as there are workers."""
        self._begin_if_due()
        super().averages(worker, step, used, adds_own=adds_own)
        self._reduces += 1
        if self.begun_at >= 0 and self._reduces % len(self.now) == 0:
            self.seen.append((self.timing.now - self.begun_at, self.spread()))

    def _begin_if_due(self) -> None:
        if self.begun_at >= 0 or np.isnan(self.timing.finish[self._after]).any():
            return
        self.begun_at = self.timing.now
        self.now[:] = np.random.default_rng(0).standard_normal(self.now.shape)
        for sent, numbers in zip(self.sent, self.now, strict=True):
            for step in sent:
                sent[step] = numbers.copy()
        self.seen.append((0.0, self.spread()))


def agreeing(schedule: Schedule, seconds: npt.NDArray[np.float64], *, share: float = 0.01) -> tuple[GapRecord, float]:
    """A run, and when the spread is down to a share of what it was; by the second half's rate if it never was."""
    graph, gap = schedule.strategy.graphs[0], schedule.strategy.when
    assert isinstance(gap, Gap)
    links, averaging = InTurn(schedule.cluster, Hardware()), Averaging(graph, gap, len(seconds) * 2 // 5)
    timing = GapTiming(hop_of(graph, gap), seconds, links, num_bytes=1, listeners=(averaging,))
    averaging.timing = timing
    VirtualMachine(timing.hop, timing, keep_notes=False).run()
    record, end = timing.record(graph), float(timing.finish[-1].min()) - averaging.begun_at
    at, spreads = np.array([(now, spread) for now, spread in averaging.seen if now <= end]).T
    if (spreads <= share * spreads[0]).any():
        return record, float(at[int((spreads <= share * spreads[0]).argmax())])
    half = len(at) // 2
    rate = np.log(spreads[half] / spreads[-1]) / (at[-1] - at[half])
    return record, float(at[-1] + np.log(spreads[-1] / (share * spreads[0])) / rate)
