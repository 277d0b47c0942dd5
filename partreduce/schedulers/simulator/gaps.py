"""Simulate Hop: the runtime's protocol object, with seconds for computing and for updates.

A worker begins to compute when it enters a step, in both update orders. With adapt-then-combine it sends when that is
done and then waits; with D-PSGD it sends at once and reduces when the updates have arrived and the computing is done.
An update carries the model and queues on the links (`InTurn`); a token or an acknowledgement takes only the latency of
its path.

Rounds are steps: a run of `num_rounds` continues until every worker has entered step num_rounds. A step that is
skipped counts, since the worker is as far as the others then; its row is empty: begun, computed and finished at the
instant of the skip. No worker sends an update of step num_rounds, and no worker needs one to get there.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.protocols.base import Note
from partreduce.schedulers.protocols.hop import Advance, Hop, HopState, Reduce, SendUpdate, Update, hop_of
from partreduce.schedulers.simulator.case import Case
from partreduce.schedulers.simulator.machine import Recorder, Step, VirtualMachine
from partreduce.schedulers.simulator.network import InTurn
from partreduce.schedulers.simulator.staleness import MAX_WORKERS, ForwardedAge
from partreduce.schedulers.simulator.timeline import GapRecord, Timeline
from partreduce.topo.errors import ScheduleError
from partreduce.topo.round import Round
from partreduce.topo.strategies.iteration_gap import IterationGap, UpdateOrder
from partreduce.topo.timing.cost import round_seconds


class Listener(Protocol):
    """Callbacks for the actions of workers, called in order of time. Every worker is in step 0 when a run begins."""

    def sends(self, worker: int, step: int, *, adds_own: bool) -> None:
        """A worker sends its update of a step, that is, its parameters.

        `adds_own` is whether they contain its own progress of that step, which is otherwise added after averaging.
        """

    def averages(self, worker: int, step: int, used: Sequence[tuple[int, int]], *, adds_own: bool) -> None:
        """A worker averages the updates `used`, as (source, step of the update), with its own parameters.

        It does so once in each `step`, and once more when it is about to skip steps; `step` is then the last one that
        it skips. `adds_own` is whether it adds its own update of the step after averaging.
        """

    def enters(self, worker: int, step: int) -> None:
        """A worker has entered a step."""


class GapTiming(Recorder):
    """The durations of the steps of a `Hop`, whose updates of `num_bytes` and tokens are sent on `links`.

    Records when each step was `reduced` (averaged), and in `order` numbers the instants at which steps were left.
    `fill` (num_workers,) is the largest number of updates that a worker's queue held. `listeners` are called for every
    update, reduce and step.
    """

    sees_messages = False
    keeps_order = True  # queued messages keep their order, and tokens overtake updates, as at run time

    def __init__(
        self,
        hop: Hop,
        seconds: npt.NDArray[np.float64],
        links: InTurn,
        *,
        num_bytes: float,
        listeners: Sequence[Listener] = (),
    ) -> None:
        super().__init__(seconds)
        self.hop, self._links, self._num_bytes, self._listeners = hop, links, num_bytes, listeners
        self._is_parallel = hop.setting.update_order is UpdateOrder.DPSGD
        self.reduced = np.full(seconds.shape, np.nan)
        self.order = np.zeros(seconds.shape, dtype=np.int64)
        count = seconds.shape[1]
        self.skipped, self.fill = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self._entered, self._sent = [0.0] * count, [0.0] * count
        self.now = 0.0
        """The time of the event for which listeners are called."""
        self._entries = 0

    def work(self, process: int, state: HopState, event: Hashable, rng: np.random.Generator) -> float | None:  # noqa: ARG002
        """Return the seconds of a step's computing before the update is sent, or (D-PSGD) after; None after the run."""
        if isinstance(event, SendUpdate):
            if state.step >= len(self.seconds):
                return None
            return 0.0 if self._is_parallel else self.seconds[state.step][process]
        if not (self._is_parallel and isinstance(event, Reduce)):
            return 0.0
        seconds, entered, sent = self.seconds[state.step][process], self._entered[process], self._sent[process]
        # Computing began at entry; under NOTIFY-ACK the update may be sent later.
        return seconds if sent == entered else max(0.0, entered + seconds - sent)

    def message_seconds(self, source: int, to: int, message: Hashable, rng: np.random.Generator) -> float:  # noqa: ARG002
        """Return the seconds of a message: an update carries the model, others take only the latency."""
        if isinstance(message, Update):
            return self._links.seconds(source, to, self._num_bytes, self.now)
        return self._links.latency(source, to)

    def happened(self, step: Step) -> None:
        worker, now, row = step.process, step.end, step.before.step
        self.now = now
        match step.event:
            case SendUpdate():
                self._sent[worker] = now
                self.begun[row, worker] = self._entered[worker]
                if not self._is_parallel:
                    self.computed[row, worker] = step.work_end
                for listener in self._listeners:
                    listener.sends(worker, row, adds_own=not self._is_parallel)
            case Reduce():
                if self._is_parallel:
                    self.computed[row, worker] = self._entered[worker] + self.seconds[row][worker]
                self.reduced[row, worker] = now
                self._follow(step, adds_own=self._is_parallel)
            case Advance(by):
                self._leaves(step, by)

    def _leaves(self, step: Step, by: int) -> None:
        worker, now, row = step.process, step.end, step.before.step
        self.skipped[worker] += by - 1
        for record in (self.begun, self.computed, self.reduced):
            record[row + 1 : row + by, worker] = now
        self.finish[row : row + by, worker] = now
        self.order[row : row + by, worker] = self._entries
        self._entries += 1
        self._entered[worker] = now
        held = max(map(int.bit_count, step.before.updates), default=0)  # queues only shrink when a step is left
        self.fill[worker] = max(self.fill[worker], held)
        if by > 1:
            self._follow(step, adds_own=False)
        for listener in self._listeners:
            listener.enters(worker, row + by)

    def record(self, graph: Round) -> GapRecord:
        edges = graph.sources.astype(np.int64), graph.targets.astype(np.int64)
        waits = (self.reduced - self.computed).sum(axis=0), (self.finish - self.reduced).sum(axis=0)
        return GapRecord(self.finish, self.order, *edges, self.skipped, self.fill, *waits)

    def check_ended(self, machine: VirtualMachine) -> None:
        """Raise ScheduleError if the run stopped before all workers reached its end."""
        steps = [state.step for state in machine.states]
        worker = min(range(len(steps)), key=steps.__getitem__)
        if steps[worker] < len(self.seconds):
            raise ScheduleError(f"sync.iteration_gap: worker {worker} waits for ever in step {steps[worker]}")

    def _follow(self, step: Step, *, adds_own: bool) -> None:
        if not self._listeners:
            return
        for action in step.actions:
            match action:
                case Note((("reduced" | "renewed"), int(row), tuple(used))):
                    for listener in self._listeners:
                        listener.averages(step.process, row, used, adds_own=adds_own)


def run_gaps(case: Case) -> Timeline:
    """Simulate Hop under the schedule's iteration gap. O(num_rounds · edges · log edges)."""
    setting, graph, cluster = case.schedule.strategy.sync, case.schedule.strategy.graphs[0], case.schedule.cluster
    assert isinstance(setting, IterationGap), "the registry chose this function"
    worker_steps, size, seconds = case.worker_steps(), case.size(), case.seconds()
    hop, links = hop_of(graph, setting), InTurn(cluster, case.hardware)
    forwarded = (
        ForwardedAge(worker_steps, hop.graph.targets, setting.staleness) if len(seconds.T) <= MAX_WORKERS else None
    )
    listeners = case.listeners if forwarded is None else (forwarded, *case.listeners)
    timing = GapTiming(hop, seconds, links, num_bytes=size, listeners=listeners)
    machine = VirtualMachine(hop, timing, seed=case.seed)
    machine.run()
    timing.check_ended(machine)
    begun, computed, finish = timing.begun, timing.computed, timing.finish
    wire = round_seconds(graph, cluster, case.hardware, model_bytes=size)  # (n,)
    is_parallel = setting.update_order is UpdateOrder.DPSGD
    # Time beyond an exchange of all workers at once counts as waiting for others.
    busy = np.minimum(wire, finish - begun if is_parallel else finish - computed)
    late = (finish > computed) if is_parallel else np.ones(finish.shape, dtype=bool)
    timing.start = np.where(late, finish - busy, begun)
    timing.end = timing.start + busy
    ages = None if forwarded is None else forwarded.ages
    return timing.timeline(case, links.nic_bytes, ages, is_delayed=is_parallel, gaps=timing.record(graph))
