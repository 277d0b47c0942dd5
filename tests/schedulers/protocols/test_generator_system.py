"""The generator and its workers as one machine: who is which process, what may happen, how numbers are kept small."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.explore.reductions import GroupSystem
from helpers.machine_laws import Walk
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.group_generator.buffers import GroupBuffers, Outstanding
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting, order_from_salt
from partreduce.schedulers.protocols.group_generator.service import (
    DEAD,
    LEFT,
    Alone,
    Ask,
    Bye,
    Evicted,
    Grant,
    Later,
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
    Here,
    NextRound,
    Retry,
)
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.dynamic_groups import GroupSplit, SlowWorkerPolicy

PAIRS = GeneratorSetting(nodes=(0, 0, 0), group_size=2, division=GroupSplit.RANDOM, slow_threshold=None)
SPLIT = GeneratorSetting(nodes=(0, 0, 1), group_size=2, slow_threshold=2)
LATE = GeneratorSetting(nodes=(0, 0, 1), group_size=2, slow_worker_policy=SlowWorkerPolicy.DEFER, slow_threshold=2)


def test_the_processes_are_the_workers_and_behind_them_the_generator():
    system = GroupSystem(PAIRS)
    assert system.num_processes == 4
    assert system == GroupSystem(PAIRS, rounds=2, ways=1, restarts=0)
    star = [(0, 3), (1, 3), (2, 3), (3, 0), (3, 1), (3, 2)]
    between = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert sorted(system.channels) == sorted(star + between)
    assert sorted(replace(system, collective=False).channels) == star


def test_the_first_requests_carry_the_first_random_number_and_what_rounds_cost():
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


def test_every_event_comes_with_every_way_that_a_draw_may_come_out():
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


def test_the_generator_may_be_restarted_so_often_and_only_while_somebody_takes_part():
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
    with pytest.raises(AssertionError, match="not an event of the generator"):
        system.step(3, state, Retry())


def test_each_process_does_what_its_part_does():
    system = GroupSystem(PAIRS, restarts=1)
    generator, worker = system.start(3)[0], system.start(1)[0]
    ask = system.start(0)[1][0].message
    after, actions = system.step(3, generator, Received(0, ask))
    assert (after[0], actions) == system.generator.handle(generator[0], 0, ask)
    assert after[1] == 1
    granted, nothing = system.step(1, worker, Received(3, Grant(0, 0, 0, (0, 1))))
    assert (granted.stage, nothing) == (GRANTED, ())
    met, actions = system.step(1, granted, Enter(0))
    assert (met.stage, actions) == (MEETING, (Send(0, Here(0)),))
    alone, actions = system.step(1, replace(granted, stage=MEETING), Received(0, Here(0)))
    assert alone.stage == ASKED
    assert actions[-1].to == 3
    free = GroupSystem(PAIRS, collective=False)
    assert free.step(1, granted, Enter(0))[0].stage == ASKED


def test_workers_rest_at_their_end_and_the_generator_when_nobody_waits():
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


def test_only_endless_runs_wrap_their_requests():
    finite, endless = GroupSystem(PAIRS, rounds=3), GroupSystem(PAIRS, rounds=None)
    assert (finite.generator.modulus, finite.worker.modulus) == (None, None)
    assert (endless.generator.modulus, endless.worker.modulus) == (MODULUS, MODULUS)
    assert (finite.worker.rounds, endless.worker.rounds) == (3, None)
    assert finite.worker.service == 3
    assert MODULUS > 3  # one in hand, one on its way, one repeated


def test_the_clock_is_the_oldest_group_that_is_not_over():
    system = GroupSystem(PAIRS, rounds=None)
    state, left = system.start(3)[0]
    assert system.clock(3, (replace(state, buffers=replace(state.buffers, next_seq=8)), left)) == 8
    groups = (Outstanding(5, (0, 1)), Outstanding(6, (1, 2)))
    assert system.clock(3, (replace(state, buffers=replace(state.buffers, groups=groups, next_seq=8)), left)) == 5
    assert system.clock(0, system.start(0)[0]) is None
    assert GroupSystem(PAIRS).clock(3, (state, left)) is None


def test_shifting_lowers_every_sequence_number_and_forgets_those_long_past():
    system = GroupSystem(PAIRS, rounds=None)
    state, left = system.start(3)[0]
    buffers = GroupBuffers(
        (Outstanding(5, (0, 1), (1,)), Outstanding(7, (1, 2))), ((), (7,), (7,)), (False, True, False), 8
    )
    state = replace(state, buffers=buffers, answers=(Grant(0, 1, 5, (0, 1)), None, Alone(0, 2)), generation=3)
    moved, restarts = system.shifted(3, (state, left), 5)
    lower = GroupBuffers(
        (Outstanding(0, (0, 1), (1,)), Outstanding(2, (1, 2))), ((), (2,), (2,)), (False, True, False), 3
    )
    assert moved == replace(state, buffers=lower, answers=(Grant(0, 1, 0, (0, 1)), None, Alone(0, 2)))
    assert restarts == left
    worker = replace(
        system.start(0)[0], seq=7, met=6, here=((4, 1), (5, 2), (7, 1)), ask=Ask(2, 6), stage=MEETING, members=(0, 1)
    )
    assert system.shifted(0, worker, 5) == replace(worker, seq=2, met=1, here=((0, 2), (2, 1)), ask=Ask(2, 1))
    assert system.shifted(0, worker, 50) == replace(worker, seq=-1, met=-1, here=(), ask=Ask(2, -1))
    assert system.shifted(0, worker, 8).seq == system.shifted(0, worker, 9).seq == -1
    messages = [
        Ask(1, 6),
        Grant(0, 1, 6, (0, 1)),
        Void(2, 6),
        Here(6, answer=True),
        Alone(0, 1),
        Later(0, 1),
        Bye(0, 1),
    ]
    shifted = [system.shifted_message(message, 5) for message in messages]
    assert shifted == [Ask(1, 1), Grant(0, 1, 1, (0, 1)), Void(2, 1), Here(1, answer=True), *messages[4:]]
    assert [system.shifted_message(m, 8) for m in messages[:4]] == [
        Ask(1, -1), Grant(0, 1, -1, (0, 1)), Void(2, -1), Here(-1, answer=True),
    ]  # fmt: skip
    assert system.shifted_message(Evicted(1), 5) == Evicted(1)


@pytest.mark.parametrize("setting", [PAIRS, SPLIT, LATE], ids=["random", "inter/intra", "late"])
@pytest.mark.parametrize("seed", range(3))
def test_an_endless_run_goes_on_after_shifting_as_it_would_have(setting, seed):
    """What a process does next does not change when all sequence numbers are counted from the oldest group."""
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


def test_an_endless_run_has_no_breakers():
    """Counted from the oldest group, a group long past is taken for met, and one that broke was not."""
    with pytest.raises(InputError, match="breakers"):
        GroupSystem(PAIRS, rounds=None, breakers=(0,))
