"""Run one worker of a job that continues after failures; each operation is committed by all members or by none.

After a failed operation a worker votes, reads the launcher's decision (`elastic.coordinator`), connects to the other
survivors (`elastic.regroup`) and continues. A replacement joins in the same way. The protocol is that of
`schedulers.protocols.membership`. Workers keep the ranks that they had at the start, in groups and in messages.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import astuple, replace

from partreduce.runtime.averaging.in_flight import FixedMembership, Flight, Sums
from partreduce.runtime.averaging.mean_model import ADVICE, commit_plain_mean, same_start
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.averaging.reference import Reference
from partreduce.runtime.elastic.coordinator import ANSWER, JOIN, JOINED, LEFT, MEMBERSHIP, NEWS, OPEN, RELEASED
from partreduce.runtime.elastic.regroup import Regroup, State, name_of
from partreduce.runtime.elastic.survivors import CONNECT_SECONDS, await_gathering
from partreduce.runtime.environment import MAX_FAILED, MAX_RESTARTS, RESTARTED
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.recorder import Operation, Recorder
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.store import CHANGES, Notes, Pauses, root_store
from partreduce.runtime.transport.streams import Streams
from partreduce.runtime.transport.waiting import (
    GLANCE_SECONDS,
    LOOK_SECONDS,
    MAX_WATCHED,
    Deadline,
    PeerGoneError,
    Wait,
)
from partreduce.runtime.transport.worlds import World
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.membership import messages
from partreduce.schedulers.protocols.membership.machine import Member as MemberState
from partreduce.schedulers.protocols.membership.machine import Membership
from partreduce.topo.errors import EvictedError, InputError, PeerFailedError, UnavailableError
from partreduce.topo.phase import Group
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.payload import round_ends

LONGEST_PAUSE = 10.0  # longest time in seconds between two requests to join
SHORTEST_GLANCE = 0.05
MEMBERS_CHANGE = "a worker is lost, or joins"
MAX_STORE_QUERIES = 1280  # per second, of all waiting workers together
SILENT_SHARE = 0.75  # of the timeout; a worker that waits for all others calls a vote if one is silent for longer


def joins() -> bool:
    """Return whether the launcher started this process as the replacement of a failed worker."""
    return bool(os.environ.get(RESTARTED))


class _BrokenError(UnavailableError):
    """Internal error for a failed operation, raised before it is known whether the run continues."""

    def __init__(self, recorder: Recorder, operation: Operation, why: Exception) -> None:
        super().__init__(str(why))
        why.__traceback__ = None  # its frames would keep connections open, and peers wait until these close
        self._recorder, self.operation, self.why = recorder, operation, why

    def record(self) -> None:
        if self.operation.end is None:
            self._recorder.end(self.operation, f"failed: {self.why}")


class Member(FixedMembership):
    """Queue of operations in flight for a run that continues after failures: all members commit one, or none.

    An operation is an average; to commit it is to write the result to the model. Only one optimizer per run may have
    this queue; `key` names the optimizer. `timeout` is in seconds.
    """

    may_change = True

    def __init__(self, world: World, heartbeat: Heartbeat, schedule: Schedule, *, key: str, timeout: float) -> None:
        assert isinstance(world, GlooWorld), "else it is refused"
        super().__init__(tuple(range(world.size)))
        self.world, self.heartbeat, self.schedule, self.timeout = world, heartbeat, schedule, timeout
        self.glance = min(GLANCE_SECONDS, max(SHORTEST_GLANCE, world.size / MAX_STORE_QUERIES))
        self.turns = schedule.strategy.payload.num_fragments
        """Averages per round: 1, or one per fragment. The protocol counts averages from 0."""
        self._entered: Flight | None = None  # the operation that this worker waits for
        self._machine = Membership(world.size, int(os.environ[MAX_FAILED]))
        started, _ = self._machine.start(world.rank)
        assert isinstance(started, MemberState), "a worker"
        self.state = self._machine.joiner() if joins() else started
        self.called = 0  # generation of the last vote that this worker saw the launcher call
        self.commits_prepared = False
        self.notes = Notes(root_store(world.store), MEMBERSHIP)
        self._num_join_requests = 0
        self._looked = float("-inf")  # when `_is_one_silent` last read heartbeats
        self.regroup = Regroup(world, schedule, key=key, timeout=timeout)
        self._is_fit = not os.environ.get(MAX_RESTARTS)
        self._key = key
        self.views: list[tuple[int, messages.Members]] = [(-1, tuple(range(world.size)))]
        """For each change of members (index of the first average, members from then on); samplers use it."""
        self.since: dict[int, int] = {}
        """Index of the first average of each member that joined later, by rank."""

    def connect_all(self, reducers: Sequence[Reducer], state: State) -> None:
        """Wait until all workers have started (PeerFailedError if one fails); a replacement joins the run instead.

        `reducers` run the operations. `state` is this worker's training state, which joining workers copy.
        """
        self.regroup.reducers, self.regroup.held = {reducer: reducer.key for reducer in reducers}, state
        self.heartbeat.with_each = self.poll
        if self.state.blank:
            self._continue(None)
            return
        notes = self.notes
        are_equal = self.schedule.strategy.averages_gradients
        facts: dict[str, object] = {"timeout": self.timeout, "are_equal": are_equal, "turns": self.turns}
        notes.write(f"{JOINED}/{self.world.rank}", json.dumps(facts))
        notes.count(JOINED, 1)
        wait, pauses = Wait(self.heartbeat, range(self.world.size), self.timeout), Pauses()
        while notes.count(JOINED) < self.world.size:
            try:
                wait.check()
            except PeerGoneError as gone:
                raise PeerFailedError(f"before the first step: {gone}") from None
            pauses.sleep()

    @property
    def members(self) -> messages.Members:
        return self.state.view.members

    @property
    def is_between(self) -> bool:
        return self.state.phase is not messages.Phase.RUN

    @property
    def resumes(self) -> int:
        return self.state.view.resume[0]

    def begin(self, flight: Flight) -> None:
        """Start an operation and queue it, in the same order on all members. It raises no failure; `wait` does."""
        self.flights.append(flight)
        self._start_ahead(flight)

    @contextlib.contextmanager
    def outliving(self) -> Iterator[None]:
        for reducer in self.regroup.reducers:
            reducer.outlives = self
        try:
            yield
        finally:
            for reducer in self.regroup.reducers:
                reducer.outlives = None

    def wait(self, flight: Flight, *, meets: bool = False) -> Flight:
        """Wait for an operation, which all members commit or none; after a failure the survivors run it again.

        `meets` marks an operation of all members that is not in the schedule, such as a mean model.
        """
        turn, place = flight.turn, self.state.place
        if not meets:
            place = turn, place[1]
            if self.regroup.held is not None and not self._is_fit:
                self._is_fit = True
                self.regroup.held.check_unfit()
        is_ahead = flight in self.flights
        self._entered = flight
        try:
            self._carry_out(flight, messages.Enter(place, (), meets=meets))
        finally:
            self._entered = None
            if is_ahead:
                self.flights.remove(flight)
        return flight

    def arrive(self, flight: Flight) -> None:
        while not flight.is_waited:
            try:
                self._start(flight)
                if flight.sums is None:
                    return
                with self.outliving():
                    flight.wait()
            except _BrokenError as broken:
                self._recover(broken)
            except InputError:  # all members refuse it
                self.flights.remove(flight)
                raise

    def settle(self) -> None:
        """Do nothing: operations in flight do not disturb an average over all members."""

    def drop(self) -> None:
        while self.flights:
            flight = self.flights.popleft()
            if not flight.is_restored:
                flight.abandon("dropped")
            flight.release()

    def skip(self, turn: int) -> None:
        """Take part in the operation with index `turn` without averaging, since all members count operations."""
        self.wait(Flight(turn=turn, step=turn, round=turn // self.turns, start=lambda *_: []))

    def check_to_go_back(self, round_: int) -> None:
        """Raise InputError if a load would go back to a round `round_` before the last change of members."""
        if round_ * self.turns < self.resumes:
            raise InputError(
                f"load_checkpoint: this would go back to round {round_}, and since a worker was lost or came back the "
                f"others average from round {self.resumes // self.turns} on; end the run and start it again to load it"
            )

    def givers(self, step: int) -> int:
        """Return how many current members have taken step `step`, not those that joined later; a round is one step."""
        return max(1, sum(self.since.get(member, 0) <= step for member in self.members))

    def average_model(self, reducers: Sequence[Reducer], members: messages.Members, step: int, round_: int) -> None:  # noqa: ARG002 - the survivors
        def start(_: Flight, group: Group) -> Sums:
            return [(reducer, reducer.begin("mean model", step, round_, group)) for reducer in reducers]

        flight = Flight(turn=0, step=step, round=round_, start=start)
        for reducer, reduction in self.wait(flight, meets=True).sums or ():
            reducer.commit(reduction, commit_plain_mean)

    def common_start(
        self, reducer: Reducer, step: int, round_: int, *, name: str, starts: int, host: Streams | None
    ) -> Reference:
        """Return this worker's parameters, to measure changes from. Raises InputError unless they equal all members'.

        Keys in the store contain `name`, of these parameters, and `starts`, how often they were set before. `round_` is
        the present round, `step` is unused; with `host` the result is in host memory.
        """
        del step

        def is_same(digest: str) -> bool:
            place = f"start {starts} of the {name}"
            notes = Notes(self.world.store, f"{place}/{self._key}")
            notes.write(str(self.world.rank), digest)
            with self.heartbeat.gathering(place, round_, ADVICE):
                members = self.gathered(place)
            return all(notes.read(str(member)) == digest for member in members)

        return same_start(reducer, is_same, starts, round_, host=host)

    def step_of(self, turn: int, steps_per_round: int) -> int:
        round_, fragment = divmod(turn, self.turns)
        return round_ * steps_per_round + round_ends(self.turns, steps_per_round)[fragment] - 1

    def leave(self) -> None:
        self.handle(messages.Leave())
        self.await_view()
        if self.state.phase is not messages.Phase.LEFT:
            self._continue(None)

    @property
    def lost_workers(self) -> Callable[[], frozenset[int]]:
        return self._failed

    def _failed(self) -> frozenset[int]:
        """Return the ranks that are not members now.

        Before that, take part in a vote that the launcher has called, or call one if a member has fallen silent: no
        operation of a group times out at the end of a run, and who does not vote is evicted.
        """
        if self.is_open or self._is_one_silent(self.members):
            self._vote_and_continue()
        return frozenset(range(self.world.size)) - frozenset(self.members)

    def _is_one_silent(self, members: Collection[int]) -> bool:
        """Return whether one of `members` (at most `MAX_WATCHED`) is silent; False within `LOOK_SECONDS` of a look."""
        if time.monotonic() < self._looked + LOOK_SECONDS or len(members) > MAX_WATCHED:
            return False
        self._looked = time.monotonic()
        signs = (self.heartbeat.last_heartbeat(rank) for rank in members if rank != self.world.rank)
        return any((sign.silent or 0.0) > SILENT_SHARE * self.timeout for sign in signs)

    def gathered(self, place: str) -> tuple[int, ...]:
        # If a vote is called when all have arrived, some members would vote and others would wait for them in the
        # operation. So the first check decides for all members whether they vote before it.
        notes, decision = Notes(self.world.store, f"gathered/{self._key}/{self.heartbeat.gatherings}"), ""

        def missing() -> set[int]:
            nonlocal decision
            absent = set(self.members) - self.heartbeat.gathered(self.members)
            votes = self.is_open or self._is_one_silent(absent)
            if absent and not votes:
                return absent
            decision = notes.propose(str(self.state.view.generation), "vote" if votes else "continue")
            return absent if decision == "continue" else set()

        while True:  # with a new timeout after each vote, which may take long and delays all
            await_gathering(self.heartbeat, place, missing, self.timeout)
            if decision == "continue":
                return self.members
            self._vote_and_continue()

    def _carry_out(self, flight: Flight, entry: messages.Enter) -> None:
        """Run operation `flight` until its sums may be written, again after each failure.

        `entry` is the event by which this worker enters the operation in the membership protocol.
        """
        while True:
            group = Group(self.members) if entry.meets else self.regroup.group_of(flight.turn // self.turns)
            self.handle(replace(entry, group=() if group is None else group.members))
            if group is None or not self.state.group:
                if not flight.is_restored:
                    flight.abandon("no turn of this worker")
                    flight.sums = []
                return
            try:
                # Outside the schedule the operation's own round counts: members may have finished the last one.
                round_ = flight.round if entry.meets else entry.place[0] // self.turns
                if self.is_called and not entry.meets:
                    operation = self.regroup.first.recorder.begin("vote", 0, round_, group.members, 0)
                    raise self.broke(operation, RuntimeError("a vote is under way"))
                with self.outliving():  # sum into scratch arrays, then know that all members have done so
                    if flight.sums is None:
                        flight.sums = flight.start(flight, group)
                    flight.wait()
                    self.handle(messages.Summed())
                    self.regroup.first.agree("confirm", round_, group, *self.state.place)
                    self.handle(messages.Confirmed())
            except _BrokenError as broken:
                self._recover(broken)
                if not self.commits_prepared:
                    if flight not in self.flights and not flight.is_restored:
                        flight.abandon(MEMBERS_CHANGE)
                    continue
            return

    def _start_ahead(self, flight: Flight) -> None:
        try:
            self._start(flight)
        except _BrokenError as broken:
            broken.record()

    def _start(self, flight: Flight) -> None:
        """Start the all-reduces of an operation ahead of its turn, if this worker is in one of its groups."""
        if self.is_between or flight.turn < self.resumes or flight.sums is not None:
            return
        if (group := self.regroup.group_of(flight.turn // self.turns)) is not None:
            with self.outliving():
                flight.sums = flight.start(flight, group)

    def stop_reason(self, operation: Operation) -> str | None:
        if self.is_open:
            return MEMBERS_CHANGE
        round_ = operation.rounds_before
        return self.heartbeat.failure_reason(operation.members, round_) or self.heartbeat.in_other_gathering(
            operation.members, round_
        )

    def broke(self, operation: Operation, error: Exception) -> UnavailableError:
        return _BrokenError(self.regroup.first.recorder, operation, error)

    @property
    def is_open(self) -> bool:
        return self.notes.has(f"{OPEN}/{self.state.view.generation + 1}")

    def poll(self) -> None:
        """Record whether the launcher has called a vote on the next members; the heartbeat thread calls this."""
        generation = self.state.view.generation + 1
        if self.notes.has(f"{OPEN}/{generation}"):
            self.called = generation

    @property
    def is_called(self) -> bool:
        return self.called > self.state.view.generation

    def handle(self, event: object) -> None:
        """Apply an event to the membership protocol's state machine, and carry out the actions that it returns."""
        state, actions = self._machine.step(self.world.rank, self.state, event)
        assert isinstance(state, MemberState), "a worker"
        self.state, rank = state, self.world.rank
        for action in actions:
            match action:
                case Send(_, messages.Vote() as vote):
                    self._write(f"vote/{vote.generation}/{rank}", json.dumps(list(astuple(vote)[1:])))
                case Send(_, messages.Join()):
                    self._num_join_requests += 1
                    self._write(f"{JOIN}/{rank}", self._question, JOIN)
                case Send(_, messages.Left()):
                    self._write(f"{LEFT}/{rank}", "1", LEFT)
                case Note(("unblock",)):
                    for flight in self.flights:  # sums in flight will not complete any more
                        if not (flight.is_restored or (flight is self._entered and flight.is_waited)):
                            flight.abandon(MEMBERS_CHANGE)
                    self.world.start_over(name_of(state.view.generation + 1))
                case Note(("forward",)):
                    self.commits_prepared = True
                case Note(("rebuild", messages.View() as view)):
                    self.views.append((view.resume[0], view.members))
                    self.since.update(dict.fromkeys(view.joined, view.resume[0]))

    def _write(self, key: str, text: str, *kinds: str) -> None:
        self.notes.write(key, text)
        for kind in (*kinds, NEWS):
            self.notes.count(kind, 1)

    def _receive(self, message: messages.Open | messages.Released | messages.View) -> None:
        self.handle(Received(self._machine.authority, message))

    def vote(self) -> None:
        self._receive(messages.Open(self.state.view.generation + 1))

    def _vote_and_continue(self) -> None:
        self.vote()
        self._continue(None)

    def await_view(self) -> bool:
        """Wait for the launcher's decision on a vote, or its permission to leave; return False if neither arrives."""
        generation, deadline = self.state.view.generation + 1, Deadline(2 * self.timeout + CONNECT_SECONDS)
        leaves = self.state.phase is messages.Phase.LEAVING
        what = "that it may leave" if leaves else f"who continues in generation {generation}"
        self.heartbeat.doing(f"waits for the launcher to say {what}")
        pauses = Pauses()
        while True:
            if leaves and self.notes.has(f"{RELEASED}/{self.world.rank}"):
                self._receive(messages.Released())
                return True
            if (text := self.notes.read(f"view/{generation}")) is not None:
                self._receive(self._view_of(text))
                return True
            self.heartbeat.check_without_store()
            if deadline.is_over:
                return False
            pauses.sleep()

    def ask_to_join(self) -> None:
        time.sleep(min(LONGEST_PAUSE, 0.25 * 2**self._num_join_requests) if self._num_join_requests else 0.0)
        self.handle(messages.Knock())
        self._receive(self._await_answer())

    def _await_answer(self) -> messages.View:
        """Wait, without a deadline, for the launcher's answer to a request to join; return the new view."""
        self.heartbeat.doing("waits to join")
        pauses = Pauses()
        while (generation := self.notes.read(f"{ANSWER}/{self.world.rank}/{self._question}")) is None:
            self.heartbeat.check_without_store()
            pauses.sleep()
        return self._view_of(self.notes.wait_for(f"view/{generation}"))

    def _view_of(self, text: str) -> messages.View:
        view = json.loads(text)
        self.heartbeat.settled = view[CHANGES]
        members = {name: tuple(view[name]) for name in ("members", "resume", "forward", "joined")}
        return messages.View(view["generation"], **members, donor=view["donor"])

    @property
    def _question(self) -> str:
        """Identifier of this worker's current request to join; no other process of this rank has used it."""
        return f"{os.environ[RESTARTED]}.{self._num_join_requests}"

    def _recover(self, broken: _BrokenError) -> None:
        self.commits_prepared = False
        self.handle(messages.Broken())
        self._continue(broken)
        broken.record()

    def _continue(self, broken: _BrokenError | None) -> None:
        """Go from a vote, or a request to join, to the next list of members, and connect to all of them.

        Raises EvictedError if they continue without this worker; if the run ends, the error of the operation `broken`.
        """
        problem: str | None = None  # why the members of the last view did not connect
        while self.state.phase is not messages.Phase.RUN:
            match self.state.phase:
                case messages.Phase.OUTSIDE:
                    self.ask_to_join()
                case messages.Phase.VOTE:
                    if not self.await_view():
                        raise self._end(broken, problem)
                case messages.Phase.REBUILD:
                    for forget in self.changed:
                        forget()
                    view = self.state.view
                    problem = self.regroup.connect(view, lambda: self.is_open, lambda: self.handle(messages.Healed()))
                    self.handle(messages.Connected() if problem is None else messages.Broken())
                case messages.Phase.FENCED:
                    raise EvictedError(
                        f"worker {self.world.rank} was silent for longer than the others wait, and they continued "
                        "without it; it changes nothing any more"
                    )
                case _:
                    raise self._end(broken, problem)
        # All members are connected and have the state, so operations in flight restart, in the same order everywhere.
        # An operation whose result this worker may still commit does not restart.
        for flight in self.flights:
            if flight is not self._entered or not self.commits_prepared:
                if flight is self._entered and not flight.is_restored:
                    flight.abandon(MEMBERS_CHANGE)
                self._start_ahead(flight)

    def _end(self, broken: _BrokenError | None, problem: str | None) -> Exception:
        if broken is not None and problem is None:
            return self.regroup.first.failure(broken.operation, broken.why)
        _, members = self.views[-1]
        why = self.heartbeat.failure_reason(members) or problem
        why = why or self.heartbeat.not_in_gathering(members, self.state.place[0] // self.turns)
        text = f"the run ends: {why or 'the launcher ended it'}"
        if broken is None:
            return PeerFailedError(text)
        return self.regroup.first.failure(broken.operation, PeerGoneError(text))
