"""Partial all-reduce in virtual time: the protocol object, with seconds for computing, word of a start, and sums.

A gradient is ready when its worker has computed; word of a round that starts takes the latency of its way; a sum begins
when the last thread has entered it, and takes what an all-reduce of all takes alone on the links. A thread that may
enter a round waits up to `grace` for a gradient of its own. The mean of all models, every `synchronise_every` rounds,
is one more all-reduce, for which trainings wait. Adding up, and applying results, take no time.

Rounds are optimizer steps: a run of `num_rounds` lets every worker go until it has taken the results of so many. A call
may take several at once; its computing stands in the row of the first, and the other rows are empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partreduce.runtime.virtual_time.in_turn import InTurn
from partreduce.runtime.virtual_time.machine import Meeting, Step, Timing, VirtualMachine
from partreduce.runtime.virtual_time.partial_waits import BeginWithout, Mean, WaitingPartial
from partreduce.runtime.virtual_time.quorum_record import QuorumRecord
from partreduce.runtime.virtual_time.timeline import Observed, Timeline
from partreduce.schedulers.protocols.base import Note
from partreduce.schedulers.protocols.partial import Call, Finish, PartialState, partial_of
from partreduce.topo.phase import Phase
from partreduce.topo.strategies.quorum import Quorum
from partreduce.topo.timing import loads

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    import numpy.typing as npt

    from partreduce.runtime.virtual_time.case import Case


class PartialTiming(Timing):
    """How long the calls and the rounds of a `Partial` take; records them.

    Args:
        seconds: that each worker computes for each of its gradients, shape (num_rounds, num_workers).
        way: (source, to) → seconds that word is on its way.
        sum_seconds: of a round, and of a mean of all models.
        grace: seconds that a thread waits for a gradient of its own worker.

    Records of shape (num_rounds, num_workers): when the computing whose call took a round's result had begun
    (`begun`) and ended (`computed`), when it was taken, and averaged where models are (`finish`), and how many
    gradients a worker had in the round (`gradients`). Records of shape (num_rounds,): when the sum began and ended
    (`summed`, two rows). `ages` says of every gradient how many rounds lay between its weights and its round, which
    stands at the same place in `rounds`.
    """

    sees_messages = False

    def __init__(
        self,
        seconds: npt.NDArray[np.float64],
        way: Callable[[int, int], float],
        *,
        sum_seconds: float,
        grace: float = 0.0,
    ) -> None:
        self._seconds: list[list[float]] = seconds.tolist()
        self._way, self._sum_seconds, self._grace = way, sum_seconds, grace
        num_rounds, count = seconds.shape
        self._everybody = tuple(range(count))
        self.begun, self.computed, self.finish = np.full((3, *seconds.shape), np.nan)
        self.gradients = np.zeros(seconds.shape, dtype=np.int64)
        self.summed = np.full((2, num_rounds), np.nan)
        self.ages: list[int] = []
        self.rounds: list[int] = []
        self._called = [(0.0, 0.0)] * count
        self._versions: list[list[int]] = [[] for _ in self._everybody]

    def work(self, process: int, state: PartialState, event: Hashable, rng: np.random.Generator) -> float | None:  # noqa: ARG002
        """A gradient's computing, or a thread's waiting for one; everything else is done at once."""
        if not isinstance(event, Call):
            return self._grace if isinstance(event, BeginWithout) else 0.0
        return self._seconds[state.calls][process] if state.version < len(self._seconds) else None

    def way(self, source: int, to: int, message: Hashable, rng: np.random.Generator) -> float:  # noqa: ARG002
        """Messages are small."""
        return self._way(source, to)

    def resumes(self, process: int, message: Hashable) -> bool:  # noqa: ARG002
        """Grace begins with the word that a round starts; what is computed has begun by then, and goes on."""
        return self._grace > 0

    def meeting(self, process: int, state: PartialState, event: Hashable) -> Meeting | None:  # noqa: ARG002
        """A round's sum, or the mean of all models, is one operation of all."""
        if isinstance(event, Finish):
            return Meeting(("sum", state.done), self._everybody, self._sum_seconds)
        return Meeting(("mean", state.version), self._everybody, self._sum_seconds) if isinstance(event, Mean) else None

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
                    self.rounds += [row] * len(gradients)
                case Note(("taken", _, int(version))):
                    first = state.version
                    self.begun[first:version, worker] = self.computed[first:version, worker] = step.end
                    self.finish[first:version, worker] = step.end
                    if first < len(self._seconds):
                        self.begun[first, worker], self.computed[first, worker] = self._called[worker]
                case Note(("synchronised", int(version))) if version <= len(self._seconds):
                    self.finish[version - 1, worker] = step.end

    @property
    def sum_starts(self) -> npt.NDArray[np.float64]:
        """When the sum of each round began that a worker was in, (num_rounds, num_workers) or one for all workers."""
        return np.asarray(self.summed[0])[:, None]

    def timeline(self, paces: npt.NDArray[np.int64], nic_bytes: npt.NDArray[np.float64]) -> Timeline:
        """What is recorded, once the machine has run; `nic_bytes` (num_nodes,) left each node meanwhile."""
        assert not np.isnan(self.finish).any(), "the protocol never halts before the end: see verify/properties"
        record = QuorumRecord(self.summed, self.gradients, np.array(self.rounds), np.array(self.ages))
        observed = Observed(nic_bytes, float(record.ages.max()), float(record.ages.mean()), quorum=record)
        # Of a sum a worker sees what runs after its call; of one that it missed nothing.
        start = np.minimum(np.maximum(self.sum_starts, self.computed), self.finish)
        return Timeline(
            paces,
            self.begun,
            self.computed,
            start,
            self.finish,
            self.finish,
            overlap=False,
            free_running=True,
            observed=observed,
        )


def run_quorum(case: Case) -> Timeline:
    """Every worker's rounds under a quorum. O(num_rounds · n) messages, for a number O(num_rounds · n²)."""
    setting, cluster = case.schedule.strategy.when, case.schedule.cluster
    assert isinstance(setting, Quorum), "the registry chose this function"
    count, paces = cluster.num_workers, case.paces()
    size, seconds = case.size(), case.seconds()
    everybody = Phase.from_groups(count, [range(count)])
    one = loads.of_phase(everybody, cluster, case.hardware, model_bytes=size, form=case.form.value)
    alone, grace = float(one.seconds()[0]), setting.grace * 1e-6
    timing = PartialTiming(seconds, InTurn(cluster, case.hardware).latency, sum_seconds=alone, grace=grace)
    VirtualMachine(WaitingPartial(partial_of(setting, count)), timing, seed=case.seed, keep_notes=False).run()
    nic_bytes = np.zeros(cluster.num_nodes)
    means = case.num_rounds // setting.synchronise_every if setting.synchronise_every else 0
    np.add.at(nic_bytes, one.node, one.bytes_ * (case.num_rounds + means))
    return timing.timeline(paces, nic_bytes)
