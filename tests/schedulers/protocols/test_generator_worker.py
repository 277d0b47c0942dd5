"""Transitions of a group generator's worker, event by event."""

from dataclasses import replace

import pytest

from helpers.refusals import check_error
from partreduce.schedulers.protocols.base import Crashed, Note, Send
from partreduce.schedulers.protocols.group_generator.service import Alone, Ask, Bye, Evicted, Grant, Later, Void
from partreduce.schedulers.protocols.group_generator.worker import (
    ALONE,
    ASKED,
    ENDED,
    EVICTED,
    GRANTED,
    LATER,
    MEETING,
    Broke,
    Computed,
    Enter,
    GroupWorker,
    Here,
    NextRound,
    Retry,
    WorkerState,
)

SERVICE = 3
STAGES = (ASKED, GRANTED, MEETING, ALONE, ENDED, EVICTED, LATER)


class Worker:
    """Worker 0 of three, with its state."""

    def __init__(self, *, rounds=5, collective=True, modulus=None, retries=0, salt=None, breaks=0, cost=0):
        self.machine = GroupWorker(SERVICE, rounds=rounds, collective=collective, modulus=modulus)
        self.state, self.first = self.machine.start(retries, salt, breaks=breaks, cost=cost)

    def hear(self, message, source=SERVICE):
        self.state, actions = self.machine.received(0, self.state, source, message)
        return list(actions)

    def do(self, event):
        self.state, actions = self.machine.step(0, self.state, event)
        return list(actions)

    def granted(self, seq=4, members=(0, 1, 2), generation=0):
        assert self.hear(Grant(generation, self.state.request, seq, members)) == []
        return self

    def meeting(self, seq=4, members=(0, 1, 2)):
        self.granted(seq, members).do(Enter())
        return self


def test_worker_starts_with_a_request():
    worker = Worker(cost=7, salt=2, retries=3, breaks=1)
    ask = Ask(0, -1, last=False, cost=7, salt=2)
    assert worker.first == (Send(SERVICE, ask),)
    assert worker.state == WorkerState(
        stage=ASKED, request=0, rounds=0, ask=ask, generation=0, seq=-1, members=(), met=-1, here=(), retries=3,
        breaks=1, cost=7,
    )  # fmt: skip
    assert Worker(rounds=0).state.ask.last
    assert not Worker(rounds=None).state.ask.last
    assert Worker().state == WorkerState(ASKED, 0, 0, Ask(0))


def test_enabled_events_of_each_stage():
    machine = Worker().machine
    plain = [(stage, machine.ready(replace(Worker().state, stage=stage))) for stage in STAGES]
    assert plain == [
        (ASKED, []), (GRANTED, [Enter]), (MEETING, []), (ALONE, [NextRound]), (ENDED, []), (EVICTED, []),
        (LATER, [Computed]),
    ]  # fmt: skip
    may = [(stage, machine.ready(replace(Worker(retries=1, breaks=1).state, stage=stage))) for stage in STAGES]
    assert may == [
        (ASKED, [Retry]), (GRANTED, [Enter, Retry, Broke]), (MEETING, [Retry, Broke]), (ALONE, [NextRound]),
        (ENDED, []), (EVICTED, []), (LATER, [Computed]),
    ]  # fmt: skip


def test_group_executes_once_all_members_have_arrived():
    worker = Worker(cost=2).granted()
    assert (worker.state.stage, worker.state.seq, worker.state.members) == (GRANTED, 4, (0, 1, 2))
    assert worker.do(Enter(5)) == [Send(1, Here(4)), Send(2, Here(4))]
    assert worker.state.stage == MEETING
    assert worker.hear(Here(4), source=2) == []
    assert worker.state.here == ((4, 2),)
    ask = Ask(1, 4, cost=2, salt=5)
    assert worker.hear(Here(4), source=1) == [Note(("executed", 4, (0, 1, 2))), Send(SERVICE, ask)]
    assert worker.state == WorkerState(ASKED, 1, 1, ask, met=4, cost=2)


def test_early_arrivals_are_kept():
    worker = Worker()
    for seq, member in ((6, 1), (4, 2), (4, 1)):
        assert worker.hear(Here(seq), source=member) == []
    assert worker.state.here == ((4, 1), (4, 2), (6, 1))
    assert worker.hear(Here(4), source=1) == []
    assert worker.state.here == ((4, 1), (4, 2), (6, 1)), "each arrival is kept once"
    worker.granted()
    actions = worker.do(Enter(1))
    assert actions[:3] == [Send(1, Here(4)), Send(2, Here(4)), Note(("executed", 4, (0, 1, 2)))]
    assert actions[3] == Send(SERVICE, Ask(1, 4, salt=1))
    assert worker.state.here == ((6, 1),)


def test_late_member_of_an_executed_group_is_answered_once():
    worker = Worker().meeting()
    worker.hear(Here(4), source=1)
    worker.hear(Here(4), source=2)
    before = worker.state
    assert worker.hear(Here(4), source=1) == [Send(1, Here(4, answer=True))]
    assert worker.hear(Here(3), source=2) == [Send(2, Here(3, answer=True))]
    assert worker.hear(Here(4, answer=True), source=1) == []
    assert worker.state == before
    assert not Here(2).answer


@pytest.mark.parametrize("stage", [ENDED, EVICTED])
def test_ended_worker_ignores_arrivals(stage):
    worker = Worker()
    worker.state = replace(worker.state, stage=stage)
    assert worker.hear(Here(4), source=1) == []
    assert worker.state.here == ()


def test_group_without_a_collective_executes_on_entry():
    worker = Worker(collective=False).granted()
    assert worker.do(Enter(2)) == [Note(("executed", 4, (0, 1, 2))), Send(SERVICE, Ask(1, 4, salt=2))]


@pytest.mark.parametrize(("answer", "stage"), [(Alone(0, 0), ALONE), (Bye(0, 0), ENDED), (Later(0, 0), LATER)])
def test_answers_without_a_group(answer, stage):
    worker = Worker()
    before = worker.state
    assert worker.hear(answer) == []
    assert worker.state == replace(before, stage=stage)


def test_next_requests_after_alone_and_deferred_rounds():
    worker = Worker(cost=3)
    worker.hear(Alone(0, 0))
    assert worker.do(NextRound(8)) == [Send(SERVICE, Ask(1, -1, cost=3, salt=8))]
    assert (worker.state.stage, worker.state.request, worker.state.rounds) == (ASKED, 1, 1)
    worker.hear(Later(0, 1))
    assert worker.do(Computed(9)) == [Send(SERVICE, Ask(2, -1, computed=True, cost=3, salt=9))]
    assert (worker.state.stage, worker.state.request, worker.state.rounds) == (ASKED, 2, 1), "the same round"


def test_last_request_follows_the_last_round():
    worker = Worker(rounds=2)
    seen = []
    for _ in range(3):
        worker.hear(Alone(0, worker.state.request))
        seen += [action.message.last for action in worker.do(NextRound())]
    assert seen == [False, True, True]
    endless = Worker(rounds=None, modulus=3)
    requests = []
    for _ in range(4):
        endless.hear(Alone(0, endless.state.request))
        requests += [action.message.request for action in endless.do(NextRound())]
    assert requests == [1, 2, 0, 1]
    assert endless.state.rounds == 0
    assert not endless.state.ask.last


def test_broken_group_is_reported_as_failed():
    worker = Worker(breaks=2).meeting()
    worker.hear(Here(4), source=1)
    worker.hear(Here(5), source=2)
    assert worker.do(Broke(6)) == [Note(("broken", 4, (0, 1, 2))), Send(SERVICE, Ask(1, 4, failed=True, salt=6))]
    assert worker.state == WorkerState(
        ASKED, 1, 1, Ask(1, 4, failed=True, salt=6), here=((5, 2),), breaks=1
    )  # met stays −1
    worker.state = replace(worker.state, breaks=0)
    worker.granted(7).do(Broke())
    assert worker.state.breaks == 0, "a failure reported by the runtime is not counted"


@pytest.mark.parametrize("enter", [False, True])
def test_void_message_leaves_the_round_without_a_group(enter):
    worker = Worker()
    worker.granted() if not enter else worker.meeting()
    worker.hear(Here(4), source=1)
    worker.hear(Here(5), source=1)
    assert worker.hear(Void(2, 3)) == []
    assert worker.state.generation == 2
    assert worker.state.seq == 4, "a void message of another group"
    assert worker.hear(Void(2, 4)) == []
    assert (worker.state.stage, worker.state.seq, worker.state.members) == (ALONE, -1, ())
    assert worker.state.here == ((5, 1),)


@pytest.mark.parametrize("message", [Grant(1, 0, 9, (0, 1)), Alone(1, 0), Later(1, 0), Bye(1, 0)])
def test_messages_of_old_generations_are_ignored(message):
    for worker in (Worker(), Worker().granted(), Worker().meeting()):
        worker.state = replace(worker.state, generation=2)
        before = worker.state
        assert worker.hear(message) == []
        assert worker.state == before
        assert worker.hear(replace(message, generation=2)) == []
        assert worker.state.generation == 2


def test_generation_follows_the_newest_message():
    worker = Worker()
    worker.hear(Alone(3, 0))
    assert worker.state.generation == 3
    worker.do(NextRound())
    worker.hear(Grant(4, 1, 8, (0, 1)))
    assert (worker.state.generation, worker.state.stage) == (4, GRANTED)


def test_repeated_answers_are_ignored_except_alone():
    for worker in (Worker().granted(), Worker().meeting()):
        before = worker.state
        for message in (Grant(0, 0, 4, (0, 1, 2)), Grant(0, 0, 9, (0, 2)), Later(0, 0), Bye(0, 0)):
            assert worker.hear(message) == []
            assert worker.state == before
        worker.hear(Alone(0, 0))
        assert (worker.state.stage, worker.state.seq, worker.state.members) == (ALONE, -1, ())
    for stage in (ALONE, ENDED, LATER):
        worker = Worker()
        worker.state = replace(worker.state, stage=stage)
        worker.hear(Alone(0, 0))
        worker.hear(Grant(0, 0, 4, (0, 1)))
        assert worker.state.stage == stage
        assert worker.state.seq == -1


def test_retry_repeats_possibly_lost_messages():
    worker = Worker(retries=2)
    assert worker.do(Retry()) == [Send(SERVICE, worker.state.ask)]
    assert worker.state.retries == 1
    worker.meeting(4, (0, 1, 2))
    worker.hear(Here(4), source=1)
    worker.hear(Here(9), source=2)
    assert worker.do(Retry()) == [Send(2, Here(4)), Send(SERVICE, worker.state.ask)]
    assert worker.state.retries == 0
    assert Worker(retries=1).granted().do(Retry()) == [Send(SERVICE, Ask(0))], "the worker has not entered the group"


def test_worker_stops_on_eviction_or_service_loss_and_ignores_peer_crashes():
    for message, note in ((Evicted(5), "evicted"), (Crashed(), "service lost")):
        worker = Worker().granted()
        before = worker.state
        assert worker.hear(message) == [Note((note,))]
        assert worker.state == replace(before, stage=EVICTED, seq=-1, members=())
    worker = Worker().granted()
    before = worker.state
    assert worker.hear(Crashed(), source=1) == []
    assert worker.state == before


def test_unknown_messages_and_events_raise_assertion_errors():
    check_error(AssertionError, "not a message", Worker().hear, "hello")
    check_error(AssertionError, "not an event", Worker().do, "hello")


def test_events_have_no_salt_by_default():
    assert [event().salt for event in (NextRound, Enter, Computed, Broke)] == [None] * 4
