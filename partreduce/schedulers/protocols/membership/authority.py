"""Define the authority: it receives failures, votes and requests to join, and decides the views."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from partreduce.schedulers.protocols.base import Action, Crashed, Note, Outcome, Received, Send, replace_at
from partreduce.schedulers.protocols.membership.messages import (
    Expire,
    Join,
    Left,
    Members,
    Open,
    Place,
    Publish,
    Released,
    Restart,
    Setting,
    Stop,
    View,
    Vote,
)


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


class Decisions(Setting):
    """The steps of the authority."""

    def _ready_authority(self, state: Authority) -> Sequence[Hashable]:
        found: list[Hashable] = [Publish()] if state.told < len(state.log) else []
        if state.leases and self._silent(state) and any(state.votes):
            found.append(Expire())
        if state.restarts:
            found.append(Restart())
        return found

    def _step_authority(self, state: Authority, event: object) -> Outcome[Authority]:
        match event:
            case Received(worker, said):
                return self._receive(state, worker, said)
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

    def _receive(self, state: Authority, worker: int, said: object) -> Outcome[Authority]:
        """What a worker says, or what becomes of it."""
        match said:
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
        raise AssertionError(f"not an event of the authority: {said}")

    def _missed(self, state: Authority, workers: frozenset[int]) -> Outcome[Authority]:
        state = replace(state, joining=state.joining - workers)
        gone = workers.intersection(state.view.members) - state.left - state.lost
        if not gone:
            return state, ()
        votes = tuple(None if worker in gone else vote for worker, vote in enumerate(state.votes))
        return self._looked(replace(state, lost=state.lost | gone, votes=votes))

    def _looked(self, state: Authority) -> Outcome[Authority]:
        """A member that is lost makes a vote necessary, or who joins, once all know of which generation this is one.

        No worker joins any more where somebody has left.
        """
        if state.told < len(state.log):
            return state, ()
        if state.lost.intersection(state.view.members):
            return self._opened(state) if len(state.lost) <= self.max_failures else self._stopped(state)
        if state.joining and state.view.members and not state.left and not state.is_open:
            return self._opened(replace(state, admits=True))
        return state, ()

    def _stopped(self, state: Authority) -> Outcome[Authority]:
        """Answer every vote, also later ones, that no worker continues."""
        return self._written(state, View(state.view.generation + 1, ())) if state.view.members else (state, ())

    def _opened(self, state: Authority) -> Outcome[Authority]:
        """A vote is under way: ask those who have not voted, once."""
        asked: tuple[Action, ...] = ()
        if not state.is_open:
            state = replace(state, is_open=True)
            asked = tuple(Send(worker, Open(state.view.generation + 1)) for worker in self._silent(state))
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
        """The commit rule, over the votes of all who continue and what the others are known to have done."""
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
        """Send the next view to the members of the generation before it, survivors or not, and to those that asked."""
        view, before = state.log[state.told], state.log[state.told - 1]
        to = state.joining.union(before.members, view.members).difference(state.left)
        sent = tuple(Send(worker, view) for worker in sorted(to))
        state = replace(state, joining=frozenset())
        after, actions = self._looked(replace(state, told=state.told + 1))
        return after, (*sent, *actions)
