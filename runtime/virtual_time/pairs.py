"""AD-PSGD in virtual time: the pairing that is explored, with seconds for computing and for models on the wire.

A passive worker only computes: it answers beside its computing and never waits. A message carries the model and takes
what it takes alone on the links.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from partreduce.runtime.virtual_time.machine import Step, Timing, VirtualMachine
from partreduce.runtime.virtual_time.record import Observed
from partreduce.runtime.virtual_time.staleness import MAX_WORKERS, Hearsay
from partreduce.runtime.virtual_time.timeline import Timeline
from partreduce.schedulers.protocols.adpsgd import Answer, Choose, pairing_of
from partreduce.schedulers.protocols.base import Received
from partreduce.topo.round import Round
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.timing.cost import round_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import numpy.typing as npt

    from partreduce.runtime.virtual_time.case import Case


class PairTiming(Timing):
    """How long the rounds of the active workers of a `Pairing` take; records them.

    Args:
        seconds: that each worker computes in each round, shape (num_rounds, num_workers); after them it rests.
        way: (source, to) → seconds that a model is on its way.
        overlap: the next round computes while the exchange runs, instead of after it.
        on_exchange: called with who asked, who answered, and when the answer was there.

    `records` (4, num_rounds, num_workers) holds when computing and communicating began and ended.
    """

    def __init__(
        self,
        seconds: npt.NDArray[np.float64],
        way: Callable[[int, int], float],
        *,
        overlap: bool,
        on_exchange: Callable[[int, int, float], None] = lambda asker, partner, now: None,  # noqa: ARG005
    ) -> None:
        self.seconds, self.wire, self.overlap, self.on_exchange = seconds, way, overlap, on_exchange
        self.records = np.zeros((4, *seconds.shape))
        self.done = [0] * seconds.shape[1]

    def work(self, process: int, state: Any, event: Hashable, rng: np.random.Generator) -> float | None:  # noqa: ANN401, ARG002
        round_ = self.done[process]
        return float(self.seconds[round_, process]) if round_ < len(self.seconds) else None

    def way(self, source: int, to: int, message: Hashable, rng: np.random.Generator) -> float:  # noqa: ARG002
        """Questions and answers both carry the model."""
        return self.wire(source, to)

    def resumes(self, process: int, message: Hashable) -> bool:  # noqa: ARG002
        """Without overlap a worker computes on when it has the mean."""
        return not self.overlap and isinstance(message, Answer)

    def picked(
        self,
        process: int,  # noqa: ARG002
        offered: Sequence[Hashable],
        *,
        pending: bool,
        rng: np.random.Generator,
    ) -> Sequence[Hashable]:
        """One neighbour, drawn at random, for each round."""
        return () if pending else (offered[int(rng.integers(len(offered)))],)

    def happened(self, step: Step) -> None:
        """A worker picks its neighbour at the end of its computing; the exchange is over when the answer comes."""
        worker, records = step.process, self.records
        if isinstance(step.event, Choose):
            records[:2, self.done[worker], worker] = step.work_start, step.work_end
            self.done[worker] += 1
        # Under overlap an exchange stands in the row of the round that computes meanwhile; the last one in none.
        row = self.done[worker] - (not self.overlap)
        if isinstance(step.event, Received) and isinstance(step.event.message, Answer):
            self.on_exchange(worker, step.event.source, step.end)
        if row == len(self.seconds):
            return
        if isinstance(step.event, Choose):
            records[2:, row, worker] = step.end
        elif isinstance(step.event, Received) and isinstance(step.event.message, Answer):
            records[3, row, worker] = step.end


def run_pairs(case: Case) -> Timeline:
    """Every worker's rounds under AD-PSGD's pairing. O(num_rounds · n · neighbours)."""
    strategy, cluster = case.schedule.strategy, case.schedule.cluster
    assert isinstance(strategy, Pairwise), "the registry chose this function"
    count, paces = cluster.num_workers, case.paces()
    size, seconds = case.size(), case.seconds()

    ends, node_of = np.cumsum(seconds, axis=0), cluster.node_of()  # (num_rounds, n), (n,)
    nic_bytes = np.zeros(cluster.num_nodes)
    heard = Hearsay(paces) if count <= MAX_WORKERS else None

    @cache
    def seconds_of(source: int, to: int) -> float:
        edge = Round.from_edges(count, [(source, to, Fraction(1, 2))])
        return float(round_seconds(edge, cluster, case.hardware, model_bytes=size)[to])

    def way(source: int, to: int) -> float:
        nic_bytes[node_of[source]] += size * (node_of[source] != node_of[to])  # asked once for each message
        return seconds_of(source, to)

    def exchanged(asker: int, partner: int, now: float) -> None:
        if heard is not None:
            done = np.array(timing.done)
            for passive in np.flatnonzero(~is_active):
                done[passive] = np.searchsorted(ends[:, passive], now, side="right")
            heard.meet((asker, partner), done)

    is_active = np.isin(np.arange(count), strategy.active)
    pairing = pairing_of(strategy, count)
    timing = PairTiming(seconds, way, overlap=strategy.overlap, on_exchange=exchanged)
    VirtualMachine(pairing, timing, seed=case.seed).run()
    records = timing.records
    for worker in range(count):
        if not timing.done[worker]:  # a passive worker, or one without neighbours: computes and never waits
            records[0, :, worker] = ends[:, worker] - seconds[:, worker]
            records[1:, :, worker] = ends[:, worker]
    if strategy.overlap:
        records[2:, 0] = records[0, 0]
    begun, computed, start, end = records
    finish = np.maximum(computed, end)
    observed = Observed.of(nic_bytes, None if heard is None else heard.ages)
    return Timeline(
        paces,
        begun,
        computed,
        start,
        end,
        finish,
        overlap=strategy.overlap,
        free_running=True,
        observed=observed,
    )
