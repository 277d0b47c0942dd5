"""Voting: one worker's member of the machine that decides who goes on, and what it says and hears by the store.

It notices that a vote is under way, says where it stands, and hears the view. Outside it asks to join, and hears with
which view.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import astuple

from partreduce.runtime.elastic.survivors import CONNECT_SECONDS
from partreduce.runtime.environment import RESTARTED
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.store import (
    ANSWER,
    CHANGES,
    JOIN,
    LEFT,
    MEMBERSHIP,
    NEWS,
    OPEN,
    RELEASED,
    Notes,
    Pauses,
    root_store,
)
from partreduce.runtime.transport.waiting import Deadline
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.membership.machine import Membership
from partreduce.schedulers.protocols.membership.member import Member
from partreduce.schedulers.protocols.membership.words import (
    Join,
    Knock,
    Leave,
    Left,
    Open,
    Phase,
    Released,
    View,
    Vote,
)

LONGEST_PAUSE = 10.0
"""Seconds between two times that a worker outside asks to join; the first is 0.5 s, then twice as long each time."""


class Voting:
    """One worker's part in the votes of a run.

    Args:
        world: its communicators, which are destroyed when it votes.
        heartbeat: says what it waits for.
        timeout: seconds that an operation may wait for its members, and the launcher for votes.
        max_failures: how many workers may fail.
        heard: called with each view of which this worker is a member.
        parted: called before its groups are destroyed.
    """

    def __init__(
        self,
        world: GlooWorld,
        heartbeat: Heartbeat,
        heard: Callable[[View], None],
        parted: Callable[[], None],
        *,
        timeout: float,
        max_failures: int,
    ) -> None:
        self.world, self.heartbeat, self.timeout = world, heartbeat, timeout
        self._heard, self._parted = heard, parted
        self._machine = Membership(world.size, max_failures)
        started, _ = self._machine.start(world.rank)
        assert isinstance(started, Member), "a worker"
        self.state = self._machine.joiner() if joins() else started
        self.called = 0
        """For which generation the launcher asked last to vote, as far as this worker has looked."""
        self.forwarded = False
        """Whether it commits what it has prepared."""
        self.notes = Notes(root_store(world.store), MEMBERSHIP)
        self._asked = 0

    @property
    def is_open(self) -> bool:
        """Whether a vote for the next generation is under way."""
        return self.notes.has(f"{OPEN}/{self.state.view.generation + 1}")

    def look(self) -> None:
        """Now and then, beside the training: whether a vote is under way that no wait would tell of, since all come.

        Another thread looks: meanwhile that vote may be over, and what it was for stays behind this worker.
        """
        generation = self.state.view.generation + 1
        if self.notes.has(f"{OPEN}/{generation}"):
            self.called = generation

    @property
    def is_called(self) -> bool:
        """Whether a look has shown that one is."""
        return self.called > self.state.view.generation

    def feed(self, event: object) -> None:
        """Let something happen to this member, and carry out what follows."""
        state, actions = self._machine.step(self.world.rank, self.state, event)
        assert isinstance(state, Member), "a worker"
        self.state = state
        for action in actions:
            match action:
                case Send(_, Vote() as vote):
                    self.notes.write(f"vote/{vote.generation}/{self.world.rank}", json.dumps(list(astuple(vote)[1:])))
                    self.notes.count(NEWS, 1)
                case Send(_, Join()):
                    self._asked += 1
                    self.notes.write(f"{JOIN}/{self.world.rank}", self._question)
                    self.notes.count(JOIN, 1)
                    self.notes.count(NEWS, 1)
                case Send(_, Left()):
                    self.notes.write(f"{LEFT}/{self.world.rank}", "1")
                    self.notes.count(LEFT, 1)
                    self.notes.count(NEWS, 1)
                case Note(("unblock",)):
                    self._parted()
                    self.world.start_over(name_of(state.view.generation + 1))
                case Note(("forward",)):
                    self.forwarded = True
                case Note(("rebuild", View() as view)):
                    self._heard(view)

    def take_part(self) -> None:
        """Vote, because one is under way."""
        self._hear(Open(self.state.view.generation + 1))

    def leave(self) -> None:
        """This worker has committed everything and needs nobody any more; hear whether it may leave with that."""
        self.feed(Leave())
        self.await_view()

    def await_view(self) -> bool:
        """Hear what the launcher decides, or that this worker may leave; whether it said anything.

        It gives those who are silent as long as any operation, and is given longer here.
        """
        generation, deadline = self.state.view.generation + 1, Deadline(2 * self.timeout + CONNECT_SECONDS)
        leaves = self.state.phase is Phase.LEAVING
        what = "that it may leave" if leaves else f"who continues in generation {generation}"
        self.heartbeat.doing(f"waits for the launcher to say {what}")
        pauses = Pauses()
        while True:
            if leaves and self.notes.has(f"{RELEASED}/{self.world.rank}"):
                self._hear(Released())
                return True
            if (text := self.notes.read(f"view/{generation}")) is not None:
                self._hear(self._view_of(text))
                return True
            self.heartbeat.check_without_store()
            if deadline.is_over:
                return False
            pauses.sleep()

    def ask_to_join(self) -> None:
        """Ask once, and hear with which view."""
        time.sleep(min(LONGEST_PAUSE, 0.25 * 2**self._asked) if self._asked else 0.0)
        self.feed(Knock())
        self._hear(self._answer())

    def _answer(self) -> View:
        """The view that the launcher answers a question with; a worker outside waits as long as it takes."""
        self.heartbeat.doing("waits to join")
        pauses = Pauses()
        while (generation := self.notes.read(f"{ANSWER}/{self.world.rank}/{self._question}")) is None:
            self.heartbeat.check_without_store()
            pauses.sleep()
        return self._view_of(self.notes.wait_for(f"view/{generation}"))

    def _view_of(self, text: str) -> View:
        view = json.loads(text)
        self.heartbeat.settled = view[CHANGES]
        members = {name: tuple(view[name]) for name in ("members", "resume", "forward", "joined")}
        return View(view["generation"], **members, donor=view["donor"])

    @property
    def _question(self) -> str:
        """Names one time that this process asks to join, among all processes that had this rank."""
        return f"{os.environ[RESTARTED]}.{self._asked}"

    def _hear(self, message: Open | Released | View) -> None:
        self.feed(Received(self._machine.authority, message))


def joins() -> bool:
    """Whether this process was started in the place of one that was lost."""
    return bool(os.environ.get(RESTARTED))


def name_of(generation: int) -> str:
    """Where the groups of a generation meet, and its keys lie."""
    return f"generation-{generation}"
