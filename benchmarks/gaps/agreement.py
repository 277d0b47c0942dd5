"""How fast workers that keep a gap agree: numbers that they average as the protocol object says, in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from preduce.runtime.virtual_time.gaps import GapTiming
from preduce.runtime.virtual_time.in_turn import InTurn
from preduce.runtime.virtual_time.machine import Step, VirtualMachine
from preduce.schedulers.protocols.base import Note
from preduce.schedulers.protocols.hop import SendUpdate, hop_of
from preduce.topo.hardware import Hardware
from preduce.topo.strategies.gap import Gap

if TYPE_CHECKING:
    import numpy.typing as npt

    from preduce.runtime.virtual_time.gap_record import GapRecord
    from preduce.topo.schedule import Schedule

NUMBERS = 32
"""So many numbers of each worker are followed, so that the start is no matter of luck."""


class Averaging(GapTiming):
    """A run in which every worker has numbers that are never changed but by averaging.

    They are drawn when all have left step `after`, so that gaps are by then what they are in the long run; updates that
    wait in queues hold the new numbers, too. The weights are the graph's; that of an update which is not taken stays
    with the worker itself. `seen` holds (seconds since then, the numbers' standard deviation over the workers).
    """

    def __init__(self, weights: dict[tuple[int, int], float], after: int, *given: Any, **named: Any) -> None:  # noqa: ANN401
        super().__init__(*given, **named)
        count = len(self.skipped)
        self.numbers = np.zeros((count, NUMBERS))
        self.seen: list[tuple[float, float]] = []
        self._weights, self._reduces, self._after, self.begun_at = weights, 0, after, -1.0
        self._updates: list[dict[int, npt.NDArray[np.float64]]] = [{} for _ in range(count)]

    def begin(self, now: float) -> None:
        """Draw the numbers."""
        self.begun_at = now
        self.numbers = np.random.default_rng(0).standard_normal(self.numbers.shape)
        for updates, numbers in zip(self._updates, self.numbers, strict=True):
            for step in updates:
                updates[step] = numbers.copy()
        self.seen.append((0.0, self.spread()))

    def spread(self) -> float:
        """The standard deviation over the workers."""
        return float(np.sqrt(self.numbers.var(axis=0).mean()))

    def happened(self, step: Step) -> None:
        """Send what the worker has, or average."""
        super().happened(step)
        if self.begun_at < 0 and not np.isnan(self.finish[self._after]).any():
            self.begin(step.end)
        worker, numbers = step.process, self.numbers
        if isinstance(step.event, SendUpdate):
            self._updates[worker][step.before.step] = numbers[worker].copy()
        for action in step.actions:
            match action:
                case Note((("reduced" | "renewed"), _, tuple(used))):
                    mine = numbers[worker].copy()
                    for source, old in used:
                        weight = self._weights[source, worker]
                        numbers[worker] += weight * (self._updates[source][old] - mine)
                    self._reduces += 1
                    if self.begun_at >= 0 and self._reduces % len(numbers) == 0:
                        self.seen.append((step.end - self.begun_at, self.spread()))


def agreeing(schedule: Schedule, seconds: npt.NDArray[np.float64], *, share: float = 0.01) -> tuple[GapRecord, float]:
    """A run, and when the spread is down to a share of what it was; by the second half's rate if it never was."""
    graph, gap = schedule.strategy.graphs[0], schedule.strategy.when
    assert isinstance(gap, Gap)
    weights = {(u, v): float(w) for u, v, w in graph.edges()}
    links = InTurn(schedule.cluster, Hardware())
    timing = Averaging(weights, len(seconds) * 2 // 5, hop_of(graph, gap), seconds, links, num_bytes=1)
    VirtualMachine(timing.hop, timing, keep_notes=False).run()
    record, end = timing.record(graph), float(timing.finish[-1].min()) - timing.begun_at
    at, spreads = np.array([(now, spread) for now, spread in timing.seen if now <= end]).T
    if (spreads <= share * spreads[0]).any():
        return record, float(at[int((spreads <= share * spreads[0]).argmax())])
    half = len(at) // 2
    rate = np.log(spreads[half] / spreads[-1]) / (at[-1] - at[half])
    return record, float(at[-1] + np.log(spreads[-1] / (share * spreads[0])) / rate)
