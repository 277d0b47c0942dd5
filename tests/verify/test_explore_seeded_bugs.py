"""Bugs seeded in Hop's worker, each a machine that differs in one decision: the explorer kills all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preduce.schedulers.protocols.base import Received, Send
from preduce.schedulers.protocols.hop import ENTERING, Ack, Advance, Hop, Reduce, SendUpdate, Token, Update
from preduce.topo.errors import InputError
from preduce.verify.explore import explore
from preduce.verify.gaps.exact import exact_bounds
from preduce.verify.properties.hop import hop_properties
from preduce.verify.properties.hop_suite import SMALL


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

    def _may_advance(self, process, state, by):
        lent = replace(state, tokens=tuple(t + 1 for t in state.tokens))
        return super()._may_advance(process, lent, by)


class TokenLostOnAJump(Hop):
    """A worker that skips d steps gives 1 token instead of d."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        return after, tuple(
            Send(a.to, Token(1)) if isinstance(a, Send) and isinstance(a.message, Token) else a for a in actions
        )


class TokenForOneNeighbourOnly(Hop):
    """The tokens of a step go to the first in-neighbour only."""

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

    def _updates_to(self, process, step):
        return tuple(Send(v, Update(step + 1)) for v in self.graph.targets[process])


class UpdateForOneNeighbourMissing(Hop):
    """The last out-neighbour gets no update when there are two."""

    def _updates_to(self, process, step):
        return super()._updates_to(process, step)[:1]


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
    """A worker may skip one step more than max_jump."""

    def ready(self, process, state):
        events = tuple(super().ready(process, state))
        by = self.setting.longest_jump + 1
        return (*events, Advance(by)) if events and by > 2 and self._may_advance(process, state, by) else events


class JumpWithoutRenewal(Hop):
    """A worker skips ahead without the updates that renew its parameters."""

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
    EntersBeforeItReduces,
]  # fmt: skip


def killers(bug, *, stop_at_first=True):
    """(configuration, property, length of the shortest trace) of every way in which the small suite kills a bug."""
    found = []
    for configuration in SMALL:
        try:
            machine = bug(configuration.graph, configuration.setting, fine=configuration.fine)
        except InputError:
            continue
        result = explore(
            machine,
            properties=hop_properties(machine, reordered=configuration.network.reorder),
            network=configuration.network,
            symmetry=False,
            max_states=25_000,
        )
        failed = [finding for finding in result.findings if finding.verdict == "fails"]
        found += [(configuration.name, finding.name, len(finding.trace.steps)) for finding in failed]
        exact = exact_bounds(configuration.graph, configuration.setting)
        if result.complete and result.gaps != exact and not found:
            found.append((configuration.name, "bound attained", 0))
        if found and stop_at_first:
            break
    return found


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_seeded_bug_is_killed(bug):
    assert killers(bug), f"{bug.__doc__} went unnoticed"


def test_the_worker_itself_survives_the_same_hunt():
    assert killers(Hop) == []
