"""Parameter servers in virtual time: every push and every answer is a message, and hosts answer as they do at run time.

A worker pushes its part of each shard to the shard's host and goes on when all hosts have answered. A synchronous host
answers all when the last push of a round is there, an asynchronous one at once, or when the staleness allows it. Adding
up takes no time; the links decide (`network`), so the NIC of a single host is what all share.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from partreduce.runtime.virtual_time.network import Network
from partreduce.runtime.virtual_time.staleness import MAX_WORKERS, Ages
from partreduce.runtime.virtual_time.timeline import Observed, Timeline
from partreduce.topo.strategies.server import Server
from partreduce.topo.timing.coding import Coding

if TYPE_CHECKING:
    import numpy.typing as npt

    from partreduce.runtime.virtual_time.case import Case
    from partreduce.topo.schedule import Schedule

COMPUTED, PUSHED, ANSWERED = range(3)


class _Event(NamedTuple):
    """Something that falls due: a worker has computed, its push is at a host, or a host's answer is at it."""

    seconds: float
    number: int
    what: int
    worker: int
    host: int


def run_servers(case: Case) -> Timeline:
    """Every worker's rounds under a parameter server.

    O(num_rounds · n · hosts) messages, each of O(messages on the links); ages take O(n) for each.
    """
    schedule, strategy, paces = case.schedule, case.schedule.strategy, case.paces()
    assert isinstance(strategy, Server), "the registry chose this function"
    size, seconds = case.size(), case.seconds()
    coding = Coding.of(strategy.how, case.hardware)
    seconds += size * (coding.seconds.encode + coding.seconds.decode)
    shard = size * coding.wire / len(strategy.hosts)
    run = _Run(schedule, strategy, seconds, Network(schedule.cluster, case.hardware), shard)
    run.go()
    begun, computed, start, end, finish = run.records
    start = np.maximum(start, end - _undisturbed(strategy, paces, Network(schedule.cluster, case.hardware), shard))
    observed = Observed.of(run.network.nic_bytes, run.ages)
    return Timeline(
        paces,
        begun,
        computed,
        start,
        end,
        finish,
        overlap=strategy.overlap,
        free_running=not strategy.synchronous,
        observed=observed,
    )


class _Run:
    """A run's events. `records` (5, num_rounds, n): begun, computed, pushed, answered and finished."""

    def __init__(
        self,
        schedule: Schedule,
        strategy: Server,
        seconds: npt.NDArray[np.float64],
        network: Network,
        shard: float,
    ) -> None:
        self.strategy, self.seconds, self.network, self.shard = strategy, seconds, network, shard
        count = schedule.num_workers
        self.records = np.zeros((5, *seconds.shape))
        self.ages = None if strategy.synchronous or count > MAX_WORKERS else Ages(schedule.paces())
        self._queue: list[_Event] = []
        self._count = 0
        self._round = [0] * count
        """Of each worker, the round that it computes."""
        self._has_computed = [False] * count
        self._answers = [0] * count
        """How many hosts have answered each worker's last push."""
        hosts = len(strategy.hosts)
        self._clocks = np.zeros((hosts, count), dtype=np.int64)
        """The pushes of each worker that each host has."""
        self._waiting: list[dict[int, int]] = [{} for _ in range(hosts)]
        self._basis = np.zeros((hosts, count, count), dtype=np.int64) if self.ages is not None else None
        """Of each host's clocks, those with which each worker's round began; `_answer` those of its newest answer."""
        self._answer = None if self._basis is None else self._basis.copy()
        self._sent: dict[tuple[int, int], npt.NDArray[np.int64]] = {}
        self._late_sum = strategy.synchronous and strategy.overlap

    def go(self) -> None:
        """Let everything happen."""
        for worker in range(self.seconds.shape[1]):
            self._begin(worker, 0.0)
        while True:
            due = self._queue[0].seconds if self._queue else float("inf")
            end = self.network.next_end()
            if min(due, end) == float("inf"):
                return
            for moment, (what, worker, host) in self.network.go_to(min(due, end)):
                self._due(moment, what, worker, host)
            if due > end:
                continue
            event = heapq.heappop(self._queue)
            if event.what == COMPUTED:
                self._computed(event.worker, event.seconds)
            elif event.what == PUSHED:
                self._arrived(event.worker, event.host)
            else:
                self._answered(event.worker, event.seconds)

    def _begin(self, worker: int, now: float) -> None:
        """A round of a worker begins; a late sum begins with it, on the parameters that are there."""
        round_ = self._round[worker]
        self.records[0, round_, worker] = now
        if self._late_sum:
            self._push(worker, now)
        self._due(now + float(self.seconds[round_, worker]), COMPUTED, worker)

    def _computed(self, worker: int, now: float) -> None:
        round_ = self._round[worker]
        self.records[1, round_, worker] = now
        self._has_computed[worker] = True
        if not self.strategy.overlap:
            self._push(worker, now)
        elif round_ == 0 and not self._late_sum:
            self.records[2:, 0, worker] = now  # nothing is under way yet
            self._next(worker, now)
        elif self._answers[worker] == len(self.strategy.hosts):
            self._next(worker, now)

    def _push(self, worker: int, now: float) -> None:
        """Send every host its part; an asynchronous late one is answered in the row of the next round."""
        row = self._round[worker]
        if row < len(self.seconds):
            self.records[2, row, worker] = now
        self._answers[worker] = 0
        for index, host in enumerate(self.strategy.hosts):
            if self._basis is not None:
                self._sent[index, worker] = self._basis[index, worker].copy()
            self.network.send(worker, host, self.shard, (PUSHED, worker, index))

    def _arrived(self, worker: int, host: int) -> None:
        """A push is at its host, which answers those who may go on."""
        clocks, strategy = self._clocks[host], self.strategy
        if self.ages is not None:
            self.ages.add(clocks - self._sent[host, worker], worker)
        clocks[worker] += 1
        self._waiting[host][worker] = int(clocks[worker])
        slowest = int(clocks.min())
        ahead = 0 if strategy.synchronous else strategy.staleness
        ready = [v for v, round_ in self._waiting[host].items() if ahead is None or round_ - slowest <= ahead]
        for other in sorted(ready):
            del self._waiting[host][other]
            if self._answer is not None:
                self._answer[host, other] = clocks
            self.network.send(strategy.hosts[host], other, self.shard, (ANSWERED, other, host))

    def _answered(self, worker: int, now: float) -> None:
        """The last answer lets a worker go on, once it has computed."""
        self._answers[worker] += 1
        if self._answers[worker] < len(self.strategy.hosts):
            return
        round_ = self._round[worker]
        if round_ == len(self.seconds):
            return  # the answer to a late push of the last round
        self.records[3, round_, worker] = now
        if self._has_computed[worker]:
            self._next(worker, now)

    def _next(self, worker: int, now: float) -> None:
        """A round of a worker is over."""
        round_ = self._round[worker]
        self.records[4, round_, worker] = now
        self._round[worker] += 1
        self._has_computed[worker] = False
        if self.strategy.overlap and not self._late_sum:
            self._push(worker, now)
        if self._basis is not None and self._answer is not None:
            self._basis[:, worker] = self._answer[:, worker]
        if self._round[worker] < len(self.seconds):
            self._begin(worker, now)

    def _due(self, seconds: float, what: int, worker: int, host: int = 0) -> None:
        heapq.heappush(self._queue, _Event(seconds, self._count, what, worker, host))
        self._count += 1


def _undisturbed(
    strategy: Server, paces: npt.NDArray[np.int64], network: Network, shard: float
) -> npt.NDArray[np.float64]:
    """Seconds that each worker's exchange takes where nobody comes late, shape (n,): whatever is more is waiting.

    A synchronous one is everybody's at the same time, an asynchronous one is a worker's alone.
    """
    workers = range(len(paces))
    if strategy.synchronous:
        return np.full(len(paces), _exchange(strategy, list(workers), network, shard, 0.0))
    result, now = np.zeros(len(paces)), 0.0
    for worker in workers:
        end = _exchange(strategy, [worker], network, shard, now)
        result[worker], now = end - now, end
    return result


def _exchange(strategy: Server, workers: list[int], network: Network, shard: float, now: float) -> float:
    """When workers have all answers to pushes that they send now, over links on which nothing else is."""
    for is_push in (True, False):
        for worker in workers:
            for host in strategy.hosts:
                network.send(*((worker, host) if is_push else (host, worker)), shard, ())
        while (end := network.next_end()) < float("inf"):
            now = max([now, *(moment for moment, _ in network.go_to(end))])
        network.go_to(now)
    return now
