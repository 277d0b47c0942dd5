"""Partial averaging in groups: a group's round starts when some of its members have come, and takes all of them along.

As in the partial all-reduce (`partial.py`) a worker has two sides. Its *training* computes the steps of a call, which
publishes what they changed (its progress) into the worker's shadow model, and takes results. Its *thread* takes part in
the rounds of the schedule, strictly 0, 1, 2, …, with the shadow as it is when it enters, and is done with a round when
all members of its group have entered. Groups of different rounds overlap, so threads may be in different rounds; a
member whose thread is in an earlier round is waited for, since the quorum of that round is not this group's to waive. A
worker that a round leaves out is a group of its own there.

Source: Li, Ben-Nun, Nadiradze, Di Girolamo, Dryden, Alistarh, Hoefler, Breaking (global) barriers in parallel
stochastic optimization with wait-avoiding group averaging, TPDS 2021. There one worker starts the groups of all, and
late models are mixed in by weights; here each group starts by its own members, and nothing is lost (docs/theory).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from partreduce.schedulers.protocols.base import Action, Note, Outcome, Received, Send, changed
from partreduce.schedulers.protocols.partial_sides import (
    COMPUTING,
    Activate,
    Arrived,
    Begin,
    Call,
    End,
    Finish,
    Result,
    Share,
    Sides,
    Take,
    TwoSided,
)
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.quorum import Quorum, QuorumStart

GOES_ON = -2
"""In place of the last round that a worker needs, while nobody has heard that it has ended."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Message: the sender has no more data; `round` is the last one that has progress of it (−1: none has)."""

    round: int


@dataclass(frozen=True, slots=True)
class GroupsState(Sides):
    """One worker; what it makes are calls, each with its progress.

    It knows that the rounds `activated`, which it has not entered, may start, and how many rounds somebody needs
    (`wanted`). `lasts[w]` is the last round that worker w needs, `counted` the own calls in the rounds done.
    """

    activated: tuple[int, ...] = ()
    wanted: int = 0
    lasts: tuple[int, ...] = ()
    counted: int = 0

    @property
    def last(self) -> int | None:
        """The last round of all; None while some worker goes on, as far as this one knows."""
        return None if GOES_ON in self.lasts else max(self.lasts)


@dataclass(frozen=True)
class PartialGroups(TwoSided[GroupsState]):
    """All workers of a job under one setting; a `Machine`.

    Its notes say what a driver has to carry out, s being the worker's shadow, c what rounds changed in it since the
    last taking, x the parameters of the training: a call publishes, s = x + c; `("begun", round, calls)` keeps a
    snapshot b = s for the group's sum; `("finished", round, counts)` has its mean m, and corrects s by m - b and c
    likewise; `("taken", rounds, version)` has the training go on with x = s, c = 0.

    How it ends: a worker without data tells everybody so, and the last round that has progress of it. Of a group's
    members those count that have come or go on; where none goes on, its round starts once somebody needs it or a later
    one. So no round runs that nobody needs, and the last one of all is the maximum of what the workers have told.

    Args:
        setting: the quorum.
        num_workers: how many workers there are.
        group_of: (worker, round) → the members of its group, ascending; itself alone where it rests.
        calls: how many calls each worker makes before it ends; None where a driver says when.
        initiators: under `majority` the place of the member that starts a round, again and again; None draws it.
        collective: threads meet by `Share` messages; without it a thread may be done at any time after it has entered,
            for drivers that let them meet.

    Raises:
        ScheduleError: settings that do not go with one another.
    """

    setting: Quorum
    num_workers: int
    group_of: Callable[[int, int], tuple[int, ...]] = field(compare=False)
    calls: tuple[int, ...] | None = None
    initiators: tuple[int, ...] | None = None
    collective: bool = True

    def __post_init__(self) -> None:
        self.setting.check()

    def start(self, process: int) -> Outcome[GroupsState]:  # noqa: ARG002 - all start alike
        n = self.num_workers
        return GroupsState(shares=((),) * n, arrived=(0,) * n, lasts=(GOES_ON,) * n), ()

    def step(self, process: int, state: GroupsState, event: object) -> Outcome[GroupsState]:
        match event:
            case Call():
                return self._called(process, state)
            case End():
                return self._ended(process, state)
            case Begin():
                return self._begun(process, state)
            case Finish():
                return self._finished(process, state)
            case Take():
                return self._taken(state)
            case Received(source, Activate(round_)):
                return self._activated(process, state, source, round_)
            case Received(source, Arrived(round_)):
                known = max(state.arrived[source], round_ + 1)
                heard = replace(state, arrived=changed(state.arrived, source, known))
                return self._started(process, _wanting(self._entered(process, heard, source, round_), round_))
            case Received(source, Share() as share):
                return self._shared(state, source, share), ()
            case Received(source, Ended(last)):
                heard = replace(state, lasts=changed(state.lasts, source, last))
                return self._started(process, _wanting(heard, last))
        raise AssertionError(f"not an event of partial averaging in groups: {event}")

    # Training.

    def _called(self, process: int, state: GroupsState) -> Outcome[GroupsState]:
        """Progress is published; its worker has come for the next round that its thread enters, and says so."""
        called = self._made(state)
        if state.arrived[process] > state.entered:
            return called, ()
        come = _wanting(replace(called, arrived=changed(state.arrived, process, state.entered + 1)), state.entered)
        told: tuple[Action, ...] = ()
        if isinstance(self.setting.quorum, int):
            told = tuple(Send(v, Arrived(state.entered)) for v in self._others(process, state.entered))
        started, actions = self._started(process, come)
        return started, (*told, *actions)

    def _ended(self, process: int, state: GroupsState) -> Outcome[GroupsState]:
        """Nothing more is published: the round for which the worker came last has the last of it."""
        last = state.arrived[process] - 1
        ended = replace(state, resting=True, lasts=changed(state.lasts, process, last))
        started, actions = self._started(process, ended)
        told = tuple(Send(v, Ended(last)) for v in range(self.num_workers) if v != process)
        return started, (*told, *actions)

    def _taken(self, state: GroupsState) -> Outcome[GroupsState]:
        rounds = tuple(result.round for result in state.results)
        taken = replace(state, stage=COMPUTING, results=(), version=state.done)
        return taken, (Note(("taken", rounds, state.done)),)

    # Who starts a round.

    def _others(self, process: int, round_: int) -> tuple[int, ...]:
        return tuple(v for v in self.group_of(process, round_) if v != process)

    def _activated(self, process: int, state: GroupsState, source: int, round_: int) -> Outcome[GroupsState]:
        """A member says that its group's round may start; rounds before it are other groups' to start."""
        if round_ >= state.entered:
            state = _activating(self._entered(process, state, source, round_), {round_})
        return self._started(process, _wanting(state, round_))

    def _entered(self, process: int, state: GroupsState, source: int, round_: int) -> GroupsState:
        """A worker whose next round this is has entered those before it: of both they have started, unless over.

        So a word replaces those before it of the same kind from the same worker, which may be lost then.
        """
        both = {r for r in range(state.entered, round_) if source in self.group_of(process, r)}
        return _activating(state, both)

    def _started(self, process: int, state: GroupsState) -> Outcome[GroupsState]:
        """Activate the next round if that is this worker's to do."""
        open_ = state.entered
        if open_ in state.activated:
            return state, ()
        members = self.group_of(process, open_)
        going_on = [v for v in members if state.lasts[v] == GOES_ON]
        quorum = self.setting.quorum
        if not going_on:
            may_start = state.wanted > open_
        elif isinstance(quorum, int):
            # Who has come counts also when it has ended since: what one member takes for enough stays so for all.
            come = sum(state.arrived[v] > open_ for v in members)
            missing = sum(state.arrived[v] <= open_ for v in going_on)
            may_start = self._is_quorate(come, come + missing)
        else:
            may_start = state.arrived[process] > open_
            if quorum is QuorumStart.MAJORITY:
                may_start = may_start and self._initiator(open_, members, going_on) == process
        if not may_start:
            return state, ()
        started = _activating(state, {open_})
        if going_on and isinstance(quorum, int):
            return started, ()  # all members hear of the same arrivals
        return started, tuple(Send(v, Activate(open_)) for v in members if v != process)

    def _is_quorate(self, come: int, counted: int) -> bool:
        """Whether so many members that have come are enough, of so many that have or may."""
        return come >= self.setting.needed(counted)

    def _initiator(self, round_: int, members: tuple[int, ...], going_on: list[int]) -> int:
        """Who starts a group's round under `majority`: the member that is drawn, or the next one that goes on."""
        size = len(members)
        place = self._drawn(round_, size, f", group of worker {members[0]}")
        return next(v for v in (members[(place + i) % size] for i in range(size)) if v in going_on)

    def awaited(self, process: int, state: GroupsState) -> tuple[int, ...]:
        """Whose coming may start the open round, as far as this worker knows; else who may be in an earlier one."""
        members = self.group_of(process, state.entered)
        going_on = [v for v in members if state.lasts[v] == GOES_ON]
        if self.setting.quorum is QuorumStart.MAJORITY and going_on:
            return (self._initiator(state.entered, members, going_on),)
        missing = tuple(v for v in going_on if v != process and state.arrived[v] <= state.entered)
        return missing or self._others(process, state.entered)

    # The thread.

    def _may_begin(self, state: GroupsState) -> bool:
        """Once it is activated, and the queue has a place for its result."""
        return state.entered in state.activated and len(state.results) < self.setting.staleness

    def _begun(self, process: int, state: GroupsState) -> Outcome[GroupsState]:
        """The shadow is taken along as it is, and with it what was published since the last round."""
        share = Share(state.entered, state.buffer, state.oldest, state.resting)
        begun = replace(
            state,
            buffer=(),
            oldest=-1,
            entered=state.entered + 1,
            activated=tuple(r for r in state.activated if r > state.entered),
        )
        sent: tuple[Action, ...] = ()
        if self.collective:
            begun = self._shared(begun, process, share)
            sent = tuple(Send(v, share) for v in self._others(process, share.round))
        started, actions = self._started(process, begun)
        return started, (*sent, Note(("begun", share.round, share.gradients)), *actions)

    def _is_summed(self, process: int, state: GroupsState) -> bool:
        if not self.collective:
            return True
        members = self.group_of(process, state.done)
        return all(state.shares[v] and state.shares[v][0].round == state.done for v in members)

    def _finished(self, process: int, state: GroupsState) -> Outcome[GroupsState]:
        """The result waits for the training, behind those before it."""
        members = self.group_of(process, state.done) if self.collective else ()
        counts = tuple(len(state.shares[v][0].gradients) for v in members)
        result = Result(state.done, counts)
        done = replace(
            state,
            done=state.done + 1,
            results=(*state.results, result),
            shares=tuple(known[1:] if v in members else known for v, known in enumerate(state.shares)),
            counted=state.counted + sum(n for v, n in zip(members, counts, strict=True) if v == process),
        )
        return done, (Note(("finished", result.round, result.counts)),)

    def finished(self, process: int, state: GroupsState) -> bool:  # noqa: ARG002 - as in Finishing
        return state.resting and state.last is not None and state.version == state.last + 1


def partial_groups_of(schedule: Schedule) -> PartialGroups:
    """The machine of a schedule of groups under a quorum, without an end and with threads that a driver lets meet."""
    when = schedule.strategy.when
    assert isinstance(when, Quorum), "the registry names the protocol"
    return PartialGroups(when, schedule.num_workers, members_of(schedule), collective=False)


def members_of(schedule: Schedule) -> Callable[[int, int], tuple[int, ...]]:
    """(worker, round) → the members of its group, ascending, itself alone where it rests; kept for a period."""
    first, period = schedule.prologue, schedule.phased.period
    known: dict[tuple[int, int], tuple[int, ...]] = {}

    def of(worker: int, round_: int) -> tuple[int, ...]:
        place = round_ if round_ < first else first + (round_ - first) % period
        found = known.get((worker, place))
        if found is None:
            group = schedule.group_of(worker, place)
            found = known[worker, place] = (worker,) if group is None else tuple(sorted(group.members))
        return found

    return of


def _activating(state: GroupsState, rounds: set[int]) -> GroupsState:
    return replace(state, activated=tuple(sorted({*state.activated, *rounds}))) if rounds else state


def _wanting(state: GroupsState, round_: int) -> GroupsState:
    return replace(state, wanted=round_ + 1) if round_ >= state.wanted else state
