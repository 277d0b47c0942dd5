"""Partial collectives through every interleaving: all properties hold, and bugs seeded in them are all killed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.explore.partial_cases import FACTORS, LARGE, SMALL
from partreduce.schedulers.protocols.base import Received, Send
from partreduce.schedulers.protocols.partial import Partial
from partreduce.schedulers.protocols.partial_state import (
    COMPUTING,
    GOES_ON,
    Activate,
    Arrived,
    End,
    Ended,
    Here,
    Share,
)
from partreduce.topo.strategies.quorum import QuorumStart

BY_NAME = {configuration.name: configuration for configuration in SMALL + LARGE}
SOLO, SOLO_2 = "solo, C 1, 2 workers", "solo, C 2, 2 workers, at once"
SOLO_CALL, MAJORITY = "solo by call, C 1, 2 workers", "majority, C 1, 2 workers"
MAJORITY_3, MAJORITY_CALL = "majority, C 1, 3 workers, at once", "majority by call, C 2, 2 workers"
LATEST = "solo, latest, synchronised every 2, 2 workers, at once"
LATEST_CALL = "solo by call, latest, synchronised every 2, 2 workers"
QUORUM, WILD = "2 of 3, C 1, at once", "2 of 2, C 1, reordered and doubled"
PAIR, PAIR_2, PAIR_WILD = "solo, C 1, a pair", "solo, C 2, a pair, at once", "solo, C 1, a pair, reordered and doubled"
CHAIN, CROSSED = "solo, C 1, a chain of 3, at once", "solo, C 1, crossed pairs, at once"
GROUP_MAJORITY, GROUP_QUORUM = "majority, C 1, a group of 3, at once", "2 in a group of 3, C 1, at once"
DELAYED = "2 in a group of 3, C 1, 4 calls"
NODES, NODES_2 = "solo, C 1, node-then-all, at once", "2, C 2, node-then-all, at once"


class PublishesTwice(Partial):
    """What was published stays in the buffer when a round begins."""

    def _begun(self, process, state):
        begun, actions = super()._begun(process, state)
        return replace(begun, buffer=state.buffer, oldest=state.oldest), actions


class LosesLateProgress(Partial):
    """What is published while a round runs is not in the next snapshot."""

    def _called(self, process, state):
        called, actions = super()._called(process, state)
        return (replace(called, buffer=state.buffer, oldest=state.oldest) if state.is_running else called), actions


class BringsNothing(Partial):
    """A late member brings its shadow of the round before, without what it has published since."""

    def _begun(self, process, state):
        return super()._begun(process, replace(state, buffer=(), oldest=-1))


class OverwritesTheSendBuffer(Partial):
    """A gradient replaces what is in the send buffer."""

    def _called(self, process, state):
        return super()._called(process, replace(state, buffer=(), oldest=-1))


class PassesTheSendBufferBy(Partial):
    """A round takes nothing of the send buffer, which waits for ever."""

    def _begun(self, process, state):
        begun, actions = super()._begun(process, replace(state, buffer=()))
        return replace(begun, buffer=state.buffer, oldest=state.oldest), actions


class ActivationsAreCumulative(Partial):
    """Word that a group's round starts starts other groups' rounds before it as well."""

    def _activated(self, process, state, source, round_):
        early = tuple(range(state.entered, round_ + 1))
        return super()._activated(process, replace(state, activated=early), source, round_)


class ForgetsActivationsWhileARoundRuns(Partial):
    """Word that the next round starts is lost on a thread that is in a round."""

    def step(self, process, state, event):
        if isinstance(event, Received) and isinstance(event.message, Activate) and state.is_running:
            return state, ()
        return super().step(process, state, event)


class ForgetsActivationsThatComeEarly(Partial):
    """Word of a round that is not the next one is lost."""

    def _activated(self, process, state, source, round_):
        return super()._activated(process, state, source, round_) if round_ == state.entered else (state, ())


class EveryActivationStartsARound(Partial):
    """An activation starts the next round, whichever it was for."""

    def _activated(self, process, state, source, round_):
        return super()._activated(process, state, source, max(round_, state.entered))


class TellsNobody(Partial):
    """Who starts a round keeps it to itself."""

    def _started(self, process, state):
        started, _ = super()._started(process, state)
        return started, ()


class TellsOnlyOneWorker(Partial):
    """Word that a round starts goes to one worker only."""

    def _started(self, process, state):
        started, actions = super()._started(process, state)
        return started, actions[:1]


class TellsTheGroupBefore(Partial):
    """Word of a start goes to the members of the round before."""

    def _started(self, process, state):
        started, actions = super()._started(process, state)
        members = self.members(process, max(state.entered - 1, 0))
        return started, tuple(a for a in actions if isinstance(a, Send) and a.to in members)


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


class ComputesOnWithoutAResult(Partial):
    """A worker that has called goes on computing at once."""

    def _called(self, process, state):
        called, actions = super()._called(process, state)
        return replace(called, stage=COMPUTING), actions


class QueueOneTooLong(Partial):
    """One result more than C may wait."""

    def _may_begin(self, state):
        return super()._may_begin(replace(state, results=state.results[1:]))


class JoinsWithAFullQueue(Partial):
    """A worker whose queue is full joins the next round."""

    def _may_begin(self, state):
        return super()._may_begin(replace(state, results=()))


class WaitsForAnEmptyQueue(Partial):
    """A worker joins no round while any result waits."""

    def _may_begin(self, state):
        return super()._may_begin(state) and not state.results


class NewestResultReplacesOthers(Partial):
    """Results overwrite one another although each is to be applied: a correction is lost."""

    def _finished(self, process, state):
        done, actions = super()._finished(process, state)
        return replace(done, results=done.results[-1:]), actions


class LateCallsWaitForTheOpenRound(Partial):
    """A late worker waits for the round that its gradient joins, although results are there."""

    def _may_take(self, state):
        return super()._may_take(state) and (state.resting or state.done >= state.arrived[0])


class LateOnesDoNotCount(Partial):
    """Progress that missed a round does not count for the open one."""

    def _called(self, process, state):
        called, actions = super()._called(process, state)
        return (called, actions) if state.entered == state.version else (replace(called, arrived=state.arrived), ())


class LateCallsCountThoughByCall(Partial):
    """By call a gradient whose round is over counts for the open one."""

    def _called(self, process, state):
        called, actions = super()._called(process, state)
        return self._come(process, called) if state.calls < state.entered else (called, actions)


class QuorumOneTooSmall(Partial):
    """A group starts when one member fewer than the quorum has come."""

    def _is_quorate(self, come, counted):
        return come >= max(1, self.setting.needed(counted) - 1)


class QuorumOneTooLarge(Partial):
    """A group waits for one member more than the quorum."""

    def _is_quorate(self, come, counted):
        return come >= min(self.setting.needed(counted) + 1, counted)


class QuorumOfTheWholeSystem(Partial):
    """Arrivals of workers outside the group count."""

    def _started(self, process, state):
        open_ = state.entered
        if open_ not in state.activated and sum(known > 0 for known in state.arrived) >= 2:
            state = replace(state, activated=(*state.activated, open_))
        return super()._started(process, state)


class QuorumNotOfTheSmallGroup(Partial):
    """A group that is smaller than the quorum waits for as many all the same."""

    def _is_quorate(self, come, counted):
        return come >= self.setting.quorum


class WhoHasEndedNoLongerCounts(Partial):
    """A member that has come and ended since is not counted, so members differ on whether a quorum is there."""

    def _started(self, process, state):
        arrived = tuple(0 if last != GOES_ON else known for known, last in zip(state.arrived, state.lasts, strict=True))
        started, actions = super()._started(process, replace(state, arrived=arrived))
        return replace(started, arrived=state.arrived), actions


class QuorumWaitsForTheEnded(Partial):
    """Ended members are asked for like others."""

    def _started(self, process, state):
        return super()._started(process, replace(state, lasts=(GOES_ON,) * self.num_workers))


class EndedAreDrawn(Partial):
    """A member that has ended is drawn, and nobody takes its place."""

    def _initiator(self, round_, members, going_on):
        return super()._initiator(round_, members, list(members))


class AnybodyStartsUnderMajority(Partial):
    """The first to come starts the round, drawn or not."""

    def _started(self, process, state):
        solo = replace(self.setting, quorum=QuorumStart.SOLO)
        return Partial(solo, self.num_workers, group_of=self.group_of)._started(process, state)


class EverybodyDrawsForItself(Partial):
    """Workers draw from seeds of their own, so they differ on who starts a round."""

    def _started(self, process, state):
        self.own.append(process)
        started = super()._started(process, state)
        self.own.pop()
        return started

    own: list = []  # noqa: RUF012 - whose turn it is, while it lasts

    def _initiator(self, round_, members, going_on):
        return members[(self.own[-1] + 1) % len(members)]


class ArrivalsOfAnEarlierRoundCount(Partial):
    """Whoever came for the round before counts for the open one."""

    def _started(self, process, state):
        arrived = tuple(known + 1 if known else 0 for known in state.arrived)
        started, actions = super()._started(process, replace(state, arrived=arrived))
        return replace(started, arrived=state.arrived), actions


class ArrivalsAreNotCumulative(Partial):
    """An arrival that was heard of late counts, and one for a later round is forgotten with it."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        if isinstance(event, Received) and isinstance(event.message, Arrived):
            arrived = list(after.arrived)
            arrived[event.source] = event.message.round + 1
            return replace(after, arrived=tuple(arrived)), actions
        return after, actions


class RestsPassAtOnce(Partial):
    """A worker that rests in a round passes it without a call of its own."""

    def _started(self, process, state):
        if self.members(process, state.entered) == (process,):
            state = replace(state, activated=tuple(sorted({*state.activated, state.entered})))
        return super()._started(process, state)


class MeansOfThoseThatAreThere(Partial):
    """A sum is over when one member has not entered it."""

    def _is_summed(self, process, state):
        members = self.members(process, state.done)
        missing = [v for v in members if not state.shares[v] or state.shares[v][0].round != state.done]
        return len(missing) <= (len(members) > 1)

    def _finished(self, process, state):
        empty = (Share(state.done, ()),)
        shares = tuple(known if known and known[0].round == state.done else empty + known for known in state.shares)
        return super()._finished(process, replace(state, shares=shares))


class EarlySharesAreLost(Partial):
    """What a member brings to a round that this worker is not in yet is dropped."""

    def _shared(self, state, source, share):
        return state if share.round >= state.entered else super()._shared(state, source, share)


class SharesOfTheNextRoundAreLost(Partial):
    """What another worker brings to the next round is dropped by a thread that is still in the round before."""

    def _shared(self, state, source, share):
        return state if share.round > state.done and state.is_running else super()._shared(state, source, share)


class SharesOfTwoRoundsAreMixed(Partial):
    """What a member brings to a later round is taken for the round that runs."""

    def _shared(self, state, source, share):
        return super()._shared(
            state, source, replace(share, round=max(state.done, min(share.round, state.entered - 1)))
        )


class SumsWhatCameLast(Partial):
    """A share of the next round replaces that of the round that runs."""

    def _shared(self, state, source, share):
        shares = (*state.shares[:source], (replace(share, round=state.done),), *state.shares[source + 1 :])
        return replace(state, shares=shares)


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
        if share.round < state.done or share in state.shares[source]:
            share = replace(share, round=share.round + 1)
        return super()._shared(state, source, share)


class RoundRunsTwice(Partial):
    """A round that was activated by two workers runs twice."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        is_late = isinstance(event, Received) and isinstance(event.message, Activate)
        if is_late and event.message.round < state.entered:
            return replace(after, activated=(state.entered, *after.activated)), actions
        return after, actions


class EndsWithoutAWord(Partial):
    """A worker that ends tells nobody."""

    def _ended(self, process, state):
        return super()._ended(process, state)[0], ()


class TellsItsGroupOnly(Partial):
    """A worker that ends tells the members of its open round only."""

    def _ended(self, process, state):
        ended, actions = super()._ended(process, state)
        members = self.members(process, state.entered)
        return ended, tuple(a for a in actions if a.to in members)


class SaysTheRoundsDone(Partial):
    """A worker that ends needs the rounds that are done, not the one that its last progress waits for."""

    def _ended(self, process, state):
        arrived = (*state.arrived[:process], state.done, *state.arrived[process + 1 :])
        ended, actions = super()._ended(process, replace(state, arrived=arrived))
        return replace(ended, arrived=state.arrived), actions


class EndsAtTheFirstWord(Partial):
    """The last round is the one that was heard of last, not the largest."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        if isinstance(event, Received) and isinstance(event.message, Ended):
            lasts = tuple(known if known == GOES_ON else event.message.round for known in after.lasts)
            return replace(after, lasts=lasts), actions
        return after, actions


class EndedGroupsGoOn(Partial):
    """A group whose members have all ended starts one round after another, needed or not."""

    def _started(self, process, state):
        members = self.members(process, state.entered)
        if GOES_ON not in [state.lasts[v] for v in members]:
            state = replace(state, wanted=max(state.wanted, state.entered + 1))
        return super()._started(process, state)


class EndedGroupsRest(Partial):
    """A group whose members have all ended starts nothing more."""

    def _started(self, process, state):
        members = self.members(process, state.entered)
        return super()._started(process, state) if GOES_ON in [state.lasts[v] for v in members] else (state, ())


class NeedsAreForgotten(Partial):
    """That a later round is needed is not kept by a worker that is in an earlier one."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        is_later = isinstance(event, Received) and isinstance(event.message, Activate | Arrived)
        if is_later and event.message.round > state.entered:
            return replace(after, wanted=state.wanted), actions
        return after, actions


class LooksOnlyWhenItComes(Partial):
    """What is known of the next round is not looked at when the thread gets there."""

    def _begun(self, process, state):
        begun, actions = super()._begun(process, state)
        told = tuple(a for a in actions if not (isinstance(a, Send) and isinstance(a.message, Activate)))
        return replace(begun, activated=tuple(r for r in state.activated if r > state.entered)), told


class EndIsNotLookedAt(Partial):
    """That a member has ended does not start a round that waited for it."""

    def step(self, process, state, event):
        if isinstance(event, Received) and isinstance(event.message, Ended):
            lasts = (*state.lasts[: event.source], event.message.round, *state.lasts[event.source + 1 :])
            return replace(state, lasts=lasts, wanted=max(state.wanted, event.message.round + 1)), ()
        return super().step(process, state, event)


class EndSaidTooEarly(Partial):
    """A worker says with its last call that it has ended, before it comes."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        if isinstance(event, End):
            return after, actions
        if after.calls == self.calls[process] > state.calls:
            early = tuple(Send(v, Ended(state.entered - 1)) for v in range(self.num_workers) if v != process)
            return after, (*early, *actions)
        return after, actions


class EndsAlone(Partial):
    """A worker's thread enters no more rounds once it has said that its worker has ended."""

    def _may_begin(self, state):
        return super()._may_begin(state) and not (state.resting and not state.buffer)


class GoesOnAfterTheLastRound(Partial):
    """A thread enters one more round after the last one."""

    def _may_begin(self, state):
        return super()._may_begin(state) or (state.last is not None and state.entered == state.last + 1)


class LeftoversDoNotCountAtTheEnd(Partial):
    """By call a gradient that has missed its round is in no later one if its worker ends."""

    def _ended(self, process, state):
        ended, actions = super()._ended(process, replace(state, buffer=()))
        return replace(ended, buffer=state.buffer), actions


class RoundsBeforeOfOthersStart(Partial):
    """Word of a later round is taken to say that all rounds before it have started, whoever is in them."""

    def _entered(self, process, state, source, round_):
        return replace(state, activated=tuple(sorted({*state.activated, *range(state.entered, round_)})))


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
    PublishesTwice: (SOLO, PAIR), LosesLateProgress: (SOLO, PAIR), BringsNothing: (SOLO, PAIR),
    OverwritesTheSendBuffer: (SOLO,), PassesTheSendBufferBy: (SOLO,), ActivationsAreCumulative: (CHAIN,),
    ForgetsActivationsWhileARoundRuns: (SOLO,), ForgetsActivationsThatComeEarly: (SOLO, CHAIN),
    EveryActivationStartsARound: (SOLO,), TellsNobody: (MAJORITY, PAIR), TellsOnlyOneWorker: (MAJORITY_3,),
    TellsTheGroupBefore: (CROSSED,), TakesTheNewestFirst: (MAJORITY_CALL,), TakesWithoutApplying: (SOLO_2,),
    LeavesTheResultInTheQueue: (SOLO,), ComputesOnWithoutAResult: (SOLO, PAIR), QueueOneTooLong: (SOLO_2, PAIR_2),
    JoinsWithAFullQueue: (SOLO_2, PAIR_2), WaitsForAnEmptyQueue: (SOLO_2, PAIR_2),
    NewestResultReplacesOthers: (SOLO_2, PAIR_2), LateCallsWaitForTheOpenRound: (SOLO,),
    LateOnesDoNotCount: (SOLO, PAIR), LateCallsCountThoughByCall: (SOLO_CALL,),
    QuorumOneTooSmall: (QUORUM, GROUP_QUORUM), QuorumOneTooLarge: (QUORUM, GROUP_QUORUM),
    QuorumOfTheWholeSystem: (NODES_2,), QuorumNotOfTheSmallGroup: (GROUP_QUORUM,),
    WhoHasEndedNoLongerCounts: (DELAYED,), QuorumWaitsForTheEnded: (QUORUM, GROUP_QUORUM),
    EndedAreDrawn: (MAJORITY, GROUP_MAJORITY), AnybodyStartsUnderMajority: (MAJORITY, GROUP_MAJORITY),
    EverybodyDrawsForItself: (MAJORITY,), ArrivalsOfAnEarlierRoundCount: (QUORUM, GROUP_QUORUM),
    ArrivalsAreNotCumulative: (WILD,), RestsPassAtOnce: (CHAIN,), MeansOfThoseThatAreThere: (SOLO, PAIR),
    EarlySharesAreLost: (PAIR,), SharesOfTheNextRoundAreLost: (MAJORITY_3,), SharesOfTwoRoundsAreMixed: (PAIR,),
    SumsWhatCameLast: (MAJORITY_3,), OwnGradientsMissing: (SOLO,), OldShareCountsAgain: (WILD, PAIR_WILD),
    RoundRunsTwice: (SOLO,), EndsWithoutAWord: (SOLO, PAIR), TellsItsGroupOnly: (CHAIN,), SaysTheRoundsDone: (CHAIN,),
    EndsAtTheFirstWord: (CHAIN,), EndedGroupsGoOn: (NODES,), EndedGroupsRest: (NODES,), NeedsAreForgotten: (NODES,),
    LooksOnlyWhenItComes: (QUORUM, CHAIN), EndIsNotLookedAt: (GROUP_MAJORITY,), EndSaidTooEarly: (SOLO, PAIR),
    EndsAlone: (SOLO,), GoesOnAfterTheLastRound: (SOLO,), LeftoversDoNotCountAtTheEnd: (SOLO_CALL,),
    RoundsBeforeOfOthersStart: (CHAIN,), SynchronisesAlone: (LATEST_CALL,), RoundsGoOnDuringASynchronisation: (LATEST,),
    NeverSynchronises: (LATEST_CALL,), SynchronisesOncePerWorker: (LATEST,), LatestKeepsTheOldest: (LATEST,),
    ByCallTakesAll: (MAJORITY_CALL,),
}  # fmt: skip


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
    assert sum(exploration.states for exploration in found.values()) == 63_042


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_seeded_bug_is_killed(bug):
    for name in BUGS[bug]:
        configuration = BY_NAME[name]
        enough = 60_000 if name is DELAYED else 6_000
        found = replace(configuration, max_states=enough).run(configuration.of(bug))
        assert "fails" in [finding.verdict for finding in found.findings], f"{bug.__doc__} went unnoticed in {name}"
