"""Generations: one worker's operations in a run that continues after failures, each by all its members or by none.

Where one breaks it votes, hears the view (`elastic.voting`), connects with who is left (`elastic.regrouping`) and goes
on. A worker that was started again comes from outside the same way. What is decided is the business of
`schedulers.protocols.membership`; who decides is the launcher (see `launcher.views`). Workers keep the ranks that they
began with, in groups and in messages.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from partreduce.runtime.averaging.mean_model import commit_plain_mean
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.averaging.reduction import Reduction
from partreduce.runtime.elastic.regrouping import Regrouping, State
from partreduce.runtime.elastic.sums_ahead import PrefetchedAllReduce, Sums, lose
from partreduce.runtime.elastic.voting import Voting
from partreduce.runtime.environment import MAX_FAILED, MAX_RESTARTS
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.liveness.survivors import Everyone
from partreduce.runtime.recorder import Operation, Recorder
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.store import JOINED, Notes, Pauses
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

SHORTEST_GLANCE = 0.05
MOST_QUESTIONS = 1280
"""That a store is asked in a second by all workers, where each waits for an operation and hears of nothing."""
Begin = Callable[[Group], Sums]
Commit = Callable[[Reducer, Reduction], None]


class _BrokenError(UnavailableError):
    """An operation that failed; what becomes of the run is to be decided."""

    def __init__(self, recorder: Recorder, operation: Operation, why: Exception) -> None:
        super().__init__(str(why))
        why.__traceback__ = None  # its frames hold the sum, and with that the connections whose end the others wait for
        self._recorder, self.operation, self.why = recorder, operation, why

    def note(self) -> None:
        """The run went on without it."""
        self._recorder.end(self.operation, f"failed: {self.why}")


class Generations(Everyone):
    """One worker's generations of members.

    Args:
        world: its communicators.
        heartbeat: knows what workers, and the launcher, noted of deaths.
        schedule: what the run follows.
        key: of this optimizer, the only one of its process.
        timeout: seconds that an operation may wait for its members, and this worker for a view.
        max_failures: how many workers may fail.
    """

    def __init__(
        self, world: GlooWorld, heartbeat: Heartbeat, schedule: Schedule, *, key: str, timeout: float, max_failures: int
    ) -> None:
        super().__init__(tuple(range(world.size)))
        self.world, self.heartbeat, self.schedule, self.timeout = world, heartbeat, schedule, timeout
        self.glance = min(GLANCE_SECONDS, max(SHORTEST_GLANCE, world.size / MOST_QUESTIONS))
        self.turns = schedule.strategy.payload.num_fragments
        """How many operations a round has: one, or that of each fragment. The protocol counts these, from 0."""
        self._ahead = PrefetchedAllReduce()
        self._entered: int | None = None
        """The key of the sums ahead that the present operation commits."""
        parted = lambda: self._ahead.lose("a worker is lost, or joins")  # noqa: E731
        self.voting = Voting(world, heartbeat, self._heard, parted, timeout=timeout, max_failures=max_failures)
        self.regrouping = Regrouping(world, schedule, key=key, timeout=timeout)
        self._is_fit = not os.environ.get(MAX_RESTARTS)
        self._key = key
        self.views: list[tuple[int, Members]] = [(-1, tuple(range(world.size)))]
        """Who is a member from which turn on, as data is dealt (see `data.dealing`)."""
        self.since: dict[int, int] = {}
        """From which turn on a member that has joined is there; the others are from the first."""

    def begin(self, reducers: Sequence[Reducer], state: State) -> None:
        """The run's operations go by these; wait until the launcher knows of all workers that they are connected.

        From then on a loss is one that the others outlive. Who was started again waits until it is a member.

        Raises:
            PeerFailedError: one of them failed before.
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

    def carry_out(
        self,
        turn: int,
        begin: Begin,
        commit: Commit,
        alone: Callable[[], object] = lambda: None,
        *,
        ahead: int | None = None,
    ) -> None:
        """A turn's group operation: by all its members or by none, and with those who are left if one is lost.

        Args:
            turn: of this worker.
            begin: starts the sums of a group.
            commit: makes a sum live.
            alone: called in place of both where this worker is the only one left.
            ahead: the key of the sums, where `begin_ahead` may have begun them.

        Raises:
            PeerFailedError: the run ends; nobody continued.
            EvictedError: the others continued without this worker.
        """
        place = turn, self.voting.state.place[1]
        if self.regrouping.held is not None and not self._is_fit:
            self._is_fit = True
            self.regrouping.held.check_unfit()
        group_now = lambda: self.regrouping.group_of(turn // self.turns)  # noqa: E731
        self._carry_out(Enter(place, ()), group_now, begin, commit, alone, ahead=ahead)

    def meet(self, begin: Begin, commit: Commit, alone: Callable[[], object], *, ahead: int | None = None) -> None:
        """An operation of all who are left that is no turn's, as `carry_out` does one."""
        entry = Enter(self.voting.state.place, (), meets=True)
        self._carry_out(entry, lambda: Group(self.members), begin, commit, alone, ahead=ahead)

    def begin_ahead(self, key: int, turn: int, begin: Begin) -> None:
        """Begin the sums of a later turn's operation; if they are lost, its own operation finds that out.

        Called in one order by all members of a generation: after an operation in which all were, and when they connect.
        """
        try:
            self._begin_ahead(key, turn, begin)
        except _BrokenError as broke:
            broke.note()

    def arrived_ahead(self, key: int, turn: int, begin: Begin) -> Sums:
        """The sums of a later turn's operation, which stay ahead; none where this worker is alone.

        Raises:
            PeerFailedError: as above.
            EvictedError: as above.
        """
        while True:
            try:
                self._begin_ahead(key, turn, begin)
                if key not in self._ahead:
                    return []
                with self._outliving():
                    return self._ahead.wait(key)
            except _BrokenError as broke:
                self.voting.forwarded = False
                self.voting.feed(Broken())
                self._go_on(broke)
                broke.note()

    def _begin_ahead(self, key: int, turn: int, begin: Begin) -> None:
        is_committed = self.voting.forwarded and key == self._entered
        if self.is_between or turn < self.resumes:
            return
        group = self.regrouping.group_of(turn // self.turns)
        if key in self._ahead or is_committed or group is None or len(group.members) == 1:
            return
        with self._outliving():
            self._ahead.put(key, begin(group))

    def drop_ahead(self) -> None:
        """Give up all sums ahead: all members do, at one place."""
        self._ahead.lose("dropped")

    @property
    def is_between(self) -> bool:
        """Whether it is on its way from one generation to the next, and gives or takes a state."""
        return self.voting.state.phase is not Phase.RUN

    @property
    def resumes(self) -> int:
        """The turn from which on all average in this generation."""
        return self.voting.state.view.resume[0]

    def check_to_go_back(self, round_: int) -> None:
        """Refuse to load a round before the generation's first one: until then nobody averages.

        Raises:
            InputError: it lies before that.
        """
        if round_ * self.turns < self.resumes:
            raise InputError(
                f"load_checkpoint: this would go back to round {round_}, and since a worker was lost or came back the "
                f"others average from round {self.resumes // self.turns} on; end the run and start it again to load it"
            )

    def givers(self, step: int) -> int:
        """How many remaining workers have taken a step, with one step per round: all but those that joined since."""
        return sum(self.since.get(member, 0) <= step for member in self.members)

    def mean_everywhere(self, reducers: Sequence[Reducer], step: int, round_: int) -> None:
        """Replace parameters by their means over all who are left, and buffers by their rules; all of them call this.

        Raises:
            PeerFailedError: as above.
            EvictedError: as above.
        """

        def begin(group: Group) -> Sums:
            return [(reducer, reducer.begin("mean model", step, round_, group)) for reducer in reducers]

        def commit(reducer: Reducer, reduction: Reduction) -> None:
            reducer.commit(reduction, commit_plain_mean)

        self.meet(begin, commit, lambda: None)

    def is_alike(self, place: str, round_: int, mine: str, advice: str) -> bool:
        """Whether all who are left say the same at a place, to which all come before a round."""
        notes = Notes(self.world.store, f"{place}/{self._key}")
        notes.write(str(self.world.rank), mine)
        with self.heartbeat.gathering(place, round_, advice):
            members = self.gathered(place)
        return all(notes.read(str(member)) == mine for member in members)

    def leave(self) -> None:
        """This worker has committed everything and needs nobody any more.

        Raises:
            PeerFailedError: the run ends; nobody continued.
            EvictedError: the others continued without this worker, and without what it has committed last.
        """
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
        wait, pauses = Wait(self.heartbeat, self.members, self.timeout), Pauses()
        while True:
            self.heartbeat.check_without_store()
            self._lost()
            missing = sorted(set(self.members) - self.heartbeat.gathered(self.members))
            if not missing:
                return self.members
            self.heartbeat.doing(f"entered {place}", missing)
            wait.only_for(missing)
            if wait.is_over():
                raise UnavailableError(f"{place}: {self.heartbeat.waits_for(missing, self.timeout)}")
            pauses.sleep()

    # An operation.

    def _carry_out(
        self,
        entry: Enter,
        group_now: Callable[[], Group | None],
        begin: Begin,
        commit: Commit,
        alone: Callable[[], object],
        *,
        ahead: int | None,
    ) -> None:
        self._entered = ahead
        try:
            sums = self._carried_out(entry, group_now, begin, alone)
        finally:
            self._entered = None
        for reducer, reduction in sums:
            commit(reducer, reduction)

    def _carried_out(
        self, entry: Enter, group_now: Callable[[], Group | None], begin: Begin, alone: Callable[[], object]
    ) -> Sums:
        """What is to be committed."""
        while True:
            group = group_now()
            self.voting.feed(replace(entry, group=() if group is None else group.members))
            if group is None or not self.voting.state.group:
                return []
            sums: Sums = []
            try:
                if self.voting.is_called and not entry.meets:
                    operation = self._first.recorder.begin("vote", 0, entry.place[0] // self.turns, group.members, 0)
                    raise self.broke(operation, RuntimeError("a vote is under way"))
                if len(group.members) == 1:
                    self.voting.feed(Summed())
                    self.voting.feed(Confirmed())
                    alone()
                    return []
                self._sum(group, begin, sums)
            except _BrokenError as broke:
                self.voting.forwarded = False
                self.voting.feed(Broken())
                self._go_on(broke)
                broke.note()
                if not self.voting.forwarded:
                    lose(sums)
                    continue
            return sums

    def _sum(self, group: Group, begin: Begin, sums: Sums) -> None:
        """Sum into scratch arrays, then hear that all members have done so.

        Raises:
            _BrokenError: some member may not have.
        """
        with self._outliving():
            if self._entered is not None and self._entered in self._ahead:
                self._ahead.wait(self._entered)
                sums += self._ahead.take(self._entered)
            else:
                sums += begin(group)
                for reducer, reduction in sums:
                    reducer.wait(reduction)
            self.voting.feed(Summed())
            place = self.voting.state.place
            self._first.agree("confirm", place[0] // self.turns, group, *place)
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
            return "a worker is lost, or joins"
        round_ = operation.rounds_before
        return self.heartbeat.gone(operation.members, round_) or self.heartbeat.elsewhere(operation.members, round_)

    def broke(self, operation: Operation, error: Exception) -> UnavailableError:
        """What a failed operation raises here, before it is known what it means."""
        return _BrokenError(self._first.recorder, operation, error)

    # A loss.

    def _go_on(self, broke: _BrokenError | None) -> None:
        """Come from a vote, or from outside, to the next generation in which all members are connected.

        Raises:
            PeerFailedError: the run ends.
            EvictedError: the others continued without this worker.
        """
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
                    done = regrouping.is_connected(view, lambda: voting.is_open, lambda: voting.feed(Healed()))
                    voting.feed(Connected() if done else Broken())
                case Phase.FENCED:
                    raise EvictedError(
                        f"worker {self.world.rank} was silent for longer than the others wait, and they went on "
                        "without it; it changes nothing any more"
                    )
                case _:
                    raise self._end(broke)
        if regrouping.held is not None:
            regrouping.held.connected()

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
