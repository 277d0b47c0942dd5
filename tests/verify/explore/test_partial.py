"""The partial all-reduce through every interleaving: all properties hold, and bugs seeded in it are all killed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.explore.partial_cases import FACTORS, LARGE, SMALL
from helpers import quorum_bugs
from partreduce.schedulers.protocols.base import Received, Send
from partreduce.schedulers.protocols.partial import Here, Partial
from partreduce.schedulers.protocols.partial_sides import COMPUTING, Activate, Arrived, End, Share

BY_NAME = {configuration.name: configuration for configuration in SMALL}
SOLO, SOLO_2 = "solo, C 1, 2 workers", "solo, C 2, 2 workers, at once"
SOLO_CALL, MAJORITY = "solo by call, C 1, 2 workers", "majority, C 1, 2 workers"
MAJORITY_3 = "majority, C 1, 3 workers, at once"
QUORUM, QUORUM_CALL = "2 of 3, C 1, at once", "2 of 3 by call, C 1, at once"
WILD = "2 of 2, C 1, reordered and doubled"
LATEST = "solo, latest, synchronised every 2, 2 workers, at once"
LATEST_CALL = "solo by call, latest, synchronised every 2, 2 workers"


class KeepsTheSendBuffer(Partial):
    """The send buffer is not emptied when a round starts."""

    def _begun(self, process, state):
        begun, actions = super()._begun(process, state)
        return replace(begun, buffer=state.buffer, oldest=state.oldest), actions


class EmptiesTheSendBufferUnseen(Partial):
    """The send buffer is emptied when a round starts, and the round has nothing of it."""

    def _begun(self, process, state):
        return super()._begun(process, replace(state, buffer=(), oldest=-1))


class DropsLateGradients(Partial):
    """A gradient that comes while a round runs is thrown away."""

    def _called(self, process, state):
        called, actions = super()._called(process, state)
        return (replace(called, buffer=state.buffer, oldest=state.oldest) if state.is_running else called), actions


class OverwritesTheSendBuffer(Partial):
    """A gradient replaces what is in the send buffer."""

    def _called(self, process, state):
        return super()._called(process, replace(state, buffer=(), oldest=-1))


class PassesTheSendBufferBy(Partial):
    """A round takes nothing of the send buffer, which waits for ever."""

    def _begun(self, process, state):
        begun, actions = super()._begun(process, replace(state, buffer=()))
        return replace(begun, buffer=state.buffer, oldest=state.oldest), actions


class ForgetsActivationsWhileARoundRuns(Partial):
    """Word that the next round starts is lost on a thread that is in a round."""

    def step(self, process, state, event):
        if isinstance(event, Received) and isinstance(event.message, Activate) and state.is_running:
            return state, ()
        return super().step(process, state, event)


class ForgetsActivationsThatComeEarly(Partial):
    """Only word of the very next round counts, so activation is not cumulative."""

    def step(self, process, state, event):
        if isinstance(event, Received) and isinstance(event.message, Activate) and event.message.round != state.entered:
            return state, ()
        return super().step(process, state, event)


class EveryActivationStartsARound(Partial):
    """An activation starts the next round, whichever it was for."""

    def step(self, process, state, event):
        if isinstance(event, Received) and isinstance(event.message, Activate):
            return replace(state, activated=max(state.activated, state.entered + 1)), ()
        return super().step(process, state, event)


class TellsOnlyOneWorker(Partial):
    """Word that a round starts goes to one worker only."""

    def _started(self, process, state):
        started, actions = super()._started(process, state)
        return started, actions[:1]


class TakesTheNewestFirst(Partial):
    """By call the newest result is taken, and those before it later."""

    def _taken(self, process, state):
        return super()._taken(process, replace(state, results=state.results[::-1]))


class TakesWithoutApplying(Partial):
    """All results leave the queue, and one of them counts as taken."""

    def _taken(self, process, state):
        taken, actions = super()._taken(process, state)
        return replace(taken, version=state.version + 1), actions


class LeavesTheResultInTheQueue(Partial):
    """A result that is taken stays in the queue."""

    def _taken(self, process, state):
        taken, actions = super()._taken(process, state)
        return replace(taken, results=state.results), actions


class LateCallsWaitForTheOpenRound(Partial):
    """A late worker waits for the round that its gradient joins, although results are there."""

    def _may_take(self, state):
        return super()._may_take(state) and (state.resting or state.done >= state.arrived[0])


class LateCallsDoNotCount(Partial):
    """A gradient that missed a round does not count for the open one."""

    def _called(self, process, state):
        called, actions = super()._called(process, state)
        return (called, actions) if state.entered == state.version else (replace(called, arrived=state.arrived), ())


class LateCallsCountThoughByCall(Partial):
    """By call a gradient whose round is over counts for the open one."""

    def _called(self, process, state):
        called, actions = super()._called(process, state)
        return self._arrived(process, called) if state.calls < state.entered else (called, actions)


class QuorumOneTooSmall(Partial):
    """A round starts when one worker fewer than the quorum has come."""

    def _is_quorate(self, state):
        come = [known > state.entered for known, gone in zip(state.arrived, state.ended, strict=True) if not gone]
        return sum(come) >= max(1, self.setting.needed(len(come)) - 1)


class QuorumOneTooLarge(Partial):
    """A round waits for one worker more than the quorum."""

    def _is_quorate(self, state):
        come = [known > state.entered for known, gone in zip(state.arrived, state.ended, strict=True) if not gone]
        return sum(come) >= min(self.setting.needed(len(come)) + 1, len(come)) and bool(come)


class QuorumCountsThoseOfTheRoundBefore(Partial):
    """Whoever came to the round before counts as well."""

    def _is_quorate(self, state):
        return super()._is_quorate(replace(state, arrived=tuple(known + 1 if known else 0 for known in state.arrived)))


class QuorumWaitsForTheEnded(Partial):
    """The quorum asks for as many workers when some have ended."""

    def _is_quorate(self, state):
        return sum(known > state.entered for known in state.arrived) >= self.setting.needed(self.num_workers)


class QuorumCountsOnlyWhenOneComes(Partial):
    """Arrivals during a round are not looked at again when it is over."""

    def _finished(self, process, state):
        done, actions = super()._finished(process, state)
        return replace(done, activated=state.activated), actions


class ArrivalsAreNotCumulative(Partial):
    """An arrival that was heard of late counts, and one for a later round is forgotten with it."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        if isinstance(event, Received) and isinstance(event.message, Arrived):
            arrived = list(after.arrived)
            arrived[event.source] = event.message.round + 1
            return replace(after, arrived=tuple(arrived)), actions
        return after, actions


class AnybodyStartsUnderMajority(Partial):
    """The first to come starts the round, drawn or not."""

    def _initiator(self, state):
        return next(w for w, known in enumerate(state.arrived) if known > state.entered)


class EverybodyDrawsForItself(Partial):
    """Workers draw from seeds of their own, so they differ on who starts a round."""

    def _started(self, process, state):
        self.own.append(process)
        started = super()._started(process, state)
        self.own.pop()
        return started

    own: list = []  # noqa: RUF012 - whose turn it is, while it lasts

    def _initiator(self, state):
        return (self.own[-1] + 1) % self.num_workers


class EndedWorkersAreDrawn(Partial):
    """A worker that has ended is drawn, and nobody takes its place."""

    def _initiator(self, state):
        return self.initiators[state.entered % len(self.initiators)]


class EndsWithoutAWord(Partial):
    """A worker that ends does not count as come, so nobody starts the round that says so."""

    def step(self, process, state, event):
        if isinstance(event, End):
            return replace(state, resting=True), ()
        return super().step(process, state, event)


class EndSaidTooEarly(Partial):
    """A worker says with its last gradient that it has ended, before it has."""

    def _begun(self, process, state):
        begun, actions = super()._begun(process, state)
        share = replace(begun.shares[process][-1], ended=state.calls == self.calls[process])
        shares = (*begun.shares[:process], (share,), *begun.shares[process + 1 :])
        sent = (replace(a, message=share) if isinstance(a, Send) else a for a in actions)
        return replace(begun, shares=shares), tuple(sent)


class EndsAlone(Partial):
    """A worker's thread stops once it has said that its worker has ended."""

    def _finished(self, process, state):
        done, actions = super()._finished(process, state)
        return (replace(done, last=state.done) if done.ended[process] else done), actions


class GoesOnAfterTheLastRound(Partial):
    """A thread enters one more round after the last one."""

    def _may_begin(self, state):
        if state.last >= 0:
            return state.entered == state.last + 1
        return super()._may_begin(state)


class SharesOfTheNextRoundAreLost(Partial):
    """What another worker brings to the next round is dropped by a thread that is still in the round before."""

    def _shared(self, state, source, share):
        return state if share.round > state.done and state.is_running else super()._shared(state, source, share)


class SumsWhatCameLast(Partial):
    """A share of the next round replaces that of the round that runs."""

    def _shared(self, state, source, share):
        shares = (*state.shares[:source], (replace(share, round=state.done),), *state.shares[source + 1 :])
        return replace(state, shares=shares)


class SumIsDoneWithoutTheLast(Partial):
    """A sum is over when one worker has not entered it."""

    def _is_summed(self, process, state):
        missing = [w for w, known in enumerate(state.shares) if not known or known[0].round != state.done]
        return len(missing) <= 1

    def _finished(self, process, state):
        empty = (Share(state.done, ()),)
        shares = tuple(known if known and known[0].round == state.done else empty + known for known in state.shares)
        return super()._finished(process, replace(state, shares=shares))


class OwnGradientsMissing(Partial):
    """A worker's own gradients are not in the sum that it takes."""

    def _finished(self, process, state):
        own = tuple(replace(share, gradients=()) for share in state.shares[process])
        return super()._finished(
            process, replace(state, shares=(*state.shares[:process], own, *state.shares[process + 1 :]))
        )


class OldShareCountsAgain(Partial):
    """A share that comes twice is kept for the next round."""

    def _shared(self, state, source, share):
        known = state.shares[source]
        if share.round < state.done or share in known:
            share = replace(share, round=share.round + 1)
        return super()._shared(state, source, share)


class RoundRunsTwice(Partial):
    """A round that was activated by two workers runs twice."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        is_late = isinstance(event, Received) and isinstance(event.message, Activate)
        if is_late and event.message.round < state.entered:
            return replace(after, activated=after.activated + 1), actions
        return after, actions


class SynchronisesAlone(Partial):
    """A worker does not wait for the models of the others."""

    def _met(self, state):
        return super()._met(replace(state, here=(state.version,) * self.num_workers))


class RoundsGoOnDuringASynchronisation(Partial):
    """A thread enters the next round before its model is synchronised."""

    def _may_begin(self, state):
        return super()._may_begin(replace(state, synchronised=state.entered))


class NeverSynchronises(Partial):
    """Workers pass the round at which models are to be synchronised."""

    def _taken(self, process, state):
        taken, actions = super()._taken(process, state)
        return replace(taken, stage=COMPUTING, synchronised=taken.version // 2 * 2), actions


class SynchronisesOncePerWorker(Partial):
    """Word of a model that waits is forgotten by a worker that does not wait yet."""

    def step(self, process, state, event):
        if isinstance(event, Received) and isinstance(event.message, Here) and event.message.round > state.version:
            return state, ()
        return super().step(process, state, event)


class LatestKeepsTheOldest(Partial):
    """A newer result is dropped while an older one waits."""

    def _finished(self, process, state):
        done, actions = super()._finished(process, state)
        return replace(done, results=(*state.results, *done.results)[:1]), actions


class ByCallTakesAll(Partial):
    """By call all results are taken at once, so a late worker calls less often."""

    def _taken(self, process, state):
        taken, actions = super()._taken(process, state)
        return replace(taken, results=(), version=state.done), actions


BUGS = {
    KeepsTheSendBuffer: SOLO, EmptiesTheSendBufferUnseen: SOLO, DropsLateGradients: SOLO,
    OverwritesTheSendBuffer: SOLO, PassesTheSendBufferBy: SOLO, ForgetsActivationsWhileARoundRuns: SOLO,
    ForgetsActivationsThatComeEarly: SOLO, EveryActivationStartsARound: SOLO, TellsOnlyOneWorker: MAJORITY_3,
    TakesTheNewestFirst: "majority by call, C 2, 2 workers", TakesWithoutApplying: SOLO_2,
    LeavesTheResultInTheQueue: SOLO, LateCallsWaitForTheOpenRound: SOLO, LateCallsDoNotCount: SOLO,
    LateCallsCountThoughByCall: SOLO_CALL, QuorumOneTooSmall: QUORUM, QuorumOneTooLarge: QUORUM,
    QuorumCountsThoseOfTheRoundBefore: QUORUM, QuorumWaitsForTheEnded: QUORUM, QuorumCountsOnlyWhenOneComes: QUORUM,
    ArrivalsAreNotCumulative: WILD, AnybodyStartsUnderMajority: MAJORITY, EverybodyDrawsForItself: MAJORITY,
    EndedWorkersAreDrawn: MAJORITY, EndsWithoutAWord: SOLO, EndSaidTooEarly: SOLO, EndsAlone: SOLO,
    GoesOnAfterTheLastRound: SOLO, SharesOfTheNextRoundAreLost: MAJORITY_3, SumsWhatCameLast: MAJORITY_3,
    SumIsDoneWithoutTheLast: SOLO, OwnGradientsMissing: SOLO, OldShareCountsAgain: WILD, RoundRunsTwice: SOLO,
    SynchronisesAlone: LATEST_CALL, RoundsGoOnDuringASynchronisation: LATEST, NeverSynchronises: LATEST_CALL,
    SynchronisesOncePerWorker: LATEST, LatestKeepsTheOldest: LATEST,
    ByCallTakesAll: "majority by call, C 2, 2 workers",
}  # fmt: skip
BOTH = {
    quorum_bugs.TellsNobody: MAJORITY, quorum_bugs.ComputesOnWithoutAResult: SOLO, quorum_bugs.QueueOneTooLong: SOLO_2,
    quorum_bugs.JoinsWithAFullQueue: SOLO_2, quorum_bugs.WaitsForAnEmptyQueue: SOLO_2,
    quorum_bugs.NewestResultReplacesOthers: SOLO_2,
}  # fmt: skip
BUGS |= {quorum_bugs.seeded(bug, Partial): where for bug, where in BOTH.items()}


@pytest.mark.parametrize("configuration", SMALL, ids=lambda c: c.name)
def test_all_properties_hold(configuration, record_property):
    found = configuration.run()
    record_property("states", found.states)
    assert found.holds, found


def test_names_are_told_apart():
    assert len({c.name for c in SMALL + LARGE}) == len(SMALL + LARGE)


def test_all_properties_hold_under_every_pair_of_circumstances():
    found = {configuration.name: configuration.run() for configuration in FACTORS.pairs()}
    assert [name for name, exploration in found.items() if not exploration.holds] == []
    assert sum(exploration.states for exploration in found.values()) == 63_037


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_seeded_bug_is_killed(bug):
    configuration = BY_NAME[BUGS[bug]]
    found = replace(configuration, max_states=6_000).run(configuration.of(bug))
    assert "fails" in [finding.verdict for finding in found.findings], f"{bug.__doc__} went unnoticed"
