"""Partial collectives: who starts a round, what it sums, who takes which result; no tensors.

A round is a sum over all workers (partial all-reduce of gradients), or over each group of a schedule (models). A
group's round starts when some of its members have come, and takes all of them along. Everybody is one group.

A worker has two sides. Its *training* computes a gradient, or the steps of a call; it *calls*, which hands over what it
has made, and takes results. Its *thread* takes part in the rounds, strictly 0, 1, 2, …: it enters a round once that may
start, with what has been handed over by then, and is done with it when all members of its group have entered. What a
worker makes during a round waits in its buffer for the next one. Groups of different rounds overlap, so threads may be
in different rounds; a member whose thread is in an earlier round is waited for, since the quorum of that round is not
this group's to waive. A worker that a round leaves out is a group of its own there.

Sources: Li et al., Taming unbalanced training workloads in deep learning with partial collective operations, PPoPP
2020, section 4; beyond it results wait in a queue of limited length instead of being overwritten, a quorum may be any
number, and workers may end. Li et al., Breaking (global) barriers in parallel stochastic optimization with
wait-avoiding group averaging, TPDS 2021; there one worker starts the groups of all, and late models are mixed in by
weights; here each group starts by its own members, and nothing is lost (docs/theory).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import shake_256
from itertools import permutations

from partreduce.schedulers.protocols.base import Action, Note, Outcome, Received, Send, changed
from partreduce.schedulers.protocols.partial_state import (
    CALLED,
    COMPUTING,
    GOES_ON,
    MEETING,
    Activate,
    Arrived,
    Begin,
    Call,
    End,
    Ended,
    Finish,
    Here,
    PartialState,
    Result,
    Share,
    Take,
)
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.quorum import Counting, MissedResults, Quorum, QuorumStart


@dataclass(frozen=True)
class Partial:
    """All workers of a job under one setting; a `Machine`.

    Its notes say what a driver has to carry out: `("begun", round, calls)` takes along what is in the buffer, which is
    empty then; `("finished", round, counts)` has the sum; `("taken", rounds, version)` applies these results,
    ascending, or their sum, and is then so many rounds far; `("synchronised", round)` takes the mean of the models.

    In groups s is the worker's shadow, c what rounds changed in it since the last taking, x the parameters of the
    training: a call publishes, s = x + c; "begun" keeps a snapshot b = s for the group's sum; "finished" has its mean
    m, and corrects s by m - b and c likewise; "taken" has the training go on with x = s, c = 0.

    How it ends: a worker without data tells everybody so, and the last round that it has come for. Of a group's members
    those count that have come or go on; where none goes on, its round starts once somebody needs it or a later one. So
    no round runs that nobody needs, and the last one of all is the maximum of what the workers have told.

    Args:
        setting: the quorum.
        num_workers: how many workers there are.
        calls: how many calls each worker makes before it ends; None where a driver says when.
        initiators: under `majority` the place of the member that starts a round, again and again; None draws it.
        group_of: (worker, round) → the members of its group, ascending; itself alone where it rests. None if all
            workers are one group.
        collective: threads meet by `Share` messages; without it a thread may be done at any time after it has entered,
            for drivers that let them meet.

    Raises:
        ScheduleError: settings that do not go with one another.
    """

    setting: Quorum
    num_workers: int
    calls: tuple[int, ...] | None = None
    initiators: tuple[int, ...] | None = None
    group_of: Callable[[int, int], tuple[int, ...]] | None = field(default=None, compare=False)
    collective: bool = True
    _everybody: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.setting.check()
        object.__setattr__(self, "_everybody", tuple(range(self.num_workers)))

    @property
    def num_processes(self) -> int:
        return self.num_workers

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        """Everybody writes to everybody, if only at its end."""
        return tuple(permutations(range(self.num_workers), 2))

    def members(self, worker: int, round_: int) -> tuple[int, ...]:
        """The group of a worker in a round, ascending."""
        return self._everybody if self.group_of is None else self.group_of(worker, round_)

    def start(self, process: int) -> Outcome[PartialState]:  # noqa: ARG002 - all start alike
        n = self.num_workers
        none = (0,) * n
        here = none if self.setting.synchronise_every else ()
        return PartialState(shares=((),) * n, arrived=none, lasts=(GOES_ON,) * n, here=here), ()

    def ready(self, process: int, state: PartialState) -> Sequence[Hashable]:
        found: list[Hashable] = []
        if state.stage == COMPUTING and not state.resting:
            is_last = self.calls is not None and state.calls >= self.calls[process]
            found.append(End() if is_last else Call())
        elif self._may_take(state):
            found.append(Take())
        if state.is_running:
            if self._is_summed(process, state):
                found.append(Finish())
        elif self._may_begin(state):
            found.append(Begin())
        return found

    def step(self, process: int, state: PartialState, event: object) -> Outcome[PartialState]:
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
                return self._taken(process, state)
            case Received(source, Activate(round_)):
                return self._activated(process, state, source, round_)
            case Received(source, Arrived(round_)):
                known = max(state.arrived[source], round_ + 1)
                heard = replace(state, arrived=changed(state.arrived, source, known))
                return self._started(process, _wanting(self._entered(process, heard, source, round_), round_))
            case Received(source, Ended(last)):
                heard = replace(state, lasts=changed(state.lasts, source, last))
                return self._started(process, _wanting(heard, last))
            case Received(source, Share() as share):
                return self._shared(state, source, share), ()
            case Received(source, Here(round_)):
                return self._met(replace(state, here=changed(state.here, source, max(state.here[source], round_))))
        raise AssertionError(f"not an event of a partial collective: {event}")

    def finished(self, process: int, state: PartialState) -> bool:  # noqa: ARG002 - as in Finishing
        is_over = state.last is not None and state.version == state.last + 1
        return is_over and state.resting and state.stage == COMPUTING

    # Training.

    def _called(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """What was made joins the buffer; its worker counts for the next round that its thread enters.

        By call it counts for its own round only.
        """
        called = replace(
            state,
            calls=state.calls + 1,
            stage=CALLED,
            buffer=(*state.buffer, state.calls),
            oldest=state.version if state.oldest < 0 else state.oldest,
        )
        if self.setting.count is Counting.CALL and state.calls < state.entered:
            return called, ()  # its round has started without it
        return self._come(process, called)

    def _ended(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """Nothing more is made. Who has something left counts for the round that takes it; that is the last one."""
        come, told = self._come(process, state) if state.buffer else (state, ())
        last = come.arrived[process] - 1
        ended = replace(come, resting=True, lasts=changed(come.lasts, process, last))
        started, actions = self._started(process, ended)
        everybody = tuple(Send(v, Ended(last)) for v in range(self.num_workers) if v != process)
        return started, (*told, *actions, *everybody)

    def _may_take(self, state: PartialState) -> bool:
        """Whether there are results for a training that waits for them, or has ended."""
        return state.stage != MEETING and state.done > state.version

    def _taken(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """By call one result is taken, else all that are there, as who has ended does.

        By call with `latest` a call that is behind takes the newest one, also when the one before took it.
        """
        taken, version = state.results, state.done
        left: tuple[Result, ...] = ()
        if self.setting.count is Counting.CALL and not state.resting:
            version = state.version + 1
            if self.setting.missed is MissedResults.LATEST:
                left = state.results
            else:
                taken, left = state.results[:1], state.results[1:]
        state = replace(state, stage=COMPUTING, results=left, version=version)
        note = Note(("taken", tuple(result.round for result in taken), version))
        every = self.setting.synchronise_every
        if not every or version % every:
            return state, (note,)
        waits = replace(state, stage=MEETING, here=changed(state.here, process, version))
        told = tuple(Send(v, Here(version)) for v in self._others(process, version))
        met, actions = self._met(waits)
        return met, (note, *told, *actions)

    def _met(self, state: PartialState) -> Outcome[PartialState]:
        """Once all models wait for it they are averaged."""
        if state.stage != MEETING or min(state.here) < state.version:
            return state, ()
        return replace(state, stage=COMPUTING, synchronised=state.version), (Note(("synchronised", state.version)),)

    # Who starts a round.

    def _others(self, process: int, round_: int) -> tuple[int, ...]:
        return tuple(v for v in self.members(process, round_) if v != process)

    def _come(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """The worker counts for the next round that its thread will enter, and tells those who count."""
        if state.arrived[process] > state.entered:
            return state, ()
        come = _wanting(replace(state, arrived=changed(state.arrived, process, state.entered + 1)), state.entered)
        told: tuple[Action, ...] = ()
        if isinstance(self.setting.quorum, int):
            told = tuple(Send(v, Arrived(state.entered)) for v in self._others(process, state.entered))
        started, actions = self._started(process, come)
        return started, (*told, *actions)

    def _activated(self, process: int, state: PartialState, source: int, round_: int) -> Outcome[PartialState]:
        """A member says that its group's round may start; rounds before it may be other groups' to start."""
        if round_ >= state.entered:
            state = _activating(self._entered(process, state, source, round_), {round_})
        return self._started(process, _wanting(state, round_))

    def _entered(self, process: int, state: PartialState, source: int, round_: int) -> PartialState:
        """A worker whose next round this is has entered those before it: of both they have started, unless over.

        So a word replaces those before it of the same kind from the same worker, which may be lost then.
        """
        both = {r for r in range(state.entered, round_) if source in self.members(process, r)}
        return _activating(state, both)

    def _started(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """Activate the next round if that is this worker's to do."""
        open_ = state.entered
        if open_ in state.activated:
            return state, ()
        members = self.members(process, open_)
        going_on = [v for v in members if state.lasts[v] == GOES_ON]
        quorum = self.setting.quorum
        if not going_on:
            may_start = state.wanted > open_
        elif isinstance(quorum, int):
            # Who has come counts also when it has ended since: what one member takes for enough stays so for all.
            come = [v for v in members if state.arrived[v] > open_]
            may_start = self._is_quorate(len(come), len({*come, *going_on}))
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

    def _initiator(self, round_: int, members: tuple[int, ...], going_on: Sequence[int]) -> int:
        """Who starts a group's round under `majority`: the member that is drawn, or the next one that goes on."""
        place = self._drawn(round_, members)
        ordered = members[place:] + members[:place]
        return next(v for v in ordered if v in going_on)

    def _drawn(self, round_: int, members: tuple[int, ...]) -> int:
        """The place of who starts a round under `majority`, drawn from the seed; evenly, and the same on all workers.

        The words keep these numbers apart from all others that come from a seed.
        """
        if self.initiators:
            return self.initiators[round_ % len(self.initiators)] % len(members)
        of_whom = "" if self.group_of is None else f", group of worker {members[0]}"
        words = f"partreduce quorum, seed {self.setting.seed}, round {round_}{of_whom}"
        return int.from_bytes(shake_256(words.encode()).digest(8)) % len(members)

    def awaited(self, process: int, state: PartialState) -> tuple[int, ...]:
        """Whose coming may start the open round, as far as this worker knows; else who may be in an earlier one."""
        members = self.members(process, state.entered)
        going_on = [v for v in members if state.lasts[v] == GOES_ON]
        if self.setting.quorum is QuorumStart.MAJORITY and going_on:
            return (self._initiator(state.entered, members, going_on),)
        missing = tuple(v for v in going_on if v != process and state.arrived[v] <= state.entered)
        return missing or self._others(process, state.entered)

    # The thread.

    def _may_begin(self, state: PartialState) -> bool:
        """Once it is activated, and nothing of this worker holds it up: no full queue, no model to be synchronised."""
        if state.entered not in state.activated:
            return False
        if self.setting.missed is not MissedResults.LATEST:
            return len(state.results) < self.setting.staleness
        every = self.setting.synchronise_every
        return not every or state.entered % every != 0 or state.synchronised == state.entered

    def _begun(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """What is there is taken along; what comes from now on waits for the next round."""
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

    def _shared(self, state: PartialState, source: int, share: Share) -> PartialState:
        """What a worker brings is kept for its round, in the order of rounds, unless it is known or that is done."""
        known = state.shares[source]
        if share.round < state.done or share.round in [other.round for other in known]:
            return state
        kept = tuple(sorted((*known, share), key=lambda other: other.round))
        return replace(state, shares=changed(state.shares, source, kept))

    def _is_summed(self, process: int, state: PartialState) -> bool:
        """Whether all members have entered the round that runs."""
        if not self.collective:
            return True
        members = self.members(process, state.done)
        return all(state.shares[v] and state.shares[v][0].round == state.done for v in members)

    def _finished(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """The result waits for the training, behind those before it or in their place."""
        members = self.members(process, state.done) if self.collective else ()
        counts = {v: len(state.shares[v][0].gradients) for v in members}
        result = Result(state.done, tuple(counts.values()))
        done = replace(
            state,
            done=state.done + 1,
            results=(result,) if self.setting.missed is MissedResults.LATEST else (*state.results, result),
            shares=tuple(known[1:] if v in counts else known for v, known in enumerate(state.shares)),
            counted=state.counted + counts.get(process, 0),
        )
        return done, (Note(("finished", result.round, result.counts)),)


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


def _activating(state: PartialState, rounds: set[int]) -> PartialState:
    return replace(state, activated=tuple(sorted({*state.activated, *rounds}))) if rounds else state


def _wanting(state: PartialState, round_: int) -> PartialState:
    return replace(state, wanted=round_ + 1) if round_ >= state.wanted else state
