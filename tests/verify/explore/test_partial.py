"""Partial collectives in every interleaving: all properties hold, and all seeded bugs are found."""

from dataclasses import fields, replace

import pytest

from benchmarks.explore.partial import FACTORS, LARGE, SMALL
from helpers.seeded import Bugs, brings, put, sends
from partreduce.schedulers.protocols.base import Send
from partreduce.schedulers.protocols.partial import (
    COMPUTING,
    CONTINUES,
    Activate,
    Arrived,
    End,
    Ended,
    Here,
    Partial,
    PartialState,
    Share,
)
from partreduce.strategies import QuorumStart

BY_NAME = {configuration.name: configuration for configuration in SMALL + LARGE}
SOLO, SOLO_2 = "solo, C 1, 2 workers", "solo, C 2, 2 workers, at once"
SOLO_CALL, MAJORITY = "solo by call, C 1, 2 workers", "majority, C 1, 2 workers"
MAJORITY_3, MAJORITY_CALL = "majority, C 1, 3 workers, at once", "majority by call, C 2, 2 workers"
LATEST = "solo, latest, synchronized every 2, 2 workers, at once"
LATEST_CALL = "solo by call, latest, synchronized every 2, 2 workers"
QUORUM, WILD = "2 of 3, C 1, at once", "2 of 2, C 1, reordered and doubled"
DELAYED = "2 of 3, C 1, 4 calls"


BUGS = bug = Bugs(Partial, PartialState)


def count_late_call(machine, original, process, state):
    """By call a gradient whose round is over counts for the open one."""
    called, actions = original(process, state)
    return machine._come(process, called) if state.calls < state.entered else (called, actions)


def ignore_late_arrival(_, original, process, state):
    called, actions = original(process, state)
    return (called, actions) if state.entered == state.version else (replace(called, arrived=state.arrived), ())


def draw_own_initiator(machine, _, process, state):
    draws = {"_initiator": lambda self, round_, continuing: (process + 1) % self.num_workers}
    own = {one.name: getattr(machine, one.name) for one in fields(machine) if one.init}
    return type("Partial", (Partial,), draws)(**own)._started(process, state)


def start_as_solo(machine, _, process, state):
    solo = replace(machine.setting, quorum=QuorumStart.SOLO)
    return Partial(solo, machine.num_workers)._started(process, state)


def miss_one_share(machine, _, state):
    missing = [known for known in state.shares if not known or known[0].round != state.done]
    return len(missing) <= 1


def finish_with_empty_shares(_, original, process, state):
    empty = (Share(state.done, ()),)
    shares = tuple(known if known and known[0].round == state.done else empty + known for known in state.shares)
    return original(process, replace(state, shares=shares))


def end_at_done_round(_, original, process, state):
    ended, actions = original(process, replace(state, arrived=put(state.arrived, process, state.done)))
    return replace(ended, arrived=state.arrived), actions


def start_endlessly(machine, original, process, state):
    lasts = state.lasts
    if state.last is not None:
        state = replace(state, lasts=(max(state.last, state.entered),) * len(lasts))
    started, actions = original(process, state)
    return replace(started, lasts=lasts), actions


def never_start_after_end(machine, original, process, state):
    return original(process, state) if state.last is None else (state, ())


def only_record_end(_, original, process, state, event):
    if not brings(event, Ended):
        return original(process, state, event)
    return replace(state, lasts=put(state.lasts, event.source, event.message.round)), ()


def announce_end_early(machine, original, process, state, event):
    after, actions = original(process, state, event)
    if isinstance(event, End) or not after.calls == machine.calls[process] > state.calls:
        return after, actions
    early = tuple(Send(v, Ended(state.entered - 1)) for v in range(machine.num_workers) if v != process)
    return after, (*early, *actions)


# fmt: off
# What joins a buffer and leaves it.
bug("_begun", "What is taken along stays in the buffer when a round begins.", SOLO,
    left=lambda now, was: replace(now, buffer=was.buffer, oldest=was.oldest))
bug("_called", "A gradient that is handed over while a round runs is not in the next one.", SOLO,
    left=lambda now, was: replace(now, buffer=was.buffer, oldest=was.oldest) if was.is_running else now)
bug("_begun", "A late worker brings nothing of what is in its send buffer, which is emptied.", SOLO,
    seen=lambda s: replace(s, buffer=(), oldest=-1))
bug("_called", "A gradient replaces what is in the send buffer.", SOLO, seen=lambda s: replace(s, buffer=(), oldest=-1))
bug("_begun", "A round takes nothing of the send buffer, which waits for ever.", SOLO,
    seen=lambda s: replace(s, buffer=()), left=lambda now, was: replace(now, buffer=was.buffer, oldest=was.oldest))
# Words that start a round.
bug("step", "Word that the next round starts is lost on a thread that is in a round.", SOLO,
    instead=lambda _, original, p, s, event:
        (s, ()) if brings(event, Activate) and s.is_running else original(p, s, event))
bug("step", "Word of a round that is not the next one is lost.", SOLO,
    instead=lambda _, original, p, s, event:
        (s, ()) if brings(event, Activate) and event.message.round != s.entered else original(p, s, event))
bug("step", "An activation starts the next round, whichever it was for.", SOLO,
    left=lambda now, was, event: replace(now, activated=max(now.activated, was.entered + 1))
        if brings(event, Activate) else now)
bug("_started", "Who starts a round keeps it to itself.", MAJORITY, emits=lambda actions: ())
bug("_started", "Word that a round starts goes to one worker only.", MAJORITY_3, emits=lambda actions: actions[:1])
bug("_begun", "What is known of the next round is not looked at when the thread gets there.", QUORUM,
    left=lambda now, was: replace(now, activated=was.activated),
    emits=lambda actions: tuple(a for a in actions if not sends(a, Activate)))
# Results that wait for a training.
bug("_taken", "By call the newest result is taken, and those before it later.", MAJORITY_CALL,
    seen=lambda s: replace(s, results=s.results[::-1]))
bug("_taken", "All results leave the queue, and one of them counts as taken.", SOLO_2,
    left=lambda now, was: replace(now, version=was.version + 1))
bug("_taken", "A result that is taken stays in the queue.", SOLO,
    left=lambda now, was: replace(now, results=was.results))
bug("_called", "A worker that has called continues to compute at once.", SOLO,
    left=lambda now, was: replace(now, stage=COMPUTING))
bug("_may_begin", "One result more than C may wait.", SOLO_2, seen=lambda s: replace(s, results=s.results[1:]))
bug("_may_begin", "A worker whose queue is full joins the next round.", SOLO_2,
    seen=lambda s: replace(s, results=()))
bug("_may_begin", "A worker joins no round while any result waits.", SOLO_2,
    instead=lambda _, original, s: original(s) and not s.results)
bug("_finished", "Results overwrite one another although each is to be applied: a correction is lost.", SOLO_2,
    left=lambda now, was: replace(now, results=now.results[-1:]))
bug("_may_take", "A late worker waits for the round that its gradient joins, although results are there.", SOLO,
    instead=lambda _, original, s: original(s) and (s.resting or s.done >= s.arrived[0]))
bug("_finished", "A newer result is dropped while an older one waits.", LATEST,
    left=lambda now, was: replace(now, results=(*was.results, *now.results)[:1]))
bug("_taken", "By call all results are taken at once, so a late worker calls less often.", MAJORITY_CALL,
    left=lambda now, was: replace(now, results=(), version=was.done))
# Who counts for a round, and starts it.
bug("_called", "A gradient that missed a round does not count for the open one.", SOLO, instead=ignore_late_arrival)
bug("_called", "By call a gradient whose round is over counts for the open one.", SOLO_CALL, instead=count_late_call)
bug("_is_quorate", "A round starts when one worker fewer than the quorum has come.", QUORUM,
    instead=lambda m, _, come, counted: come >= max(1, m.setting.needed(counted) - 1))
bug("_is_quorate", "A round waits for one worker more than the quorum.", QUORUM,
    instead=lambda m, _, come, counted: come >= min(m.setting.needed(counted) + 1, counted))
bug("_is_quorate", "Where fewer continue than the quorum, a round waits for as many all the same.", QUORUM,
    instead=lambda m, _, come, counted: come >= m.setting.quorum)
bug("_started",
    "A worker that has come and ended since is not counted, so workers differ on whether a quorum is there.",
    DELAYED, left=lambda now, was: replace(now, arrived=was.arrived), seen=lambda s: replace(s, arrived=tuple(
        0 if last != CONTINUES else known for known, last in zip(s.arrived, s.lasts, strict=True))))
bug("_started", "Ended workers are asked for like others.", QUORUM,
    seen=lambda s: replace(s, lasts=(CONTINUES,) * len(s.lasts)))
bug("_initiator", "A worker that has ended is drawn, and no other takes its place.", MAJORITY,
    instead=lambda m, original, round_, continuing: original(round_, range(m.num_workers)))
bug("_started", "The first to come starts the round, drawn or not.", MAJORITY, instead=start_as_solo)
bug("_started", "Each worker draws from another seed, so they differ on who starts a round.", MAJORITY,
    instead=draw_own_initiator)
bug("_started", "A worker that came for the round before counts for the open one.", QUORUM,
    seen=lambda s: replace(s, arrived=tuple(known + 1 if known else 0 for known in s.arrived)),
    left=lambda now, was: replace(now, arrived=was.arrived))
bug("step", "An arrival that was heard of late counts, and one for a later round is forgotten with it.", WILD,
    left=lambda now, was, event: replace(now, arrived=put(now.arrived, event.source, event.message.round + 1))
        if brings(event, Arrived) else now)
# Sums.
bug("_is_summed", "A sum is over when one worker has not entered it.", SOLO, instead=miss_one_share)
bug("_finished", "A sum is over when one worker has not entered it.", instead=finish_with_empty_shares)
bug("_shared", "What a worker brings to a round that this worker is not in yet is dropped.", SOLO,
    instead=lambda _, original, s, source, share: s if share.round >= s.entered else original(s, source, share))
bug("_shared", "What another worker brings to the next round is dropped by a thread that is still in the round before.",
    MAJORITY_3, instead=lambda _, original, s, source, share:
        s if share.round > s.done and s.is_running else original(s, source, share))
bug("_shared", "What a worker brings to a later round is taken for the round that runs.", SOLO,
    instead=lambda _, original, s, source, share:
        original(s, source, replace(share, round=max(s.done, min(share.round, s.entered - 1)))))
bug("_shared", "A share of the next round replaces that of the round that runs.", MAJORITY_3,
    instead=lambda _, original, s, source, share:
        replace(s, shares=put(s.shares, source, (replace(share, round=s.done),))))
bug("_finished", "A worker's own gradients are not in the sum that it takes.", SOLO,
    instead=lambda _, original, p, s: original(
        p, replace(s, shares=put(s.shares, p, tuple(replace(share, gradients=()) for share in s.shares[p])))))
bug("_shared", "A share that comes twice is kept for the next round.", WILD,
    instead=lambda _, original, s, source, share: original(s, source, replace(share, round=share.round + 1)
        if share.round < s.done or share in s.shares[source] else share))
# Ends.
bug("_ended", "A worker that ends sends no word of it.", SOLO, emits=lambda actions: ())
bug("_ended", "A worker that ends needs the rounds that are done, not the one that its last gradient waits for.", SOLO,
    instead=end_at_done_round)
bug("step", "The last round is the one that was heard of last, not the largest.", SOLO,
    left=lambda now, was, event: replace(now, lasts=tuple(
        known if known == CONTINUES else event.message.round for known in now.lasts)) if brings(event, Ended) else now)
bug("_started", "Where all have ended one round starts after another, needed or not.", SOLO, instead=start_endlessly)
bug("_started", "Where all have ended nothing starts any more.", MAJORITY, instead=never_start_after_end)
bug("step", "That a worker has ended does not start a round that waited for it.", MAJORITY, instead=only_record_end)
bug("step", "A worker says with its last call that it has ended, before it comes.", SOLO, instead=announce_end_early)
bug("_may_begin", "A worker's thread enters no more rounds once it has said that its worker has ended.", SOLO,
    instead=lambda _, original, s: original(s) and not (s.resting and not s.buffer))
bug("_may_begin", "A thread enters one more round after the last one.", SOLO,
    instead=lambda _, original, s: original(s) or (s.last is not None and s.entered == s.last + 1))
bug("_ended", "By call a gradient that has missed its round is in no later one if its worker ends.", SOLO_CALL,
    seen=lambda s: replace(s, buffer=()), left=lambda now, was: replace(now, buffer=was.buffer))
# Models that are synchronized.
bug("_met", "A worker does not wait for the models of the others.", LATEST_CALL,
    seen=lambda s: replace(s, here=(s.version,) * len(s.here)))
bug("_may_begin", "A thread enters the next round before its model is synchronized.", LATEST,
    seen=lambda s: replace(s, synchronized=s.entered))
bug("_taken", "Workers pass the round at which models are to be synchronized.", LATEST_CALL,
    left=lambda now, was: replace(now, stage=COMPUTING, synchronized=now.version // 2 * 2))
bug("step", "Word of a model that waits is forgotten by a worker that does not wait yet.", LATEST,
    instead=lambda _, original, p, s, event:
        (s, ()) if brings(event, Here) and event.message.round > s.version else original(p, s, event))
# fmt: on


@pytest.mark.parametrize("configuration", SMALL, ids=lambda c: c.name)
def test_all_properties_hold(configuration, record_property):
    found = configuration.run()
    record_property("states", found.states)
    assert found.holds, found


def test_configuration_names_are_unique():
    assert len({c.name for c in SMALL + LARGE}) == len(SMALL + LARGE)


def test_all_properties_hold_for_every_pair_of_factors():
    found = {configuration.name: configuration.run() for configuration in FACTORS.pairs()}
    assert [name for name, exploration in found.items() if not exploration.holds] == []
    assert sum(exploration.states for exploration in found.values()) == 63_042


@pytest.mark.parametrize("description", BUGS)
def test_seeded_bug_is_killed(description):
    kind, where = BUGS[description]
    for name in where:
        configuration = BY_NAME[name]
        enough = 60_000 if name is DELAYED else 6_000
        found = replace(configuration, max_states=enough).run(configuration.of(kind))
        assert "fails" in [finding.verdict for finding in found.findings], f"unnoticed in {name}"
    assert len(BUGS) == 55
