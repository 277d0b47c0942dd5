"""The asynchronous server in every interleaving: all properties hold, and all seeded bugs are found."""

from dataclasses import replace

import pytest

from benchmarks.explore.shards import LARGE, SMALL
from helpers.seeded import Bugs, sends
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.shards import (
    Answer,
    Ask,
    Drain,
    Open,
    Opened,
    Progress,
    Pull,
    Push,
    Shards,
    ShardState,
    Take,
    WorkerState,
    shards_of,
)
from partreduce.strategies import DelayedAveraging, Server

BY_NAME = {configuration.name: configuration for configuration in SMALL}
FREE, FREE_LATE = "free, 2 workers, 2 shards", "free, overlapped, 2 workers, 2 shards"
BOUND_0, BOUND_1 = "staleness 0, 2 workers, 2 shards", "staleness 1, 3 workers"
DRAIN, DRAIN_LATE = "pull and drain, 2 workers", "pull and drain, overlapped, 2 workers"
DRAIN_LATE_2 = "drain, overlapped, 2 workers, 2 shards"
WILD = "pull and drain, 2 workers, reordered and doubled"


@pytest.mark.parametrize("configuration", [*SMALL, *LARGE], ids=lambda one: one.name)
def test_every_property_holds_in_every_interleaving(configuration):
    found = configuration.run()
    assert found.holds, found


BUGS = bug = Bugs(Shards, ShardState | WorkerState)


def answer_only_the_sender(_, original, state, source, request):
    after, actions = original(state, source, request)
    others = [one for one in actions if isinstance(one, Send) and one.to != source]
    answered = {one.to for one in others}
    waiting = tuple(state.waiting[w] if w in answered else number for w, number in enumerate(after.waiting))
    return replace(after, waiting=waiting), tuple(one for one in actions if one not in others)


def answer_before_adding(_, original, state, source, request):
    after, actions = original(state, source, request)
    if after.last_requests and isinstance(request, Progress) and Note(("added", source, request.number)) in actions:
        after = replace(after, last_requests=state.last_requests)
    return after, actions


def drain_under_way(machine, original, process, state):
    if isinstance(state, WorkerState) and state.missing and machine.plan.drains[:1] == (state.round,):
        return (Drain(),) if state.generation == 0 else ()
    return original(process, state)


def open_only_the_first(machine, original, process, state, event):
    after, actions = original(process, state, event)
    return after, tuple(a for a in actions if not (sends(a, Opened) and a.to != machine.num_workers))


# fmt: off
# Each bug with its configuration and the properties of which it must violate one.
bug("_answered", "A shard answers a worker that pushes, however far ahead of the others.",
    BOUND_0, "no worker waits that may continue", "no worker is too far ahead", "what is taken is new enough",
    instead=lambda m, _, s: Shards(m.num_workers, m.hosts)._answered(s))
bug("_answered", "A shard lets a worker be one round further ahead than the staleness says.",
    BOUND_1, "no worker is too far ahead", "what is taken is new enough",
    instead=lambda m, _, s: Shards(m.num_workers, m.hosts, m.staleness + 1)._answered(s))
bug("_answered", "A shard keeps back the answer to a worker that is just as far ahead as it may be.",
    BOUND_1, "no worker waits that may continue",
    instead=lambda m, _, s: Shards(m.num_workers, m.hosts, m.staleness - 1)._answered(s))
bug("_requested", "Only the worker whose push has come may be answered, not those that waited for it.",
    BOUND_0, "no worker waits that may continue", instead=answer_only_the_sender)
bug("_requested", "A push that comes twice is added twice.", WILD, "progress is added once",
    seen=lambda s, _, request: s if not s.last_requests or request.generation != s.generation else
        replace(s, last_requests=(0,) * len(s.last_requests)))
bug("_requested", "A push that comes before the shard's own worker has opened it is lost.",
    FREE, "progress is added once", "a request is answered once",
    instead=lambda _, original, s, source, request:
        (s, ()) if request.generation > s.generation else original(s, source, request))
bug("_opened", "Word that a generation begins starts it again when it comes twice.", WILD, "progress is added once",
    seen=lambda s, *_: replace(s, generation=-1))
bug("_requested",
    "A push of a generation that is over here is dropped without a word to the worker that waits for the answer.",
    DRAIN_LATE, "no deadlock", "a request is answered once",
    instead=lambda _, original, s, source, request:
        (s, ()) if request.generation < s.generation else original(s, source, request))
bug("_requested", "A push of a generation that is over is added to the new one.", DRAIN_LATE, "progress is added once",
    instead=lambda _, original, s, source, request:
        original(s, source, replace(request, generation=max(request.generation, s.generation))))
bug("_opened", "A generation that begins in a later round counts rounds from 0.", DRAIN, "progress is added once",
    left=lambda now, was, *_: now if now is was else replace(now, rounds=(0,) * len(now.rounds)))
bug("step", "An answer to an older request counts for the last one.",
    WILD, "a worker finds its own progress", "a request is answered once",
    instead=lambda _, original, p, s, event: original(p, s, Received(event.source, Answer(s.number))
        if isinstance(s, WorkerState) and isinstance(event, Received) else event))
bug("ready", "A worker continues when one shard has answered.", FREE, "does what it may",
    instead=lambda m, original, p, s: original(p, replace(s, missing=frozenset())
        if isinstance(s, WorkerState) and len(s.missing) < len(m.hosts) else s))
bug("ready", "A worker computes on without its answers.", FREE_LATE, "does what it may",
    seen=lambda s: replace(s, missing=frozenset()) if isinstance(s, WorkerState) else s)
bug("ready", "A worker starts again before the answer to its last push has come.",
    DRAIN_LATE_2, "does what it may", instead=drain_under_way)
bug("_requested", "A shard answers with what it had before the push.",
    FREE, "a worker finds its own progress", "progress is added once", instead=answer_before_adding)
bug("step", "Only the first shard is ever opened.", FREE, "no deadlock", instead=open_only_the_first)
# fmt: on


@pytest.mark.parametrize("description", BUGS)
def test_seeded_bug_is_killed_by_an_expected_property(description):
    kind, (name, *killers) = BUGS[description]
    configuration = BY_NAME[name]
    found = configuration.run(configuration.of(kind))
    failed = [finding.name for finding in found.findings if finding.verdict == "fails"]
    assert set(failed) & set(killers), (failed, str(found))
    assert len(BUGS) == 16


def test_worker_without_a_plan_has_all_protocol_events():
    machine = shards_of(Server(hosts=(0,), synchronous=False), 2)
    state, _ = machine.start(0)
    assert machine.ready(0, state) == (Open(0),)
    state, actions = machine.step(0, state, Open(7))
    assert actions == (Send(2, Opened(0, 7)),)
    assert machine.ready(0, state) == (Push(), Pull(), Drain())
    state, actions = machine.step(0, state, Push())
    assert actions == (Send(2, Progress(0, 1)),)
    assert machine.ready(0, state) == ()
    state, _ = machine.step(0, state, Received(2, Answer(1)))
    assert machine.ready(0, state) == (Take(),)


def test_late_answer_is_applied_with_the_next_push():
    machine = shards_of(Server(hosts=(1,), synchronous=False, sync=DelayedAveraging()), 2)
    state, _ = machine.step(0, machine.start(0)[0], Open(0))
    state, actions = machine.step(0, state, Push())
    assert actions == (Send(2, Progress(0, 1)),)
    assert machine.ready(0, state) == ()
    state, _ = machine.step(0, state, Received(2, Answer(1)))
    state, actions = machine.step(0, state, Push())
    assert actions == (Note(("taken", 1)), Send(2, Progress(0, 2)))


def test_early_messages_are_processed_in_order_after_opening():
    machine = Shards(2, (0,))
    state, actions = machine.step(2, ShardState(), Received(1, Progress(0, 1)))
    assert actions == ()
    state, actions = machine.step(2, state, Received(1, Ask(0, 2)))
    state, actions = machine.step(2, state, Received(0, Opened(0, 0)))
    assert actions == (Note(("opened", 0)), Note(("added", 1, 1)), Send(1, Answer(1)), Send(1, Answer(2)))
    assert state.early == ()


def test_synchronous_server_has_staleness_0_and_an_asynchronous_one_its_own():
    servers = Server(), Server(synchronous=False), Server(synchronous=False, staleness=3)
    assert [shards_of(server, 2).staleness for server in servers] == [0, None, 3]
