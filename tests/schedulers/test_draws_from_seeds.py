"""What the explorer cannot see of a draw, because it chooses the random number itself: that the seed's numbers do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from partreduce.schedulers.protocols.base import Note
from partreduce.schedulers.protocols.group_generator.draw import (
    Drawing,
    GeneratorSetting,
    Situation,
    order_from_salt,
    salt_of,
)
from partreduce.schedulers.protocols.group_generator.service import Ask, GroupGenerator
from partreduce.schedulers.protocols.group_generator.worker import GroupSystem
from partreduce.topo.strategies.dynamic_groups import GroupSplit

EVERYBODY = frozenset(range(4))
KNOWN = ((0, 1), (0, 2), (0, 3))


def started(setting, requests=60):
    """The groups that start while workers ask in turn, and are done with what they were given."""
    machine = GroupGenerator(setting)
    state, groups = machine.initial(), []
    for number in range(requests):
        worker = number % setting.num_workers
        answer = state.answers[worker]
        if state.requests[worker] >= 0 and answer is None:
            continue
        state, actions = machine.handle(state, worker, Ask(state.requests[worker] + 1, getattr(answer, "seq", -1)))
        groups += [a.what[2] for a in actions if isinstance(a, Note) and a.what[0] == "started"]
    return groups


@pytest.mark.parametrize("division", [GroupSplit.RANDOM, GroupSplit.GLOBAL, GroupSplit.INTER_INTRA])
def test_another_seed_draws_other_groups_and_the_same_seed_the_same(division):
    setting = GeneratorSetting(nodes=(0, 0, 0, 0, 1, 1, 1, 1), group_size=2, division=division, slow_threshold=None)
    runs = [started(replace(setting, seed=seed)) for seed in range(5)]
    assert len({tuple(run) for run in runs}) == 5
    assert runs == [started(replace(setting, seed=seed)) for seed in range(5)]


@pytest.mark.parametrize("num_workers", [24, 64, 1000])
def test_a_random_number_reaches_every_place_of_an_order(num_workers):
    """The last four workers of an order come in ascending order once in 24; 64 bits would leave them so always."""
    everybody = frozenset(range(num_workers))
    ends = [order_from_salt(everybody, salt_of(3, draw, num_workers))[-4:] for draw in range(240)]
    assert sum(end == sorted(end) for end in ends) < 35  # 10 are expected, with a standard deviation of 3.1


@pytest.mark.parametrize("division", [GroupSplit.RANDOM, GroupSplit.GLOBAL])
def test_a_worker_with_all_the_groups_it_may_have_meets_each_of_them(division):
    setting = GeneratorSetting(
        nodes=(0, 0, 0, 0), group_size=2, division=division, slow_threshold=None, max_known=3, seed=1
    )
    drawing, met = Drawing(setting), Counter()
    for draw in range(300):
        now = Situation(0, EVERYBODY, EVERYBODY, (0,) * 4, 0, KNOWN, salt_of(1, draw, 4))
        met.update(group for group in drawing.draw(now) if 0 in group)
    assert set(met) == set(KNOWN)
    assert min(met.values()) > 60


def test_a_division_that_may_not_draw_a_new_group_takes_any_known_one_as_often():
    """Worker 0 may meet 1 and 2 only, and where the order gives it worker 3 it meets either as often."""
    setting = GeneratorSetting(
        nodes=(0, 0, 0, 0), group_size=2, division=GroupSplit.GLOBAL, slow_threshold=None, max_known=2
    )
    drawing, met = Drawing(setting), Counter()
    salts = [salt_of(2, draw, 4) for draw in range(2400)]
    for salt in (salt for salt in salts if order_from_salt(EVERYBODY, salt)[:2] == [0, 3]):  # 200 are expected
        now = Situation(0, EVERYBODY, EVERYBODY, (0,) * 4, 0, KNOWN[:2], salt)
        met.update(group for group in drawing.draw(now) if 0 in group)
    assert set(met) == set(KNOWN[:2])
    assert min(met.values()) > 60


def test_the_explorer_visits_every_order_and_every_known_group():
    setting = GeneratorSetting(nodes=(0, 0, 0, 0), group_size=2, slow_threshold=None, max_known=1)
    salts = GroupSystem(setting, ways=24).salts
    assert len({tuple(order_from_salt(EVERYBODY, salt)) for salt in salts}) == 24
    drawing = Drawing(replace(setting, division=GroupSplit.RANDOM, max_known=3))
    three = GroupSystem(setting, ways=3).salts
    drawn = {drawing.draw(Situation(0, EVERYBODY, EVERYBODY, (0,) * 4, 0, KNOWN, salt)) for salt in three}
    assert drawn == {(group,) for group in KNOWN}
