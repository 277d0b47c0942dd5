"""Bugs seeded in Hop's worker, each a machine that differs in one decision: the explorer kills all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.explore.hop_cases import SMALL
from benchmarks.explore.reductions import Hop
from partreduce.schedulers.protocols.base import Received, Send
from partreduce.schedulers.protocols.hop import ENTERING, REDUCING, Ack, Advance, Reduce, SendUpdate, Token, Update
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.gap import Reducing
from partreduce.verify.gap_bounds import exact_bounds


class TokenQueueStartsOneTooFull(Hop):
    """Token queues start with max_ig + 1 tokens."""

    def start(self, process):
        state, actions = super().start(process)
        return replace(state, tokens=tuple(t + 1 for t in state.tokens)), actions


class TokenQueueStartsOneTooEmpty(Hop):
    """Token queues start with max_ig − 1 tokens."""

    def start(self, process):
        state, actions = super().start(process)
        return replace(state, tokens=tuple(t - 1 for t in state.tokens)), actions


class EntersOnAnEmptyTokenQueue(Hop):
    """A worker may owe one token when it enters a step."""

    def ready(self, process, state):
        return super().ready(process, replace(state, tokens=tuple(t + 1 for t in state.tokens)))


class TokenLostOnAJump(Hop):
    """A worker that skips d steps gives 1 token instead of d."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        return after, tuple(
            Send(a.to, Token(1)) if isinstance(a, Send) and isinstance(a.message, Token) else a for a in actions
        )


class TokenForOneNeighbourOnly(Hop):
    """The tokens of a step go to the first in-neighbour only."""

    dies_in = "backup (1,0,1), tokens max_ig 1, undirected ring of 3"

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        first = self.graph.sources[process][0]
        return after, tuple(
            a for a in actions if not (isinstance(a, Send) and isinstance(a.message, Token) and a.to != first)
        )


class TokenNotTaken(Hop):
    """Entering a step takes no token out of the queues."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        return (replace(after, tokens=state.tokens) if isinstance(event, Advance) else after), actions


class JumpTakesOneToken(Hop):
    """A skip of d steps takes 1 token instead of d."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        if isinstance(event, Advance):
            after = replace(after, tokens=tuple(t - 1 for t in state.tokens))
        return after, actions


class StaleUpdateAccepted(Hop):
    """An update that is too old joins the queue as if it were the oldest that serves."""

    def _queued(self, process, state, source, step):
        return super()._queued(process, state, source, max(step, state.step - self.setting.staleness))


class StalenessWindowTooWide(Hop):
    """Updates of step k − s − 1 still serve in step k."""

    def _served(self, process, state, by):
        return (by == 1 and state.step > 0 and self.setting.staleness > 0) or super()._served(process, state, by)


class ReduceBeforeReceive(Hop):
    """A worker reduces when one in-neighbour's update is still missing."""

    def _served(self, process, state, by):
        have = sum(1 for queue in state.updates if queue >> (by - 1))
        return have >= self._needed[process] - 1


class WaitsForItsBackups(Hop):
    """Backup workers are waited for all the same."""

    def _served(self, process, state, by):
        if self.setting.staleness:
            return super()._served(process, state, by)
        return all(queue >> (by - 1) & 1 for queue in state.updates)


class UpdateUsedTwice(Hop):
    """Entering a step does not take the used updates out of the queues."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        return (replace(after, updates=state.updates) if isinstance(event, Advance) else after), actions


class QueueEmptiedOnEntering(Hop):
    """Entering a step throws away updates that came early."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        return (replace(after, updates=(0,) * len(state.updates)) if isinstance(event, Advance) else after), actions


class UpdateCarriesTheWrongStep(Hop):
    """An update is tagged with the next step."""

    def _updates_to(self, process, state):
        return super()._updates_to(process, replace(state, step=state.step + 1))


class UpdateForOneNeighbourMissing(Hop):
    """The last out-neighbour gets no update when there are two."""

    def _updates_to(self, process, state):
        return super()._updates_to(process, state)[:1]


class AckOnArrival(Hop):
    """NOTIFY-ACK: an update is acknowledged when it arrives, before it is reduced."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        if isinstance(event, Reduce):
            actions = ()
        if self.setting.notify_ack and isinstance(event, Received) and isinstance(event.message, Update):
            actions = (Send(event.source, Ack()),)
        return after, actions


class SendsWithoutWaitingForAcks(Hop):
    """NOTIFY-ACK: the acknowledgement of the last update is not waited for again."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        return (replace(after, acked=(True,) * len(after.acked)) if isinstance(event, SendUpdate) else after), actions


class AckLost(Hop):
    """NOTIFY-ACK: nobody acknowledges."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        return after, tuple(a for a in actions if not (isinstance(a, Send) and isinstance(a.message, Ack)))


class JumpTooFar(Hop):
    """A worker skips one step more than its limit."""

    def _jump(self, process, state):
        by = super()._jump(process, state)
        return by + 1 if by and by == self.setting.skip.limit and self._served(process, state, by + 1) else by


class JumpAsFarAsTokensReach(Hop):
    """A worker skips as far as its tokens reach, past all who wait for its updates."""

    def _jump(self, process, state):
        more = replace(state, tokens=tuple(t + (self.setting.max_ig or 0) for t in state.tokens))
        return super()._jump(process, more)


class JumpPastTheSlowest(Hop):
    """A worker skips to its fastest out-neighbour, past a slower one."""

    dies_in = "inquiry, skips up to 2, backup 1, tokens max_ig 2, path of 3"

    def _jump(self, process, state):
        return super()._jump(process, replace(state, tokens=(max(state.tokens, default=0),) * len(state.tokens)))


class JumpOfOneStepTooMany(Hop):
    """A worker skips one step past its slowest out-neighbour."""

    def _jump(self, process, state):
        return super()._jump(process, replace(state, tokens=tuple(t + 1 for t in state.tokens)))


class JumpTooSoon(Hop):
    """A worker skips by fewer steps than the trigger asks for."""

    def _jump(self, process, state):
        return super()._jump(process, state) or (2 if self._may_skip_by_two(process, state) else 0)

    def _may_skip_by_two(self, process, state):
        skip = self.setting.skip
        if skip is None or skip.trigger == 2 or not state.tokens:
            return False
        return min(state.tokens) >= self.setting.max_ig + 2 and self._served(process, state, 2)


class JumpFromTooNear(Hop):
    """A worker skips before it is as far behind as the condition to jump asks for."""

    dies_in = "skips up to 2 from 3 behind, staleness 1, tokens max_ig 3 in fine steps, pair"

    def _jump(self, process, state):
        eager = replace(self.setting, skip=self.setting.skip and replace(self.setting.skip, behind=2))
        return Hop(self.graph, eager, fine=self.fine)._jump(process, state)


class SmallestJump(Hop):
    """A worker skips by as few steps as it may."""

    def _jump(self, process, state):
        by = super()._jump(process, state)
        return min((b for b in range(2, by) if self._served(process, state, b)), default=by)


class NeverSkips(Hop):
    """A worker left behind goes on step by step."""

    def _jump(self, process, state):
        return 0


class JumpKeepsTheQueuesWhereTheyAre(Hop):
    """After a skip the queues stand as after one step."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        if isinstance(event, Advance) and event.by > 1:
            after = replace(after, updates=tuple(queue >> 1 for queue in state.updates))
        return after, actions


class UpdateOfASkippedStepIsSent(Hop):
    """A worker sends the update of a step that it skipped."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        if isinstance(event, Advance) and event.by > 1:
            late = tuple(Send(v, Update(after.step - 1)) for v in self.graph.targets[process])
            actions = (*late, *actions) if self._split else (*actions, *late)
        return after, actions


class UpdateAfterASkipIsForgotten(Hop):
    """The update of the step that a skip leads to is not sent."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        if isinstance(event, Advance) and event.by > 1 and self._split:
            after = replace(after, stage=REDUCING)
        elif isinstance(event, Advance) and event.by > 1:
            actions = tuple(a for a in actions if not (isinstance(a, Send) and isinstance(a.message, Update)))
        return after, actions


class InquiryAStepTooEager(Hop):
    """An update is kept from an out-neighbour that is in its step, and may still wait for it."""

    def _updates_to(self, process, state):
        return super()._updates_to(process, replace(state, tokens=tuple(t + 1 for t in state.tokens)))


class InquiryForgetsStaleness(Hop):
    """An update is kept from an out-neighbour past its step that could still use it."""

    def _updates_to(self, process, state):
        stale = self.setting.staleness if self.setting.inquire else 0
        return super()._updates_to(process, replace(state, tokens=tuple(t + stale for t in state.tokens)))


class InquiryForAll(Hop):
    """When one out-neighbour is past an update, nobody gets it."""

    dies_in = "inquiry, skips up to 2, backup 1, tokens max_ig 2, path of 3"

    def _updates_to(self, process, state):
        sent = super()._updates_to(process, state)
        return sent if len(sent) == len(self.graph.targets[process]) else ()


class NeverInquires(Hop):
    """Updates that nobody needs are sent all the same."""

    def _updates_to(self, process, state):
        return tuple(Send(v, Update(state.step)) for v in self.graph.targets[process])


class CountedAgain(Hop):
    """A reduce averages what the one before it has averaged."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        return (replace(after, fresh=state.fresh) if isinstance(event, Reduce) else after), actions


class CountedAgainAfterASkip(Hop):
    """What was averaged before a skip is averaged after it."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        if isinstance(event, Advance) and event.by > 1:
            after = replace(after, fresh=tuple(f and q > 0 for f, q in zip(state.fresh, after.updates, strict=False)))
        return after, actions


class ArrivalForgotten(Hop):
    """What comes between reducing and entering is never averaged."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        if isinstance(event, Advance):
            after = replace(after, fresh=(False,) * len(after.fresh))
        return after, actions


class NewestOfThisStepOnly(Hop):
    """Where the newest counts again, an older one that serves is not averaged."""

    def _used(self, process, state, by):
        used = super()._used(process, state, by)
        return used if self.setting.reduce is Reducing.RECEIVED else tuple(u for u in used if u[1] >= state.step)


class RenewsWithOldUpdates(Hop):
    """Before a skip by several steps a worker averages updates that serve in its old step only."""

    def _used(self, process, state, by):
        return super()._used(process, state, 1)


class JumpWithoutRenewal(Hop):
    """A worker skips ahead without the updates that renew its parameters."""

    dies_in = "skips up to 2, staleness 1, tokens max_ig 2, ring of 3"

    def _served(self, process, state, by):
        return by > 1 or super()._served(process, state, by)


class EntersBeforeItReduces(Hop):
    """In fine steps a worker enters the next step right after it has sent."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        return (replace(after, stage=ENTERING) if isinstance(event, SendUpdate) else after), actions


BUGS = [
    TokenQueueStartsOneTooFull, TokenQueueStartsOneTooEmpty, EntersOnAnEmptyTokenQueue, TokenLostOnAJump,
    TokenForOneNeighbourOnly, TokenNotTaken, JumpTakesOneToken, StaleUpdateAccepted, StalenessWindowTooWide,
    ReduceBeforeReceive, WaitsForItsBackups, UpdateUsedTwice, QueueEmptiedOnEntering, UpdateCarriesTheWrongStep,
    UpdateForOneNeighbourMissing, AckOnArrival, SendsWithoutWaitingForAcks, AckLost, JumpTooFar, JumpWithoutRenewal,
    EntersBeforeItReduces, JumpAsFarAsTokensReach, JumpPastTheSlowest, JumpOfOneStepTooMany, JumpTooSoon,
    JumpFromTooNear, SmallestJump,
    NeverSkips, JumpKeepsTheQueuesWhereTheyAre, UpdateOfASkippedStepIsSent, UpdateAfterASkipIsForgotten,
    InquiryAStepTooEager, InquiryForgetsStaleness, InquiryForAll, NeverInquires, CountedAgain, CountedAgainAfterASkip,
    ArrivalForgotten, NewestOfThisStepOnly, RenewsWithOldUpdates,
]  # fmt: skip


def killers(bug, *, stop_at_first=True):
    """(configuration, property, length of the shortest trace) of every way in which the small suite kills a bug.

    A bug may say where it `dies_in`, which is then looked at first. That the worker itself survives all of them, with
    the same properties, is what test_explore_hop.py shows.
    """
    found = []
    for configuration in sorted(SMALL, key=lambda c: c.name != getattr(bug, "dies_in", None)):
        try:
            machine = configuration.of(bug)
        except InputError:
            continue
        result = replace(configuration, symmetry=False, max_states=25_000).run(machine)
        failed = [finding for finding in result.findings if finding.verdict == "fails"]
        found += [(configuration.name, finding.name, len(finding.trace.steps)) for finding in failed]
        exact = exact_bounds(machine.graph, machine.setting)
        if result.complete and result.gaps != exact and not found:
            found.append((configuration.name, "bound attained", 0))
        if found and stop_at_first:
            break
    return found


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_seeded_bug_is_killed(bug):
    assert killers(bug), f"{bug.__doc__} went unnoticed"


def test_every_bug_that_says_where_it_dies_names_a_configuration():
    assert {bug.dies_in for bug in BUGS if hasattr(bug, "dies_in")} <= {c.name for c in SMALL}
