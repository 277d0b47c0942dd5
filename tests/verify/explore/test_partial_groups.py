"""Partial averaging in groups through every interleaving: all properties hold, and bugs seeded in it are all killed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.explore.partial_groups_cases import LARGE, SMALL
from helpers import quorum_bugs
from partreduce.schedulers.protocols.base import Received, Send
from partreduce.schedulers.protocols.partial_groups import GOES_ON, Ended, PartialGroups
from partreduce.schedulers.protocols.partial_sides import Activate, Arrived, End, Share
from partreduce.topo.strategies.quorum import QuorumStart

BY_NAME = {configuration.name: configuration for configuration in SMALL + LARGE}
SOLO, SOLO_2 = "solo, C 1, a pair", "solo, C 2, a pair, at once"
CHAIN, CROSSED = "solo, C 1, a chain of 3, at once", "solo, C 1, crossed pairs, at once"
DELAYED = "2 of 3, C 1, 4 calls"
MAJORITY, QUORUM = "majority, C 1, 3 workers, at once", "2 of 3, C 1, at once"
NODES, NODES_MAJORITY = "solo, C 1, node-then-all, at once", "majority, C 1, node-then-all, at once"
NODES_2 = "2, C 2, node-then-all, at once"
WILD = "solo, C 1, a pair, reordered and doubled"


class PublishesTwice(PartialGroups):
    """What was published stays in the buffer when a round begins."""

    def _begun(self, process, state):
        begun, actions = super()._begun(process, state)
        return replace(begun, buffer=state.buffer, oldest=state.oldest), actions


class LosesLateProgress(PartialGroups):
    """What is published while a round runs is not in the next snapshot."""

    def _called(self, process, state):
        called, actions = super()._called(process, state)
        return (replace(called, buffer=state.buffer, oldest=state.oldest) if state.is_running else called), actions


class BringsNothing(PartialGroups):
    """A late member brings its shadow of the round before, without what it has published since."""

    def _begun(self, process, state):
        return super()._begun(process, replace(state, buffer=(), oldest=-1))


class ActivationsAreCumulative(PartialGroups):
    """Word that a group's round starts starts other groups' rounds before it as well."""

    def _activated(self, process, state, source, round_):
        early = tuple(range(state.entered, round_ + 1))
        return super()._activated(process, replace(state, activated=early), source, round_)


class ForgetsActivationsThatComeEarly(PartialGroups):
    """Word of a round that is not the next one is lost."""

    def _activated(self, process, state, source, round_):
        return super()._activated(process, state, source, round_) if round_ == state.entered else (state, ())


class TellsTheGroupBefore(PartialGroups):
    """Word of a start goes to the members of the round before."""

    def _started(self, process, state):
        started, actions = super()._started(process, state)
        members = self.group_of(process, max(state.entered - 1, 0))
        return started, tuple(a for a in actions if isinstance(a, Send) and a.to in members)


class QuorumOneTooSmall(PartialGroups):
    """A group starts when one member fewer than the quorum has come."""

    def _is_quorate(self, come, counted):
        return come >= max(1, self.setting.needed(counted) - 1)


class QuorumOneTooLarge(PartialGroups):
    """A group waits for one member more than the quorum."""

    def _is_quorate(self, come, counted):
        return come >= min(self.setting.needed(counted) + 1, counted)


class QuorumOfTheWholeSystem(PartialGroups):
    """Arrivals of workers outside the group count."""

    def _started(self, process, state):
        open_ = state.entered
        if open_ not in state.activated and sum(known > 0 for known in state.arrived) >= 2:
            state = replace(state, activated=(*state.activated, open_))
        return super()._started(process, state)


class QuorumNotOfTheSmallGroup(PartialGroups):
    """A group that is smaller than the quorum waits for as many all the same."""

    def _is_quorate(self, come, counted):
        return come >= self.setting.quorum


class WhoHasEndedNoLongerCounts(PartialGroups):
    """A member that has come and ended since is not counted, so members differ on whether a quorum is there."""

    def _started(self, process, state):
        arrived = tuple(0 if last != GOES_ON else known for known, last in zip(state.arrived, state.lasts, strict=True))
        started, actions = super()._started(process, replace(state, arrived=arrived))
        return replace(started, arrived=state.arrived), actions


class QuorumWaitsForTheEnded(PartialGroups):
    """Ended members are asked for like others."""

    def _started(self, process, state):
        return super()._started(process, replace(state, lasts=(GOES_ON,) * self.num_workers))


class EndedAreDrawn(PartialGroups):
    """A member that has ended is drawn, and nobody takes its place."""

    def _initiator(self, round_, members, going_on):
        return super()._initiator(round_, members, list(members))


class AnybodyStartsUnderMajority(PartialGroups):
    """The first to come starts the round, drawn or not."""

    def _started(self, process, state):
        return PartialGroups(
            replace(self.setting, quorum=QuorumStart.SOLO), self.num_workers, self.group_of
        )._started(process, state)  # fmt: skip


class ArrivalsOfAnEarlierRoundCount(PartialGroups):
    """Whoever came for the round before counts for the open one."""

    def _started(self, process, state):
        arrived = tuple(known + 1 if known else 0 for known in state.arrived)
        started, actions = super()._started(process, replace(state, arrived=arrived))
        return replace(started, arrived=state.arrived), actions


class LateOnesDoNotCount(PartialGroups):
    """Progress that missed a round does not count for the open one."""

    def _called(self, process, state):
        called, actions = super()._called(process, state)
        return (called, actions) if state.entered == state.version else (replace(called, arrived=state.arrived), ())


class RestsPassAtOnce(PartialGroups):
    """A worker that rests in a round passes it without a call of its own."""

    def _started(self, process, state):
        if self.group_of(process, state.entered) == (process,):
            state = replace(state, activated=tuple(sorted({*state.activated, state.entered})))
        return super()._started(process, state)


class MeansOfThoseThatAreThere(PartialGroups):
    """A sum is over when one member has not entered it."""

    def _is_summed(self, process, state):
        members = self.group_of(process, state.done)
        missing = [v for v in members if not state.shares[v] or state.shares[v][0].round != state.done]
        return len(missing) <= (len(members) > 1)

    def _finished(self, process, state):
        empty = (Share(state.done, ()),)
        shares = tuple(known if known and known[0].round == state.done else empty + known for known in state.shares)
        return super()._finished(process, replace(state, shares=shares))


class EarlySharesAreLost(PartialGroups):
    """What a member brings to a round that this worker is not in yet is dropped."""

    def _shared(self, state, source, share):
        return state if share.round >= state.entered else super()._shared(state, source, share)


class SharesOfTwoRoundsAreMixed(PartialGroups):
    """What a member brings to a later round is taken for the round that runs."""

    def _shared(self, state, source, share):
        return super()._shared(
            state, source, replace(share, round=max(state.done, min(share.round, state.entered - 1)))
        )


class RoundsBeforeOfOthersStart(PartialGroups):
    """Word of a later round is taken to say that all rounds before it have started, whoever is in them."""

    def _entered(self, process, state, source, round_):
        return replace(state, activated=tuple(sorted({*state.activated, *range(state.entered, round_)})))


class EndsWithoutAWord(PartialGroups):
    """A worker that ends tells nobody."""

    def _ended(self, process, state):
        return super()._ended(process, state)[0], ()


class TellsItsGroupOnly(PartialGroups):
    """A worker that ends tells the members of its open round only."""

    def _ended(self, process, state):
        ended, actions = super()._ended(process, state)
        members = self.group_of(process, state.entered)
        return ended, tuple(a for a in actions if a.to in members)


class SaysTheRoundsDone(PartialGroups):
    """A worker that ends needs the rounds that are done, not the one that its last progress waits for."""

    def _ended(self, process, state):
        arrived = (*state.arrived[:process], state.done, *state.arrived[process + 1 :])
        ended, actions = super()._ended(process, replace(state, arrived=arrived))
        return replace(ended, arrived=state.arrived), actions


class EndsAtTheFirstWord(PartialGroups):
    """The last round is the one that was heard of last, not the largest."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        if isinstance(event, Received) and isinstance(event.message, Ended):
            lasts = tuple(known if known == GOES_ON else event.message.round for known in after.lasts)
            return replace(after, lasts=lasts), actions
        return after, actions


class EndedGroupsGoOn(PartialGroups):
    """A group whose members have all ended starts one round after another, needed or not."""

    def _started(self, process, state):
        members = self.group_of(process, state.entered)
        if GOES_ON not in [state.lasts[v] for v in members]:
            state = replace(state, wanted=max(state.wanted, state.entered + 1))
        return super()._started(process, state)


class EndedGroupsRest(PartialGroups):
    """A group whose members have all ended starts nothing more."""

    def _started(self, process, state):
        members = self.group_of(process, state.entered)
        return super()._started(process, state) if GOES_ON in [state.lasts[v] for v in members] else (state, ())


class NeedsAreForgotten(PartialGroups):
    """That a later round is needed is not kept by a worker that is in an earlier one."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        is_later = isinstance(event, Received) and isinstance(event.message, Activate | Arrived)
        if is_later and event.message.round > state.entered:
            return replace(after, wanted=state.wanted), actions
        return after, actions


class LooksOnlyWhenItComes(PartialGroups):
    """What is known of the next round is not looked at when the thread gets there."""

    def _begun(self, process, state):
        begun, actions = super()._begun(process, state)
        told = tuple(a for a in actions if not (isinstance(a, Send) and isinstance(a.message, Activate)))
        return replace(begun, activated=tuple(r for r in state.activated if r > state.entered)), told


class EndIsNotLookedAt(PartialGroups):
    """That a member has ended does not start a round that waited for it."""

    def step(self, process, state, event):
        if isinstance(event, Received) and isinstance(event.message, Ended):
            lasts = (*state.lasts[: event.source], event.message.round, *state.lasts[event.source + 1 :])
            return replace(state, lasts=lasts, wanted=max(state.wanted, event.message.round + 1)), ()
        return super().step(process, state, event)


class EndSaidTooEarly(PartialGroups):
    """A worker says with its last call that it has ended, before it comes."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        if isinstance(event, End):
            return after, actions
        if after.calls == self.calls[process] > state.calls:
            early = tuple(Send(v, Ended(state.entered - 1)) for v in range(self.num_workers) if v != process)
            return after, (*early, *actions)
        return after, actions


class OldShareCountsAgain(PartialGroups):
    """A share that comes twice is kept for the next round."""

    def _shared(self, state, source, share):
        if share.round < state.done or share in state.shares[source]:
            share = replace(share, round=share.round + 1)
        return super()._shared(state, source, share)


BUGS = {
    PublishesTwice: SOLO, LosesLateProgress: SOLO, BringsNothing: SOLO, ActivationsAreCumulative: CHAIN,
    ForgetsActivationsThatComeEarly: CHAIN, TellsTheGroupBefore: CROSSED, QuorumOneTooSmall: QUORUM,
    QuorumOneTooLarge: QUORUM, QuorumOfTheWholeSystem: NODES_2, QuorumNotOfTheSmallGroup: QUORUM,
    WhoHasEndedNoLongerCounts: DELAYED, QuorumWaitsForTheEnded: QUORUM, EndedAreDrawn: MAJORITY,
    AnybodyStartsUnderMajority: MAJORITY, ArrivalsOfAnEarlierRoundCount: QUORUM, LateOnesDoNotCount: SOLO,
    RestsPassAtOnce: CHAIN, MeansOfThoseThatAreThere: SOLO, EarlySharesAreLost: SOLO, SharesOfTwoRoundsAreMixed: SOLO,
    EndsWithoutAWord: SOLO, TellsItsGroupOnly: CHAIN, SaysTheRoundsDone: CHAIN, EndsAtTheFirstWord: CHAIN,
    EndedGroupsGoOn: NODES, EndedGroupsRest: NODES, NeedsAreForgotten: NODES, LooksOnlyWhenItComes: CHAIN,
    EndIsNotLookedAt: MAJORITY, EndSaidTooEarly: SOLO, RoundsBeforeOfOthersStart: CHAIN, OldShareCountsAgain: WILD,
}  # fmt: skip
BOTH = {
    quorum_bugs.TellsNobody: SOLO, quorum_bugs.ComputesOnWithoutAResult: SOLO, quorum_bugs.QueueOneTooLong: SOLO_2,
    quorum_bugs.JoinsWithAFullQueue: SOLO_2, quorum_bugs.WaitsForAnEmptyQueue: SOLO_2,
    quorum_bugs.NewestResultReplacesOthers: SOLO_2,
}  # fmt: skip
BUGS |= {quorum_bugs.seeded(bug, PartialGroups): where for bug, where in BOTH.items()}


@pytest.mark.parametrize("configuration", SMALL, ids=lambda c: c.name)
def test_all_properties_hold(configuration, record_property):
    found = configuration.run()
    record_property("states", found.states)
    assert found.holds, found


def test_names_are_told_apart():
    assert len({c.name for c in SMALL + LARGE}) == len(SMALL + LARGE)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_seeded_bug_is_killed(bug):
    configuration = BY_NAME[BUGS[bug]]
    enough = 60_000 if BUGS[bug] is DELAYED else 6_000
    found = replace(configuration, max_states=enough).run(configuration.of(bug))
    assert "fails" in [finding.verdict for finding in found.findings], f"{bug.__doc__} went unnoticed"
