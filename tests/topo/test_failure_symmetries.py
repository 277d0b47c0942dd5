"""Classes of failures: symmetries keep every group, and each failure has one representative."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.failure_plan import FailurePlan, SurvivorRule
from partreduce.topo.failure_symmetries import Symmetries, planned_classes
from partreduce.topo.phase import Phase
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, GroupPhases, RulePhases, StaticGroups


def _random_groups(seed: int, cluster: Cluster, period: int) -> Schedule:
    rng = np.random.default_rng(seed)
    n = cluster.num_workers
    phases = tuple(Phase.from_labels(rng.permutation(n) // int(rng.integers(2, 5))) for _ in range(period))
    return Schedule(
        "random",
        cluster,
        StaticGroups(phases=GroupPhases(phases), steps_per_round=tuple(rng.integers(1, 3, n).tolist())),
    )


SCHEDULES = {
    "figure 10": build("prague-figure-10", Cluster.regular(4, 4)),
    "three digits": Schedule(
        "rule",
        Cluster.regular(12, 2),
        StaticGroups(phases=RulePhases((2, 3, 2), ((Block((0,), (0, 2)), Block((1,), (1,))), (Block((0, 1)),)))),
    ),
    "ranks that rest": Schedule(
        "rule", Cluster.regular(3, 4), StaticGroups(phases=RulePhases((3,), ((Block((0, 1), (0,)), Block((2,))),)))
    ),
    "a slow rank": Schedule(
        "rule",
        Cluster.regular(2, 4),
        StaticGroups(phases=RulePhases((2,), ((Block((0, 1, 2, 3), (0,)),),)), steps_per_round=(1, 1, 2, 1) * 2),
    ),
    "a slow node": Schedule(
        "rule",
        Cluster.regular(3, 2),
        StaticGroups(phases=RulePhases((3,), ((Block((0, 1), (0,)),),)), steps_per_round=(1, 1, 1, 1, 2, 2)),
    ),
    "all": Schedule("all", Cluster.irregular([[0, 1, 2], [3, 4]]), AllReduce(steps_per_round=(1, 2, 1, 1, 1))),
    **{
        f"groups {seed}": _random_groups(seed, Cluster.irregular([[0, 1, 2], [3, 4], [5, 6, 7]]), 1)
        for seed in range(4)
    },
}


def _keeps_groups(schedule: Schedule, to: list[int]) -> bool:
    """Whether the permutation maps the groups of every phase onto groups of that phase."""
    return all(
        {frozenset(to[w] for w in group.members) for group in phase} == {frozenset(group.members) for group in phase}
        for phase in map(schedule.phase, range(schedule.period))
    )


def _exchanges(schedule: Schedule) -> list[list[int]]:
    """Exchanges of two workers of one node that keep all groups, and of two values of a digit."""
    n, node_of = schedule.num_workers, schedule.cluster.node_of().tolist()
    found = []
    for one, other in combinations(range(n), 2):
        swap = list(range(n))
        swap[one], swap[other] = other, one
        if node_of[one] == node_of[other] and _keeps_groups(schedule, swap):
            found.append(swap)
    rule = schedule.rule(by_node=True)
    for digit, radix in enumerate(() if rule is None else rule.radices):
        assert rule is not None
        nodes = np.arange(n) // rule.workers_per_node
        digits = list(np.unravel_index(nodes, rule.radices))
        for a, b in combinations(range(radix), 2):
            moved = list(digits)
            moved[digit] = np.select([digits[digit] == a, digits[digit] == b], [b, a], digits[digit])
            to = (
                np.ravel_multi_index(moved, rule.radices) * rule.workers_per_node + np.arange(n) % rule.workers_per_node
            )
            found.append(to.tolist())
    return found


def _orbit(failed: frozenset[int], exchanges: list[list[int]]) -> set[frozenset[int]]:
    reached, new = {failed}, [failed]
    while new:
        one = new.pop()
        for to in exchanges:
            if (other := frozenset(to[w] for w in one)) not in reached:
                reached.add(other)
                new.append(other)
    return reached


@pytest.mark.parametrize("name", SCHEDULES)
def test_losses_have_one_representative_exactly_if_exchanges_that_keep_groups_lead_from_one_to_the_other(
    name: str,
) -> None:
    schedule = SCHEDULES[name]
    symmetries, n, exchanges = Symmetries.of(schedule), schedule.num_workers, _exchanges(schedule)
    assert all(_keeps_groups(schedule, to) for to in exchanges)
    for count in (1, 2, 3):
        left = set(map(frozenset, combinations(range(n), count)))
        representatives = []
        while left:
            orbit = _orbit(next(iter(left)), exchanges)
            left -= orbit
            (representative,) = {symmetries.representative(failed) for failed in orbit}
            assert frozenset(representative) in orbit
            representatives.append(representative)
        assert len(set(representatives)) == len(representatives)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_classes_are_the_representatives_of_all_losses(name: str) -> None:
    schedule = SCHEDULES[name]
    symmetries, n = Symmetries.of(schedule), schedule.num_workers
    for count in (1, 2, 3):
        smallest: dict[tuple[int, ...], tuple[int, ...]] = {}
        for failed in combinations(range(n), count):
            smallest.setdefault(symmetries.representative(failed), failed)
        assert symmetries.classes(count) == sorted(smallest)
        assert all(failed == like for like, failed in smallest.items())


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_classes_of_a_plan_are_those_of_its_workers_and_of_every_node(name: str) -> None:
    schedule = SCHEDULES[name]
    if isinstance(schedule.strategy, AllReduce):
        plan = replace(schedule, failure_plan=FailurePlan(SurvivorRule.ALL_REDUCE, 2))
        assert planned_classes(plan, 10**6) == []
        return
    symmetries, cluster = Symmetries.of(schedule), schedule.cluster
    found = {symmetries.representative(cluster.workers_of(node)) for node in range(cluster.num_nodes)}
    found |= {failed for count in (1, 2) for failed in symmetries.classes(count)}
    planned = replace(schedule, failure_plan=FailurePlan(SurvivorRule.KEEP_GROUPS, 2))
    assert planned_classes(planned, 10**6) == sorted(found, key=lambda failed: (len(failed), failed))
    assert len(planned_classes(planned, 3)) > 3 or len(found) <= 3, "of more than asked some more"


def test_the_classes_of_figure_10_are_few_whatever_its_size() -> None:
    """Local ranks 0 and 1 are of their own kinds; 2 and 3 stand in blocks of their own in phase 2."""
    small, large = (Symmetries.of(build("prague-figure-10", Cluster.regular(m, 4))) for m in (8, 250_000))
    for count in (1, 2):
        alike = [[divmod(w, 4)[1] for w in failed] for failed in small.classes(count)]
        assert alike == [[divmod(w, 4)[1] for w in failed] for failed in large.classes(count)]
    assert len(large.classes(1)) == 4
