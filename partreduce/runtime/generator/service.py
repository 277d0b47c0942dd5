"""Serve groups to workers: one loop around a model-checked state machine, with a log, leases and an endpoint.

Each change of state is on disk before its answer is sent, and the state is computed from the log alone. A service that
is killed at any moment and restarted on its log therefore continues at the same point.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from partreduce.runtime.generator import messages
from partreduce.runtime.generator.log import Log
from partreduce.runtime.transport.endpoint import Endpoint, Received
from partreduce.runtime.transport.waiting import OwnTime
from partreduce.schedulers.protocols.base import Crashed, Note, Send
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.schedulers.protocols.group_generator.service import DEAD, Bye, GroupGenerator
from partreduce.topo.errors import InputError

PATIENCE_SECONDS = 300.0  # assumed timeout of a worker that did not send its own
COMPACT_BYTES = 8 * 2**20
MAX_BATCH = 256
MAX_QUEUED = 1000
POLL_SECONDS = 0.05
STOOD_SECONDS = 0.5  # longer iterations mean that the process was stopped; the time does not count against leases


class GeneratorService:
    """Group service (Prague's Group Generator) on a network endpoint; `run` serves until all workers have ended.

    Args:
        setting: rules by which groups are formed.
        key: key of the job.
        address: address to listen on; port 0 or `*` chooses a free one (`address` then contains it).
        log: path of the write-ahead log; None keeps the state in memory, for a job that ends with its service.
        lease: seconds without a heartbeat after which a worker is evicted; by default 3/4 of the run's timeout, so that
            waiting workers learn of the eviction before they time out.
        job: identifier of the job, such as the schedule's hash; opening the log of another job is an error.
        probe: called with the name of each point of the loop; tests kill the process there.
        on_note: called with the state machine's events: ("started", seq, members), ("void", seq, members).
        failed: called in each iteration; returns further workers that the launcher knows to have failed.
        on_evicted: called with each evicted worker; after a restart, once more for all of them.
    """

    def __init__(
        self,
        setting: GeneratorSetting,
        key: str,
        *,
        address: str = "tcp://127.0.0.1:*",
        log: str | os.PathLike[str] | None = None,
        lease: float | None = None,
        job: str = "",
        probe: Callable[[str], None] = lambda _: None,
        on_note: Callable[[tuple[Any, ...]], None] = lambda _: None,
        failed: Callable[[], Iterable[int]] = tuple,
        on_evicted: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.setting, self.key, self.lease, self.job = setting, key, lease, job
        self.generator = GroupGenerator(setting)
        self.state = self.generator.initial()
        self.sessions: dict[int, int] = {}
        self._probe, self._on_note, self._failed, self._on_evicted = probe, on_note, failed, on_evicted
        self._routes: dict[int, bytes] = {}
        self._seen: dict[int, float] = {}  # time of each worker's last message, by the service's own clock
        self._clock = OwnTime(STOOD_SECONDS)
        self._patience: dict[int, float] = {}
        self._parted: set[int] = set()
        self._stopped = False
        self._unwritten: list[bytes] = []
        self._log: Log | None = None
        self._endpoint = Endpoint(
            "group generator", key, messages.SERVICE, max_header=messages.MAX_REQUEST_BYTES, queue=MAX_QUEUED
        )
        try:
            self._log = None if log is None else Log(log)
            self.address = self._endpoint.listen(address, answers=True)
            self._recover()
        except BaseException:
            self.close()
            raise

    def _recover(self) -> None:
        """Compute the state from the log, as a new generation after a restart. InputError for a log of another job."""
        if self._log is None:
            return
        head = {"job": self.job, "workers": self.setting.num_workers}
        records = [json.loads(record) for record in self._log.records]
        if not records:
            self._log.append([_bytes({"head": head})])
            return
        if records[0].get("head") != head:
            raise InputError(f"{self._log.path}: is the log of another job; give each job its own log")
        for record in records[1:]:
            self._apply(record)
        self._log.records.clear()
        self._stage({"restart": 1})
        self._flush()
        self._seen = {w: self._clock() for w in self.sessions if self.state.status[w] != DEAD}
        for worker in self._dead:
            self._on_evicted(worker)

    def _apply(self, record: dict[str, Any]) -> tuple[Any, ...]:
        if "state" in record:
            self.state = messages.unpack_state(record["state"])
            self.sessions = {int(rank): session for rank, session in record["sessions"].items()}
            return ()
        if "session" in record:
            self.sessions[record["session"][0]] = record["session"][1]
            return ()
        if "restart" in record:
            self.state, actions = self.generator.restarted(self.state)
        elif "lost" in record:
            self.state, actions = self.generator.handle(self.state, record["lost"], Crashed())
        else:
            worker, *numbers = record["ask"]
            self.state, actions = self.generator.handle(self.state, worker, messages.ask_of(numbers))
        return actions

    def _flush(self) -> None:
        if self._log is not None and self._unwritten:
            self._probe("before append")
            self._log.append(self._unwritten)
            self._unwritten.clear()
            self._probe("after append")

    def run(self, seconds: float = float("inf")) -> None:
        """Serve until every worker has ended, `stop` is called, or `seconds` have passed."""
        end = time.monotonic() + seconds
        while not self._stopped and time.monotonic() < end:
            if self._endpoint.is_readable(POLL_SECONDS):
                self._serve_batch()
            for worker in self._failed():
                self._evict(worker)
            self._expire()
            if self.is_over:
                end = min(end, time.monotonic() + 1.0)  # a worker may resend a goodbye

    @property
    def is_over(self) -> bool:
        return all(worker in self._parted or status == DEAD for worker, status in enumerate(self.state.status))

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self._endpoint.end()
        if self._log is not None:
            self._log.close()

    def _serve_batch(self) -> None:
        """Read all messages that have arrived, log them with one sync to disk, then answer them."""
        self._probe("before receive")
        outgoing: list[tuple[int, Any]] = []
        for _ in range(MAX_BATCH):
            if (arrived := self._endpoint.read()) is None:
                break
            outgoing += self._handle(arrived)
        self._probe("before commit")
        self._commit(outgoing)

    def _commit(self, outgoing: list[tuple[int, Any]]) -> None:
        self._flush()
        for number, (worker, reply) in enumerate(outgoing):
            if number == 1:
                self._probe("between replies")
            if worker in self._routes:
                self._endpoint.reply(self._routes[worker], worker, *messages.pack_reply(reply))
        self._probe("after reply")
        if self._log is not None and self._log.size() > COMPACT_BYTES:
            self._compact()

    def _handle(self, arrived: Received) -> list[tuple[int, Any]]:
        try:
            message = self._check(arrived)
        except InputError as error:
            self._endpoint.reply(arrived.route, arrived.source, *messages.pack_reply(messages.Rejection(str(error))))
            return []
        rank, patience = message.rank, message.patience / 1000
        if patience:
            self._patience[rank] = patience
        self._routes[rank] = arrived.route
        self._parted.discard(rank)
        if self.state.status[rank] != DEAD:
            self._seen[rank] = self._clock()
        if rank not in self.sessions:
            self._stage({"session": [rank, message.session]})
        if message.goodbye:
            self._seen.pop(rank, None)
            self._parted.add(rank)
            return []
        if message.ask is None:
            return [(rank, messages.Lease(self._dead, math.ceil(1000 * self.lease_of(rank))))]
        return self._sends(self._stage({"ask": [rank, *messages.plain_ask(message.ask)]}))

    def _check(self, arrived: Received) -> messages.FromWorker:
        if arrived.payload:
            raise InputError("message: is not one frame")
        message = messages.unpack_request(arrived.source, arrived.kind, arrived.numbers, self.setting.num_workers)
        if self.sessions.get(message.rank, message.session) != message.session:
            raise InputError(f"rank {message.rank}: belongs to another process of this job")
        patience = message.patience / 1000
        if self.lease is not None and 0 < patience < self.lease:
            raise InputError(
                f"its timeout of {patience:g} s is below the lease of {self.lease:g} s, for which a silent worker is "
                "waited for; raise the timeout or lower --lease"
            )
        return message

    def _stage(self, record: dict[str, Any]) -> tuple[Any, ...]:
        """Apply a record (such as a request, or an eviction) to the state; queue it for the log if the state changed.

        Returns the state machine's actions, such as answers, to carry out once the record is on disk.
        """
        before = self.state
        actions = self._apply(record)
        if self._log is not None and ("session" in record or self.state is not before):
            self._unwritten.append(_bytes(record))
        return actions

    def _sends(self, actions: tuple[Any, ...]) -> list[tuple[int, Any]]:
        for action in actions:
            if isinstance(action, Note) and isinstance(action.what, tuple):
                self._on_note(action.what)
        return [(action.to, action.message) for action in actions if isinstance(action, Send)]

    def _expire(self) -> None:
        """Evict workers that have been silent for longer than their lease, except those whose end is known."""
        now = self._clock()  # excludes time in which this process was stopped
        late = [worker for worker, seen in self._seen.items() if now - seen > self.lease_of(worker)]
        for worker in late:
            if isinstance(self.state.answers[worker], Bye):
                del self._seen[worker]
                self._parted.add(worker)  # its goodbye was lost
            else:
                self._evict(worker)

    def _evict(self, worker: int) -> None:
        self._seen.pop(worker, None)
        if self.state.status[worker] != DEAD:
            self._probe("before expiry")
            self._commit(self._sends(self._stage({"lost": worker})))
            self._on_evicted(worker)

    @property
    def _dead(self) -> tuple[int, ...]:
        return tuple(worker for worker, status in enumerate(self.state.status) if status == DEAD)

    def lease_of(self, worker: int) -> float:
        """Return a worker's lease: the seconds of silence after which it is evicted."""
        return messages.LEASE_SHARE * self._patience.get(worker, PATIENCE_SECONDS) if self.lease is None else self.lease

    def _compact(self) -> None:
        assert self._log is not None, "only a log is compacted"
        self._probe("before compaction")
        head = {"head": {"job": self.job, "workers": self.setting.num_workers}}
        state = {"state": messages.pack_state(self.state), "sessions": self.sessions}
        self._log.append([_bytes(head), _bytes(state)], instead=True)
        self._probe("after compaction")


def _bytes(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()
