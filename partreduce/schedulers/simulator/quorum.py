"""Simulate partial all-reduce: the protocol objects, with seconds for their operations.

A worker's training *calls* to hand a gradient over to its *thread*, which takes part in all-reduces (rounds). A call is
ready when its worker has computed a gradient. The notice of a round's start takes the latency of its path; an
all-reduce begins when the last thread has entered the round, and takes as long as in a synchronous round. A thread that
may enter a round waits up to `grace` for a call of its worker. The mean of all models, every `synchronize_every`
rounds, is one more all-reduce, for which trainings wait. Adding up, and applying results, take no time.

A run of `num_rounds` continues until every worker has taken the results of that many rounds. A call may take several
results at once; its computing is recorded in the row of the first, and the other rows are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.protocols.base import Action, Note, Outcome, Received, Send, Signal
from partreduce.schedulers.protocols.partial import MEETING, Begin, Call, Finish, Here, Partial, PartialState
from partreduce.schedulers.simulator.case import Case
from partreduce.schedulers.simulator.machine import Meeting, Recorder, Step, VirtualMachine
from partreduce.schedulers.simulator.network import InTurn
from partreduce.schedulers.simulator.timeline import QuorumRecord, Timeline
from partreduce.topo.strategies.partial import PartialAllReduce
from partreduce.topo.timing import loads


class BeginWithout(Signal):
    """Event: a worker's communication thread, after waiting `grace` for a gradient, enters a round without one."""


class Mean(Signal):
    """Event: the mean of all models is complete."""


class Waiting(Partial):
    """The protocol of partial all-reduce with separate events for grace and for the mean of models, which take time.

    The protocol lets a communication thread enter a round that may start at any time, and models be averaged as soon as
    all wait for it. Here a thread without a gradient (call) of its worker waits up to `grace` for one, unless the
    worker has ended; with one it enters at once.
    """

    def ready(self, process: int, state: PartialState) -> Sequence[Hashable]:
        """Return the protocol's events and those of this module: a wait of `grace` ends, models are averaged."""
        found = list(super().ready(process, state))
        if self.setting.grace and not state.buffer and not state.resting:
            found = [BeginWithout() if event == Begin() else event for event in found]
        if state.stage == MEETING:
            found.append(Mean())
        return found

    def step(self, process: int, state: PartialState, event: object) -> Outcome[PartialState]:
        """Return the protocol's next state and actions; `Mean` averages models as one operation, without messages."""
        if isinstance(event, Mean):
            actions: tuple[Action, ...] = ()
            for other in range(self.num_processes):
                if other != process:
                    state, more = super().step(process, state, Received(other, Here(state.version)))
                    actions += more
            return state, actions
        after, actions = super().step(process, state, Begin() if isinstance(event, BeginWithout) else event)
        return after, tuple(one for one in actions if not (isinstance(one, Send) and isinstance(one.message, Here)))


class QuorumTiming(Recorder):
    """The durations of the calls (gradients handed over) and rounds (all-reduces) of partial all-reduce.

    Each worker computes for `seconds` (num_rounds, num_workers) for each of its calls; a message takes `way(source,
    destination)` seconds, an all-reduce of gradients or models `sum_seconds`; a thread waits up to `grace` seconds for
    a call.

    Records of shape (num_rounds, num_workers): when a worker began (`begun`) and ended (`computed`) to compute before
    the call that took the round's result, when it had taken the result and averaged models, if the round does
    (`finish`), and the number of its calls in the round (`gradients`). `summed` (2, num_rounds) is when each all-reduce
    began and ended. `rounds` has the round of every call, `ages` by how many rounds its weights were older.
    """

    sees_messages = False

    def __init__(
        self,
        seconds: npt.NDArray[np.float64],
        way: Callable[[int, int], float],
        sum_seconds: float,
        *,
        grace: float = 0.0,
    ) -> None:
        super().__init__(seconds)
        self._way, self._sum_seconds, self._grace = way, sum_seconds, grace
        self._everybody = tuple(range(seconds.shape[1]))
        self.summed = np.full((2, len(seconds)), np.nan)
        self.gradients = np.zeros(seconds.shape, dtype=np.int64)
        self.ages: list[int] = []
        self.rounds: list[int] = []
        self._called = [(0.0, 0.0)] * len(self._everybody)
        self._versions: list[list[int]] = [[] for _ in self._everybody]

    def work(self, process: int, state: Any, event: Hashable, rng: np.random.Generator) -> float | None:  # noqa: ANN401, ARG002
        """Return the seconds before an event: a call's computing, the wait of `grace` for a call, 0 for other events.

        A call hands a computed gradient over to the worker's thread, which runs the all-reduces. None for a call after
        the results of all rounds were taken: the worker stops.
        """
        if not isinstance(event, Call):
            return self._grace if isinstance(event, BeginWithout) else 0.0
        return self.seconds[state.calls][process] if state.version < len(self.seconds) else None

    def message_seconds(self, source: int, to: int, message: Hashable, rng: np.random.Generator) -> float:  # noqa: ARG002
        return self._way(source, to)

    def resumes(self, process: int, message: Hashable) -> bool:  # noqa: ARG002
        """Return whether a message, as of a round's start, starts a communication thread's wait for a gradient."""
        return self._grace > 0

    def meeting(self, process: int, state: Any, event: Hashable) -> Meeting | None:  # noqa: ANN401, ARG002
        """Return the operation of all workers: a sum of gradients, or the mean of all models; None for other events."""
        if isinstance(event, Finish):
            return Meeting(("sum", state.done), self._everybody, self._sum_seconds)
        if isinstance(event, Mean):
            return Meeting(("mean", state.version), self._everybody, self._sum_seconds)
        return None

    def happened(self, step: Step) -> None:
        worker, state = step.process, step.before
        if isinstance(step.event, Call):
            self._called[worker] = step.work_start, step.work_end
            self._versions[worker].append(state.version)
        elif isinstance(step.event, Finish) and state.done < len(self.seconds):
            self.summed[:, state.done] = step.start, step.end
        for action in step.actions:
            match action:
                case Note(("begun", int(row), tuple(gradients))) if row < len(self.seconds):
                    self.gradients[row, worker] = len(gradients)
                    self.ages += [row - self._versions[worker][number] for number in gradients]
                    self.rounds += [row] * len(gradients)
                case Note(("taken", _, int(version))):
                    first = state.version
                    self.begun[first:version, worker] = self.computed[first:version, worker] = step.end
                    self.finish[first:version, worker] = step.end
                    if first < len(self.seconds):
                        self.begun[first, worker], self.computed[first, worker] = self._called[worker]
                case Note(("synchronized", int(version))) if version <= len(self.seconds):
                    self.finish[version - 1, worker] = step.end

    def record(self) -> QuorumRecord:
        return QuorumRecord(self.summed, self.gradients, np.array(self.rounds), np.array(self.ages))


def run_quorum(case: Case) -> Timeline:
    """Simulate partial all-reduce; a round is O(n²) messages, O(n) if one worker starts it."""
    schedule, cluster = case.schedule, case.schedule.cluster
    setting = schedule.strategy.sync
    assert isinstance(setting, PartialAllReduce), "the registry names the protocol"
    machine = Waiting(setting, cluster.num_workers, collective=False)
    load = loads.of_phase(
        schedule.phase(0), cluster, case.hardware, model_bytes=case.size(), algorithm=case.algorithm.value
    )
    sum_seconds = float(load.seconds()[0])
    way, grace = InTurn(cluster, case.hardware).latency, setting.grace * 1e-6
    timing = QuorumTiming(case.seconds(), way, sum_seconds, grace=grace)
    VirtualMachine(machine, timing, seed=case.seed).run()
    nic_bytes = np.zeros(cluster.num_nodes)
    means = case.num_rounds // setting.synchronize_every if setting.synchronize_every else 0
    np.add.at(nic_bytes, load.node, load.bytes_ * (case.num_rounds + means))
    # A worker communicates during the part of a sum after its call; not at all in a sum that it missed.
    timing.start = np.minimum(np.maximum(timing.summed[0][:, None], timing.computed), timing.finish)
    timing.end = timing.finish
    return timing.timeline(case, nic_bytes, None, quorum=timing.record())
