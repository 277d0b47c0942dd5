"""Quorum runner: what all runners under a quorum have, whatever is summed: driver, mailbox, thread, and their end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.liveness.heartbeat import MET
from partreduce.runtime.strategies.base import Run, Runner
from partreduce.runtime.strategies.event_log import QuorumLog
from partreduce.runtime.strategies.missing import wait_for_missing
from partreduce.runtime.strategies.quorum.driver import Payload, QuorumDriver, Summed, Taken
from partreduce.runtime.strategies.quorum.rounds import RoundsThread
from partreduce.runtime.strategies.quorum.spread import Spread
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.mailbox import Mailbox
from partreduce.runtime.transport.waiting import GoneError
from partreduce.runtime.transport.worlds import World
from partreduce.schedulers.protocols.partial import Partial
from partreduce.topo.errors import PartreduceError, UnavailableError
from partreduce.topo.strategies.quorum import Quorum

CLOSE_SECONDS = 1.0
_lines_in_use: WeakKeyDictionary[World, set[str]] = WeakKeyDictionary()

Sum = TypeVar("Sum", bound=Summed)


class QuorumRunner(Runner, Generic[Sum]):
    """One worker under a quorum. A subclass says what is summed, by which protocol, over which groups.

    Args:
        when: the quorum.
        run: what it works on.
        machine: the protocol.
        payload: what is summed.
        groups: the groups of this worker, each of which gets a communicator for the collective thread.
    """

    agrees_on_end = True

    def __init__(
        self, when: Quorum, run: Run, machine: Partial, payload: Payload[Sum], groups: Iterable[tuple[int, ...]]
    ) -> None:
        super().__init__(run)
        self.when = when
        reducer = run.reducer
        reducer.heartbeat.unequal = MET
        self.log = QuorumLog(is_on=reducer.recorder.directory is not None)
        self.driver: QuorumDriver[Sum] = QuorumDriver(machine, run.rank, payload, log=self.log, grace=when.grace * 1e-6)
        self._line, self._is_concluded = _free_line(reducer.world), False
        world = reducer.world.on_host()
        self.communicators: dict[tuple[int, ...], Communicator] = {}
        for members in sorted(groups):  # one order for all
            if not world.has(members, name=self._line):
                world.create(members, name=self._line)
            self.communicators[members] = world.communicator(members, name=self._line)
        mailbox = Mailbox(  # last, as it would have to be closed where what follows fails
            reducer.world.store,
            run.rank,
            f"{reducer.key} quorum",
            self.driver.deliver,
            max_bytes=0,
            timeout=reducer.timeout,
            heartbeat=reducer.heartbeat,
        )
        self.mailboxes.append(mailbox)
        self.driver.spread = Spread(mailbox, len(run.everyone))
        self.on_host = Reducer(
            world, (), reducer.recorder, reducer.heartbeat, key=f"{reducer.key} quorum", timeout=reducer.timeout
        )
        self._thread = RoundsThread(self.driver, payload, self.line, self.on_host, lambda: self.base)
        self._base: int | None = None

    def start(self) -> None:
        """Let the threads begin; the last thing that a subclass does when it is made."""
        recorder = self.run.reducer.recorder
        recorder.attach("quorum", self.log.facts)
        (mailbox,) = self.mailboxes
        recorder.attach("mailbox", mailbox.traffic_facts)
        mailbox.start()
        self._thread.start()

    def line(self, round_: int) -> Communicator | None:  # noqa: ARG002 - where groups differ from round to round
        """The communicator of a round of this segment, None where this worker rests in it."""
        return self.communicators[self.run.everyone]

    def open(self) -> None:
        self._base = None
        self.driver.open()

    def count_from_here(self) -> None:
        """Called by the training before it calls, ends or takes in a segment: its steps so far are those before it.

        Not where the segment begins, nor by the thread that sums: a state may be loaded after that, and the others'
        rounds may run while it is.
        """
        if self._base is None:
            self._base = self.run.progress.step

    @property
    def base(self) -> int:
        """For reports: the steps before this segment; equal on all workers once they count."""
        return self.run.progress.step if (base := self._base) is None else base

    def conclude(self) -> None:
        """All have come to the end: no sum is under way on this runner's communicators any more."""
        self._is_concluded = True

    def close(self) -> None:
        self.driver.close()
        super().close()
        self._thread.join(CLOSE_SECONDS)
        if self._is_concluded:  # else a sum that another worker never began would meet the next optimizer's
            _lines_in_use.get(self.run.reducer.world, set()).discard(self._line)

    def call(self, load: Callable[[], None]) -> Taken[Sum]:
        """Hand over what `load` adds to the send buffer, and take the results that are there, at least one."""
        self.driver.call(load)
        self.wait(self.driver.may_take)
        return self.driver.take()

    def end_segment(self, apply: Callable[[Taken[Sum]], None]) -> int:
        """Take part in the others' rounds until all have come here; the rounds by which that went further."""
        driver, further = self.driver, 0
        driver.end()
        while not driver.has_ended():
            self.wait(lambda: driver.may_take() or driver.has_ended())
            if driver.may_take():
                taken = driver.take()
                further += taken.by
                apply(taken)
        driver.close_segment()
        return further

    def refuse_failure(self) -> None:
        """Raise what ended the collective thread.

        Raises:
            PeerLostError: a worker is gone or too late.
        """
        error = self.driver.error
        if isinstance(error, PartreduceError):
            raise error
        if error is not None:
            raise UnavailableError(f"a partial sum failed ({type(error).__name__}: {error})") from error

    def _look(self) -> None:
        """The same, and what ended the mailbox's thread."""
        self.refuse_failure()
        for mailbox in self.mailboxes:
            mailbox.refuse_failure()

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait for what another thread brings about.

        A sum needs every worker's process, so the end of any of them is everybody's; how slow one may be is another
        matter. A round that runs has a limit of its own, which the collective thread keeps.

        Raises:
            PeerLostError: it cannot come.
        """
        reducer, everyone = self.run.reducer, self.run.everyone
        try:
            wait_for_missing(
                done,
                self.driver.missing,
                self.driver.condition,
                reducer.heartbeat,
                reducer.timeout,
                why=lambda _: reducer.heartbeat.gone(everyone),
                refuse_failure=self._look,
                told=lambda lack: f"this worker waited for {lack.what}",
            )
        except GoneError as error:
            round_ = self.run.progress.step
            operation = reducer.recorder.begin("wait for a partial sum", round_, round_, self.run.everyone, 0)
            raise reducer.failure(operation, error) from None


def _free_line(world: World) -> str:
    """The name of communicators that no other optimizer of this process uses; the same on all workers.

    Each looks at its own process only, and all see the same: lines are taken where optimizers are made and given back
    in `finish()`, behind the place to which all have come, so in the order of the script; and whoever fails in either
    place leaves this world (`Ending.guarded`, and `DistributedOptimizer` while it connects).
    """
    in_use = _lines_in_use.setdefault(world, set())
    name = next(name for number in range(len(in_use) + 1) if (name := f"quorum {number}") not in in_use)
    in_use.add(name)
    return name
