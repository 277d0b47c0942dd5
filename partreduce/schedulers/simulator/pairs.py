"""Run AD-PSGD in virtual time: the explored pairing, with seconds for computing and for models on the links.

A passive worker only computes: it answers during its computing and never waits. A question and its answer carry the
model, and share the links with all others that are under way (`network`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.protocols.adpsgd import Answer, Choose, pairing_of
from partreduce.schedulers.protocols.base import Received
from partreduce.schedulers.simulator.case import Case
from partreduce.schedulers.simulator.machine import Recorder, Step, VirtualMachine
from partreduce.schedulers.simulator.network import Network
from partreduce.schedulers.simulator.staleness import MAX_WORKERS, IndirectAge, Meets
from partreduce.schedulers.simulator.timeline import Timeline
from partreduce.topo.strategies.pairwise import Pairwise


class PairTiming(Recorder):
    """How long the rounds of the active workers of a `Pairing` take; models travel on `network`, or in no time.

    With `is_delayed` the next round computes while the exchange runs, instead of after it. `on_exchange` is called with
    who asked, who answered, and when the answer was there.
    """

    def __init__(
        self,
        seconds: npt.NDArray[np.float64],
        network: Network | None = None,
        *,
        num_bytes: float = 0.0,
        is_delayed: bool,
        on_exchange: Callable[[int, int, float], None] = lambda asker, partner, now: None,  # noqa: ARG005
    ) -> None:
        super().__init__(seconds)
        self.network, self._num_bytes, self.is_delayed, self.on_exchange = network, num_bytes, is_delayed, on_exchange
        self.done = [0] * seconds.shape[1]

    def work(self, process: int, state: Any, event: Hashable, rng: np.random.Generator) -> float | None:  # noqa: ANN401, ARG002
        round_ = self.done[process]
        return self.seconds[round_][process] if round_ < len(self.seconds) else None

    def way(self, source: int, to: int, message: Hashable, rng: np.random.Generator) -> float | None:  # noqa: ARG002
        """Questions and answers both carry the model."""
        if self.network is None:
            return 0.0
        self.network.send(source, to, self._num_bytes, (source, to, message))
        return None

    def resumes(self, process: int, message: Hashable) -> bool:  # noqa: ARG002
        """Without overlap a worker computes on when it has the mean."""
        return not self.is_delayed and isinstance(message, Answer)

    def picked(
        self,
        process: int,  # noqa: ARG002
        offered: Sequence[Hashable],
        *,
        pending: bool,
        rng: np.random.Generator,
    ) -> Sequence[Hashable]:
        """One neighbor, drawn at random, for each round."""
        return () if pending else (offered[int(rng.integers(len(offered)))],)

    def happened(self, step: Step) -> None:
        """A worker picks its neighbor at the end of its computing; the exchange is over when the answer comes."""
        worker, is_answer = step.process, isinstance(step.event, Received) and isinstance(step.event.message, Answer)
        if isinstance(step.event, Choose):
            self.begun[self.done[worker], worker] = step.work_start
            self.computed[self.done[worker], worker] = step.work_end
            self.done[worker] += 1
        if is_answer:
            self.on_exchange(worker, step.event.source, step.end)
        # Under overlap an exchange stands in the row of the round that computes meanwhile; the last one in none.
        row = self.done[worker] - (not self.is_delayed)
        if row < len(self.seconds) and isinstance(step.event, Choose):
            self.start[row, worker] = self.end[row, worker] = step.end
        elif row < len(self.seconds) and is_answer:
            self.end[row, worker] = step.end


def run_pairs(case: Case) -> Timeline:
    """Every worker's rounds under AD-PSGD's pairing. O(num_rounds · n · neighbors), and messages on the links."""
    strategy, cluster = case.schedule.strategy, case.schedule.cluster
    assert isinstance(strategy, Pairwise), "the registry chose this function"
    count, worker_steps, seconds = cluster.num_workers, case.worker_steps(), case.seconds()
    ends = np.cumsum(seconds, axis=0)  # (num_rounds, n), of who never waits
    passive = np.setdiff1d(np.arange(count), strategy.active)
    heard = IndirectAge(worker_steps) if count <= MAX_WORKERS else None
    told: tuple[Meets, ...] = case.listeners if heard is None else (heard, *case.listeners)

    def end_exchange(asker: int, partner: int, now: float) -> None:
        done = np.array(timing.done)
        for worker in passive:
            done[worker] = np.searchsorted(ends[:, worker], now, side="right")
        for listener in told:
            listener.meet((asker, partner), done)

    network = Network(cluster, case.hardware)
    timing = PairTiming(
        seconds, network, num_bytes=case.size(), is_delayed=strategy.is_delayed, on_exchange=end_exchange
    )
    VirtualMachine(pairing_of(strategy, count), timing, seed=case.seed, keep_notes=False).run()
    alone = [worker for worker in range(count) if not timing.done[worker]]  # passive, or without neighbors
    timing.begun[:, alone] = (ends - seconds)[:, alone]
    timing.computed[:, alone] = timing.start[:, alone] = timing.end[:, alone] = ends[:, alone]
    if strategy.is_delayed:
        timing.start[0] = timing.end[0] = timing.begun[0]
    timing.finish = np.maximum(timing.computed, timing.end)
    return timing.timeline(
        case, network.nic_bytes, None if heard is None else heard.ages, is_delayed=strategy.is_delayed
    )
