"""Partial all-reduce in virtual time: the protocol object, with seconds for computing, word of a start, and sums.

A gradient is ready when its worker has computed; word of a round that starts takes the latency of its way; a sum begins
when the last thread has entered it, and takes what an all-reduce of all takes alone on the links. Adding up, and
applying results, take no time.

Rounds are optimizer steps: a run of `num_rounds` lets every worker go until it has taken the results of so many. A call
may take several at once; its computing stands in the row of the first, and the other rows are empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from preduce.runtime.virtual_time.in_turn import InTurn
from preduce.runtime.virtual_time.machine import Meeting, Step, Timing, VirtualMachine
from preduce.runtime.virtual_time.quorum_record import QuorumRecord
from preduce.runtime.virtual_time.timeline import Observed, Timeline
from preduce.schedulers.protocols.base import Note
from preduce.schedulers.protocols.partial import Call, Finish, PartialState, partial_of
from preduce.topo.errors import MissingFeatureError
from preduce.topo.phase import Phase
from preduce.topo.strategies.quorum import Quorum
from preduce.topo.timing import loads

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    import numpy.typing as npt

    from preduce.runtime.virtual_time.case import Case


class PartialTiming(Timing):
    """How long the calls and the rounds of a `Partial` take; records them.

    Args:
        seconds: that each worker computes for each of its gradients, shape (num_rounds, num_workers).
        way: (source, to) → seconds that word is on its way.
        sum_seconds: of a round.

    Records of shape (num_rounds, num_workers): when the computing whose call took a round's result had begun
    (`begun`) and ended (`computed`), when it was taken (`finish`), and how many gradients a worker had in the round
    (`gradients`). Records of shape (num_rounds,): when the sum began and ended (`summed`, two rows). `ages` lists of
    every gradient how many rounds lay between its weights and its round.
    """

    sees_messages = False

    def __init__(
        self, seconds: npt.NDArray[np.float64], way: Callable[[int, int], float], *, sum_seconds: float
    ) -> None:
        self._seconds: list[list[float]] = seconds.tolist()
        self._way, self._sum_seconds = way, sum_seconds
        num_rounds, count = seconds.shape
        self._everybody = tuple(range(count))
        self.begun, self.computed, self.finish = np.full((3, *seconds.shape), np.nan)
        self.gradients = np.zeros(seconds.shape, dtype=np.int64)
        self.summed = np.full((2, num_rounds), np.nan)
        self.ages: list[int] = []
        self._called = [(0.0, 0.0)] * count
        self._versions: list[list[int]] = [[] for _ in self._everybody]

    def work(self, process: int, state: PartialState, event: Hashable, rng: np.random.Generator) -> float | None:  # noqa: ARG002
        """A gradient's computing; everything else is done at once."""
        if not isinstance(event, Call):
            return 0.0
        return self._seconds[state.calls][process] if state.version < len(self._seconds) else None

    def way(self, source: int, to: int, message: Hashable, rng: np.random.Generator) -> float:  # noqa: ARG002
        """Messages are small."""
        return self._way(source, to)

    def meeting(self, process: int, state: PartialState, event: Hashable) -> Meeting | None:  # noqa: ARG002
        """A round's sum is one operation of all."""
        return Meeting(state.done, self._everybody, self._sum_seconds) if isinstance(event, Finish) else None

    def happened(self, step: Step) -> None:
        """A gradient is there, a round is begun or over, or results are taken."""
        worker, state = step.process, step.before
        if isinstance(step.event, Call):
            self._called[worker] = step.work_start, step.work_end
            self._versions[worker].append(state.version)
        elif isinstance(step.event, Finish) and state.done < len(self._seconds):
            self.summed[:, state.done] = step.start, step.end
        for action in step.actions:
            match action:
                case Note(("begun", int(row), tuple(gradients))) if row < len(self._seconds):
                    self.gradients[row, worker] = len(gradients)
                    self.ages += [row - self._versions[worker][number] for number in gradients]
                case Note(("taken", _, int(version))):
                    first = state.version
                    self.begun[first:version, worker] = self.computed[first:version, worker] = step.end
                    self.finish[first:version, worker] = step.end
                    if first < len(self._seconds):
                        self.begun[first, worker], self.computed[first, worker] = self._called[worker]


def run_quorum(case: Case) -> Timeline:
    """Every worker's rounds under a quorum. O(num_rounds · n) messages, under a number of workers O(num_rounds · n²).

    Raises:
        MissingFeatureError: what takes time only in a run.
    """
    setting, cluster = case.schedule.strategy.when, case.schedule.cluster
    assert isinstance(setting, Quorum), "the registry chose this function"
    for name in ("grace", "synchronise_every"):
        if getattr(setting, name):
            raise MissingFeatureError(
                f"when.quorum.{name}: is {getattr(setting, name)}; virtual time knows none; leave it out there"
            )
    count, paces = cluster.num_workers, case.paces()
    size, seconds = case.size(), case.seconds()
    everybody = Phase.from_groups(count, [range(count)])
    one = loads.of_phase(everybody, cluster, case.hardware, model_bytes=size, form=case.form.value)
    timing = PartialTiming(seconds, InTurn(cluster, case.hardware).latency, sum_seconds=float(one.seconds()[0]))
    VirtualMachine(partial_of(setting, count), timing, seed=case.seed, keep_notes=False).run()
    assert not np.isnan(timing.finish).any(), "the protocol never halts before the end: see verify/properties"
    nic_bytes = np.zeros(cluster.num_nodes)
    np.add.at(nic_bytes, one.node, one.bytes_ * case.num_rounds)
    record = QuorumRecord(timing.summed, timing.gradients)
    ages = np.array(timing.ages)
    observed = Observed(nic_bytes, float(ages.max()), float(ages.mean()), quorum=record)
    # Of a sum a worker sees what runs after its call; of one that it missed nothing.
    start = np.minimum(np.maximum(timing.summed[0][:, None], timing.computed), timing.finish)
    return Timeline(
        paces,
        timing.begun,
        timing.computed,
        start,
        timing.finish,
        timing.finish,
        overlap=False,
        free_running=True,
        observed=observed,
    )
