"""Generations: one worker's operations in a run that continues after failures, each by all its members or by none.

Where one breaks it votes, hears the view (`elastic.voting`), connects with who is left (`elastic.regrouping`) and goes
on. A worker that was started again comes from outside the same way. What is decided is the business of
`schedulers.protocols.membership`; who decides is the launcher's `elastic.coordinator`. Workers keep the ranks that they
began with, in groups and in messages.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from partreduce.runtime.averaging.common_start import ADVICE, same_start
from partreduce.runtime.averaging.in_flight import FixedMembership, Flight, Sums
from partreduce.runtime.averaging.mean_model import commit_plain_mean
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.averaging.reference import Reference
from partreduce.runtime.elastic.regrouping import Regrouping, State
from partreduce.runtime.elastic.survivors import await_gathering
from partreduce.runtime.elastic.voting import Voting
from partreduce.runtime.environment import MAX_FAILED, MAX_RESTARTS
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.recorder import Operation, Recorder
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.store import JOINED, Notes, Pauses
from partreduce.runtime.transport.streams import Streams
from partreduce.runtime.transport.waiting import GLANCE_SECONDS, PeerGoneError, Wait
from partreduce.runtime.transport.worlds import World
from partreduce.schedulers.protocols.membership.words import (
    Broken,
    Confirmed,
    Connected,
    Enter,
    Healed,
    Members,
    Phase,
    Summed,
    View,
)
from partreduce.topo.errors import EvictedError, InputError, PeerFailedError, UnavailableError
from partreduce.topo.phase import Group
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.fragments import round_ends

SHORTEST_GLANCE = 0.05
MEMBERS_CHANGE = "a worker is lost, or joins"
MAX_STORE_QUERIES = 1280
"""A second, of all workers together that wait for an operation."""


class _BrokenError(UnavailableError):
    """An operation that failed; what becomes of the run is to be decided."""

    def __init__(self, recorder: Recorder, operation: Operation, why: Exception) -> None:
        super().__init__(str(why))
        why.__traceback__ = None  # its frames hold the sum, and with that the connections whose end the others wait for
        self._recorder, self.operation, self.why = recorder, operation, why

    def note(self) -> None:
        """The run went on without it."""
        if self.operation.end is None:
            self._recorder.end(self.operation, f"failed: {self.why}")


class Generations(FixedMembership):
    """One worker's generations of members.

    Args:
        world: its communicators.
        heartbeat: knows what workers, and the launcher, noted of deaths.
        schedule: what the run follows.
        key: of this optimizer, the only one of its process.
        timeout: seconds that an operation may wait for its members, and this worker for a view.
        max_failures: how many workers may fail.
    """

    may_change = True

    def __init__(
        self, world: GlooWorld, heartbeat: Heartbeat, schedule: Schedule, *, key: str, timeout: float, max_failures: int
    ) -> None:
        super().__init__(tuple(range(world.size)))
        self.world, self.heartbeat, self.schedule, self.timeout = world, heartbeat, schedule, timeout
        self.glance = min(GLANCE_SECONDS, max(SHORTEST_GLANCE, world.size / MAX_STORE_QUERIES))
        self.turns = schedule.strategy.payload.num_fragments
        """How many operations a round has: one, or that of each fragment. The protocol counts these, from 0."""
        self._entered: Flight | None = None
        """The operation that this worker is in."""
        self.voting = Voting(world, heartbeat, self._heard, self._lose, timeout=timeout, max_failures=max_failures)
        self.regrouping = Regrouping(world, schedule, key=key, timeout=timeout)
        self._is_fit = not os.environ.get(MAX_RESTARTS)
        self._key = key
        self.views: list[tuple[int, Members]] = [(-1, tuple(range(world.size)))]
        """Who is a member from which turn on, as data is dealt (see `data.dealing`)."""
        self.since: dict[int, int] = {}
        """From which turn on a member that has joined is there; the others are from the first."""

    def connect_all(self, reducers: Sequence[Reducer], state: State) -> None:
        """The run's operations go by these; wait until the launcher knows of all workers that they are connected.

        From then on a loss is one that the others outlive. Who was started again waits until it is a member.
        """
        self.regrouping.reducers, self.regrouping.held = {reducer: reducer.key for reducer in reducers}, state
        self.heartbeat.with_each = self.voting.look
        if self.voting.state.blank:
            self._go_on(None)
            return
        notes = self.voting.notes
        are_equal = self.schedule.strategy.averages_gradients
        facts: dict[str, object] = {"timeout": self.timeout, "are_equal": are_equal, "turns": self.turns}
        notes.write(f"{JOINED}/{self.world.rank}", json.dumps(facts))
        notes.count(JOINED, 1)
        wait, pauses = Wait(self.heartbeat, range(self.world.size), self.timeout), Pauses()
        while notes.count(JOINED) < self.world.size:
            try:
                wait.look()
            except PeerGoneError as gone:
                raise PeerFailedError(f"before the first step: {gone}") from None
            pauses.sleep()

    @property
    def members(self) -> Members:
        """Who is left."""
        return self.voting.state.view.members

    def _heard(self, view: View) -> None:
        self.views.append((view.resume[0], view.members))
        self.since.update(dict.fromkeys(view.joined, view.resume[0]))

    # What the run asks of it.

    def begin(self, flight: Flight) -> None:
        """Put an operation in flight; if its sums are lost, `wait` finds that out.

        Called in one order by all members of a generation: after an operation in which all were, and when they connect.
        """
        self.flights.append(flight)
        self._start_ahead(flight)

    def wait(self, flight: Flight, *, meets: bool = False) -> Flight:
        """As `FixedMembership`: by all its members or by none, and with those who are left if one is lost."""
        turn, place = flight.turn, self.voting.state.place
        if not meets:
            place = turn, place[1]
            if self.regrouping.held is not None and not self._is_fit:
                self._is_fit = True
                self.regrouping.held.check_unfit()
        is_ahead = flight in self.flights
        self._entered = flight
        try:
            self._carry_out(flight, Enter(place, (), meets=meets))
        finally:
            self._entered = None
            if is_ahead:
                self.flights.remove(flight)
        return flight

    def arrive(self, flight: Flight) -> None:
        """As `FixedMembership`, with those who are left."""
        while not flight.is_waited:
            try:
                self._start(flight)
                if flight.sums is None:
                    return
                with self._outliving():
                    flight.wait()
            except _BrokenError as broke:
                self.voting.forwarded = False
                self.voting.feed(Broken())
                self._go_on(broke)
                broke.note()
            except InputError:  # all members refuse it
                self.flights.remove(flight)
                raise

    def settle(self) -> None:
        """What is in flight neither hinders a mean of all nor is changed by it."""

    def drop(self) -> None:
        """Give up all that is in flight: all members do, at one place."""
        while self.flights:
            flight = self.flights.popleft()
            if not flight.is_restored:
                flight.lose("dropped")
            flight.release()

    def skip(self, turn: int) -> None:
        """An operation all the same: all members go from turn to turn together."""
        nothing = Flight(turn=turn, step=turn, round=turn // self.turns, start=lambda *_: [])
        self.wait(nothing)

    def _start_ahead(self, flight: Flight) -> None:
        try:
            self._start(flight)
        except _BrokenError as broke:
            broke.note()

    def _start(self, flight: Flight) -> None:
        """Begin the sums of a later turn, where this worker has a group in it now."""
        if self.is_between or flight.turn < self.resumes or flight.sums is not None:
            return
        if (group := self.regrouping.group_of(flight.turn // self.turns)) is not None:
            with self._outliving():
                flight.sums = flight.start(flight, group)

    def _lose(self) -> None:
        """Before the groups are destroyed: no sum in flight arrives any more."""
        for flight in self.flights:
            if not (flight.is_restored or (flight is self._entered and flight.is_waited)):
                flight.lose(MEMBERS_CHANGE)

    def _start_again(self) -> None:
        """All members are connected, and have a state: begin again what was in flight, in one order.

        The sum that this worker is about to commit all the same is over.
        """
        for flight in self.flights:
            if flight is not self._entered or not self.voting.forwarded:
                if flight is self._entered and not flight.is_restored:
                    flight.lose(MEMBERS_CHANGE)
                self._start_ahead(flight)

    @property
    def is_between(self) -> bool:
        """Whether it is on its way from one generation to the next, and gives or takes a state."""
        return self.voting.state.phase is not Phase.RUN

    @property
    def resumes(self) -> int:
        """The turn from which on all average in this generation."""
        return self.voting.state.view.resume[0]

    def check_to_go_back(self, round_: int) -> None:
        """Refuse to load a round before the generation's first one: until then nobody averages."""
        if round_ * self.turns < self.resumes:
            raise InputError(
                f"load_checkpoint: this would go back to round {round_}, and since a worker was lost or came back the "
                f"others average from round {self.resumes // self.turns} on; end the run and start it again to load it"
            )

    def givers(self, step: int) -> int:
        """How many members have taken a step, with one step per round: all but those that joined since."""
        return max(1, sum(self.since.get(member, 0) <= step for member in self.members))

    def average_model(self, reducers: Sequence[Reducer], members: Members, step: int, round_: int) -> None:  # noqa: ARG002 - who is left
        """As `FixedMembership`, over all who are left."""

        def start(_: Flight, group: Group) -> Sums:
            return [(reducer, reducer.begin("mean model", step, round_, group)) for reducer in reducers]

        flight = Flight(turn=0, step=step, round=round_, start=start)
        for reducer, reduction in self.wait(flight, meets=True).sums or ():
            reducer.commit(reduction, commit_plain_mean)

    def common_start(
        self, reducer: Reducer, step: int, round_: int, *, name: str, starts: int, host: Streams | None
    ) -> Reference:
        """As `FixedMembership`; nothing is sent that a failure could cut off, so all who are left have it already."""
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
        """The step after which a turn's operation is due."""
        round_, fragment = divmod(turn, self.turns)
        return round_ * steps_per_round + round_ends(self.turns, steps_per_round)[fragment] - 1

    def leave(self) -> None:
        """This worker has committed everything and needs nobody any more."""
        self.voting.leave()
        if self.voting.state.phase is not Phase.LEFT:
            self._go_on(None)

    # Who else is there, for those that wait by notes.

    @property
    def lost_workers(self) -> Callable[[], frozenset[int]]:
        return self._lost

    def _lost(self) -> frozenset[int]:
        """The workers that are no members any more; whoever waits asks often, and so takes part in every vote."""
        if self.voting.is_open:
            self.voting.take_part()
            self._go_on(None)
        return frozenset(range(self.world.size)) - frozenset(self.members)

    def gathered(self, place: str) -> tuple[int, ...]:
        def missing() -> set[int]:
            self._lost()
            return set(self.members) - self.heartbeat.gathered(self.members)

        await_gathering(self.heartbeat, place, missing, self.timeout)
        return self.members

    # An operation.

    def _carry_out(self, flight: Flight, entry: Enter) -> None:
        """Bring an operation to where its sums are to be committed; none where this worker has no part in it."""
        while True:
            group = Group(self.members) if entry.meets else self.regrouping.group_of(flight.turn // self.turns)
            self.voting.feed(replace(entry, group=() if group is None else group.members))
            if group is None or not self.voting.state.group:
                if not flight.is_restored:
                    flight.lose("no turn of this worker")
                    flight.sums = []
                return
            try:
                if self.voting.is_called and not entry.meets:
                    operation = self._first.recorder.begin("vote", 0, entry.place[0] // self.turns, group.members, 0)
                    raise self.broke(operation, RuntimeError("a vote is under way"))
                # What is no turn's counts to its own round: members may have ended after the last turn.
                self._sum(flight, group, flight.round if entry.meets else entry.place[0] // self.turns)
            except _BrokenError as broke:
                self.voting.forwarded = False
                self.voting.feed(Broken())
                self._go_on(broke)
                broke.note()
                if not self.voting.forwarded:
                    if flight not in self.flights and not flight.is_restored:
                        flight.lose(MEMBERS_CHANGE)
                    continue
            return

    def _sum(self, flight: Flight, group: Group, round_: int) -> None:
        """Sum into scratch arrays, then hear that all members have done so."""
        with self._outliving():
            if flight.sums is None:
                flight.sums = flight.start(flight, group)
            flight.wait()
            self.voting.feed(Summed())
            place = self.voting.state.place
            self._first.agree("confirm", round_, group, *place)
            self.voting.feed(Confirmed())

    @contextlib.contextmanager
    def _outliving(self) -> Iterator[None]:
        """Inside, what fails is a `_BrokenError`."""
        for reducer in self.regrouping.reducers:
            reducer.outlives = self
        try:
            yield
        finally:
            for reducer in self.regrouping.reducers:
                reducer.outlives = None

    @property
    def _first(self) -> Reducer:
        return self.regrouping.first

    # What a reducer asks of it in an operation.

    def why(self, operation: Operation) -> str | None:
        """Why it makes no sense to wait for an operation any longer."""
        if self.voting.is_open:
            return MEMBERS_CHANGE
        round_ = operation.rounds_before
        return self.heartbeat.gone(operation.members, round_) or self.heartbeat.elsewhere(operation.members, round_)

    def broke(self, operation: Operation, error: Exception) -> UnavailableError:
        """What a failed operation raises here, before it is known what it means."""
        return _BrokenError(self._first.recorder, operation, error)

    # A loss.

    def _go_on(self, broke: _BrokenError | None) -> None:
        """Come from a vote, or from outside, to the next generation in which all members are connected."""
        voting, regrouping = self.voting, self.regrouping
        while voting.state.phase is not Phase.RUN:
            match voting.state.phase:
                case Phase.OUTSIDE:
                    voting.ask_to_join()
                case Phase.VOTE:
                    if not voting.await_view():
                        raise self._end(broke)
                case Phase.REBUILD:
                    view = voting.state.view
                    for forget in self.changed:
                        forget()
                    done = regrouping.is_connected(view, lambda: voting.is_open, lambda: voting.feed(Healed()))
                    voting.feed(Connected() if done else Broken())
                case Phase.FENCED:
                    raise EvictedError(
                        f"worker {self.world.rank} was silent for longer than the others wait, and they went on "
                        "without it; it changes nothing any more"
                    )
                case _:
                    raise self._end(broke)
        self._start_again()

    def _end(self, broke: _BrokenError | None) -> Exception:
        """Why the run ends here, as if nobody ever went on."""
        if broke is None:
            lost = self.heartbeat.gone(range(self.world.size)) or "the launcher ended the run"
            return PeerFailedError(f"generation {self.voting.state.view.generation}: {lost}")
        return self._first.failure(broke.operation, broke.why)


def generations_of(world: World, heartbeat: Heartbeat, schedule: Schedule, *, key: str, timeout: float) -> Generations:
    """The generations of a run whose launcher lets it continue after failures, where nothing prevents that."""
    assert isinstance(world, GlooWorld), "else it is refused"
    return Generations(world, heartbeat, schedule, key=key, timeout=timeout, max_failures=int(os.environ[MAX_FAILED]))
