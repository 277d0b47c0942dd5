"""Membership: who goes on after a loss, or joins, from which round, and what becomes of the operation that it broke.

An *epoch* is a set of members with what they run. In it a worker goes through its operations one after the other: it
enters one, has its sum (it is *prepared*), hears that all members have (the *confirm*), and commits. Whoever hears of a
loss destroys its groups and votes: where it stands, and in which operation it is prepared, if in any. From then on it
does nothing in the old epoch. The *authority* waits for all members that are not lost, decides one view, writes it
down, and tells it. Survivors connect among themselves and go on.

Commit rule: what any survivor has committed, all have prepared, and each commits it from what it holds. What nobody
committed all drop. A view names the place from which all average again: the furthest at which a survivor stands then.
Whoever stands before it goes there without averaging; who stands there repeats what was dropped, with the survivors.

Who wants to *join* says so and waits outside. The authority then asks for votes as after a loss. Where all that are
furthest stand in an operation of their rounds, the view takes the joiner in: it has the state of one of them, the
*donor*, repeats that operation with all, and nobody averages before it has it. Who is lost before that takes nothing
along; a joiner without a state whose donor is lost gets another's, if any other stands there. Elsewhere (in a mean that
is no round's, at the end) the view is without it, and it asks again later.

The view without members ends the run: nobody was lost and nobody joins, so that something else broke the operation; or
more are lost than may be at a time; or nobody is left who has a state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from partreduce.schedulers.protocols.base import Action, Crashed, Note, Outcome, Received, Send, changed

Place: TypeAlias = tuple[int, int]
"""Where a worker stands: its round, and how often all have met by then. Both rise, and alike on all workers."""
Members: TypeAlias = tuple[int, ...]
Groups: TypeAlias = Callable[[Members, int], Sequence[Members]]
"""The groups of a round, given who is left; what an explored run follows."""


class Phase(StrEnum):
    """What a worker is in."""

    OUTSIDE = "outside"
    RUN = "run"
    VOTE = "vote"
    REBUILD = "rebuild"
    FENCED = "fenced"
    ENDED = "ended"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class View:
    """Message and decision: who is in an epoch, from which place they average, and who commits what it has prepared.

    The members that have `joined` begin with the state of the `donor`, one of the others.
    """

    epoch: int
    members: Members
    resume: Place = (0, 0)
    forward: Members = ()
    joined: Members = ()
    donor: int = -1


@dataclass(frozen=True, slots=True)
class Open:
    """Message: somebody is lost, or seems so, or wants to join; vote for this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Vote:
    """Message: the sender does nothing any more before it hears the view of this epoch.

    `place` is that of the first operation that it has not committed, `prepared` the members of that one where its sum
    is there, and empty else. It `stands` there if it has come to that operation, and this is one of its rounds. It is
    `blank` if it has joined and has no state yet.
    """

    epoch: int
    place: Place
    prepared: Members = ()
    stands: bool = False
    blank: bool = False


@dataclass(frozen=True, slots=True)
class Join:
    """Message: the sender wants to be a member."""


@dataclass(frozen=True, slots=True)
class Left:
    """Message: the sender has committed everything and needs nobody any more."""


@dataclass(frozen=True, slots=True)
class Share:
    """Message, where members meet by messages: what the sender adds to a sum."""

    epoch: int
    place: Place


@dataclass(frozen=True, slots=True)
class Confirm:
    """Message, as above: the sender has the sum."""

    epoch: int
    place: Place


@dataclass(frozen=True, slots=True)
class Here:
    """Message, as above: the sender connects the groups of an epoch, and has a state."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Given:
    """Message, as above: a donor's state, which is what it has committed."""

    epoch: int
    held: tuple[tuple[Place, int, Members], ...]


@dataclass(frozen=True, slots=True)
class Enter:
    """Event of a worker: it comes to a place and enters its operation there with these members; nobody, if it has none.

    Where it is the only one left, these are itself alone. In an operation that `meets` all do something beside their
    rounds, such as taking the mean model.
    """

    place: Place
    group: Members
    meets: bool = False


@dataclass(frozen=True, slots=True)
class Summed:
    """Event: the sum is there."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Event: all members have it."""


@dataclass(frozen=True, slots=True)
class Connected:
    """Event: all members of the epoch are connected, and have a state."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Event: an operation, or connecting, failed, or a member is known to be lost."""


@dataclass(frozen=True, slots=True)
class Knock:
    """Event of a worker outside: it asks to join."""


@dataclass(frozen=True, slots=True)
class Healed:
    """Event of a worker that has joined: it has the donor's state."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Event: nothing is left to do."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Event of the authority: what it has written down goes out."""


@dataclass(frozen=True, slots=True)
class Expire:
    """Event: the lease of those who have not voted is over."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Event of the authority: the run is to end, since a worker failed by itself."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Event: the authority is started again.

    It finds what it wrote down, the votes, and which processes are gone; not how much of the first has gone out.
    """


@dataclass(frozen=True, slots=True)
class Member:
    """One worker.

    `group` is that of the operation it is in (empty: in none), `stands` whether it has come to an operation of its
    rounds that it has not committed, `heard` who said what of the present operation or of later ones, `held` what it
    committed: (place, epoch, group), in order. `knocks` is how often it may still ask to join; while it waits for the
    answer it `has_knocked`.
    """

    view: View
    phase: Phase = Phase.RUN
    place: Place = (0, 0)
    group: Members = ()
    meets: bool = False
    stands: bool = False
    prepared: bool = False
    blank: bool = False
    has_knocked: bool = False
    knocks: int = 0
    heard: frozenset[tuple[int, Hashable]] = frozenset()
    held: tuple[tuple[Place, int, Members], ...] = ()


@dataclass(frozen=True, slots=True)
class Authority:
    """Who decides. `log` is what it has written down, the present view last, and `told` how many of it are out.

    `lost` are who is missing, `joining` those that have asked to be members; `votes` are by worker, for the next view,
    and `admits` says that they were asked for because somebody joins.
    """

    log: tuple[View, ...]
    lost: frozenset[int] = frozenset()
    joining: frozenset[int] = frozenset()
    left: frozenset[int] = frozenset()
    votes: tuple[Vote | None, ...] = ()
    is_open: bool = False
    admits: bool = False
    told: int = 1
    leases: int = 0
    restarts: int = 0

    @property
    def view(self) -> View:
        return self.log[-1]


@dataclass(frozen=True)
class Membership:
    """Workers 0..n−1 and the authority as process n; a `Machine`.

    Its notes say what a driver has to carry out. Of a worker: `("unblock",)` destroys its groups; `("forward",)`
    commits what is prepared, `("dropped",)` gives it up; `("rebuild", view)` connects. Of the authority:
    `("write", view)` comes before it is told; `("fenced", worker)` ends one that is excluded and may live.

    Args:
        num_workers: all, of which the last `outside` are no members at the start and join when they ask.
        most_lost: how many may be missing at a time before the run ends instead.
        groups: what an explored run averages in each round; None where a driver enters operations and says what comes
            of them, and members do not meet by messages.
        rounds: of an explored run; the last should be of all.
        leases: how often the authority may give up those who are silent, of its own accord.
        restarts: how often it may be started again.
        outside: workers that are no members at the start.
        knocks: how often each of them may ask.
    """

    num_workers: int
    most_lost: int
    groups: Groups | None = None
    rounds: int = 0
    leases: int = 0
    restarts: int = 0
    outside: int = 0
    knocks: int = 1

    @property
    def num_processes(self) -> int:
        return self.num_workers + 1

    @property
    def authority(self) -> int:
        """The process that decides."""
        return self.num_workers

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        everybody = range(self.num_processes)
        return [(u, v) for u in everybody for v in everybody if u != v]

    @property
    def suspects(self) -> Sequence[tuple[int, int]]:
        """Any worker may be taken for dead by any other process."""
        return [(u, v) for u, v in self.channels if u != self.authority]

    def start(self, process: int) -> Outcome[Member | Authority]:
        first = View(0, tuple(range(self.num_workers - self.outside)))
        if process == self.authority:
            votes = (None,) * self.num_workers
            return Authority((first,), votes=votes, leases=self.leases, restarts=self.restarts), ()
        if process not in first.members:
            return self.joiner(), ()
        return Member(first), ()

    def joiner(self) -> Member:
        """A worker that is no member yet."""
        return Member(View(-1, ()), Phase.OUTSIDE, blank=True, knocks=self.knocks)

    # What a process may do by itself.

    def ready(self, process: int, state: Member | Authority) -> Sequence[Hashable]:
        if isinstance(state, Authority):
            return self._ready_authority(state)
        if self.groups is None:
            return ()
        if state.phase is Phase.OUTSIDE:
            return (Knock(),) if state.knocks and not state.has_knocked else ()
        if state.phase is Phase.REBUILD and state.blank:
            return (Healed(),) if _given(state) is not None else ()
        if state.phase is Phase.REBUILD:
            return (Connected(),) if self._heard(state, process, state.view.members, Here(state.view.epoch)) else ()
        if state.phase is not Phase.RUN:
            return ()
        if not state.group:
            return (
                (Enter(state.place, self._own_group(process, state)),) if state.place[0] < self.rounds else (Leave(),)
            )
        here = state.view.epoch, state.place
        if state.prepared:
            return (Confirmed(),) if self._heard(state, process, state.group, Confirm(*here)) else ()
        return (Summed(),) if self._heard(state, process, state.group, Share(*here)) else ()

    def _ready_authority(self, state: Authority) -> Sequence[Hashable]:
        found: list[Hashable] = [Publish()] if state.told < len(state.log) else []
        if state.leases and self._silent(state) and any(state.votes):
            found.append(Expire())
        if state.restarts:
            found.append(Restart())
        return found

    def _own_group(self, worker: int, state: Member) -> Members:
        """With whom a worker of an explored run averages at its place."""
        assert self.groups is not None
        groups = self.groups(state.view.members, state.place[0])
        return next((tuple(group) for group in groups if worker in group), ())

    @staticmethod
    def _heard(state: Member, own: int, members: Members, message: Hashable) -> bool:
        return all(member == own or (member, message) in state.heard for member in members)

    # What an event does.

    def step(self, process: int, state: Member | Authority, event: object) -> Outcome[Member | Authority]:
        if isinstance(state, Authority):
            return self._step_authority(state, event)
        return self._step_member(process, state, event)

    def _step_member(self, worker: int, state: Member, event: object) -> Outcome[Member]:
        match event:
            case Received(self.authority, Crashed()):  # nobody decides any more
                return (state if state.phase in _OVER else replace(state, phase=Phase.ENDED)), ()
            case Received(source, Crashed()) if source not in state.view.members:
                return state, ()  # late news of a loss that is behind this worker
            case Broken() | Received(_, Crashed()):
                return self._suspected(state)
            case Received(_, Open(epoch)):
                return self._asked(state, epoch)
            case Received(_, View() as view):
                return self._decided(worker, state, view)
            case Received(source, Share() | Confirm() | Here() | Given() as said):
                return self._told(state, source, said), ()
            case Enter():
                return self._entered(worker, state, event)
            case Summed():
                return replace(state, prepared=True), self._to(
                    state.group, worker, Confirm(state.view.epoch, state.place)
                )
            case Confirmed():
                return _committed(state), ()
            case Leave():
                return replace(state, phase=Phase.LEFT), (Send(self.authority, Left()),)
        return self._connected(worker, state, event)

    def _connected(self, worker: int, state: Member, event: object) -> Outcome[Member]:
        """On the way from outside, or from a vote, into an epoch."""
        match event:
            case Knock():
                after = replace(state, has_knocked=True, knocks=state.knocks - 1)
                return after, (Send(self.authority, Join()),)
            case Healed():
                held, place = _given(state) or (), state.view.resume
                after = replace(state, blank=False, place=place, stands=True, held=held)
                return after, self._to(state.view.members, worker, Here(state.view.epoch))
            case Connected():
                return replace(state, phase=Phase.RUN), ()
        raise AssertionError(f"not an event of a member: {event}")

    @staticmethod
    def _told(state: Member, source: int, said: Share | Confirm | Here | Given) -> Member:
        """Keep what is of this epoch or a later one, which others may be in first."""
        if state.phase in _OVER or said.epoch < state.view.epoch:
            return state
        return replace(state, heard=state.heard | {(source, said)})

    def _entered(self, worker: int, state: Member, entry: Enter) -> Outcome[Member]:
        """Before the place from which all average, and where it has no group, a worker goes on alone."""
        state = replace(state, place=entry.place, meets=entry.meets)
        if state.place < state.view.resume or not entry.group:
            return _moved(state), ()
        state = replace(state, stands=not entry.meets)
        return replace(state, group=entry.group), self._to(entry.group, worker, Share(state.view.epoch, state.place))

    def _to(self, members: Members, own: int, message: Hashable) -> tuple[Action, ...]:
        if self.groups is None:
            return ()
        return tuple(Send(member, message) for member in members if member != own)

    def _suspected(self, state: Member) -> Outcome[Member]:
        """Who misses somebody votes, without waiting to be asked."""
        return self._voted(state) if state.phase in (Phase.RUN, Phase.REBUILD) else (state, ())

    def _asked(self, state: Member, epoch: int) -> Outcome[Member]:
        """An authority that was started again asks those, too, who have voted."""
        if epoch != state.view.epoch + 1 or state.phase in (*_OVER, Phase.OUTSIDE):
            return state, ()
        return self._voted(state)

    def _voted(self, state: Member) -> Outcome[Member]:
        prepared = state.group if state.prepared else ()
        vote = Vote(state.view.epoch + 1, state.place, prepared, state.stands, state.blank)
        unblock = (Note(("unblock",)),) if state.phase is not Phase.VOTE else ()
        return replace(state, phase=Phase.VOTE), (*unblock, Send(self.authority, vote))

    def _decided(self, worker: int, state: Member, view: View) -> Outcome[Member]:
        if view.epoch <= state.view.epoch or state.phase in _OVER:
            return state, ()
        if state.blank and view.members and worker not in view.joined:
            return replace(state, phase=Phase.OUTSIDE, view=view, has_knocked=False), ()
        if worker not in view.members:
            phase = Phase.FENCED if view.members else Phase.ENDED
            return replace(state, phase=phase, view=view), ()
        assert state.phase in (Phase.VOTE, Phase.OUTSIDE), "a view holds only who has voted for it, or joins"
        actions: tuple[Action, ...] = ()
        if worker in view.forward:
            state, actions = _committed(state), (Note(("forward",)),)
        elif state.group:
            actions = (Note(("dropped",)),)
        heard = frozenset(one for one in state.heard if one[1].epoch >= view.epoch)  # type: ignore[attr-defined]
        state = replace(state, phase=Phase.REBUILD, view=view, group=(), prepared=False, heard=heard)
        rebuild = *actions, Note(("rebuild", view))
        if worker in view.joined:
            return replace(state, blank=True), rebuild
        given = self._to(view.joined, worker, Given(view.epoch, state.held)) if worker == view.donor else ()
        return state, (*rebuild, *given, *self._to(view.members, worker, Here(view.epoch)))

    # The authority.

    def _step_authority(self, state: Authority, event: object) -> Outcome[Authority]:
        match event:
            case Received(worker, Crashed()):
                return self._missed(state, frozenset([worker]))
            case Received(worker, Vote() as vote):
                if vote.epoch != state.view.epoch + 1 or worker in state.lost:
                    return state, ()
                return self._opened(replace(state, votes=changed(state.votes, worker, vote)))
            case Received(worker, Left()):
                if worker in state.lost:
                    return state, ()
                return self._weighed(replace(state, left=state.left | {worker}))
            case Received(worker, Join()):
                if worker in state.view.members and worker not in state.lost:
                    return state, ()
                return self._looked(replace(state, joining=state.joining | {worker}))
            case Expire():
                silent = frozenset(self._silent(state))
                after, actions = self._missed(replace(state, leases=state.leases - 1), silent)
                return after, (*(Note(("fenced", worker)) for worker in sorted(silent)), *actions)
            case Publish():
                return self._published(state)
            case Stop():
                return self._stopped(state)
            case Restart():
                return replace(state, told=1, restarts=state.restarts - 1), ()
        raise AssertionError(f"not an event of the authority: {event}")

    def _missed(self, state: Authority, workers: frozenset[int]) -> Outcome[Authority]:
        state = replace(state, joining=state.joining - workers)
        gone = workers.intersection(state.view.members) - state.left - state.lost
        if not gone:
            return state, ()
        votes = tuple(None if worker in gone else vote for worker, vote in enumerate(state.votes))
        return self._looked(replace(state, lost=state.lost | gone, votes=votes))

    def _looked(self, state: Authority) -> Outcome[Authority]:
        """A member that is lost makes a vote necessary, or who joins, once all know of which epoch this is one.

        Nobody joins any more where somebody has left.
        """
        if state.told < len(state.log):
            return state, ()
        if state.lost.intersection(state.view.members):
            return self._opened(state) if len(state.lost) <= self.most_lost else self._stopped(state)
        if state.joining and state.view.members and not state.left and not state.is_open:
            return self._opened(replace(state, admits=True))
        return state, ()

    def _stopped(self, state: Authority) -> Outcome[Authority]:
        """Whoever votes, or comes to vote, hears that nobody goes on."""
        return self._written(state, View(state.view.epoch + 1, ())) if state.view.members else (state, ())

    def _opened(self, state: Authority) -> Outcome[Authority]:
        """A vote is under way: ask those who have not voted, once."""
        asked: tuple[Action, ...] = ()
        if not state.is_open:
            state = replace(state, is_open=True)
            asked = tuple(Send(worker, Open(state.view.epoch + 1)) for worker in self._silent(state))
        after, actions = self._weighed(state)
        return after, (*asked, *actions)

    @staticmethod
    def _remaining(state: Authority) -> Members:
        """The members that are neither lost nor done."""
        return tuple(w for w in state.view.members if w not in state.lost and w not in state.left)

    def _silent(self, state: Authority) -> Members:
        """Whose votes are missing where a vote is under way."""
        return tuple(w for w in self._remaining(state) if state.votes[w] is None) if state.is_open else ()

    def _weighed(self, state: Authority) -> Outcome[Authority]:
        """Once all have voted who can, the view is decided and written down."""
        remaining = self._remaining(state)
        if not state.is_open or self._silent(state):
            return state, ()
        return self._written(state, self._view(state, remaining))

    def _written(self, state: Authority, view: View) -> Outcome[Authority]:
        """A member without a state that cannot get one is outside again; who has joined is missing no more."""
        left_out = frozenset(state.view.members).difference(view.members, state.left) if view.members else frozenset()
        lost, votes = (state.lost | left_out).difference(view.members), (None,) * self.num_workers
        after = replace(state, log=(*state.log, view), lost=lost, votes=votes, is_open=False, admits=False)
        return after, (Note(("write", view)),)

    def _view(self, state: Authority, members: Members) -> View:
        """The commit rule, over the votes of all who go on and what the others are known to have done."""
        epoch, votes = state.view.epoch + 1, state.votes
        cast = {worker: vote for worker in members if (vote := votes[worker]) is not None and not vote.blank}
        nobody_changed = len(members) == len(state.view.members) and not (state.admits or state.joining)
        if not cast or nobody_changed:
            return View(epoch, ())

        def has_committed(worker: int, place: Place) -> bool:
            return worker in state.left or (worker in cast and cast[worker].place > place)

        forward = tuple(
            worker for worker, vote in cast.items() if any(has_committed(other, vote.place) for other in vote.prepared)
        )
        resume = max(vote.place for vote in cast.values())
        furthest = [worker for worker, vote in cast.items() if vote.place == resume]
        can_join = not state.left and all(vote.stands for vote in cast.values() if vote.place == resume)
        joined = tuple(sorted(state.joining.union(members).difference(cast))) if can_join else ()
        donor = min(furthest) if joined else -1
        return View(epoch, tuple(sorted((*cast, *joined))), resume, forward, joined, donor)

    def _published(self, state: Authority) -> Outcome[Authority]:
        """The next view goes to those of the epoch before it, whether they go on or not, and to those that asked."""
        view, before = state.log[state.told], state.log[state.told - 1]
        to = state.joining.union(before.members, view.members).difference(state.left)
        sent = tuple(Send(worker, view) for worker in sorted(to))
        state = replace(state, joining=frozenset())
        after, actions = self._looked(replace(state, told=state.told + 1))
        return after, (*sent, *actions)

    def finished(self, process: int, state: Member | Authority) -> bool:  # noqa: ARG002 - as in Finishing
        """Also outside: nobody waits for who is there."""
        return isinstance(state, Authority) or state.phase in (*_OVER, Phase.OUTSIDE)


_OVER = (Phase.FENCED, Phase.ENDED, Phase.LEFT)


def _given(state: Member) -> tuple[tuple[Place, int, Members], ...] | None:
    """What a worker that has joined has of its donor."""
    donor, epoch = state.view.donor, state.view.epoch
    given = (said for source, said in state.heard if source == donor and isinstance(said, Given))
    return next((said.held for said in given if said.epoch == epoch), None)


def _moved(state: Member) -> Member:
    round_, met = state.place
    after = (round_, met + 1) if state.meets else (round_ + 1, met)
    return replace(state, place=after, group=(), meets=False, stands=False, prepared=False)


def _committed(state: Member) -> Member:
    return replace(_moved(state), held=(*state.held, (state.place, state.view.epoch, state.group)))
