"""Workers whose order depends on time, trained in one process: the protocol that runs between processes decides, in
virtual time, who averages what when, and the models of a learner do it.

A step computes as long as the lab's does, with the batches that the lab draws, and links are those of the hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.lab.rehearse import advance_of, generated
from partreduce.schedulers.protocols.base import Note
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.schedulers.protocols.hop import hop_of
from partreduce.schedulers.protocols.partial_state import Call
from partreduce.schedulers.simulator.gaps import GapTiming
from partreduce.schedulers.simulator.groups import COST_UNIT, GroupTiming, WorkerRound, group_machine
from partreduce.schedulers.simulator.in_turn import InTurn
from partreduce.schedulers.simulator.machine import Step, VirtualMachine
from partreduce.schedulers.simulator.network import Network
from partreduce.schedulers.simulator.quorum import QuorumTiming, Waiting
from partreduce.schedulers.simulator.replay import Carrying
from partreduce.topo.hardware import Hardware
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.strategies.iteration_gap import IterationGap
from partreduce.topo.strategies.partial import PartialAllReduce
from partreduce.topo.timing import loads

if TYPE_CHECKING:
    from benchmarks.long_runs.learner import Learner

Seconds = npt.NDArray[np.float64]
"""That each worker computes for each of its steps, (steps, workers)."""
MORE = 2
"""Times as many steps of all workers together as somebody who never waits may begin; lengths of steps repeat."""


class Virtual:
    """Advances a learner by what a protocol decides; `seconds` is the virtual time of now.

    Args:
        learner: whose models are trained.
        schedule: of any kind.
        hardware: the links.
        seconds: as said.
        algorithm: how groups add up.
    """

    def __init__(
        self, learner: Learner, schedule: Schedule, hardware: Hardware, seconds: Seconds, algorithm: AllReduceAlgorithm
    ) -> None:
        self.learner, self.schedule, self.hardware, self.algorithm = learner, schedule, hardware, algorithm
        self.lengths = np.tile(seconds, (MORE * learner.count, 1))
        self.machine: VirtualMachine | None = None
        self.summing: Summing | None = None
        self._advance = self._made()

    @property
    def seconds(self) -> float | None:
        """None of strategies whose order does not depend on it."""
        return None if self.machine is None else self.machine.now

    def advance(self, step: int) -> None:
        """One step of every worker, on average."""
        if self.machine is None:
            self.learner.done = step
        self._advance(step)

    def _made(self) -> Callable[[int], None]:
        strategy = self.schedule.strategy
        if isinstance(strategy.sync, IterationGap):
            return self._by_gap(strategy.sync)
        if isinstance(strategy.sync, PartialAllReduce):
            return self._by_quorum(strategy.sync)
        if strategy.kind == "dynamic_groups":
            return self._by_generator()
        return advance_of(self.learner, self.schedule)

    def _group_loads(self, members: Sequence[int]) -> loads.Loads:
        cluster = self.schedule.cluster
        phase = Phase.from_groups(cluster.num_workers, [members])
        return loads.of_phase(
            phase, cluster, self.hardware, model_bytes=self.hardware.model_bytes, algorithm=self.algorithm.value
        )

    def _until(self, has_come: Callable[[int], bool]) -> Callable[[int], None]:
        machine = self.machine
        assert machine is not None

        def advance(step: int) -> None:
            while not has_come(step + 1):
                machine.run(max_events=1)

        return advance

    def _by_gap(self, gap: IterationGap) -> Callable[[int], None]:
        graph = self.schedule.strategy.graphs[0]
        hop, training = hop_of(graph, gap), Reducing(self.learner, graph, gap)
        timing = GapTiming(
            hop,
            self.lengths,
            InTurn(self.schedule.cluster, self.hardware),
            num_bytes=float(self.hardware.model_bytes or 0),
            listeners=(training,),
        )
        self.machine = VirtualMachine(hop, timing, keep_notes=False)
        return self._until(lambda steps: sum(training.step) >= steps * len(training.step))

    def _by_quorum(self, quorum: PartialAllReduce) -> Callable[[int], None]:
        count = self.learner.count
        takes = float(self._group_loads(range(count)).seconds().max())
        links = InTurn(self.schedule.cluster, self.hardware)
        machine = Waiting(quorum, count, collective=False)
        timing = Summing(self.learner, self.lengths, links.latency, takes)
        self.machine, self.summing = VirtualMachine(machine, timing, keep_notes=False), timing
        return self._until(lambda steps: timing.summed_gradients >= steps * count)

    def _by_generator(self) -> Callable[[int], None]:
        def machine_of(setting: GeneratorSetting, ended: Callable[[WorkerRound], None]) -> VirtualMachine:
            rounds = [0]

            def note(done: WorkerRound) -> None:
                ended(done)
                rounds[0] += 1
                self.learner.done = rounds[0] / self.learner.count

            network = Network(self.schedule.cluster, self.hardware)
            timing = GroupTiming(
                lambda worker, round_: float(self.lengths[round_, worker]), self._group_loads, note, network
            )
            # What a worker reports is the least of its last rounds, so that a disturbance makes nobody a slow one.
            costs = tuple(max(1, round(least / COST_UNIT)) for least in self.lengths.min(axis=0).tolist())
            self.machine = group_machine(setting, timing, rounds=len(self.lengths), costs=costs)
            return self.machine

        return generated(self.learner, self.schedule.strategy, self.schedule.cluster, machine_of)


class Reducing(Carrying):
    """Hop: every worker trains with the updates that it is told to average. A skipped step counts as a step."""

    def __init__(self, learner: Learner, graph, gap: IterationGap) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        self.learner = learner
        super().__init__(graph, gap, learner.models.numpy())
        for worker in range(learner.count):
            self._compute(worker)

    def enters(self, worker: int, step: int) -> None:
        super().enters(worker, step)
        self.learner.done = sum(self.step) / len(self.step)
        self._compute(worker)

    def _compute(self, worker: int) -> None:
        gradient = self.learner.gradient(worker, self.learner.models[worker])
        self.update[worker] = -self.learner.rate * gradient.numpy()


class Summing(QuorumTiming):
    """eager-SGD: gradients join the sums that the protocol says, and every worker applies what it takes.

    `summed_gradients` counts those whose sums have begun. All apply a sum at the rate of when it began, so that models
    stay equal where no result is left out.
    """

    def __init__(self, learner: Learner, seconds: Seconds, *rest, **named) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN003
        super().__init__(seconds, *rest, **named)
        self.learner, self.summed_gradients = learner, 0
        self._buffers: list[torch.Tensor | None] = [None] * learner.count
        self._sums: dict[int, torch.Tensor] = {}
        self._rates: dict[int, float] = {}
        self._taken, self._met = [0] * learner.count, 0

    def happened(self, step: Step) -> None:
        """A call brings a gradient, a thread that begins a round takes along what is there, and results are applied."""
        super().happened(step)
        worker, learner = step.process, self.learner
        if isinstance(step.event, Call):
            gradient, kept = learner.gradient(worker, learner.models[worker]), self._buffers[worker]
            self._buffers[worker] = gradient if kept is None else kept + gradient
        for action in step.actions:
            match action:
                case Note(("begun", int(row), tuple(gradients))):
                    self._joins(worker, row, len(gradients))
                case Note(("taken", tuple(rounds), int(version))):
                    for row in rounds:
                        learner.models[worker] -= self._sums[row]
                    self._taken[worker] = version
                    for row in [row for row in self._sums if row < min(self._taken)]:
                        del self._sums[row]
                case Note(("synchronized", _)):
                    self._meet()

    def _joins(self, worker: int, row: int, gradients: int) -> None:
        self.summed_gradients += gradients
        self.learner.done = self.summed_gradients / self.learner.count
        part, self._buffers[worker] = self._buffers[worker], None
        if row not in self._sums:
            self._sums[row], self._rates[row] = torch.zeros_like(self.learner.models[0]), self.learner.rate
        if part is not None:
            self._sums[row] += self._rates[row] / self.learner.count * part

    def _meet(self) -> None:
        """The first who is told takes the mean of all; all wait for it."""
        if not self._met:
            self.learner.models[:] = self.learner.models.mean(0)
        self._met = (self._met + 1) % self.learner.count
