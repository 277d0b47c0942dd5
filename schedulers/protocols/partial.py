"""Partial all-reduce (eager-SGD, PPoPP 2020): who starts a round, what it sums, who takes which result; no tensors.

A worker has two sides. Its *training* computes a gradient, calls (which adds it to the send buffer), and takes results.
Its *thread* takes part in the rounds, strictly 0, 1, 2, …: it enters a round once that has been activated, with what is
in the send buffer then, and is done with it when all threads have entered. Rounds are sums over all workers, so nobody
is more than a round ahead; what a worker computes during a round waits in its buffer for the next one.

Source: Li et al., Taming unbalanced training workloads in deep learning with partial collective operations, PPoPP
2020, section 4. Beyond it: results wait in a queue of limited length instead of being overwritten, a quorum may be any
number, and workers may end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import add

from partreduce.schedulers.protocols.base import Action, Note, Outcome, Received, Send, changed
from partreduce.schedulers.protocols.partial_sides import (
    COMPUTING,
    MEETING,
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
from partreduce.topo.strategies.quorum import Counting, MissedResults, Quorum, QuorumStart


@dataclass(frozen=True, slots=True)
class Here:
    """Message (`synchronise_every`): the sender's model waits to be averaged at the beginning of round `round`."""

    round: int


@dataclass(frozen=True, slots=True)
class PartialState(Sides):
    """One worker; what it makes are gradients.

    `activated` rounds may be entered. `counted[w]` are the gradients of w in all rounds done, `ended[w]` is whether w
    said in a round done that it has ended. `last` is the last round of all (−1: not known). `synchronised` is the round
    up to which models are, `here[w]` the one for which worker w waits.
    """

    activated: int = 0
    counted: tuple[int, ...] = ()
    ended: tuple[bool, ...] = ()
    last: int = -1
    synchronised: int = 0
    here: tuple[int, ...] = ()


@dataclass(frozen=True)
class Partial(TwoSided[PartialState]):
    """All workers of a job under one setting; a `Machine`.

    Its notes say what a driver has to carry out: `("begun", round, gradients)` snapshots and empties the send buffer;
    `("finished", round, counts)` has its sum; `("taken", rounds, version)` applies these results, ascending, or their
    sum, and is then so many rounds far; `("synchronised", round)` takes the mean of the models.

    How it ends: a worker without data counts as come once more, and says in all its shares that it has ended. Everybody
    learns that from the results, in the same round, so a quorum asks for those only that go on, and the first round in
    which all have said it is the last one.

    Args:
        setting: the quorum.
        num_workers: how many workers there are.
        calls: how many gradients each worker computes before it ends; None where a driver says when.
        initiators: who starts the rounds under `majority`, again and again; None draws them from the seed.
        collective: threads meet by `Share` messages; without it a thread may be done at any time after it has entered,
            for drivers that let them meet, and nobody ends.

    Raises:
        ScheduleError: settings that do not go with one another.
    """

    setting: Quorum
    num_workers: int
    calls: tuple[int, ...] | None = None
    initiators: tuple[int, ...] | None = None
    collective: bool = True
    _others: tuple[tuple[int, ...], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.setting.check()
        everybody = range(self.num_workers)
        object.__setattr__(self, "_others", tuple(tuple(v for v in everybody if v != w) for w in everybody))

    def start(self, process: int) -> Outcome[PartialState]:  # noqa: ARG002 - all start alike
        n = self.num_workers
        here = (0,) * n if self.setting.synchronise_every else ()
        none = (0,) * n
        return PartialState(shares=((),) * n, arrived=none, counted=none, ended=(False,) * n, here=here), ()

    def step(self, process: int, state: PartialState, event: object) -> Outcome[PartialState]:
        match event:
            case Call():
                return self._called(process, state)
            case End():
                return self._arrived(process, replace(state, resting=True))
            case Begin():
                return self._begun(process, state)
            case Finish():
                return self._finished(process, state)
            case Take():
                return self._taken(process, state)
            case Received(_, Activate(round_)):
                return replace(state, activated=max(state.activated, round_ + 1)), ()
            case Received(source, Arrived(round_)):
                known = max(state.arrived[source], round_ + 1)
                return self._started(process, replace(state, arrived=changed(state.arrived, source, known)))
            case Received(source, Share() as share):
                return self._shared(state, source, share), ()
            case Received(source, Here(round_)):
                return self._met(replace(state, here=changed(state.here, source, max(state.here[source], round_))))
        raise AssertionError(f"not an event of a partial all-reduce: {event}")

    # Training.

    def _called(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """A gradient joins the send buffer; its worker counts for the open round if the gradient does."""
        called = self._made(state)
        if self.setting.count is Counting.CALL and state.calls < state.entered:
            return called, ()  # its round has started without it
        return self._arrived(process, called)

    def _may_take(self, state: PartialState) -> bool:
        return state.stage != MEETING and super()._may_take(state)

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
        told = tuple(Send(v, Here(version)) for v in self._others[process])
        met, actions = self._met(waits)
        return met, (note, *told, *actions)

    def _met(self, state: PartialState) -> Outcome[PartialState]:
        """Once all models wait for it they are averaged."""
        if state.stage != MEETING or min(state.here) < state.version:
            return state, ()
        return replace(state, stage=COMPUTING, synchronised=state.version), (Note(("synchronised", state.version)),)

    # Who starts a round.

    def _arrived(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """The worker counts for the next round that its thread will enter, and tells those who count."""
        if state.arrived[process] > state.entered:
            return state, ()
        state = replace(state, arrived=changed(state.arrived, process, state.entered + 1))
        told: tuple[Action, ...] = ()
        if isinstance(self.setting.quorum, int):
            told = tuple(Send(v, Arrived(state.entered)) for v in self._others[process])
        started, actions = self._started(process, state)
        return started, (*told, *actions)

    def _started(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """Activate the next round if that is this worker's to do.

        Who has ended is known once the round before is done; only `solo` need not wait for that.
        """
        quorum, open_ = self.setting.quorum, state.entered
        if state.activated > open_ or (state.is_running and quorum is not QuorumStart.SOLO):
            return state, ()
        if isinstance(quorum, int):
            return (replace(state, activated=open_ + 1) if self._is_quorate(state) else state), ()
        if state.arrived[process] <= open_ or (quorum is QuorumStart.MAJORITY and self._initiator(state) != process):
            return state, ()
        return replace(state, activated=open_ + 1), tuple(Send(v, Activate(open_)) for v in self._others[process])

    def _is_quorate(self, state: PartialState) -> bool:
        """Whether enough of the workers that go on have come for the open round, or all of them."""
        come = [known > state.entered for known, gone in zip(state.arrived, state.ended, strict=True) if not gone]
        return bool(come) and sum(come) >= self.setting.needed(len(come))

    def _initiator(self, state: PartialState) -> int:
        """Who starts the open round under `majority`: the worker that is drawn, or the next by rank that goes on."""
        n = self.num_workers
        drawn = self._drawn(state.entered, n)
        return next((w % n for w in range(drawn, drawn + n) if not state.ended[w % n]), drawn)

    def awaited(self, process: int, state: PartialState) -> tuple[int, ...]:
        """Whose coming may start the open round, as far as this worker knows: one of them, or enough of them."""
        on = [w for w in range(self.num_workers) if w != process and not state.ended[w]]
        if self.setting.quorum is QuorumStart.MAJORITY:
            return (self._initiator(state),)
        return tuple(w for w in on if state.arrived[w] <= state.entered)

    # The thread.

    def _may_begin(self, state: PartialState) -> bool:
        """Once it is activated, and nothing of this worker holds it up."""
        if state.activated <= state.entered or state.last >= 0:
            return False
        if self.setting.missed is not MissedResults.LATEST:
            return len(state.results) < self.setting.staleness
        every = self.setting.synchronise_every
        return not every or state.entered % every != 0 or state.synchronised == state.entered

    def _begun(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """The send buffer is taken along and emptied."""
        share = Share(state.entered, state.buffer, state.oldest, state.resting)
        begun = replace(state, buffer=(), oldest=-1, entered=state.entered + 1)
        note = Note(("begun", share.round, share.gradients))
        if not self.collective:
            return begun, (note,)
        sent = tuple(Send(v, share) for v in self._others[process])
        return self._shared(begun, process, share), (*sent, note)

    def _is_summed(self, process: int, state: PartialState) -> bool:  # noqa: ARG002 - a round is of all
        return not self.collective or all(known and known[0].round == state.done for known in state.shares)

    def _finished(self, process: int, state: PartialState) -> Outcome[PartialState]:
        """The result waits for the training, behind those before it or in their place; the next round is open."""
        shares = [known[0] for known in state.shares] if self.collective else []
        counts = tuple(len(share.gradients) for share in shares)
        result = Result(state.done, counts)
        ended = tuple(share.ended for share in shares) or state.ended
        done = replace(
            state,
            done=state.done + 1,
            results=(result,) if self.setting.missed is MissedResults.LATEST else (*state.results, result),
            shares=tuple(known[1:] for known in state.shares),
            counted=tuple(map(add, state.counted, counts)) or state.counted,
            ended=ended,
            last=state.done if all(ended) else -1,
        )
        note = Note(("finished", *_of(result)))
        started, actions = (done, ()) if done.last >= 0 else self._started(process, done)
        return started, (note, *actions)

    def finished(self, process: int, state: PartialState) -> bool:  # noqa: ARG002 - as in Finishing
        return state.stage == COMPUTING and state.last == state.version - 1 >= 0  # known only once all rest


def partial_of(setting: Quorum, num_workers: int) -> Partial:
    """The machine of a schedule's quorum, without an end and with threads that a driver lets meet."""
    return Partial(setting, num_workers, collective=False)


def _of(result: Result) -> tuple[int, tuple[int, ...]]:
    return result.round, result.counts
