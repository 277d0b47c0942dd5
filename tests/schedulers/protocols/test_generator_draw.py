"""Every rule of a draw, and draws from seeds."""

from dataclasses import replace
from itertools import permutations
from math import factorial, log2

import pytest

from helpers.refusals import check_error
from partreduce import Cluster
from partreduce.errors import InputError
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
from partreduce.strategies import DynamicGroups, GroupSplit, SlowWorkerPolicy

LOW_SALTS = range(24)
SALTS = [low + (high << 61) for low in LOW_SALTS for high in range(6)]


def drawing(nodes=(0, 0, 0, 1, 1, 1), **facts):
    return Drawing(GeneratorSetting(nodes=nodes, **({"group_size": 2, "slow_threshold": 2} | facts)))


def now_of(setting, initiator=0, **facts):
    everybody = frozenset(range(setting.num_workers))
    default = {"alive": everybody, "idle": everybody, "counts": (5,) * setting.num_workers, "alone": 0, "known": ()}
    return Situation(initiator, **(default | {"salt": 0} | facts))


def outcomes(draw, salts=SALTS):
    """Return all results over many salts."""
    return {draw(salt) for salt in salts}


# Random numbers and orders


def test_salts_enumerate_every_order_cyclically():
    workers = frozenset((9, 2, 4, 5))
    orders = [tuple(order_from_salt(workers, salt)) for salt in range(24)]
    assert set(orders) == set(permutations((2, 4, 5, 9)))
    assert orders == [tuple(order_from_salt(workers, salt + 24 * 7)) for salt in range(24)]
    assert orders[0] == (2, 4, 5, 9)
    assert order_from_salt(frozenset(), 3) == []


@pytest.mark.parametrize("n", [2, 6, 7, 15, 16, 64, 1000])
def test_salts_have_enough_bits_for_orders_and_choices(n):
    assert max(salt_of(3, draw, n).bit_length() for draw in range(20)) > log2(factorial(n)) + 61 + 20


# Slow workers


def test_known_slowness_overrides_the_threshold():
    behind = {"counts": (0, 99, 0, 0, 0, 0)}
    assert not drawing(slow_threshold=None).is_slow_worker(now_of(drawing().setting, **behind))
    rules = drawing()
    assert not rules.is_slow_worker(now_of(rules.setting, slow=frozenset((1,)), **behind))
    assert rules.is_slow_worker(now_of(rules.setting, slow=frozenset((0,))))
    assert not drawing(slow_threshold=None).is_slow_worker(now_of(rules.setting, slow=frozenset((0,))))


@pytest.mark.parametrize("rule", SlowWorkerPolicy)
def test_straggler_lags_the_fastest_alive_worker_by_the_threshold(rule):
    rules = drawing(slow_worker_policy=rule)
    for ahead, lags in ((6, False), (7, True), (8, True)):
        now = now_of(rules.setting, counts=(5, ahead, 0, 0, 0, 0))
        assert rules.is_slow_worker(now) == lags
        assert rules.is_limited(now) == (lags and rule != SlowWorkerPolicy.PAPER)
    gone = now_of(rules.setting, counts=(5, 9, 5, 5, 5, 5), alive=frozenset((0, 2, 3)))
    assert not rules.is_slow_worker(gone)


def test_slow_workers_take_at_least_twice_the_lower_median():
    late = drawing(slow_worker_policy=SlowWorkerPolicy.DEFER)
    assert late.slow({0: 10, 1: 19, 2: 20, 3: 21, 4: 0}) == frozenset()  # the lower of the two middle ones: 19
    assert late.slow({0: 10, 1: 10, 2: 20, 3: 21}) == {2, 3}
    assert late.slow({0: 10, 1: 20, 2: 19}) == frozenset()  # 38 would be slow next to 19
    assert late.slow({0: 10, 1: 10, 2: 19}) == frozenset()
    assert late.slow({0: 10, 1: 20}) == {1}
    assert late.slow({0: 0, 1: 20, 2: 0, 3: 10}) == {1}
    assert late.slow({0: 1, 1: 1, 2: 2}) == {2}
    assert late.slow({0: 0, 1: 0}) == late.slow({}) == frozenset()
    assert drawing(slow_worker_policy=SlowWorkerPolicy.DEFER, slow_threshold=None).slow({0: 1, 1: 9}) is None
    assert drawing(slow_worker_policy=SlowWorkerPolicy.PAIR_LOCALLY).slow({0: 1, 1: 9}) is None


def test_filter_passes_workers_less_than_the_threshold_behind():
    rules = drawing()
    now = now_of(rules.setting, counts=(5, 6, 5, 4, 3, 2))
    everybody, some = frozenset(range(6)), frozenset((1, 3, 4))
    assert rules.fast_enough(now, everybody) == {0, 1, 2, 3}
    assert rules.fast_enough(now, some) == {1, 3}
    assert drawing(slow_threshold=None).fast_enough(now, some) == some
    known = replace(now, slow=frozenset((0, 1, 5)))
    assert rules.fast_enough(known, everybody) == {0, 2, 3, 4}
    assert rules.fast_enough(known, some) == {3, 4}
    assert drawing(slow_threshold=None).fast_enough(known, everybody) == everybody


# Partners and small groups


def test_worker_alone_twice_gets_a_random_group():
    for division in (GroupSplit.GLOBAL, GroupSplit.INTER_INTRA):
        rules = drawing(division=division, group_size=3)
        now = now_of(rules.setting, idle=frozenset((0,)), salt=5)
        assert rules.draw(replace(now, alone=1)) == ()
        assert rules.draw(replace(now, alone=2)) == (tuple(sorted((0, *rules.partners(now)[:2]))),)


def test_straggler_prefers_idle_workers_on_its_node():
    rules = drawing(group_size=4)
    lags = now_of(rules.setting, initiator=1, counts=(5, 0, 5, 5, 5, 5))

    def partner(**facts):
        groups = outcomes(lambda salt: rules.draw(replace(lags, salt=salt, **facts)))
        assert all(len(draw) == 1 and len(draw[0]) == 2 and 1 in draw[0] for draw in groups)
        return {w for draw in groups for w in draw[0]} - {1}

    assert partner(idle=frozenset((1, 2, 3, 4))) == {2}
    assert partner(idle=frozenset((1, 3, 4))) == {0, 2}
    assert partner(alive=frozenset((1, 3, 4, 5)), idle=frozenset((1, 3, 4))) == {3, 4}
    assert partner(alive=frozenset((1, 3, 4, 5)), idle=frozenset((1,))) == {3, 4, 5}
    assert partner(slow=frozenset((0, 1))) == {2}
    assert partner(slow=frozenset((0, 1, 2))) == {3, 4, 5}
    assert partner(slow=frozenset(range(6))) == {0, 2}
    assert partner(counts=(9, 5, 0, 9, 9, 9), idle=frozenset((1, 2, 3))) == {2}, "also a partner that is further behind"
    assert rules.draw(replace(lags, alive=frozenset((1,)), idle=frozenset((1,)))) == ()


# Divisions


def test_global_division_uses_idle_workers_passing_the_filter():
    rules = drawing(division=GroupSplit.GLOBAL)
    now = now_of(rules.setting, idle=frozenset((0, 1, 2, 5)), counts=(5, 5, 5, 5, 5, 0), salt=1)
    assert rules.draw(now) == rules.divided(now, frozenset((0, 1, 2)))
    assert {w for group in rules.draw(now) for w in group} == {0, 1}


def test_inter_intra_division_by_hand():
    rules = drawing((0, 0, 0, 1, 1, 1, 2, 2), group_size=3)
    taking_part = frozenset(range(8)) - {0}
    for salt in LOW_SALTS:
        now = now_of(rules.setting, initiator=1, idle=taking_part, salt=salt)
        assert rules.draw(now) == ((1, 3, 6), (4, 5), (1, 2), (3, 4, 5), (6, 7))
    assert rules.by_node(frozenset((7, 1, 2))) == [{1, 2}, {7}]
    assert rules.intra(now, frozenset((1, 3, 4))) == ((3, 4),)


def test_node_group_excludes_busy_and_slow_workers():
    rules = drawing(division=GroupSplit.NODE_THEN_ALL, slow_worker_policy=SlowWorkerPolicy.PAPER)
    now = now_of(rules.setting, initiator=3, idle=frozenset((0, 3, 4)), salt=3)
    assert rules.draw(now) == ((3, 4),)
    assert rules.draw(replace(now, idle=frozenset((0, 3)))) == ()
    assert rules.draw(replace(now, idle=frozenset((0, 3)), alone=1)) == ()
    assert rules.draw(replace(now, idle=frozenset((0, 3)), alone=2)) == ((3, 4, 5),)
    behind = replace(now, counts=(5, 5, 5, 5, 5, 3))
    assert rules.draw(replace(behind, alone=2)) == ((3, 4),)
    assert rules.draw(replace(behind, alone=2, counts=(5, 5, 5, 5, 0, 0))) == ((3, 4, 5),)
    assert rules.draw(replace(behind, idle=frozenset((3, 5)))) == ()
    assert rules.draw(replace(behind, due=True)) == ((0, 1, 2, 3, 4),)


def test_global_group_is_due_after_enough_requests_of_fast_workers():
    rules = drawing(division=GroupSplit.NODE_THEN_ALL, all_every=4)
    now = now_of(rules.setting, counts=(5, 5, 5, 5, 3, 3), alive=frozenset(range(5)))
    assert [rules.is_due(now, apart) for apart in (0, 15, 16, 17)] == [False, False, True, True]
    assert not rules.is_due(replace(now, counts=(5, 9, 5, 5, 5, 5)), 99), "a straggler starts no global group"
    assert not rules.is_due(replace(now, counts=(5, 3, 3, 3, 3, 3)), 99), "a group needs two workers"
    assert rules.is_due(replace(now, counts=(5, 5, 3, 3, 3, 3)), 8)
    other = drawing(division=GroupSplit.GLOBAL, all_every=4)
    assert not other.is_due(now, 99)
    assert [rules.further(apart) for apart in (0, 22, 23, 24, 30)] == [1, 23, 24, 24, 24]
    assert other.further(3) == 0


# The bound on known groups


def test_bounded_worker_draws_any_fitting_known_group():
    rules = drawing(division=GroupSplit.RANDOM, max_known=3, slow_worker_policy=SlowWorkerPolicy.PAPER)
    known = ((0, 1), (0, 2), (0, 5), (1, 2))
    now = now_of(rules.setting, known=known, counts=(5, 5, 5, 5, 5, 0))
    assert outcomes(lambda salt: rules.draw(replace(now, salt=salt))) == {((0, 1),), ((0, 2),)}
    nobody_fits = replace(now, counts=(5, 0, 0, 5, 5, 0))
    assert outcomes(lambda salt: rules.draw(replace(nobody_fits, salt=salt))) == {((0, 1),), ((0, 2),), ((0, 5),)}
    dead = replace(nobody_fits, alive=frozenset((0, 1, 3, 4)))
    assert outcomes(lambda salt: rules.draw(replace(dead, salt=salt))) == {((0, 1),)}
    all_dead = replace(now, alive=frozenset((0, 3, 4)))
    assert outcomes(lambda salt: rules.draw(replace(all_dead, salt=salt))) == {((0, 3),), ((0, 4),)}
    below = replace(now, known=known[1:])
    assert len(outcomes(lambda salt: rules.draw(replace(below, salt=salt)))) == 4


def test_bounded_division_uses_known_groups_or_none():
    rules = drawing((0, 0, 0, 0), division=GroupSplit.GLOBAL, max_known=2)
    known = ((0, 1), (0, 2), (1, 3), (2, 3))
    now = now_of(rules.setting, known=known)
    drawn = outcomes(lambda salt: rules.divided(replace(now, salt=salt), frozenset(range(4))))
    assert {frozenset(groups) for groups in drawn} == {frozenset(known[::3]), frozenset(known[1:3])}
    three = outcomes(lambda salt: rules.divided(replace(now, salt=salt), frozenset((0, 1, 3))))
    assert three == {((0, 1),), ((1, 3),)}
    assert outcomes(lambda salt: rules.divided(replace(now, salt=salt), frozenset((0, 3)))) == {()}
    one = replace(now, known=((0, 1), (0, 2)))  # worker 0 is bounded; 1, 2 and 3 are not, so only 0 is held to it
    drawn = outcomes(lambda salt: rules.divided(replace(one, salt=salt), frozenset(range(4))))
    assert all((0, 3) not in groups for groups in drawn)
    assert {group for groups in drawn for group in groups} == {(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)}
    assert rules.divided(replace(one, known=((0, 1), (0, 3))), frozenset((0, 3))) == ((0, 3),)


def test_bounded_division_draws_any_known_group_of_a_worker():
    """The order of workers is fixed; the higher bits of the salt choose the group."""
    rules = drawing((0, 0, 0, 0), division=GroupSplit.GLOBAL, max_known=2)
    everybody = frozenset(range(4))
    now = now_of(rules.setting, known=((0, 1), (0, 2)))
    order = next(salt for salt in range(24) if order_from_salt(everybody, salt) == [0, 3, 1, 2])
    numbers = [order + 24 * -(-(choice << 61) // 24) for choice in range(4)]
    assert [rules.divided(replace(now, salt=salt), everybody)[0] for salt in numbers] == [(0, 1), (0, 2)] * 2


def test_bounded_global_group_is_the_largest_known_group():
    rules = drawing(division=GroupSplit.NODE_THEN_ALL, max_known=2)
    known = ((0, 1), (0, 1, 2), (0, 1, 2, 3), (3, 4, 5))
    now = now_of(rules.setting, known=known)
    assert rules.all_of(now, frozenset((0, 1, 2))) == ((0, 1, 2),)
    assert rules.all_of(now, frozenset((0, 1, 2, 5))) == ((0, 1, 2),)
    assert rules.all_of(now, frozenset((0, 1, 5))) == ((0, 1),)
    assert rules.all_of(now, frozenset((0, 1, 3, 4, 5))) == ((0, 1),)
    assert rules.all_of(now, frozenset((0, 5))) == ((0, 5),)
    assert rules.all_of(replace(now, initiator=5), frozenset((0, 5))) == ((0, 5),)
    assert rules.all_of(now, frozenset((1, 5))) == ((0, 1, 5),), "the initiator is a member"
    assert rules.all_of(now, frozenset((0,))) == rules.all_of(now, frozenset()) == ()


# The setting


def test_generator_setting_is_built_from_the_strategy():
    chosen = DynamicGroups(
        group_size=4, division=GroupSplit.GLOBAL, slow_worker_policy=SlowWorkerPolicy.DEFER, slow_threshold=7,
        all_every=5,
        seed=11, max_known=9,
    )  # fmt: skip
    setting = GeneratorSetting.of(chosen, Cluster.regular(2, 3))
    assert setting == GeneratorSetting(
        nodes=(0, 0, 0, 1, 1, 1), group_size=4, division=GroupSplit.GLOBAL, slow_worker_policy=SlowWorkerPolicy.DEFER,
        slow_threshold=7, all_every=5, seed=11, max_known=9,
    )  # fmt: skip
    assert setting.num_workers == 6


def test_generator_setting_has_the_defaults_of_the_strategy():
    """Except max_known, which explorations do not need."""
    default = GeneratorSetting.of(DynamicGroups(), Cluster.regular(2, 3))
    assert replace(default, max_known=None) == GeneratorSetting(nodes=(0, 0, 0, 1, 1, 1))


@pytest.mark.parametrize(
    ("name", "allowed", "others"), [("group_size", (2, 3), (1, 4)), ("max_known", (1, None), (0, -1))]
)
def test_group_size_and_max_known_are_validated(name, allowed, others):
    for value in allowed:
        assert GeneratorSetting(nodes=(0, 0, 1), **{name: value}).num_workers == 3
    for value in others:
        check_error(InputError, name, GeneratorSetting, nodes=(0, 0, 1), **{name: value})


# Properties of salts drawn from seeds, which the explorer does not cover because it chooses the salts


EVERYBODY = frozenset(range(4))
KNOWN = ((0, 1), (0, 2), (0, 3))


def list_groups(setting, requests=60):
    """Return the groups that start while workers send requests in turn and complete their groups."""
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
def test_seeds_determine_the_drawn_groups(division):
    setting = GeneratorSetting(nodes=(0, 0, 0, 0, 1, 1, 1, 1), group_size=2, division=division, slow_threshold=None)
    runs = [list_groups(replace(setting, seed=seed)) for seed in range(5)]
    assert len({tuple(run) for run in runs}) == 5
    assert runs == [list_groups(replace(setting, seed=seed)) for seed in range(5)]


@pytest.mark.parametrize("num_workers", [24, 64, 1000])
def test_salts_shuffle_every_position_of_an_order(num_workers):
    """The last four workers of an order ascend once in 24 draws; with only 64 bits they always would."""
    everybody = frozenset(range(num_workers))
    ends = [order_from_salt(everybody, salt_of(3, draw, num_workers))[-4:] for draw in range(240)]
    assert sum(end == sorted(end) for end in ends) < 35  # 10 are expected, with a standard deviation of 3.1


def test_explorer_covers_every_order_and_known_group():
    setting = GeneratorSetting(nodes=(0, 0, 0, 0), group_size=2, slow_threshold=None, max_known=1)
    salts = GroupSystem(setting, ways=24).salts
    assert len({tuple(order_from_salt(EVERYBODY, salt)) for salt in salts}) == 24
    drawing = Drawing(replace(setting, division=GroupSplit.RANDOM, max_known=3))
    three = GroupSystem(setting, ways=3).salts
    drawn = {drawing.draw(Situation(0, EVERYBODY, EVERYBODY, (0,) * 4, 0, KNOWN, salt)) for salt in three}
    assert drawn == {(group,) for group in KNOWN}
