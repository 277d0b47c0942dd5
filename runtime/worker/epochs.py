"""Epochs: one worker's part in a run that goes on after losses: it notices, votes, hears the view, connects, goes on.

A worker that was started again asks to join, connects like the others, and takes the state of one of them, its donor.

What is decided is `schedulers.protocols.membership`'s business, whose member this drives; who decides is the launcher
(see `launcher.views`). Workers keep the ranks that they began with, in groups and in messages.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from functools import partial
from typing import Protocol

import torch

from partreduce.runtime.averaging.bucket import Reduction
from partreduce.runtime.averaging.mean_model import commit_plain_mean
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.launcher.launch import MAX_RESTARTS, MOST_LOST, RESTARTED
from partreduce.runtime.liveness.handshake import handshake
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.liveness.survivors import CONNECT_SECONDS, Everyone
from partreduce.runtime.recorder import Operation, Recorder
from partreduce.runtime.sharding.tables import Tables
from partreduce.runtime.transport.deadline import Deadline
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.needed_groups import member_sets
from partreduce.runtime.transport.notes import (
    ANSWER,
    JOIN,
    JOINED,
    LEFT,
    MEMBERSHIP,
    NEWS,
    OPEN,
    POLL_SECONDS,
    Notes,
)
from partreduce.runtime.transport.store_line import NamedPrefixStore, root_store
from partreduce.runtime.transport.waiting import GoneError, Wait
from partreduce.runtime.transport.worlds import World
from partreduce.runtime.user_warning import warn_user
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.membership import (
    Broken,
    Confirmed,
    Connected,
    Enter,
    Healed,
    Join,
    Knock,
    Member,
    Membership,
    Open,
    Phase,
    Summed,
    View,
    Vote,
)
from partreduce.topo.contingency import after_loss, check_covered, sends_whole
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.errors import FencedError, MissingFeatureError, PeerLostError, ScheduleError, UnavailableError
from partreduce.topo.phase import Group
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.base import Averaging

Sums = list[tuple[Reducer, Reduction]]
Begin = Callable[[Group], Sums]
Commit = Callable[[Reducer, Reduction], None]

LONGEST_PAUSE = 10.0
"""Seconds between two times that a worker outside asks to join; the first is 0.5 s, then twice as long each time."""


class State(Protocol):
    """A worker's whole state, which one that joins takes from another."""

    def members_changed(self) -> None:
        """Workers are lost, or have joined."""

    def give(self) -> bytes:
        """All of it, where a round ends."""

    def take(self, data: bytes, round_: int) -> None:
        """Put in place what another gave, to go on with the last step of a round."""

    def refuse_unfit(self) -> None:
        """Refuse a script of which one that joins would know too little."""


class _BrokenError(UnavailableError):
    """An operation that failed; what becomes of the run is to be decided."""

    def __init__(self, recorder: Recorder, operation: Operation, why: Exception) -> None:
        super().__init__(str(why))
        why.__traceback__ = None  # its frames hold the sum, and with that the connections whose end the others wait for
        self._recorder, self.operation, self.why = recorder, operation, why

    def note(self) -> None:
        """The run went on without it."""
        self._recorder.end(self.operation, f"failed: {self.why}")


class Epochs(Everyone):
    """One worker's epochs.

    Args:
        world: its communicators.
        heartbeat: knows what workers, and the launcher, noted of deaths.
        schedule: what the run follows.
        key: of this optimizer, the only one of its process.
        timeout: seconds that an operation may wait for its members, and this worker for a view.
        most_lost: how many workers may be lost.
    """

    def __init__(
        self, world: GlooWorld, heartbeat: Heartbeat, schedule: Schedule, *, key: str, timeout: float, most_lost: int
    ) -> None:
        super().__init__(tuple(range(world.size)))
        self.world, self.heartbeat, self.schedule, self.timeout = world, heartbeat, schedule, timeout
        self._machine = Membership(world.size, most_lost)
        started, _ = self._machine.start(world.rank)
        assert isinstance(started, Member), "a worker"
        self._state = self._machine.joiner() if joins() else started
        self._held: State | None = None
        self._is_fit = not os.environ.get(MAX_RESTARTS)
        self._asked = 0
        self.called = 0
        """For which epoch the launcher asked last to vote, as far as this worker has looked."""
        self._notes = Notes(root_store(world.store), MEMBERSHIP)
        self._key = key
        self._has_blocks = schedule.strategy.how.codec.has_blocks
        self._reducers: dict[Reducer, str] = {}
        self._forwarded = False
        self.views: list[tuple[int, tuple[int, ...]]] = [(-1, tuple(range(world.size)))]
        """Who is a member from which round on, as data is dealt (see `data.dealing`)."""
        self._now: Schedule | None = schedule
        """What is run now; None where this worker is alone."""

    def begin(self, reducers: Sequence[Reducer], state: State) -> None:
        """The run's operations go by these; wait until the launcher knows of all workers that they are connected.

        From then on a loss is one that the others outlive. Who was started again waits until it is a member.

        Raises:
            PeerLostError: one of them was lost before.
        """
        self._reducers, self._held = {reducer: reducer.key for reducer in reducers}, state
        self.heartbeat.with_each = self._look
        if self._state.blank:
            self._go_on(None)
            return
        facts = {"timeout": self.timeout, "are_equal": self.schedule.strategy.averages_gradients}
        self._notes.write(f"{JOINED}/{self.world.rank}", json.dumps(facts))
        self._notes.count(JOINED, 1)
        wait = Wait(self.heartbeat, range(self.world.size), self.timeout)
        while self._notes.count(JOINED) < self.world.size:
            try:
                wait.look()
            except GoneError as gone:
                raise PeerLostError(f"before the first step: {gone}") from None
            time.sleep(POLL_SECONDS)

    @property
    def members(self) -> tuple[int, ...]:
        """Who is left."""
        return self._state.view.members

    def group_of(self, round_: int) -> Group | None:
        """With whom this worker averages in a round, in the ranks of the beginning."""
        if self._now is self.schedule:
            return self._now.group_of(self.world.rank, round_)
        if self._now is None:
            return Group(self.members)
        members = self.members
        group = self._now.group_of(members.index(self.world.rank), round_)
        return None if group is None else Group(tuple(members[place] for place in group.members), group.relax)

    # What the run asks of it.

    def carry_out(self, round_: int, begin: Begin, commit: Commit, alone: Callable[[], object] = lambda: None) -> None:
        """A round's group operation: by all its members or by none, and with those who are left if one is lost.

        Args:
            round_: of this worker.
            begin: starts the sums of a group.
            commit: makes a sum live.
            alone: called in place of both where this worker is the only one left.

        Raises:
            PeerLostError: the run ends; nobody went on.
            FencedError: the others went on without this worker.
        """
        place = round_, self._state.place[1]
        if self._held is not None and not self._is_fit:
            self._is_fit = True
            self._held.refuse_unfit()
        self._carry_out(Enter(place, ()), partial(self.group_of, round_), begin, commit, alone)

    def mean_everywhere(self, reducers: Sequence[Reducer], step: int, round_: int) -> None:
        """Replace parameters and floating-point buffers by their means over all who are left, who all call this.

        Raises:
            PeerLostError: as above.
            FencedError: as above.
        """

        def begin(group: Group) -> Sums:
            return [(reducer, reducer.begin("mean model", step, round_, group)) for reducer in reducers]

        def commit(reducer: Reducer, reduction: Reduction) -> None:
            reducer.commit(reduction, commit_plain_mean)

        self._carry_out(Enter(self._state.place, (), meets=True), lambda: Group(self.members), begin, commit)

    def is_alike(self, place: str, round_: int, mine: str, advice: str) -> bool:
        """Whether all who are left say the same at a place, to which all come before a round."""
        notes = Notes(self.world.store, f"{place}/{self._key}")
        notes.write(str(self.world.rank), mine)
        with self.heartbeat.gathering(place, round_, advice):
            members = self.gathered(place)
        return all(notes.read(str(member)) == mine for member in members)

    def leave(self) -> None:
        """This worker has committed everything and needs nobody any more."""
        self._notes.write(f"{LEFT}/{self.world.rank}", "1")
        self._notes.count(NEWS, 1)

    # Who else is there, for those that wait by notes.

    @property
    def lost_workers(self) -> Callable[[], frozenset[int]]:
        return self._lost

    def _lost(self) -> frozenset[int]:
        """The workers that are no members any more; whoever waits asks often, and so takes part in every vote."""
        if self._is_open():
            self._feed(Received(self._machine.authority, Open(self._state.view.epoch + 1)))
            self._go_on(None)
        return frozenset(range(self.world.size)) - frozenset(self.members)

    def gathered(self, place: str) -> tuple[int, ...]:
        wait = Wait(self.heartbeat, self.members, self.timeout)
        while True:
            self.heartbeat.refuse_without_store()
            self._lost()
            missing = sorted(set(self.members) - self.heartbeat.gathered(self.members))
            if not missing:
                return self.members
            self.heartbeat.doing(f"entered {place}", missing)
            wait.only_for(missing)
            if wait.is_over():
                raise UnavailableError(f"{place}: {self.heartbeat.waits_for(missing, self.timeout)}")
            time.sleep(POLL_SECONDS)

    # An operation.

    def _carry_out(
        self,
        entry: Enter,
        group_now: Callable[[], Group | None],
        begin: Begin,
        commit: Commit,
        alone: Callable[[], object] = lambda: None,
    ) -> None:
        while True:
            group = group_now()
            self._feed(replace(entry, group=() if group is None else group.members))
            if group is None or not self._state.group:
                return
            sums: Sums = []
            try:
                if self.called > self._state.view.epoch and not entry.meets:
                    operation = self._first.recorder.begin("vote", 0, entry.place[0], group.members, 0)
                    raise self.broke(operation, RuntimeError("a vote is under way"))
                if len(group.members) == 1:
                    self._feed(Summed())
                    self._feed(Confirmed())
                    alone()
                    return
                self._sum(group, begin, sums)
            except _BrokenError as broke:
                self._forwarded = False
                self._feed(Broken())
                self._go_on(broke)
                broke.note()
                if not self._forwarded:
                    _lose(sums)
                    continue
            for reducer, reduction in sums:
                commit(reducer, reduction)
            return

    def _sum(self, group: Group, begin: Begin, sums: Sums) -> None:
        """Sum into scratch arrays, then hear that all members have done so.

        Raises:
            _BrokenError: some member may not have.
        """
        for reducer in self._reducers:
            reducer.outlives = self
        try:
            sums += begin(group)
            for reducer, reduction in sums:
                reducer.wait(reduction)
            self._feed(Summed())
            self._first.agree("confirm", self._state.place[0], group, *self._state.place)
            self._feed(Confirmed())
        finally:
            for reducer in self._reducers:
                reducer.outlives = None

    def _look(self) -> None:
        """Now and then, beside the training: whether a vote is under way that no wait would tell of, since all come."""
        epoch = self._state.view.epoch + 1
        if self._notes.has(f"{OPEN}/{epoch}"):
            self.called = epoch

    @property
    def _first(self) -> Reducer:
        return next(iter(self._reducers))

    # What a reducer asks of it in an operation.

    def why(self, operation: Operation) -> str | None:
        """Why it makes no sense to wait for an operation any longer."""
        if self._is_open():
            return "a worker is lost, or joins"
        round_ = operation.rounds_before
        return self.heartbeat.gone(operation.members, round_) or self.heartbeat.elsewhere(operation.members, round_)

    def broke(self, operation: Operation, error: Exception) -> UnavailableError:
        """What a failed operation raises here, before it is known what it means."""
        return _BrokenError(self._first.recorder, operation, error)

    # A loss.

    def _is_open(self) -> bool:
        return self._notes.has(f"{OPEN}/{self._state.view.epoch + 1}")

    def _feed(self, event: object) -> None:
        """Let something happen to this member, and carry out what follows."""
        state, actions = self._machine.step(self.world.rank, self._state, event)
        assert isinstance(state, Member), "a worker"
        self._state = state
        for action in actions:
            match action:
                case Send(_, Vote() as vote):
                    self._notes.write(f"vote/{vote.epoch}/{self.world.rank}", json.dumps(list(astuple(vote)[1:])))
                    self._notes.count(NEWS, 1)
                case Send(_, Join()):
                    self._asked += 1
                    self._notes.write(f"{JOIN}/{self.world.rank}", self._question)
                    self._notes.count(NEWS, 1)
                case Note(("unblock",)):
                    self.world.begin_anew(f"epoch-{state.view.epoch + 1}")
                case Note(("forward",)):
                    self._forwarded = True
                case Note(("rebuild", View() as view)):
                    self.views.append((view.resume[0], view.members))

    def _go_on(self, broke: _BrokenError | None) -> None:
        """Come from a vote, or from outside, to the next epoch in which all members are connected.

        Raises:
            PeerLostError: the run ends.
            FencedError: the others went on without this worker.
        """
        while self._state.phase is not Phase.RUN:
            match self._state.phase:
                case Phase.OUTSIDE:
                    time.sleep(min(LONGEST_PAUSE, 0.25 * 2**self._asked) if self._asked else 0.0)
                    self._feed(Knock())
                    self._feed(Received(self._machine.authority, self._answer()))
                case Phase.VOTE:
                    self._feed(Received(self._machine.authority, self._awaited_view(broke)))
                case Phase.REBUILD:
                    self._feed(Connected() if self._is_rebuilt() else Broken())
                case Phase.FENCED:
                    raise FencedError(
                        f"worker {self.world.rank} was silent for longer than the others wait, and they went on "
                        "without it; it changes nothing any more"
                    )
                case _:
                    raise self._end(broke)

    def _awaited_view(self, broke: _BrokenError | None) -> View:
        """What the launcher decides; it gives those who are silent as long as any operation, and is given longer here.

        Raises:
            PeerLostError: it decides nothing.
        """
        epoch, deadline = self._state.view.epoch + 1, Deadline(2 * self.timeout + CONNECT_SECONDS)
        self.heartbeat.doing(f"waits for the launcher to say who goes on in epoch {epoch}")
        while (text := self._notes.read(f"view/{epoch}")) is None:
            self.heartbeat.refuse_without_store()
            if deadline.is_over:
                raise self._end(broke)
            time.sleep(POLL_SECONDS)
        return _view_of(text)

    @property
    def _question(self) -> str:
        """Names one time that this process asks to join, among all processes that had this rank."""
        return f"{os.environ[RESTARTED]}.{self._asked}"

    def _answer(self) -> View:
        """The view that the launcher answers a question with; a worker outside waits as long as it takes."""
        self.heartbeat.doing("waits to join")
        while (epoch := self._notes.read(f"{ANSWER}/{self.world.rank}/{self._question}")) is None:
            self.heartbeat.refuse_without_store()
            time.sleep(POLL_SECONDS)
        return _view_of(self._notes.wait_for(f"view/{epoch}"))

    def _end(self, broke: _BrokenError | None) -> Exception:
        """Why the run ends here, as if nobody ever went on."""
        if broke is None:
            lost = self.heartbeat.gone(range(self.world.size)) or "the launcher ended the run"
            return PeerLostError(f"epoch {self._state.view.epoch}: {lost}")
        return self._first.failure(broke.operation, broke.why)

    def _is_rebuilt(self) -> bool:
        """Connect with all who are left, after they have said the same of what they go on with."""
        view, world = self._state.view, self.world
        if world.rank in view.joined:
            world.begin_anew(f"epoch-{view.epoch}")  # where the others went when they voted
        lost = frozenset(range(world.size)) - frozenset(view.members)
        if not lost:
            self._now = self.schedule
        else:
            self._now = after_loss(self.schedule, lost) if len(view.members) > 1 else None
        self.heartbeat.doing(f"connects the groups of epoch {view.epoch}", view.members)
        name = f"epoch-{view.epoch}"
        store = NamedPrefixStore(name, world.store, {place: [rank] for place, rank in enumerate(view.members)})
        facts = {
            "schedule": "none" if self._now is None else schedule_sha256(self._now),
            "epoch": json.dumps([view.epoch, view.members, view.resume]),
        }
        for reducer, key in self._reducers.items():
            reducer.key = f"{key} {name}"
        assert self._held is not None, "set at the start"
        self._held.members_changed()
        if self._now is None:
            return True
        try:
            place = view.members.index(world.rank)
            handshake(store, place, len(view.members), facts, key=f"{self._key}-{name}", timeout=self.timeout)
            world.given_up = lambda: "a further worker is lost" if self._is_open() else None
            healing = tuple(sorted((view.donor, *view.joined)))
            takes_part = {healing} if world.rank in healing else set()
            own = self._own_groups(self._now, place)
            world.make({view.members, *takes_part, *own}, of_codes=own if self._has_blocks else ())
            if takes_part:
                self._hand_over(healing)
            if view.joined:
                handshake(store, place, len(view.members), {}, key=f"{self._key}-{name}-healed", timeout=self.timeout)
        except UnavailableError:
            return False
        finally:
            world.given_up = lambda: None
        return True

    def _hand_over(self, members: tuple[int, ...]) -> None:
        """The donor gives its state to all that have joined, which begin with it: a sum to which these add nothing.

        Raises:
            UnavailableError: one of them is lost.
        """
        view, held, first = self._state.view, self._held, self._first
        assert held is not None, "as above"
        is_donor, line = self.world.rank == view.donor, self.world.communicator(members)
        data = held.give() if is_donor else b""
        operation = first.recorder.begin("state for who joins", 0, view.resume[0], members, len(data))

        def summed(array: torch.Tensor) -> torch.Tensor:
            why = "a further worker is lost"
            first.wait_for(line.all_reduce(array), operation, lambda: why if self._is_open() else None)
            return array

        try:
            length = int(summed(torch.tensor([len(data)])))
            array = torch.zeros(length, dtype=torch.uint8)
            if is_donor:
                array.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            summed(array)
        except (RuntimeError, GoneError) as error:
            first.recorder.end(operation, f"failed: {error}")
            raise UnavailableError(str(error)) from None
        first.recorder.end(operation)
        if not is_donor:
            held.take(array.numpy().tobytes(), view.resume[0])
            self._feed(Healed())

    def _own_groups(self, schedule: Schedule, place: int) -> list[tuple[int, ...]]:
        """The groups of this worker, who is at a place among those who are left."""
        members = self.members
        return [tuple(members[one] for one in group) for group in member_sets(schedule, place)]


def _lose(sums: Sums) -> None:
    """Something may still arrive in the arrays of a broken operation."""
    for _, reduction in sums:
        for bucket, array in zip(reduction.buckets, reduction.arrays, strict=True):
            bucket.lose(array)


def _view_of(text: str) -> View:
    view = json.loads(text)
    members = {name: tuple(view[name]) for name in ("members", "resume", "forward", "joined")}
    return View(view["epoch"], **members, donor=view["donor"])


def joins() -> bool:
    """Whether this process was started in the place of one that was lost."""
    return bool(os.environ.get(RESTARTED))


def epochs_of(world: World, heartbeat: Heartbeat, schedule: Schedule, *, key: str, timeout: float) -> Epochs:
    """The epochs of a run whose launcher lets it go on after losses, where nothing refuses that."""
    assert isinstance(world, GlooWorld), "else it is refused"
    return Epochs(world, heartbeat, schedule, key=key, timeout=timeout, most_lost=int(os.environ[MOST_LOST]))


def lives_on_after_losses(
    schedule: Schedule, world: World, key: str, tables: Tables, replica: Sequence[int], *, corrects: bool
) -> bool:
    """Whether the launcher lets this run go on after losses.

    Raises:
        MissingFeatureError: it does, and no run of this kind can yet.
    """
    if not os.environ.get(MOST_LOST):
        if schedule.contingencies and not world.rank:
            warn_user(
                f"schedule {schedule.name!r}: plans for losses, and a run goes on after one only on one machine, under "
                "`partreduce run`; here a loss ends it"
            )
        return False
    refusals = {
        "it belongs to the second DistributedOptimizer of this process": key != "1",
        "its replicas are sharded": bool(replica),
        "its tables are spread over the workers": bool(tables),
        "it corrects drift": corrects,
        "its groups are not gloo's": not isinstance(world, GlooWorld),
    }
    if refusal := refusal_of(schedule) or next((why for why, holds in refusals.items() if holds), ""):
        raise MissingFeatureError(
            f"schedule {schedule.name!r}: {refusal}, and no such run goes on after a loss yet; run it with --survive 0"
        )
    return True


def refusal_of(schedule: Schedule) -> str:
    """What of a schedule keeps it from going on after a loss, as a clause; empty where nothing does."""
    strategy = schedule.strategy
    try:
        check_covered(schedule)
    except ScheduleError as error:
        return str(error)
    if not sends_whole(schedule):
        return "its gradients leave by layers"
    if strategy.averaging is not Averaging.MEAN and len(set(schedule.paces().tolist())) > 1:
        return "it averages by steps, over unequal paces"
    return ""
