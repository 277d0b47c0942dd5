"""Classes of failures: symmetries keep every group and map failures of one pattern to each other."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from benchmarks.forgery.dense import dense
from benchmarks.forgery.oracle import exchanges, orbit
from helpers.refusals import check_error
from helpers.small import of_groups, of_phases, of_rule
from partreduce import Cluster, Schedule
from partreduce.files import dump_schedule
from partreduce.schedulers.registry import build
from partreduce.strategies import Block, FailurePlan, Phase, SurvivorRule
from partreduce.topo.strategies import AllReduce, RulePhases, StaticGroups
from partreduce.verify import checker
from partreduce.verify.checker import survives
from partreduce.verify.checker.refusal import TooLarge, Work
from partreduce.verify.checker.survives import Symmetries
from partreduce.verify.failure_plans import planned_classes


def _random_groups(seed, cluster, period):
    rng = np.random.default_rng(seed)
    n = cluster.num_workers
    phases = tuple(Phase.from_labels(rng.permutation(n) // int(rng.integers(2, 5))) for _ in range(period))
    return of_phases("random", cluster, phases, steps_per_round=tuple(rng.integers(1, 3, n).tolist()))


SCHEDULES = {
    "figure 10": build("prague-figure-10", Cluster.regular(4, 4)),
    "three digits": of_rule("rule", Cluster.regular(12, 2), (2, 3, 2),
        ((Block((0,), (0, 2)), Block((1,), (1,))), (Block((0, 1)),))),
    "ranks that rest": of_rule("rule", Cluster.regular(3, 4), (3,), ((Block((0, 1), (0,)), Block((2,))),)),
    "a slow rank": of_rule("rule", Cluster.regular(2, 4), (2,), ((Block((0, 1, 2, 3), (0,)),),),
        steps_per_round=(1, 1, 2, 1) * 2),
    "a slow node": of_rule("rule", Cluster.regular(3, 2), (3,), ((Block((0, 1), (0,)),),),
        steps_per_round=(1, 1, 1, 1, 2, 2)),
    **{f"groups {seed}": _random_groups(seed, Cluster.irregular([[0, 1, 2], [3, 4], [5, 6, 7]]), 1)
        for seed in range(4)},
}  # fmt: skip


def _keeps_groups(schedule, to):
    """Whether the permutation maps the groups of every phase onto groups of that phase."""
    return all(
        {frozenset(to[w] for w in group.members) for group in phase} == {frozenset(group.members) for group in phase}
        for phase in map(schedule.phase, range(schedule.period))
    )


def _exchanges(schedule):
    """Exchanges of two workers of one node that keep all groups, and of two values of a digit."""
    raw = dump_schedule(schedule)
    return exchanges(raw, dense(raw)[0])


def _symmetries(schedule):
    return Symmetries.of(checker.read_schedule(json.loads(json.dumps(dump_schedule(schedule)))), Work("it"))


def _of_size(symmetries, count):
    return sorted(failed for failed in symmetries.classes(count, Work("it")).values() if len(failed) == count)


@pytest.mark.parametrize("name", SCHEDULES)
def test_failures_share_a_pattern_exactly_if_symmetric(name):
    schedule = SCHEDULES[name]
    symmetries, n, swaps = _symmetries(schedule), schedule.num_workers, _exchanges(schedule)
    assert all(_keeps_groups(schedule, to) for to in swaps)
    for count in (1, 2, 3):
        left = set(map(frozenset, combinations(range(n), count)))
        patterns = []
        while left:
            equivalent = orbit(next(iter(left)), swaps)
            left -= equivalent
            (pattern,) = {symmetries.pattern(failed) for failed in equivalent}
            patterns.append(pattern)
        assert len(set(patterns)) == len(patterns)


@pytest.mark.parametrize("name", ["figure 10", "three digits", "pairs of both"])
def test_patterns_of_four_failures_imply_symmetry(name):
    """Equivalent failures may have different patterns: one digit pairs them one way, another digit the other way."""
    square = StaticGroups(phases=RulePhases((3, 3), ((Block((0,), (0,)),), (Block((0,), (1,)),))))
    schedule = {**SCHEDULES, "pairs of both": Schedule("square", Cluster.regular(9, 1), square)}[name]
    symmetries, n, swaps = _symmetries(schedule), schedule.num_workers, _exchanges(schedule)
    rng = np.random.default_rng(0)
    orbits = [orbit(frozenset(failed), swaps) for failed in _of_size(symmetries, 4)]
    for _ in range(40):
        failed = frozenset(rng.choice(n, 4, replace=False).tolist())
        (equivalent,) = {frozenset(one) for one in orbits if failed in one}
        for _ in range(40):
            other = frozenset(rng.choice(n, 4, replace=False).tolist())
            assert other in equivalent or symmetries.pattern(other) != symmetries.pattern(failed)


@pytest.mark.parametrize("name", SCHEDULES)
def test_classes_hold_one_failure_of_every_pattern(name):
    schedule = SCHEDULES[name]
    symmetries, n = _symmetries(schedule), schedule.num_workers
    for count in (1, 2, 3):
        patterns = {symmetries.pattern(failed) for failed in combinations(range(n), count)}
        classes = _of_size(symmetries, count)
        assert sorted(map(symmetries.pattern, classes)) == sorted(patterns)
        assert all(failed == tuple(sorted(set(failed))) for failed in classes)


@pytest.mark.parametrize("name", SCHEDULES)
def test_planned_classes_cover_worker_and_node_failures(name, monkeypatch):
    schedule = SCHEDULES[name]
    symmetries, cluster = _symmetries(schedule), schedule.cluster
    needed = {symmetries.pattern(cluster.workers_of(node)) for node in range(cluster.num_nodes)}
    needed |= set(symmetries.classes(2, Work("it"))) - {symmetries.pattern(())}
    planned = replace(schedule, failure_plan=FailurePlan(SurvivorRule.KEEP_GROUPS, 2))
    found = planned_classes(planned)
    assert found == sorted(found, key=lambda failed: (len(failed), failed))
    assert sorted(map(symmetries.pattern, found)) == sorted(needed)
    enough = len(symmetries.classes(2, Work("it"))) - 1  # the failure of none is not one that the plan covers
    monkeypatch.setattr(survives, "MAX_CLASSES", enough)
    assert planned_classes(planned) == found
    monkeypatch.setattr(survives, "MAX_CLASSES", enough - 1)
    check_error(TooLarge, "the failures that the plan covers fall into over", planned_classes, planned)


def test_all_reduce_plan_lists_no_classes():
    uneven = Schedule("all", Cluster.irregular([[0, 1, 2], [3, 4]]), AllReduce(steps_per_round=(1, 2, 1, 1, 1)))
    assert planned_classes(replace(uneven, failure_plan=FailurePlan(SurvivorRule.ALL_REDUCE, 2))) == []


def test_class_count_of_figure_10_is_independent_of_size():
    """Local ranks 0 and 1 are kinds by themselves; 2 and 3 are in different blocks in phase 2."""
    small, large = (_symmetries(build("prague-figure-10", Cluster.regular(m, 4))) for m in (8, 250_000))
    for count in (1, 2):
        kinds = [[divmod(w, 4)[1] for w in failed] for failed in _of_size(small, count)]
        assert kinds == [[divmod(w, 4)[1] for w in failed] for failed in _of_size(large, count)]
    assert len(_of_size(large, 1)) == 4


def test_rule_on_the_same_number_of_nodes_is_unchanged():
    """Its radices stay; a new factorization of 12 would give 3, 4."""
    rule = of_rule("rule", Cluster.regular(12, 2), (4, 3), ((Block((0, 1), (0,)),), (Block((0, 1), (1,)),)))
    read = checker.read_schedule(json.loads(json.dumps(dump_schedule(rule))))
    assert survives.on_nodes(read, 12) is read


def test_survivor_cell_limit_is_inclusive(monkeypatch):
    """Of 3 groups of 4 workers in 2 phases: 12 cells, and 12 for each phase."""
    groups = [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]], [list(range(12))]]
    schedule = of_groups("groups", Cluster.regular(12, 1), *groups)
    read = checker.read_schedule(json.loads(json.dumps(dump_schedule(schedule))))
    monkeypatch.setattr(survives, "MAX_CELLS", 36)
    assert len(survives.cells_of(read, (0,), [], Work("it")).sizes) == 11
    monkeypatch.setattr(survives, "MAX_CELLS", 35)
    check_error(TooLarge, "over 35 cells of survivors in all phases", survives.cells_of, read, (0,), [], Work("it"))


def test_symmetry_worker_limit_is_inclusive(monkeypatch):
    schedule = SCHEDULES["groups 0"]
    monkeypatch.setattr(survives, "MAX_WIDTH", 8)
    assert len(_symmetries(schedule).kinds) == 8
    monkeypatch.setattr(survives, "MAX_WIDTH", 7)
    check_error(TooLarge, "over 7 workers, or workers on a node of a rule", _symmetries, schedule)
