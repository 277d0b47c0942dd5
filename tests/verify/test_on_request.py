"""Claims about strategies that decide their groups while the job runs."""

from __future__ import annotations

import pytest

from preduce.topo.cluster import Cluster
from preduce.topo.schedule import Schedule
from preduce.topo.strategies import Division, Generated, Pairwise, Server
from preduce.verify.base import Status
from preduce.verify.prove import prove


def of(strategy: object, cluster: str = "4x4") -> Schedule:
    return Schedule("on request", Cluster.parse(cluster), strategy)


@pytest.mark.parametrize("division", list(Division))
def test_independent_draws_converge_in_expectation(division: Division) -> None:
    proof = prove(of(Generated(group_size=3, division=division, slow_threshold=None)))
    assert proof.verdict is Status.PROVED
    assert proof["convergence"].witness["second_eigenvalue"] < 1


def test_a_filter_makes_draws_depend_on_the_past_so_nothing_is_proved() -> None:
    proof = prove(of(Generated(group_size=3, slow_threshold=4)))
    assert proof["convergence"].status is Status.NOT_PROVED
    assert proof.verdict is Status.NOT_PROVED
    assert "depend on the past" in proof["convergence"].explanation


def test_two_connected_sides_cannot_deadlock_and_reach_consensus() -> None:
    proof = prove(of(Pairwise(active=(0, 2), edges=((0, 1), (2, 1), (2, 3))), "1x4"))
    assert proof.verdict is Status.PROVED
    assert {claim.claim for claim in proof.claims} == {"deadlock-free", "consensus"}


def test_two_parts_without_an_edge_between_them_are_refuted_with_the_part() -> None:
    proof = prove(of(Pairwise(active=(0, 2), edges=((0, 1), (2, 3))), "1x4"))
    assert proof.verdict is Status.REFUTED
    assert proof["consensus"].witness == {"closed": [0, 1], "outside": 2}


def test_a_server_holds_one_copy() -> None:
    assert prove(of(Server(hosts=(0, 1)))).verdict is Status.PROVED
