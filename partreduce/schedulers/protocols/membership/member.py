"""Define one worker: its actions, and its reactions to messages."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from partreduce.schedulers.protocols.base import Action, Crashed, Note, Outcome, Received, Send
from partreduce.schedulers.protocols.membership.messages import (
    Broken,
    Confirm,
    Confirmed,
    Connected,
    Enter,
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
    Released,
    Setting,
    Share,
    Summed,
    View,
    Vote,
)


@dataclass(frozen=True, slots=True)
class Member:
    """One worker.

    `group` is that of the operation it is in (empty: in none), `stands` whether it has come to an operation of its
    rounds that it has not committed, `heard` who said what of the present operation or of later ones, `held` what it
    committed: (place, generation, group), in order. `knocks` is how often it may still ask to join; while it waits for
    the answer it `has_knocked`.
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


OVER = (Phase.FENCED, Phase.ENDED, Phase.LEFT)
"""A worker that is in one of these has nothing to do with the run any more."""
DONE = (*OVER, Phase.LEAVING)
"""A worker that is in one of these averages with no worker any more."""


class Workers(Setting):
    """The steps of the workers."""

    def joiner(self) -> Member:
        """A worker that is no member yet."""
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
        """With whom a worker of an explored run averages at its place."""
        assert self.groups is not None
        groups = self.groups(state.view.members, state.place[0])
        return next((tuple(group) for group in groups if worker in group), ())

    @staticmethod
    def _has_message_of_all(state: Member, own: int, members: Members, message: Hashable) -> bool:
        return all(member == own or (member, message) in state.heard for member in members)

    def _step_member(self, worker: int, state: Member, event: object) -> Outcome[Member]:
        match event:
            case Received(self.authority, Crashed()):  # no worker decides any more
                return (state if state.phase in OVER else replace(state, phase=Phase.ENDED)), ()
            case Received(source, Crashed()) if source not in state.view.members:
                return state, ()  # late news of a loss that is behind this worker
            case Broken() | Received(_, Crashed()):
                return self._suspected(state)
            case Received(_, Open(generation)):
                return self._asked(state, generation)
            case Received(_, View() as view):
                return self._decided(worker, state, view)
            case Received(source, Share() | Confirm() | Here() | Given() as said):
                return self._keep_message(state, source, said), ()
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
        """On the way from outside, or from a vote, into a generation."""
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
    def _keep_message(state: Member, source: int, said: Share | Confirm | Here | Given) -> Member:
        """Keep what is of this generation or a later one, which others may be in first."""
        if state.phase in DONE or said.generation < state.view.generation:
            return state
        return replace(state, heard=state.heard | {(source, said)})

    def _entered(self, worker: int, state: Member, entry: Enter) -> Outcome[Member]:
        """Before the place from which all average, and where it has no group, a worker continues alone."""
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
        """Who misses somebody votes, without waiting to be asked."""
        return self._voted(state) if state.phase in (Phase.RUN, Phase.REBUILD) else (state, ())

    def _asked(self, state: Member, generation: int) -> Outcome[Member]:
        """An authority that was started again asks those, too, who have voted."""
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
        assert state.phase in (Phase.VOTE, Phase.OUTSIDE), "a view holds only who has voted for it, or joins"
        actions: tuple[Action, ...] = ()
        if worker in view.forward:
            state, actions = _with_commit(state), (Note(("forward",)),)
        elif state.group:
            actions = (Note(("dropped",)),)
        heard = frozenset(one for one in state.heard if one[1].generation >= view.generation)  # type: ignore[attr-defined]
        state = replace(state, phase=Phase.REBUILD, view=view, group=(), prepared=False, heard=heard)
        rebuild = *actions, Note(("rebuild", view))
        if worker in view.joined:
            return state, rebuild
        given = self._to(view.joined, worker, Given(view.generation, state.held)) if worker == view.donor else ()
        return state, (*rebuild, *given, *self._to(view.members, worker, Here(view.generation)))


def _donor_state(state: Member) -> tuple[tuple[Place, int, Members], ...] | None:
    """What a worker that has joined has of its donor."""
    donor, generation = state.view.donor, state.view.generation
    given = (said for source, said in state.heard if source == donor and isinstance(said, Given))
    return next((said.held for said in given if said.generation == generation), None)


def _at_next_place(state: Member) -> Member:
    round_, met = state.place
    after = (round_, met + 1) if state.meets else (round_ + 1, met)
    return replace(state, place=after, group=(), meets=False, stands=False, prepared=False)


def _with_commit(state: Member) -> Member:
    return replace(_at_next_place(state), held=(*state.held, (state.place, state.view.generation, state.group)))
