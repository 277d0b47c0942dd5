"""The state machine by which workers and the *authority* agree on who continues a run, after a failure or a join.

The authority is one process in addition to the workers. It collects their votes, and decides and logs each *view*: the
members of the next generation, and the place in the run from which all of them average again. The package docstring has
the rules and the guarantees. The same functions run between real workers (`runtime.elastic`) and are model-checked,
with processes that may crash, pause and restart.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from partreduce.schedulers.protocols.base import Action, Crashed, Note, Outcome, Received, Send, replace_at
from partreduce.schedulers.protocols.membership.messages import (
    Broken,
    Confirm,
    Confirmed,
    Connected,
    Enter,
    Expire,
    Given,
    Healed,
    Here,
    Join,
    Knock,
    Leave,
    Left,
    Members,
    Open,
    Phase,
    Place,
    Publish,
    Released,
    Restart,
    Setting,
    Share,
    Stop,
    Summed,
    View,
    Vote,
)


@dataclass(frozen=True, slots=True)
class Member:
    """The state of one worker in the membership protocol.

    `place` is its position in the run, (round, operations outside rounds so far); `prepared` is whether it has the sum
    of its present operation. `group` has the members of its present operation (empty: none). `stands` is whether it has
    reached an operation of its rounds that it has not committed; `meets` is whether its operation is outside the
    rounds. `blank` means that it has no model yet. `received` holds the messages (sender, message) about the present or
    later operations, `held` its commits (place, generation, group) in order. `knocks` is how often it may still ask to
    join; `has_knocked` is True while it waits for the answer.
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
    received: frozenset[tuple[int, Hashable]] = frozenset()
    held: tuple[tuple[Place, int, Members], ...] = ()


OVER = (Phase.FENCED, Phase.ENDED, Phase.LEFT)
"""The phases of a worker that is no longer part of the run."""
DONE = (*OVER, Phase.LEAVING)
"""The phases of a worker that averages no more."""


class Workers(Setting):
    """The workers' part of the protocol: which events a worker may execute, and the state and messages that follow."""

    def joiner(self) -> Member:
        return Member(View(-1, ()), Phase.OUTSIDE, blank=True, knocks=self.knocks)

    def _ready_member(self, process: int, state: Member) -> Sequence[Hashable]:
        if self.groups is None:
            return ()
        if state.phase is Phase.OUTSIDE:
            return (Knock(),) if state.knocks and not state.has_knocked else ()
        if state.phase is Phase.REBUILD and state.blank:
            return (Healed(),) if _donor_state(state) is not None else ()
        if state.phase is Phase.REBUILD:
            return (
                (Connected(),)
                if self._has_message_of_all(state, process, state.view.members, Here(state.view.generation))
                else ()
            )
        if state.phase is not Phase.RUN:
            return ()
        if not state.group:
            return (
                (Enter(state.place, self._own_group(process, state)),) if state.place[0] < self.rounds else (Leave(),)
            )
        here = state.view.generation, state.place
        if state.prepared:
            return (Confirmed(),) if self._has_message_of_all(state, process, state.group, Confirm(*here)) else ()
        return (Summed(),) if self._has_message_of_all(state, process, state.group, Share(*here)) else ()

    def _own_group(self, worker: int, state: Member) -> Members:
        """Return the members with which a worker averages at its place (position in the run), if no driver decides.

        Only runs of the exhaustive explorer have no driver.
        """
        assert self.groups is not None
        groups = self.groups(state.view.members, state.place[0])
        return next((tuple(group) for group in groups if worker in group), ())

    @staticmethod
    def _has_message_of_all(state: Member, own: int, members: Members, message: Hashable) -> bool:
        return all(member == own or (member, message) in state.received for member in members)

    def _step_member(self, worker: int, state: Member, event: object) -> Outcome[Member]:
        match event:
            case Received(self.authority, Crashed()):  # the authority has failed
                return (state if state.phase in OVER else replace(state, phase=Phase.ENDED)), ()
            case Received(source, Crashed()) if source not in state.view.members:
                return state, ()  # a late message about a failure that a view already covers
            case Broken() | Received(_, Crashed()):
                return self._suspected(state)
            case Received(_, Open(generation)):
                return self._asked(state, generation)
            case Received(_, View() as view):
                return self._decided(worker, state, view)
            case Received(source, Share() | Confirm() | Here() | Given() as message):
                return self._keep_message(state, source, message), ()
            case Enter():
                return self._entered(worker, state, event)
            case Summed():
                return replace(state, prepared=True), self._to(
                    state.group, worker, Confirm(state.view.generation, state.place)
                )
            case Confirmed():
                return _with_commit(state), ()
            case Leave():
                return replace(state, phase=Phase.LEAVING), (Send(self.authority, Left()),)
            case Received(_, Released()):
                return (replace(state, phase=Phase.LEFT) if state.phase is Phase.LEAVING else state), ()
        return self._connected(worker, state, event)

    def _connected(self, worker: int, state: Member, event: object) -> Outcome[Member]:
        """Handle an event of a worker that joins, or connects after a vote."""
        match event:
            case Knock():
                after = replace(state, has_knocked=True, knocks=state.knocks - 1)
                return after, (Send(self.authority, Join()),)
            case Healed():
                held, place = _donor_state(state) or (), state.view.resume
                after = replace(state, blank=False, place=place, stands=True, held=held)
                return after, self._to(state.view.members, worker, Here(state.view.generation))
            case Connected():
                return replace(state, phase=Phase.RUN), ()
        raise AssertionError(f"not an event of a member: {event}")

    @staticmethod
    def _keep_message(state: Member, source: int, message: Share | Confirm | Here | Given) -> Member:
        """Return the state with a message added, unless the generation is over or the worker averages no more."""
        if state.phase in DONE or message.generation < state.view.generation:
            return state
        return replace(state, received=state.received | {(source, message)})

    def _entered(self, worker: int, state: Member, entry: Enter) -> Outcome[Member]:
        """Enter an operation of the run (an all-reduce of a group).

        The worker advances without averaging if it has no group, or has not reached the place where all resume.
        """
        state = replace(state, place=entry.place, meets=entry.meets)
        if state.place < state.view.resume or not entry.group:
            return _at_next_place(state), ()
        state = replace(state, stands=not entry.meets)
        return replace(state, group=entry.group), self._to(
            entry.group, worker, Share(state.view.generation, state.place)
        )

    def _to(self, members: Members, own: int, message: Hashable) -> tuple[Action, ...]:
        if self.groups is None:
            return ()
        return tuple(Send(member, message) for member in members if member != own)

    def _suspected(self, state: Member) -> Outcome[Member]:
        """Vote for the next generation, without waiting for a request: a member has failed or seems to have."""
        return self._voted(state) if state.phase in (Phase.RUN, Phase.REBUILD) else (state, ())

    def _asked(self, state: Member, generation: int) -> Outcome[Member]:
        """Handle the authority's request to vote for `generation`: vote if that is the next one, also a second time.

        A restarted authority also asks workers that have voted. A worker outside the run, or leaving it, does not vote.
        """
        if generation != state.view.generation + 1 or state.phase in (*DONE, Phase.OUTSIDE):
            return state, ()
        return self._voted(state)

    def _voted(self, state: Member) -> Outcome[Member]:
        prepared = state.group if state.prepared else ()
        vote = Vote(state.view.generation + 1, state.place, prepared, state.stands, state.blank)
        unblock = (Note(("unblock",)),) if state.phase is not Phase.VOTE else ()
        return replace(state, phase=Phase.VOTE), (*unblock, Send(self.authority, vote))

    def _decided(self, worker: int, state: Member, view: View) -> Outcome[Member]:
        if view.generation <= state.view.generation or state.phase in OVER:
            return state, ()
        if state.blank and view.members and worker not in view.joined:
            return replace(state, phase=Phase.OUTSIDE, view=view, has_knocked=False), ()
        if worker not in view.members:
            phase = Phase.FENCED if view.members else Phase.ENDED
            return replace(state, phase=phase, view=view), ()
        assert state.phase in (Phase.VOTE, Phase.OUTSIDE), "a view holds only workers that voted for it or join"
        actions: tuple[Action, ...] = ()
        if worker in view.forward:
            state, actions = _with_commit(state), (Note(("forward",)),)
        elif state.group:
            actions = (Note(("dropped",)),)
        received = frozenset(one for one in state.received if one[1].generation >= view.generation)  # type: ignore[attr-defined]
        state = replace(state, phase=Phase.REBUILD, view=view, group=(), prepared=False, received=received)
        rebuild = *actions, Note(("rebuild", view))
        if worker in view.joined:
            return state, rebuild
        given = self._to(view.joined, worker, Given(view.generation, state.held)) if worker == view.donor else ()
        return state, (*rebuild, *given, *self._to(view.members, worker, Here(view.generation)))


def _donor_state(state: Member) -> tuple[tuple[Place, int, Members], ...] | None:
    """Return the commits (`Member.held`) that the view's donor has sent to this joined worker; None before that."""
    donor, generation = state.view.donor, state.view.generation
    given = (message for source, message in state.received if source == donor and isinstance(message, Given))
    return next((message.held for message in given if message.generation == generation), None)


def _at_next_place(state: Member) -> Member:
    round_, met = state.place
    after = (round_, met + 1) if state.meets else (round_ + 1, met)
    return replace(state, place=after, group=(), meets=False, stands=False, prepared=False)


def _with_commit(state: Member) -> Member:
    return replace(_at_next_place(state), held=(*state.held, (state.place, state.view.generation, state.group)))


@dataclass(frozen=True, slots=True)
class Authority:
    """The state of the authority, the process that decides views (the members of each generation).

    `log` has its views, the present one last; `num_published` of them are sent. `lost` are the missing workers,
    `joining` those that have asked to be members, `left` those that have ended, `votes` the workers' votes for the next
    view; `is_open` is whether a vote is in progress, `admits` whether it was called because a worker joins. `leases`
    and `restarts` are how often it may still evict silent workers, and be restarted.
    """

    log: tuple[View, ...]
    lost: frozenset[int] = frozenset()
    joining: frozenset[int] = frozenset()
    left: frozenset[int] = frozenset()
    votes: tuple[Vote | None, ...] = ()
    is_open: bool = False
    admits: bool = False
    num_published: int = 1
    leases: int = 0
    restarts: int = 0

    @property
    def view(self) -> View:
        return self.log[-1]


class Decisions(Setting):
    """The authority's part of the protocol: which events it may execute, and the state and messages that follow."""

    def _ready_authority(self, state: Authority) -> Sequence[Hashable]:
        found: list[Hashable] = [Publish()] if state.num_published < len(state.log) else []
        if state.leases and self._silent(state) and any(state.votes):
            found.append(Expire())
        if state.restarts:
            found.append(Restart())
        return found

    def _step_authority(self, state: Authority, event: object) -> Outcome[Authority]:
        match event:
            case Received(worker, message):
                return self._receive(state, worker, message)
            case Expire():
                silent = frozenset(self._silent(state))
                after, actions = self._missed(replace(state, leases=state.leases - 1), silent)
                return after, (*(Note(("fenced", worker)) for worker in sorted(silent)), *actions)
            case Publish():
                return self._published(state)
            case Stop():
                return self._stopped(state)
            case Restart():
                return replace(state, num_published=1, restarts=state.restarts - 1), ()
        raise AssertionError(f"not an event of the authority: {event}")

    def _receive(self, state: Authority, worker: int, message: object) -> Outcome[Authority]:
        match message:
            case Crashed():
                return self._missed(state, frozenset([worker]))
            case Vote() as vote:
                if vote.generation != state.view.generation + 1 or worker in state.lost:
                    return state, ()
                return self._opened(replace(state, votes=replace_at(state.votes, worker, vote)))
            case Left():
                if worker in state.lost:
                    return state, ()
                after, actions = self._weighed(replace(state, left=state.left | {worker}))
                return after, (Send(worker, Released()), *actions)
            case Join():
                if worker in state.view.members and worker not in state.lost:
                    return state, ()
                return self._looked(replace(state, joining=state.joining | {worker}))
        raise AssertionError(f"not an event of the authority: {message}")

    def _missed(self, state: Authority, workers: frozenset[int]) -> Outcome[Authority]:
        state = replace(state, joining=state.joining - workers)
        gone = workers.intersection(state.view.members) - state.left - state.lost
        if not gone:
            return state, ()
        votes = tuple(None if worker in gone else vote for worker, vote in enumerate(state.votes))
        return self._looked(replace(state, lost=state.lost | gone, votes=votes))

    def _looked(self, state: Authority) -> Outcome[Authority]:
        """Open a vote if a member has failed, or if a worker wants to join and none has left.

        If too many have failed, end the run. Nothing happens before the last view is published.
        """
        if state.num_published < len(state.log):
            return state, ()
        if state.lost.intersection(state.view.members):
            return self._opened(state) if len(state.lost) <= self.max_failures else self._stopped(state)
        if state.joining and state.view.members and not state.left and not state.is_open:
            return self._opened(replace(state, admits=True))
        return state, ()

    def _stopped(self, state: Authority) -> Outcome[Authority]:
        """End the run: answer every vote, also later ones, with a view without members."""
        return self._written(state, View(state.view.generation + 1, ())) if state.view.members else (state, ())

    def _opened(self, state: Authority) -> Outcome[Authority]:
        """Open a vote: request it once from all workers that have not voted; decide at once if all have voted."""
        requests: tuple[Action, ...] = ()
        if not state.is_open:
            state = replace(state, is_open=True)
            requests = tuple(Send(worker, Open(state.view.generation + 1)) for worker in self._silent(state))
        after, actions = self._weighed(state)
        return after, (*requests, *actions)

    @staticmethod
    def _remaining(state: Authority) -> Members:
        return tuple(w for w in state.view.members if w not in state.lost and w not in state.left)

    def _silent(self, state: Authority) -> Members:
        """Return the workers that have not voted in the vote in progress."""
        return tuple(w for w in self._remaining(state) if state.votes[w] is None) if state.is_open else ()

    def _weighed(self, state: Authority) -> Outcome[Authority]:
        """Decide and log the view (who continues) once all workers that can vote have voted."""
        remaining = self._remaining(state)
        if not state.is_open or self._silent(state):
            return state, ()
        return self._written(state, self._view(state, remaining))

    def _written(self, state: Authority, view: View) -> Outcome[Authority]:
        """End the vote and log `view`, the authority's decision; return the new state and a note: write it to disk.

        Members of the last view that it leaves out, and that have not ended, count as missing (`lost`) from now on.
        """
        left_out = frozenset(state.view.members).difference(view.members, state.left) if view.members else frozenset()
        lost, votes = (state.lost | left_out).difference(view.members), (None,) * self.num_workers
        after = replace(state, log=(*state.log, view), lost=lost, votes=votes, is_open=False, admits=False)
        return after, (Note(("write", view)),)

    def _view(self, state: Authority, members: Members) -> View:
        """Return the next view by the commit rule: if one survivor has committed an operation, all commit it.

        It follows from the votes of the continuing `members`, and from the workers that have left, who committed all.
        """
        generation, votes = state.view.generation + 1, state.votes
        cast = {worker: vote for worker in members if (vote := votes[worker]) is not None and not vote.blank}
        nobody_changed = len(members) == len(state.view.members) and not (state.admits or state.joining)
        if not cast or nobody_changed:
            return View(generation, ())

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
        return View(generation, tuple(sorted((*cast, *joined))), resume, forward, joined, donor)

    def _published(self, state: Authority) -> Outcome[Authority]:
        """Send the next logged view to its members, those of the view before, and workers that want to join."""
        view, before = state.log[state.num_published], state.log[state.num_published - 1]
        to = state.joining.union(before.members, view.members).difference(state.left)
        sent = tuple(Send(worker, view) for worker in sorted(to))
        state = replace(state, joining=frozenset())
        after, actions = self._looked(replace(state, num_published=state.num_published + 1))
        return after, (*sent, *actions)


@dataclass(frozen=True)
class Membership(Workers, Decisions):
    """The membership protocol of workers 0..n−1 and the authority, process n, as one state machine (`Machine`).

    A driver executes the notes. Of a worker: `("unblock",)` destroys its groups; `("forward",)` commits the prepared
    operation, `("dropped",)` discards it; `("rebuild", view)` connects. Of the authority: `("write", view)` is executed
    before the view is sent; `("fenced", worker)` ends a worker that is excluded and may be alive.
    """

    @property
    def num_processes(self) -> int:
        return self.num_workers + 1

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        everybody = range(self.num_processes)
        return [(u, v) for u in everybody for v in everybody if u != v]

    @property
    def suspects(self) -> Sequence[tuple[int, int]]:
        """All pairs (worker, process) in which the process may suspect that the worker has failed."""
        return [(u, v) for u, v in self.channels if u != self.authority]

    def start(self, process: int) -> Outcome[Member | Authority]:
        first = View(0, tuple(range(self.num_workers - self.outside)))
        if process == self.authority:
            votes = (None,) * self.num_workers
            return Authority((first,), votes=votes, leases=self.leases, restarts=self.restarts), ()
        if process not in first.members:
            return self.joiner(), ()
        return Member(first), ()

    def ready(self, process: int, state: Member | Authority) -> Sequence[Hashable]:
        if isinstance(state, Authority):
            return self._ready_authority(state)
        return self._ready_member(process, state)

    def step(self, process: int, state: Member | Authority, event: object) -> Outcome[Member | Authority]:
        if isinstance(state, Authority):
            return self._step_authority(state, event)
        return self._step_member(process, state, event)

    def finished(self, process: int, state: Member | Authority) -> bool:  # noqa: ARG002 - as in Finishing
        """Whether the process may stay in this state; a worker outside the run may, since no worker waits for it."""
        return isinstance(state, Authority) or state.phase in (*OVER, Phase.OUTSIDE)
