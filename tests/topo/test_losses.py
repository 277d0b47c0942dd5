"""Classes of losses: symmetries keep every group, and each loss has one representative."""

from itertools import combinations

import numpy as np
import pytest

from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.losses import MAX_NODES, Symmetries, losses_of_nodes
from partreduce.topo.phase import Phase
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, GroupPhases, RulePhases, Static


def _random_groups(seed: int, cluster: Cluster, period: int) -> Schedule:
    rng = np.random.default_rng(seed)
    n = cluster.num_workers
    phases = tuple(Phase.from_labels(rng.permutation(n) // int(rng.integers(2, 5))) for _ in range(period))
    return Schedule("random", cluster, Static(phases=GroupPhases(phases), pace=tuple(rng.integers(1, 3, n).tolist())))


SCHEDULES = {
    "figure 10": build("prague-figure-10", Cluster.regular(4, 4)),
    "three digits": Schedule(
        "rule",
        Cluster.regular(12, 2),
        Static(phases=RulePhases((2, 3, 2), ((Block((0,), (0, 2)), Block((1,), (1,))), (Block((0, 1)),)))),
    ),
    "ranks that rest": Schedule(
        "rule", Cluster.regular(3, 4), Static(phases=RulePhases((3,), ((Block((0, 1), (0,)), Block((2,))),)))
    ),
    "a slow rank": Schedule(
        "rule",
        Cluster.regular(2, 4),
        Static(phases=RulePhases((2,), ((Block((0, 1, 2, 3), (0,)),),)), pace=(1, 1, 2, 1) * 2),
    ),
    "a slow node": Schedule(
        "rule",
        Cluster.regular(3, 2),
        Static(phases=RulePhases((3,), ((Block((0, 1), (0,)),),)), pace=(1, 1, 1, 1, 2, 2)),
    ),
    "all": Schedule("all", Cluster.irregular([[0, 1, 2], [3, 4]]), AllReduce(pace=(1, 2, 1, 1, 1))),
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


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_loss_is_mapped_to_its_representative_by_a_permutation_that_keeps_groups_and_paces(name: str) -> None:
    schedule = SCHEDULES[name]
    symmetries, n, paces = Symmetries.of(schedule), schedule.num_workers, schedule.paces()
    for count in (1, 2, 3):
        for lost in combinations(range(n), count):
            to = symmetries.mapping(lost)
            assert sorted(to) == list(range(n))
            assert tuple(sorted(to[w] for w in lost)) == symmetries.representative(lost)
            assert _keeps_groups(schedule, to)
            assert name == "all" or [paces[w] for w in to] == paces.tolist()


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_classes_are_the_representatives_of_all_losses(name: str) -> None:
    schedule = SCHEDULES[name]
    symmetries, n = Symmetries.of(schedule), schedule.num_workers
    for count in (1, 2, 3):
        smallest: dict[tuple[int, ...], tuple[int, ...]] = {}
        for lost in combinations(range(n), count):
            smallest.setdefault(symmetries.representative(lost), lost)
        assert symmetries.classes(count) == sorted(smallest)
        assert all(lost == like for like, lost in smallest.items())


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_losses_of_nodes_are_those_of_every_node(name: str) -> None:
    schedule = SCHEDULES[name]
    symmetries, cluster = Symmetries.of(schedule), schedule.cluster
    found = {symmetries.representative(cluster.workers_of(node)) for node in range(cluster.num_nodes)}
    assert losses_of_nodes(schedule, symmetries) == sorted(found)


def test_the_classes_of_figure_10_are_few_whatever_its_size() -> None:
    """Local ranks 0 and 1 are of their own kinds; 2 and 3 stand in blocks of their own in phase 2."""
    small, large = (Symmetries.of(build("prague-figure-10", Cluster.regular(m, 4))) for m in (8, 250_000))
    for count in (1, 2):
        alike = [[divmod(w, 4)[1] for w in lost] for lost in small.classes(count)]
        assert alike == [[divmod(w, 4)[1] for w in lost] for lost in large.classes(count)]
    assert len(large.classes(1)) == 4


def test_losses_of_more_nodes_than_are_ordered_have_no_representative() -> None:
    symmetries = Symmetries.of(SCHEDULES["three digits"])
    assert symmetries.representative(range(0, 2 * MAX_NODES, 2)) is not None
    assert symmetries.representative(range(0, 2 * MAX_NODES + 1, 2)) is None
