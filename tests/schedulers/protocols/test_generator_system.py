"""Generator and workers as one state machine, its buffers, and every interleaving of small systems."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import pytest

from benchmarks.explore.generator import SMALL, random, smart, split_globally
from benchmarks.explore.reductions import GroupSystem
from helpers.group_draw_invariants import broken_law
from helpers.machine_invariants import Walk
from helpers.refusals import check_error
from partreduce import Cluster
from partreduce.errors import InputError
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.group_generator.buffers import GroupBuffers, Locking, Outstanding
from partreduce.schedulers.protocols.group_generator.draw import Drawing, GeneratorSetting, order_from_salt, salt_of
from partreduce.schedulers.protocols.group_generator.service import (
    DEAD,
    LEFT,
    Ask,
    Grant,
    GroupGenerator,
    Restarted,
    Void,
)
from partreduce.schedulers.protocols.group_generator.worker import (
    ALONE,
    ASKED,
    ENDED,
    EVICTED,
    GRANTED,
    LATER,
    MEETING,
    MODULUS,
    Broke,
    Computed,
    Enter,
    NextRound,
    Retry,
)
from partreduce.strategies import DynamicGroups, GroupSplit, SlowWorkerPolicy

PAIRS = GeneratorSetting(nodes=(0, 0, 0), group_size=2, division=GroupSplit.RANDOM, slow_threshold=None)
SPLIT = GeneratorSetting(nodes=(0, 0, 1), group_size=2, slow_threshold=2)
LATE = GeneratorSetting(nodes=(0, 0, 1), group_size=2, slow_worker_policy=SlowWorkerPolicy.DEFER, slow_threshold=2)


def test_system_processes_are_workers_then_generator():
    system = GroupSystem(PAIRS)
    assert system.num_processes == 4
    assert system == GroupSystem(PAIRS, rounds=2, ways=1, restarts=0)
    star = [(0, 3), (1, 3), (2, 3), (3, 0), (3, 1), (3, 2)]
    between = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert sorted(system.channels) == sorted(star + between)
    assert sorted(replace(system, collective=False).channels) == star


def test_first_requests_carry_salt_and_cost():
    system = GroupSystem(PAIRS, rounds=2, retries=4, breakers=(1,), costs=(5, 6, 7), restarts=2)
    for worker in range(3):
        state, actions = system.start(worker)
        assert actions == (Send(3, Ask(0, cost=5 + worker, salt=0)),)
        assert (state.retries, state.breaks, state.cost) == (4, int(worker == 1), 5 + worker)
    assert system.start(3) == ((system.generator.initial(), 2), ())
    plain = GroupSystem(PAIRS, ways=None)
    assert plain.start(0)[1] == (Send(3, Ask(0, cost=1, salt=None)),)
    assert plain.start(0)[0].retries == plain.start(0)[0].breaks == 0
    assert GroupSystem(PAIRS, rounds=0).start(0)[0].ask.last


def test_every_event_is_enabled_with_every_salt():
    def ready(system, stage):
        return list(system.ready(0, replace(system.start(0)[0], stage=stage)))

    one, three, seeded = (GroupSystem(PAIRS, ways=ways, retries=1, breakers=(0,)) for ways in (1, 3, None))
    assert ready(one, GRANTED) == [Enter(0), Retry(), Broke(0)]
    assert ready(seeded, GRANTED) == [Enter(None), Retry(), Broke(None)]
    assert ready(seeded, LATER) == [Computed(None)]
    salts = [event.salt for event in ready(three, ALONE)]
    assert ready(three, ALONE) == [NextRound(salt) for salt in salts]
    assert ready(three, GRANTED) == [*map(Enter, salts), Retry(), *map(Broke, salts)]
    assert len({tuple(order_from_salt(frozenset((0, 1, 2)), salt)) for salt in salts}) == len(salts) == 3


def test_restarts_are_limited_and_need_an_active_worker():
    system = GroupSystem(PAIRS, restarts=1)
    state = system.start(3)[0]
    assert list(system.ready(3, state)) == [Restarted()]
    assert list(GroupSystem(PAIRS).ready(3, GroupSystem(PAIRS).start(3)[0])) == []
    over = (replace(state[0], status=(LEFT, DEAD, LEFT)), 1)
    assert list(system.ready(3, over)) == []
    after, actions = system.step(3, state, Restarted())
    assert after == (replace(state[0], generation=1), 0)
    assert actions == (Note(("restarted", 1)),)
    assert list(system.ready(3, after)) == []
    check_error(AssertionError, "not an event of the generator", system.step, 3, state, Retry())


def test_finished_states_of_workers_and_generator():
    system = GroupSystem(PAIRS)
    worker, generator = system.start(0)[0], system.start(3)[0]
    resting = {s: system.finished(0, replace(worker, stage=s)) for s in (ASKED, GRANTED, MEETING, ALONE, LATER)}
    assert not any(resting.values())
    assert all(system.finished(0, replace(worker, stage=stage)) for stage in (ENDED, EVICTED))
    assert system.finished(3, generator)
    assert not system.finished(3, (replace(generator[0], waiting=(1,)), 0))
    patient = GroupSystem(PAIRS, timeouts=True)
    assert patient.finished(0, worker)
    assert patient.finished(3, (replace(generator[0], waiting=(1,)), 0))


def test_only_endless_runs_wrap_request_numbers():
    finite, endless = GroupSystem(PAIRS, rounds=3), GroupSystem(PAIRS, rounds=None)
    assert (finite.generator.modulus, finite.worker.modulus) == (None, None)
    assert (endless.generator.modulus, endless.worker.modulus) == (MODULUS, MODULUS)
    assert (finite.worker.rounds, endless.worker.rounds) == (3, None)
    assert finite.worker.service == 3
    assert MODULUS > 3  # one in hand, one on its way, one repeated


def test_clock_is_the_oldest_outstanding_group():
    system = GroupSystem(PAIRS, rounds=None)
    state, left = system.start(3)[0]
    assert system.clock(3, (replace(state, buffers=replace(state.buffers, next_seq=8)), left)) == 8
    groups = (Outstanding(5, (0, 1)), Outstanding(6, (1, 2)))
    assert system.clock(3, (replace(state, buffers=replace(state.buffers, groups=groups, next_seq=8)), left)) == 5
    assert system.clock(0, system.start(0)[0]) is None
    assert GroupSystem(PAIRS).clock(3, (state, left)) is None


@pytest.mark.parametrize("setting", [PAIRS, SPLIT, LATE], ids=["random", "inter/intra", "late"])
@pytest.mark.parametrize("seed", range(3))
def test_shifted_sequence_numbers_do_not_change_behavior(setting, seed):
    """Transitions commute with shifting all sequence numbers by the oldest outstanding group."""
    system = GroupSystem(setting, rounds=None, ways=2, costs=(1, 1, 3), retries=3)
    walk, names = Walk(system, seed), set()
    for process, before, event, after, actions in walk.steps(250):
        by = system.clock(3, walk.states[3])
        names.add(type(event.message if isinstance(event, Received) else event).__name__)
        moved = (
            Received(event.source, system.shifted_message(event.message, by)) if isinstance(event, Received) else event
        )
        state, sent = system.step(process, system.shifted(process, before, by), moved)
        assert state == system.shifted(process, after, by)
        assert [system.shifted_message(a.message, by) for a in actions if isinstance(a, Send)] == [
            a.message for a in sent if isinstance(a, Send)
        ]
        assert list(system.ready(process, state)) == list(system.ready(process, after))
    assert {"Ask", "Grant", "Enter", "Here", "Retry"} <= names


def test_endless_run_refuses_breakers():
    """With shifted sequence numbers every old group counts as executed, but a broken one was not."""
    check_error(InputError, "breakers", GroupSystem, PAIRS, rounds=None, breakers=(0,))


# Group buffers and lock vector against a reference without buffers and bits, by order of arrival only


MOVES = Locking()


@dataclass
class ReferenceGroup:
    """A group of the reference: remaining members, and those still inside (None: not started)."""

    seq: int
    members: list[int]
    inside: list[int] | None = None


class ReferenceBuffers:
    """Groups in order of arrival.

    A group may begin when no earlier one that has not begun shares a member with it, and none of its members is inside
    another.
    """

    def __init__(self):
        self.meetings, self.next_seq = [], 0

    def push(self, members):
        self.meetings.append(ReferenceGroup(self.next_seq, list(members)))
        self.next_seq += 1

    def start(self):
        begun = []
        for place, meeting in enumerate(self.meetings):
            before = {w for other in self.meetings[:place] if other.inside is None for w in other.members}
            busy = {w for other in self.meetings if other.inside for w in other.inside}
            if meeting.inside is None and not (before | busy) & set(meeting.members):
                meeting.inside = list(meeting.members)
                begun.append(meeting.seq)
        return begun

    def release(self, worker):
        for meeting in self.meetings:
            if meeting.inside and worker in meeting.inside:
                meeting.inside.remove(worker)
        self.meetings = [m for m in self.meetings if m.inside is None or m.inside]

    def withdraw(self, worker):
        for meeting in self.meetings:
            if meeting.inside is None and worker in meeting.members:
                meeting.members.remove(worker)
        self.meetings = [m for m in self.meetings if m.inside is not None or len(m.members) > 1]

    def void(self, worker):
        ended = [m.seq for m in self.meetings if m.inside is not None and worker in m.members]
        self.meetings = [m for m in self.meetings if m.seq not in ended]
        return ended

    def seen(self, num_workers):
        """Return the equivalent buffers and bits."""
        queues = tuple(
            tuple(m.seq for m in self.meetings if m.inside is None and w in m.members) for w in range(num_workers)
        )
        bits = tuple(any(w in (m.inside or ()) for m in self.meetings) for w in range(num_workers))
        groups = tuple(Outstanding(m.seq, tuple(m.members), tuple(m.inside or ())) for m in self.meetings)
        return GroupBuffers(groups, queues, bits, self.next_seq)


@pytest.mark.parametrize("seed", range(12))
def test_random_moves_match_the_reference_buffers(seed):
    chance, n = Random(seed), 2 + seed % 5
    state, second = GroupBuffers.empty(n), ReferenceBuffers()
    for _ in range(150):
        worker = chance.randrange(n)
        match chance.choice(["push", "push", "start", "start", "release", "release", "release", "withdraw", "void"]):
            case "push":
                members = tuple(sorted(chance.sample(range(n), chance.randint(2, n))))
                state = MOVES.pushed(state, members)
                second.push(members)
            case "start":
                state, begun = MOVES.started(state)
                assert [group.seq for group in begun] == second.start()
                assert all(group.running and group.active == group.members for group in begun)
            case "release":
                state = MOVES.released(state, worker)
                second.release(worker)
            case "withdraw":
                state = MOVES.withdrawn(state, worker)
                second.withdraw(worker)
            case "void":
                state, ended = MOVES.voided(state, worker)
                assert [group.seq for group in ended] == second.void(worker)
        assert state == second.seen(n)
        for w in range(n):
            inside = [m.seq for m in second.meetings if w in (m.inside or ())]
            running = state.running_of(w)
            assert ([] if running is None else [running.seq]) == inside
        for group in state.groups:
            assert state.group(group.seq) is group


def test_dissolved_group_frees_only_its_members():
    """(0, 1) and (1, 2) run after worker 1 left (0, 1), so ending (0, 1) frees only worker 0."""
    state = GroupBuffers.empty(4)
    for members in ((0, 1), (2, 3), (1, 2)):
        state = MOVES.pushed(state, members)
    state, begun = MOVES.started(state)
    assert [group.members for group in begun] == [(0, 1), (2, 3)]
    state = MOVES.released(state, 2)
    state = MOVES.released(state, 1)
    state, begun = MOVES.started(state)
    assert [group.members for group in begun] == [(1, 2)]
    assert state.locks == (True, True, True, True)
    first = state.group(0)
    state, ended = MOVES.dissolved(state, (first,))
    assert ended == (first,)
    assert state.locks == (False, True, True, True), "worker 1 left group 0 before and is inside group 2"
    assert [group.seq for group in state.groups] == [1, 2]
    state, _ = MOVES.voided(state, 2)  # worker 2 was done with group 1, which worker 3 still waits in
    assert state.locks == (False,) * 4
    assert state.groups == ()


def test_group_is_not_running_before_its_start():
    group = Outstanding(3, (0, 1))
    assert not group.running
    assert replace(group, active=(1,)).running
    assert GroupBuffers.empty(3) == GroupBuffers((), ((), (), ()), (False, False, False), 0)
    waiting = MOVES.pushed(GroupBuffers.empty(2), (0, 1))
    assert waiting.running_of(0) is None
    assert not MOVES.can_start(replace(waiting, locks=(False, True)), waiting.groups[0])
    assert MOVES.can_start(waiting, waiting.groups[0])
    assert not MOVES.can_start(waiting, replace(waiting.groups[0], active=(0, 1)))


# The group generator in every interleaving of small systems, and its draws in every situation


@pytest.mark.parametrize("configuration", SMALL, ids=lambda c: c.name)
def test_every_property_holds_in_every_state(configuration):
    assert configuration.run().require().holds


DRAWS = [
    GeneratorSetting(nodes=nodes, group_size=size, division=division, slow_threshold=threshold, slow_worker_policy=rule)
    for nodes in ((0, 0, 0), (0, 1, 2, 3), (0, 0, 1, 1, 1))
    for size in (2, 3)
    for division in GroupSplit
    for threshold in (None, 2)
    for rule in SlowWorkerPolicy
    if rule != SlowWorkerPolicy.DEFER and (len(nodes) < 5 or rule == SlowWorkerPolicy.PAIR_LOCALLY)
    if division != GroupSplit.NODE_THEN_ALL or (size == 2 and len(set(nodes)) < len(nodes))  # it ignores group_size
]


@pytest.mark.parametrize("salts", [(5,), pytest.param((0, 1, 11), marks=pytest.mark.slow)])
@pytest.mark.parametrize("setting", DRAWS, ids=range(len(DRAWS)))
def test_draws_obey_every_law(setting, salts):
    assert broken_law(Drawing(setting), salts=salts) is None


def test_orders_drawn_from_a_seed_are_uniform():
    """Chi-squared over the 24 orders of 4 workers: 23 degrees of freedom, so above 60 less than once in 30,000."""
    counts = {}
    for draw in range(4800):
        order = tuple(order_from_salt(frozenset(range(4)), salt_of(7, draw, 4)))
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 60


def test_bounded_groups_keep_every_worker_averaging():
    cluster = Cluster.regular(2, 4)
    setting = GeneratorSetting.of(DynamicGroups(group_size=3, slow_threshold=None, max_known=4), cluster)
    machine = GroupGenerator(setting)
    state, granted = machine.initial(), [0] * 8
    for _ in range(60):
        for worker in range(8):
            last = state.answers[worker]
            if state.requests[worker] >= 0 and last is None:
                continue  # a pending request
            done = getattr(last, "seq", -1)
            state, actions = machine.handle(state, worker, Ask(state.requests[worker] + 1, done))
            for action in actions:
                if type(getattr(action, "message", None)).__name__ == "Grant":
                    granted[action.to] += 1
    drawn = [sum(worker in group for group in state.known) for worker in range(8)]
    assert max(drawn) <= 5, drawn  # the group that reaches the bound of one member may be new to another
    assert min(granted) > 20, granted


@pytest.mark.parametrize("setting", [split_globally((0, 0, 1, 1)), random((0, 0, 1, 1)), smart((0, 0, 1, 1), None)])
def test_silent_member_of_a_failed_group_is_never_granted(setting):
    """Worker 3 crashes inside a group; the generator is never told its rank, and the survivors continue."""
    machine = GroupGenerator(setting)
    state, inbox = machine.initial(), {}

    def ask(worker, **facts):
        nonlocal state
        state, actions = machine.handle(state, worker, Ask(state.requests[worker] + 1, **facts))
        inbox.update({a.to: a.message for a in actions if isinstance(a, Send) and not isinstance(a.message, Void)})

    for worker in range(4):
        ask(worker)
    while not (isinstance(inbox.get(3), Grant)):
        for worker in [w for w in range(4) if w in inbox]:
            ask(worker, done=getattr(inbox.pop(worker), "seq", -1))
    broken, failed, later = inbox[3], [], []
    for _ in range(60):
        for worker in [w for w in range(3) if w in inbox]:
            answer = inbox.pop(worker)
            lost = isinstance(answer, Grant) and 3 in answer.members
            (failed if lost else later).append(answer)
            ask(worker, done=getattr(answer, "seq", -1), failed=lost)
    assert {answer.seq for answer in failed} <= {broken.seq}
    granted = [answer for answer in later if isinstance(answer, Grant)]
    assert len(granted) > 60
    assert {worker for answer in granted for worker in answer.members} == {0, 1, 2}
