"""Simulate parameter servers: the protocol object, with seconds for computing and for shards on links.

A push (a worker's progress, to a server) and an answer carry a shard, one server's part of the model. Concurrent
transfers share the links (`network`), so all share the NIC of a single host; adding up takes no time. A synchronous
server has staleness 0, so that its answers are sent when a round is complete. With `is_delayed` it averages the
parameters of a round's start, so the push leaves then; an asynchronous server gets the progress of the round before.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.shards import Answer, Opened, Plan, Push, Shards, Take, shards_of
from partreduce.schedulers.simulator.case import Case
from partreduce.schedulers.simulator.machine import Recorder, Step, VirtualMachine
from partreduce.schedulers.simulator.network import Network
from partreduce.schedulers.simulator.staleness import MAX_WORKERS, Ages
from partreduce.schedulers.simulator.timeline import Timeline
from partreduce.topo.strategies.server import Server
from partreduce.topo.timing.coding import Coding


class ShardsTiming(Recorder):
    """The durations of the rounds of `Shards`, whose shards of `num_bytes` are sent on `network`.

    With `pushes_first` a round's push leaves when the round begins. When progress is added to a shard, `ages` (if not
    None) records the age of the parameters with which it was computed. A round communicates from its push to its last
    answer; with a delay, its row holds the transfers that run during its computing.
    """

    network: Network

    def __init__(
        self,
        machine: Shards,
        seconds: npt.NDArray[np.float64],
        network: Network,
        *,
        num_bytes: float,
        pushes_first: bool,
        ages: Ages | None,
    ) -> None:
        super().__init__(seconds)
        self.machine, self.network = machine, network
        self._num_bytes, self._ages = num_bytes, ages
        self._pushes_first = pushes_first
        self.pushes_late = machine.is_delayed and not pushes_first
        hosts, count = len(machine.hosts), machine.num_workers
        self._added = np.zeros((hosts, count), dtype=np.int64)
        """The rounds of every worker whose progress is in each shard, shape (hosts, num_workers)."""
        if ages is not None:
            self._began, self._answered, self._sent = np.zeros((3, hosts, count, count), dtype=np.int64)
            """The same for each worker's parameters (axis 1): as its round began, in its newest answer, in its push."""

    def _computes(self, state: Any, event: Hashable) -> int | None:  # noqa: ANN401 - a worker's
        """Return the number of the round whose computing ends with this event of a worker; None if there is none."""
        if isinstance(event, Push) and (state.round or not self._pushes_first):
            return int(state.round) - self._pushes_first
        return int(state.round) - 1 if isinstance(event, Take) and self._pushes_first else None

    def work(self, process: int, state: Any, event: Hashable, rng: np.random.Generator) -> float | None:  # noqa: ANN401, ARG002
        """Return the seconds of a round's computing; None at the end: with delay the last answer is not waited for."""
        if self.pushes_late and isinstance(event, Take):
            return None
        round_ = self._computes(state, event)
        return 0.0 if round_ is None else self.seconds[round_][process]

    def message_seconds(self, source: int, to: int, message: Hashable, rng: np.random.Generator) -> float | None:  # noqa: ARG002
        """Send a shard on the links and return None; 0 seconds for parameters that initialize a shard on the host."""
        if isinstance(message, Opened):
            return 0.0
        places = (*range(self.machine.num_workers), *self.machine.hosts)
        self.network.send(places[source], places[to], self._num_bytes, (source, to, message))
        return None

    def happened(self, step: Step) -> None:
        if step.process >= self.machine.num_workers:
            if self._ages is not None:
                self._follow(step, step.process - self.machine.num_workers, self._ages)
            return
        worker, round_ = step.process, step.before.round
        match step.event:
            case Received(source, Answer()):
                if step.before.missing == {source}:
                    self._record(self.end, round_ - (not self.pushes_late), worker, step.end)
                return
            case Push():
                self._record(self.start, round_ + self.pushes_late, worker, step.end)
                if self._ages is not None:
                    self._sent[:, worker] = self._began[:, worker]
        computed = self._computes(step.before, step.event)
        if computed is not None:
            self._record(self.computed, computed, worker, step.work_end)
        if self.machine.is_delayed or isinstance(step.event, Take):
            ended = round_ - 1 if computed is None else computed
            self._record(self.finish, ended, worker, step.end)
            if self._ages is not None:
                self._began[:, worker] = self._answered[:, worker]

    def _record(self, row: npt.NDArray[np.float64], round_: int, worker: int, now: float) -> None:
        if 0 <= round_ < len(self.seconds):  # the answer to a late push of the last round belongs to no round
            row[round_, worker] = now

    def _follow(self, step: Step, shard: int, ages: Ages) -> None:
        for action in step.actions:
            match action:
                case Note(("added", int(worker), _)):
                    ages.add(self._added[shard] - self._sent[shard, worker], worker)
                    self._added[shard, worker] += 1
                case Send(to, Answer()):
                    self._answered[shard, to] = self._added[shard]


def run_servers(case: Case) -> Timeline:
    """Simulate a parameter server. O(num_rounds · n · hosts) messages of O(n + concurrent messages)."""
    schedule, strategy, worker_steps = case.schedule, case.schedule.strategy, case.worker_steps()
    assert isinstance(strategy, Server), "the registry chose this function"
    size, seconds, count = case.size(), case.seconds(), schedule.num_workers
    coding = Coding.of(strategy.transport, case.hardware)
    seconds += size * (coding.seconds.encode + coding.seconds.decode)
    shard = size * coding.wire / len(strategy.hosts)
    network = Network(schedule.cluster, case.hardware)
    ages = None if strategy.synchronous or count > MAX_WORKERS else Ages(worker_steps)
    machine = shards_of(strategy, count, Plan(case.num_rounds))
    pushes_first = strategy.synchronous and strategy.is_delayed
    timing = ShardsTiming(machine, seconds, network, num_bytes=shard, pushes_first=pushes_first, ages=ages)
    VirtualMachine(machine, timing, seed=case.seed).run()
    if timing.pushes_late:
        timing.start[0] = timing.end[0] = timing.finish[0]  # nothing is in flight yet
    alone = _seconds_without_waiting(strategy, worker_steps, Network(schedule.cluster, case.hardware), shard)
    timing.begun = np.concatenate([np.zeros((1, count)), timing.finish[:-1]])
    timing.start = np.maximum(timing.start, timing.end - alone)
    return timing.timeline(
        case, network.nic_bytes, ages, is_delayed=strategy.is_delayed, free_running=not strategy.synchronous
    )


def _seconds_without_waiting(
    strategy: Server, worker_steps: npt.NDArray[np.int64], network: Network, shard: float
) -> npt.NDArray[np.float64]:
    """Return the seconds of each worker's exchange if no worker is late, shape (n,).

    A synchronous server is timed with all workers at once, an asynchronous one with each worker by itself.
    """
    workers = range(len(worker_steps))
    if strategy.synchronous:
        return np.full(len(worker_steps), _exchange(strategy, list(workers), network, shard, 0.0))
    result, now = np.zeros(len(worker_steps)), 0.0
    for worker in workers:
        end = _exchange(strategy, [worker], network, shard, now)
        result[worker], now = end - now, end
    return result


def _exchange(strategy: Server, workers: list[int], network: Network, shard: float, now: float) -> float:
    """Return the time when `workers` have all answers to pushes of shards that they send at `now`, over free links."""
    for is_push in (True, False):
        for worker in workers:
            for host in strategy.hosts:
                network.send(*((worker, host) if is_push else (host, worker)), shard, ())
        while (end := network.next_end()) < float("inf"):
            now = max([now, *(moment for moment, _ in network.go_to(end))])
        network.go_to(now)
    return now
