"""Decide in the launcher which workers of a run continue after a failure, and which join.

Between two polls of the workers' processes the launcher runs the deciding side of the membership protocol
(`schedulers.protocols.membership`). It writes every new view (the list of members) to its store before the view takes
effect, and workers learn of it only there. When the launcher ends, the run ends.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from partreduce.runtime.transport.store import CHANGES, DEATHS, Notes
from partreduce.runtime.transport.waiting import Deadline
from partreduce.schedulers.protocols.base import Crashed, Note, Received, Send
from partreduce.schedulers.protocols.membership.machine import Authority, Membership
from partreduce.schedulers.protocols.membership.messages import Expire, Join, Left, Publish, Released, Stop, View, Vote

if TYPE_CHECKING:
    from partreduce.runtime.transport.torch_api import Store

MEMBERSHIP = "partreduce/membership"
"""Prefix in the store for the membership protocol: workers' votes and requests to join, and the launcher's answers."""
JOINED, LEFT, RELEASED, NEWS, OPEN, JOIN, ANSWER = "joined", "left", "released", "news", "open", "join", "answer"
IDLE_SECONDS, BUSY_SECONDS = 0.05, 0.002  # between two polls; the second while workers wait for a view
END_SECONDS = 10.0  # after SIGKILL, how long to wait for the process's exit code


class Process(Protocol):
    """Interface of a worker's process, on this machine or another, as the launcher uses it."""

    rank: int
    code: int | None

    def signal(self, number: signal.Signals) -> None: ...

    def give_up(self) -> None: ...


class Output(Protocol):
    """Interface of an object that prints the launcher's log lines."""

    def log_line(self, text: str) -> None: ...


P = TypeVar("P", bound=Process)


class FailureRule(Generic[P]):
    """Policy of the launcher for a failed worker: whether the other workers continue. In this base class they do not.

    With `patient`, the others may run longer than their grace period if a signal has killed a worker.
    """

    def __init__(self, workers: Sequence[P], outlet: Output, *, patient: bool = False) -> None:
        self._workers, self._outlet, self.patient = list(workers), outlet, patient
        self.evicted: set[int] = set()  # ranks killed by the launcher because they were silent
        self.failure: str | None = None  # why the run has to end although no worker has failed, as a clause
        self._ended: list[tuple[P, Deadline]] = []  # killed processes, with the deadline for their exit

    @property
    def pause(self) -> float:
        return IDLE_SECONDS

    def continue_without(self, worker: P, *, is_failed: bool) -> bool:  # noqa: ARG002 - for other rules
        """Return whether the others continue without `worker`; `is_failed`: it was killed, evicted or lost."""
        return False

    def has_ended(self, worker: P) -> bool:
        return any(one is worker for one, _ in self._ended)

    def restart(self, worker: P) -> P | None:  # noqa: ARG002 - as above
        """Start and return a process that replaces a failed worker's; None if no restart is left or the run is over."""
        return None

    def exited_well(self, worker: P) -> None: ...

    def poll(self) -> None:
        """Handle new events, and stop waiting for killed processes that do not exit in time."""
        for worker, deadline in self._ended:
            if worker.code is None and deadline.is_over:
                deadline.renew()
                worker.give_up()

    def _end(self, rank: int) -> None:
        self._ended.append((self._workers[rank], Deadline(END_SECONDS)))
        self._workers[rank].signal(signal.SIGKILL)


class Generator(Protocol):
    """Interface of the group service's process, as the launcher uses it."""

    environment: dict[str, str]  # environment variables by which workers find the service
    failure: str | None  # why no service runs any more, as a clause

    def failed(self, rank: int) -> None: ...

    def evicted(self) -> Iterable[int]: ...


class OnRequest(FailureRule[P]):
    """Policy for dynamic groups: at most `max_failures` workers may fail; those that `generator` evicts are killed."""

    def __init__(self, workers: Sequence[P], generator: Generator, max_failures: int, outlet: Output) -> None:
        super().__init__(workers, outlet)
        self._generator, self._max_failures, self._failed = generator, max_failures, set[int]()

    def continue_without(self, worker: P, *, is_failed: bool) -> bool:
        if is_failed:
            self._failed.add(worker.rank)
            self._generator.failed(worker.rank)
        return is_failed and len(self._failed) <= self._max_failures

    def poll(self) -> None:
        self.failure = self._generator.failure
        for rank in self._generator.evicted():
            if self._workers[rank].code is None and rank not in self.evicted:
                self.evicted.add(rank)
                self._outlet.log_line(f"worker {rank} sent no heartbeat within its lease and was evicted")
                self._end(rank)
        super().poll()


class Coordinator(FailureRule[P]):
    """Policy for schedules with fixed rounds: surviving workers vote, and the launcher decides which ones continue.

    At most `max_failures` workers may be missing at a time. `start(rank, number)` starts replacement number `number` of
    the run, or returns None; at most `max_restarts` are started, and `restarted` is called after each.
    """

    def __init__(
        self,
        workers: Sequence[P],
        store: Store,
        max_failures: int,
        outlet: Output,
        *,
        start: Callable[[int, int], P | None] = lambda *_: None,
        max_restarts: int = 0,
        restarted: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(workers, outlet)
        self._start, self._restarted, self._num_started, self._max_restarts = start, restarted, 0, max_restarts
        self._machine = Membership(len(workers), max_failures)
        started, _ = self._machine.start(self._machine.authority)
        assert isinstance(started, Authority), "that process"
        self._state = started
        self._notes = Notes(store, MEMBERSHIP, own_server=True)
        self._deaths = Notes(store, DEATHS, own_server=True)
        self._seen, self._has_begun = dict[str, int](), False
        self._lease = Deadline(float("inf"))
        self._join_requests: dict[int, str] = {}
        """Last request to join of each restarted worker, by rank, so that the launcher handles each request once."""

    @property
    def pause(self) -> float:
        return BUSY_SECONDS if self._state.is_open else IDLE_SECONDS

    def continue_without(self, worker: P, *, is_failed: bool) -> bool:
        if not self._all_have_joined():
            return False
        self.poll()  # a worker that has left the run has not failed
        if self.has_ended(worker):
            return True
        self._handle(Received(worker.rank, Crashed()) if is_failed else Stop())
        self.poll()
        return bool(self._state.view.members)

    def restart(self, worker: P) -> P | None:
        if not self._state.view.members or self._state.left or worker is not self._workers[worker.rank]:
            return None
        enough = self._num_started == self._max_restarts
        started = None if enough else self._start(worker.rank, self._num_started + 1)
        if started is not None:
            self._num_started += 1
            self._restarted()
            self._workers[worker.rank] = started
            left = self._max_restarts - self._num_started
            self._outlet.log_line(f"worker {worker.rank} is started again (restarts left: {left})")
        return started

    def exited_well(self, worker: P) -> None:
        """Record that a worker exited with code 0; end the run if it did not call `finish()`, as others would wait."""
        if self._all_have_joined():
            self.poll()
            if worker.rank not in self._state.left:
                self._handle(Stop())

    def poll(self) -> None:
        """Read the workers' votes and requests to join; decide on a new view (list of members) and publish it."""
        if not self._all_have_joined():
            return
        if self._is_new(NEWS):
            self._read()
        if self._state.is_open and self._lease.is_over and any(self._state.votes):
            self._handle(Expire())
        while self._state.num_published < len(self._state.log):
            self._handle(Publish())
        if self._state.left:
            for rank in set(range(len(self._workers))).difference(self._state.view.members, self._state.left):
                if self._workers[rank].code is None and not self.has_ended(self._workers[rank]):
                    self._end(rank)  # too late to join, since members have finished
        super().poll()

    def _all_have_joined(self) -> bool:
        """Return whether all workers have started; before that a failure ends the run."""
        self._has_begun = self._has_begun or self._notes.count(JOINED) == len(self._workers)
        return self._has_begun

    def _read(self) -> None:
        """Process new votes, requests to join and notes of workers that left, from the store, in order of ranks."""
        generation = self._state.view.generation + 1
        some_left, some_ask = self._is_new(LEFT), self._is_new(JOIN)
        for worker in range(len(self._workers)):
            if some_left and worker not in self._state.left and self._notes.has(f"{LEFT}/{worker}"):
                self._handle(Received(worker, Left()))
            is_awaited = self._state.view.generation < generation and self._state.votes[worker] is None
            if is_awaited and (text := self._notes.read(f"vote/{generation}/{worker}")) is not None:
                place, prepared, stands, blank = json.loads(text)
                self._handle(Received(worker, Vote(generation, tuple(place), tuple(prepared), stands, blank)))
            requested = self._notes.read(f"{JOIN}/{worker}") if some_ask else None
            if requested is not None and self._join_requests.get(worker) != requested:
                self._join_requests[worker] = requested
                self._handle(Received(worker, Join()))
                if not self._state.view.members:  # the run has ended, and no later view answers
                    self._notes.write(f"{ANSWER}/{worker}/{requested}", str(self._state.view.generation))

    def _is_new(self, kind: str) -> bool:
        known, self._seen[kind] = self._seen.get(kind, 0), self._notes.count(kind)
        return self._seen[kind] != known

    def _handle(self, event: object) -> None:
        was = self._state
        state, actions = self._machine.step(self._machine.authority, self._state, event)
        assert isinstance(state, Authority), "that process"
        self._state = state
        if state.is_open and not was.is_open:
            self._lease = Deadline(float(self._facts()["timeout"]))
            self._open(state.view.generation + 1)
        published, requested = set[int](), was.joining
        for action in actions:
            match action:
                case Note(("fenced", int(rank))):
                    # Without waiting for its exit, which a cut link may hide.
                    self.evicted.add(rank)
                    self._end(rank)
                case Send(to, Released()):
                    self._notes.write(f"{RELEASED}/{to}", "1")
                case Send(to, View() as view):
                    if view.generation not in published:
                        published.add(view.generation)
                        self._publish(view)
                    if to in requested or to in view.joined:
                        self._notes.write(f"{ANSWER}/{to}/{self._join_requests[to]}", str(view.generation))

    def _open(self, generation: int) -> None:
        self._notes.write(f"{OPEN}/{generation}", "1")
        self._deaths.count(CHANGES, 1)  # makes waiting workers check for failures

    def _publish(self, view: View) -> None:
        for rank in view.joined:  # no longer counted as failed
            self._deaths.remove(str(rank))
        known = self._deaths.count(CHANGES)
        self._notes.write(f"view/{view.generation}", json.dumps({**asdict(view), CHANGES: known}))
        if not view.members:
            self._open(view.generation)  # wakes waiting workers, which then read that the run ends
            return
        before = self._state.log[view.generation - 1].members
        failed = [worker for worker in before if worker not in view.members and worker not in self._state.left]
        for rank in [rank for rank in failed if self.has_ended(self._workers[rank])]:
            self._outlet.log_line(f"worker {rank} sent no heartbeat for {self._facts()['timeout']:g} s and was evicted")
        if failed:
            self._outlet.log_line(self._line(failed, view))
        if view.joined:
            self._outlet.log_line(self._line_of_joined(view))

    def _line(self, failed: list[int], view: View) -> str:
        m, names = len(view.members), " and ".join(f"worker {rank}" for rank in failed)
        on = f"the other {m} continue together" if m > 1 else f"worker {view.members[0]} continues alone"
        model = "that model was" if len(failed) == 1 else "the mean of those models was"
        moved = self._moved(len(failed), m, model)
        return f"without {names} {on} from {self._place(view)}; {moved}"

    def _line_of_joined(self, view: View) -> str:
        m, k, names = len(view.members), len(view.joined), " and ".join(f"worker {rank}" for rank in view.joined)
        with_, moved = f"with the state of worker {view.donor}", self._moved(k, m, "that state's model was")
        return f"{names} joined in {self._place(view)} {with_}, and all {m} continue together; {moved}"

    def _place(self, view: View) -> str:
        """Return, as text for the log, the round (and fragment) of the next average of a view's members."""
        turns = int(self._facts()["turns"])
        round_, fragment = divmod(view.resume[0], turns)
        return f"round {round_}" if turns == 1 else f"round {round_} (fragment {fragment})"

    def _moved(self, part: int, whole: int, model: str) -> str:
        """Return text for the log: the mean model moved by `part`/`whole` of its distance to `model` (a phrase)."""
        if self._facts()["are_equal"]:
            return "their models are equal, so the mean did not move"
        share = Fraction(part, whole)
        how_far = "as far as" if share == 1 else f"{share} times as far as" if share > 1 else f"by {share} of how far"
        return f"the mean moved {how_far} {model} from it"

    def _facts(self) -> dict[str, Any]:
        """Return what a member published at its start: timeout, averages per round, and whether models are equal."""
        facts: dict[str, Any] = json.loads(self._notes.wait_for(f"{JOINED}/{self._state.view.members[0]}"))
        return facts
