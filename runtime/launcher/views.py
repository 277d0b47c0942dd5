"""Views: the launcher decides who of a run goes on after a loss; its part of the membership.

It is `schedulers.protocols.membership`'s authority that decides, which this drives between two looks at the workers.
The store is this process's own: what is written down there is what workers read, so that nothing is told that is not
written down, and nothing is left of it once the launcher, and with it the run, is gone.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from partreduce.runtime.transport.deadline import Deadline
from partreduce.runtime.transport.notes import CHANGES, DEATHS, JOINED, LEFT, MEMBERSHIP, NEWS, OPEN, Notes
from partreduce.schedulers.protocols.base import Crashed, Note, Received, Send
from partreduce.schedulers.protocols.membership import (
    Authority,
    Expire,
    Left,
    Membership,
    Publish,
    Stop,
    View,
    Vote,
)

if TYPE_CHECKING:
    from partreduce.runtime.launcher.outlet import Outlet
    from partreduce.runtime.launcher.supervision import Worker
    from partreduce.runtime.transport.torch_api import Store

IDLE_SECONDS, BUSY_SECONDS = 0.05, 0.002
"""Between two looks at the workers, and while they wait for a view."""


class Views:
    """Who goes on, decided for these workers; up to `most_lost` may be lost."""

    def __init__(self, workers: Sequence[Worker], store: Store, most_lost: int, outlet: Outlet) -> None:
        self._workers, self._outlet = workers, outlet
        self._machine = Membership(len(workers), most_lost)
        started, _ = self._machine.start(self._machine.authority)
        assert isinstance(started, Authority), "that process"
        self._state = started
        self._notes = Notes(store, MEMBERSHIP, own_server=True)
        self._deaths = Notes(store, DEATHS, own_server=True)
        self._heard, self._has_begun = 0, False
        self._lease = Deadline(float("inf"))
        self.fenced: set[int] = set()
        """Who was given up although it lived."""

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        return BUSY_SECONDS if self._state.is_open else IDLE_SECONDS

    def go_on_without(self, worker: Worker, *, is_lost: bool) -> bool:
        """A worker has ended before its time: whether the others go on, because it is lost and no more are than may."""
        if not self._all_have_joined():
            return False
        self.look()  # who had left is not lost
        if worker.rank in self.fenced:
            return True
        self._feed(Received(worker.rank, Crashed()) if is_lost else Stop())
        self.look()
        return bool(self._state.view.members)

    def ended_well(self, worker: Worker) -> None:
        """A worker ended with exit code 0: without `finish()`, the others wait for it in vain."""
        if self._all_have_joined():
            self.look()
            if worker.rank not in self._state.left:
                self._feed(Stop())

    def look(self) -> None:
        """Hear what workers said, and decide and tell what is to be."""
        if not self._all_have_joined():
            return
        if (news := self._notes.count(NEWS)) != self._heard:
            self._heard = news
            self._hear()
        if self._state.is_open and self._lease.is_over and any(self._state.votes):
            self._feed(Expire())
        while self._state.told < len(self._state.log):
            self._feed(Publish())

    def _all_have_joined(self) -> bool:
        """Before that a loss ends the run: nobody knows yet of what."""
        self._has_begun = self._has_begun or self._notes.count(JOINED) == len(self._workers)
        return self._has_begun

    def _hear(self) -> None:
        epoch = self._state.view.epoch + 1
        for worker in range(len(self._workers)):
            if worker not in self._state.left and self._notes.has(f"{LEFT}/{worker}"):
                self._feed(Received(worker, Left()))
            if (text := self._notes.read(f"vote/{epoch}/{worker}")) is not None and self._state.view.epoch < epoch:
                place, prepared = json.loads(text)
                self._feed(Received(worker, Vote(epoch, tuple(place), tuple(prepared))))

    def _feed(self, event: object) -> None:
        was_open = self._state.is_open
        state, actions = self._machine.step(self._machine.authority, self._state, event)
        assert isinstance(state, Authority), "that process"
        self._state = state
        if state.is_open and not was_open:
            self._lease = Deadline(float(self._facts()["timeout"]))
            self._open(state.view.epoch + 1)
        told: set[int] = set()
        for action in actions:
            match action:
                case Note(("fenced", int(rank))):
                    # Before anybody hears of it: what it has not done by now it never does.
                    self.fenced.add(rank)
                    self._workers[rank].signal(signal.SIGKILL)
                case Send(_, View() as view) if view.epoch not in told:
                    told.add(view.epoch)
                    self._tell(view)

    def _open(self, epoch: int) -> None:
        self._notes.write(f"{OPEN}/{epoch}", "1")
        self._deaths.count(CHANGES, 1)  # so that whoever waits looks closely

    def _tell(self, view: View) -> None:
        text = {"epoch": view.epoch, "members": view.members, "resume": view.resume, "forward": view.forward}
        self._notes.write(f"view/{view.epoch}", json.dumps(text))
        if not view.members:
            self._open(view.epoch)  # who waits for others by notes asks for that, and then hears that all end
            return
        before = self._state.log[view.epoch - 1].members
        lost = [worker for worker in before if worker not in view.members and worker not in self._state.left]
        for rank in self.fenced.intersection(lost):
            self._outlet.write(
                f"partreduce: worker {rank} said nothing for {self._facts()['timeout']:g} s and was ended\n",
                errors=True,
            )
        if lost:
            self._outlet.write(self._line(lost, view), errors=True)

    def _line(self, lost: list[int], view: View) -> str:
        """What happened, in one line."""
        m, names = len(view.members), " and ".join(f"worker {rank}" for rank in lost)
        on = f"the other {m} go on together" if m > 1 else f"worker {view.members[0]} goes on alone"
        model = "that model was" if len(lost) == 1 else "the mean of those models was"
        moved = (
            "their models are equal, so the mean did not move"
            if self._facts()["are_equal"]
            else f"the mean moved by {len(lost)}/{m} of how far {model} from it"
        )
        return f"partreduce: without {names} {on} from round {view.resume[0]}; {moved}\n"

    def _facts(self) -> dict[str, float]:
        """What a worker said of the run when it joined."""
        facts: dict[str, float] = json.loads(self._notes.wait_for(f"{JOINED}/{self._state.view.members[0]}"))
        return facts
