"""The profile bound: what a phase can do for its seconds, window by window, and below every schedule there is."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from partreduce.schedulers.synthesis import Problem, scoring
from partreduce.schedulers.synthesis.explicit_alphabet import (
    explicit_alphabet,
    partition_cost,
    partitions,
)
from partreduce.schedulers.synthesis.profile_bound import allowed, levels_of, profile_bound, profile_tables
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.strategies.axes import Form

HARDWARE = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9), model_bytes=552_000_000)
SLOW_NIC = replace(HARDWARE, node_nic=((1, Link.of_bandwidth(2e9)),))
RAILS = replace(HARDWARE, num_nics=2, inside=Link.of_bandwidth(3e9, latency=1e-3))
EVERY_PLACE = [
    (shape, hardware, form)
    for shape in ("3,2", "2,2,2", "1,4")
    for hardware in (HARDWARE, SLOW_NIC, RAILS)
    for form in Form
]


def never() -> bool:
    return False


def problem(shape: str, hardware: Hardware = HARDWARE, form: Form = Form.RING) -> Problem:
    return Problem(cluster=replace(Cluster.parse(shape), hardware=hardware), form=form)


def partition_matrix(n: int, groups) -> np.ndarray:
    """The mixing matrix of plain means, (n, n)."""
    result = np.eye(n)
    for group in groups:
        result[np.ix_(group, group)] = 1.0 / len(group)
    return result


def powers(asked: Problem, groups) -> tuple[int, int, float]:
    """Rank, joined and moved of one phase, from its matrix and its definition."""
    n, node_of = asked.cluster.num_workers, asked.cluster.node_of()
    matrix = partition_matrix(n, groups)
    constant = (node_of[:, None] == np.arange(asked.cluster.num_nodes)) / np.sqrt(asked.cluster.node_sizes())
    removed = np.eye(n) - matrix
    stay = constant.shape[1] - np.linalg.matrix_rank(removed @ constant, tol=1e-9)
    return n - round(np.trace(matrix)), constant.shape[1] - stay, float(((removed @ constant) ** 2).sum())


@pytest.mark.parametrize(("shape", "hardware", "form"), EVERY_PLACE)
def test_no_phase_does_more_than_its_seconds_allow(shape, hardware, form):
    asked = problem(shape, hardware, form)
    everyone = tuple(range(asked.cluster.num_workers))
    full = partition_cost((everyone,), asked)
    for groups in partitions(everyone):
        cost = partition_cost(tuple(g for g in groups if len(g) > 1), asked)
        if cost < full * (1 - 1e-9):
            rank, joined, moved = powers(asked, groups)
            most = allowed(asked, cost)
            assert rank <= most.rank
            assert joined <= most.joined
            assert moved <= most.moved + 1e-9


@pytest.mark.parametrize("pace", [(1,) * 6, (2, 2, 1, 1, 3, 1)])
@pytest.mark.parametrize("shape", ["2,2,2", "4,2"])
def test_no_window_leaves_less_than_its_levels(shape, pace):
    asked, rng = problem(shape), np.random.default_rng(3)
    levels = levels_of(asked, 8)
    tables = profile_tables(asked, levels, pace, 4)
    listed = [tuple(g for g in groups if len(g) > 1) for groups in partitions(tuple(range(6)))]
    seconds = np.array([partition_cost(groups, asked) for groups in listed])
    level_of = np.searchsorted([level.seconds * (1 - 1e-9) for level in levels], seconds, side="right") - 1
    centre = np.eye(6) - 1 / 6
    for _ in range(1500):
        window = rng.integers(0, len(listed), int(rng.integers(1, 5)))
        spread = centre @ np.diag(pace).astype(float) @ centre
        for index in window:
            matrix = partition_matrix(6, listed[index]) - 1 / 6
            spread = matrix @ spread @ matrix.T
        assert np.trace(spread) / 6 >= tables.tables[len(window) - 1][tuple(level_of[window])] - 1e-6


@pytest.mark.parametrize(("shape", "hardware"), [("3,2", HARDWARE), ("2,2", SLOW_NIC), ("2,2,1", SLOW_NIC)])
def test_no_short_period_is_below_the_profile_bound(shape, hardware):
    asked = problem(shape, hardware)
    pace = (1,) * asked.cluster.num_workers
    alphabet = explicit_alphabet(asked, pace, seed=0, expired=never)
    bound = profile_bound(asked, pace, never)
    assert bound is not None
    maps, rng = alphabet.covariance_maps(), np.random.default_rng(4)
    for length in (1, 2, 3, 4, 6):
        table = rng.integers(0, len(alphabet), (1500, length))
        period = scoring.compose_all(alphabet.space, [maps[table[:, t]] for t in range(length)])
        values, costs = scoring.consensus_distance(alphabet.space, period), alphabet.costs[table].mean(axis=1)
        assert all(value >= bound.at(cost) - 1e-9 for value, cost in zip(values, costs, strict=True))


def test_levels_rise_in_everything_and_end_in_the_full_average():
    for shape in ("3,2", "8x8", "2,2,2"):
        asked = problem(shape)
        levels = levels_of(asked, 6)
        assert len(levels) <= 6
        n, m = asked.cluster.num_workers, asked.cluster.num_nodes
        assert (levels[-1].rank, levels[-1].joined, levels[-1].moved) == (n - 1, m - 1, m - 1)
        for a, b in pairwise(levels):
            assert a.seconds < b.seconds
            assert (a.rank, a.joined) <= (b.rank, b.joined)
            assert a.moved <= b.moved


def test_all_reduce_every_few_steps_is_near_the_bound_where_links_inside_are_as_slow():
    # With nothing cheap to do inside, little else helps: the bound must say so, or it is of no use.
    asked = problem("2,2", replace(HARDWARE, inside=Link.of_bandwidth(5e9)))
    bound = profile_bound(asked, (1,) * 4, never)
    assert bound is not None
    every = 3
    cost = partition_cost((tuple(range(4)),), asked) / every
    value = 3 / 4 * (every - 1) / 2
    assert value / 2 <= bound.at(cost) <= value
