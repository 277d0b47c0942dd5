"""The asynchronous server through every interleaving: all properties hold, and bugs seeded in it are all killed."""

from dataclasses import replace

import pytest

from benchmarks.explore.shards import LARGE, SMALL
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


class AnswersAtOnce(Shards):
    """A shard answers a worker that pushes, however far ahead of the others."""

    def _answered(self, state):
        return Shards(self.num_workers, self.hosts)._answered(state)


class AllowsOneRoundMore(Shards):
    """A shard lets a worker be one round further ahead than the staleness says."""

    def _answered(self, state):
        return Shards(self.num_workers, self.hosts, self.staleness + 1)._answered(state)


class AllowsOneRoundLess(Shards):
    """A shard keeps back the answer to a worker that is just as far ahead as it may be."""

    def _answered(self, state):
        return Shards(self.num_workers, self.hosts, self.staleness - 1)._answered(state)


class ForgetsWhoWaits(Shards):
    """Only the worker whose push has come may be answered, not those that waited for it."""

    def _requested(self, state, source, request):
        after, actions = super()._requested(state, source, request)
        others = [one for one in actions if isinstance(one, Send) and one.to != source]
        waiting = tuple(
            state.waiting[worker] if any(one.to == worker for one in others) else number
            for worker, number in enumerate(after.waiting)
        )
        return replace(after, waiting=waiting), tuple(one for one in actions if one not in others)


class AddsWhatComesTwice(Shards):
    """A push that comes twice is added twice."""

    def _requested(self, state, source, request):
        if state.heard and request.generation == state.generation:
            state = replace(state, heard=(0,) * self.num_workers)
        return super()._requested(state, source, request)


class DropsWhatComesEarly(Shards):
    """A push that comes before the shard's own worker has opened it is lost."""

    def _requested(self, state, source, request):
        return (state, ()) if request.generation > state.generation else super()._requested(state, source, request)


class OpensTwice(Shards):
    """Word that a generation begins starts it again when it comes twice."""

    def _opened(self, state, generation, round_):
        return super()._opened(replace(state, generation=-1), generation, round_)


class IgnoresTheGenerationBefore(Shards):
    """A push of a generation that is over here is dropped without a word to the worker that waits for the answer."""

    def _requested(self, state, source, request):
        return (state, ()) if request.generation < state.generation else super()._requested(state, source, request)


class AddsTheGenerationBefore(Shards):
    """A push of a generation that is over is added to the new one."""

    def _requested(self, state, source, request):
        if request.generation < state.generation:
            request = replace(request, generation=state.generation)
        return super()._requested(state, source, request)


class CountsFromZero(Shards):
    """A generation that begins in a later round counts rounds from 0."""

    def _opened(self, state, generation, round_):
        after, actions = super()._opened(state, generation, round_)
        return (after if after is state else replace(after, rounds=(0,) * self.num_workers)), actions


class TakesAnyAnswer(Shards):
    """An answer to an older request counts for the last one."""

    def step(self, process, state, event):
        if isinstance(state, WorkerState) and isinstance(event, Received):
            event = Received(event.source, Answer(state.number))
        return super().step(process, state, event)


class TakesTheFirstAnswer(Shards):
    """A worker continues when one shard has answered."""

    def ready(self, process, state):
        if isinstance(state, WorkerState) and len(state.missing) < len(self.hosts):
            state = replace(state, missing=frozenset())
        return super().ready(process, state)


class DoesNotWait(Shards):
    """A worker computes on without its answers."""

    def ready(self, process, state):
        if isinstance(state, WorkerState):
            state = replace(state, missing=frozenset())
        return super().ready(process, state)


class DrainsWithAnAnswerUnderWay(Shards):
    """A worker starts again before the answer to its last push has come."""

    def ready(self, process, state):
        if isinstance(state, WorkerState) and state.missing and self.plan.drains[:1] == (state.round,):
            return (Drain(),) if state.generation == 0 else ()
        return super().ready(process, state)


class AnswersBeforeAdding(Shards):
    """A shard answers with what it had before the push."""

    def _requested(self, state, source, request):
        after, actions = super()._requested(state, source, request)
        if after.heard and isinstance(request, Progress) and Note(("added", source, request.number)) in actions:
            after = replace(after, heard=state.heard)
        return after, actions


class OpensOneShard(Shards):
    """Only the first shard is ever opened."""

    def step(self, process, state, event):
        after, actions = super().step(process, state, event)
        return after, tuple(
            one
            for one in actions
            if not (isinstance(one, Send) and isinstance(one.message, Opened) and one.to != self.num_workers)
        )


KILLS = {
    AnswersAtOnce: (BOUND_0, "nobody waits who may go on", "nobody is too far ahead", "what is taken is new enough"),
    AllowsOneRoundMore: (BOUND_1, "nobody is too far ahead", "what is taken is new enough"),
    AllowsOneRoundLess: (BOUND_1, "nobody waits who may go on"),
    ForgetsWhoWaits: (BOUND_0, "nobody waits who may go on"),
    AddsWhatComesTwice: (WILD, "progress is added once"),
    DropsWhatComesEarly: (FREE, "progress is added once", "a request is answered once"),
    OpensTwice: (WILD, "progress is added once"),
    IgnoresTheGenerationBefore: (DRAIN_LATE, "no deadlock", "a request is answered once"),
    AddsTheGenerationBefore: (DRAIN_LATE, "progress is added once"),
    CountsFromZero: (DRAIN, "progress is added once"),
    TakesAnyAnswer: (WILD, "a worker finds its own progress", "a request is answered once"),
    TakesTheFirstAnswer: (FREE, "does what it may"),
    DoesNotWait: (FREE_LATE, "does what it may"),
    DrainsWithAnAnswerUnderWay: (DRAIN_LATE_2, "does what it may"),
    AnswersBeforeAdding: (FREE, "a worker finds its own progress", "progress is added once"),
    OpensOneShard: (FREE, "no deadlock"),
}


@pytest.mark.parametrize("bug", KILLS, ids=lambda one: one.__name__)
def test_a_seeded_bug_is_killed_by_a_property_that_names_it(bug):
    name, *killers = KILLS[bug]
    configuration = BY_NAME[name]
    found = configuration.run(configuration.of(bug))
    failed = [finding.name for finding in found.findings if finding.verdict == "fails"]
    assert set(failed) & set(killers), (failed, str(found))


def test_a_worker_without_a_plan_may_do_whatever_the_protocol_allows():
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


def test_a_late_answer_is_taken_with_the_next_push():
    machine = shards_of(Server(hosts=(1,), synchronous=False, sync=DelayedAveraging()), 2)
    state, _ = machine.step(0, machine.start(0)[0], Open(0))
    state, actions = machine.step(0, state, Push())
    assert actions == (Send(2, Progress(0, 1)),)
    assert machine.ready(0, state) == ()
    state, _ = machine.step(0, state, Received(2, Answer(1)))
    state, actions = machine.step(0, state, Push())
    assert actions == (Note(("taken", 1)), Send(2, Progress(0, 2)))


def test_a_shard_answers_in_the_order_of_workers_with_what_it_has():
    machine = Shards(3, (0,), staleness=0)
    state, _ = machine.step(3, ShardState(), Received(0, Opened(0, 4)))
    assert state.rounds == (4, 4, 4)
    state, actions = machine.step(3, state, Received(2, Progress(0, 1)))
    assert actions == (Note(("added", 2, 1)),)
    state, actions = machine.step(3, state, Received(0, Ask(0, 5)))
    assert actions == (Send(0, Answer(5)),), "who brings no progress is not ahead"
    state, _ = machine.step(3, state, Received(1, Progress(0, 1)))
    state, actions = machine.step(3, state, Received(0, Progress(0, 6)))
    assert actions == (Note(("added", 0, 6)), Send(0, Answer(6)), Send(1, Answer(1)), Send(2, Answer(1)))
    assert state.rounds == (5, 5, 5)


def test_what_comes_early_is_heard_in_order_when_the_generation_begins():
    machine = Shards(2, (0,))
    state, actions = machine.step(2, ShardState(), Received(1, Progress(0, 1)))
    assert actions == ()
    state, actions = machine.step(2, state, Received(1, Ask(0, 2)))
    state, actions = machine.step(2, state, Received(0, Opened(0, 0)))
    assert actions == (Note(("opened", 0)), Note(("added", 1, 1)), Send(1, Answer(1)), Send(1, Answer(2)))
    assert state.early == ()
