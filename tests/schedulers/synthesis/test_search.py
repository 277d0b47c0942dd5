"""The search over one alphabet: values are exact, limits hold, optima are found."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from helpers.synthesis import synthesize
from partreduce.schedulers.synthesis import Limits, Problem, scoring
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.explicit_alphabet import explicit_alphabet, partition_cost
from partreduce.schedulers.synthesis.front import scattered
from partreduce.schedulers.synthesis.partitions import PartitionCosts
from partreduce.schedulers.synthesis.period_search import Search
from partreduce.schedulers.synthesis.rule_alphabet import rule_alphabet
from partreduce.topo import metrics
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link, Switch
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.timing.cost import communication

HARDWARE = Hardware(
    inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9, latency=1e-5), model_bytes=552_000_000,
    node_nic=((1, Link.of_bandwidth(2.5e9)),),
)  # fmt: skip


def problem(shape: str, hardware: Hardware = HARDWARE, **more) -> Problem:
    return Problem(cluster=replace(Cluster.parse(shape), hardware=hardware), **more)


def never() -> bool:
    return False


def random_labels(rng: np.random.Generator, count: int, n: int) -> np.ndarray:
    """Partitions in which the smallest worker of a group names it, (count, n)."""
    names = rng.integers(0, rng.integers(1, n + 1, (count, 1)), (count, n))
    return (names[:, :, None] == names[:, None, :]).argmax(axis=2)


def started(asked: Problem, steps_per_round: tuple[int, ...] | None = None, *, effort: float, seed: int = 0) -> Search:
    """A search over an explicit alphabet, with some of its periods in the archive."""
    clock = Clock(seconds=1e6, effort=effort)
    alphabet = explicit_alphabet(asked, steps_per_round or (1,) * asked.cluster.num_workers, seed=0, expired=never)
    tried, rng = Search(alphabet, asked, clock=clock, seed=seed), np.random.default_rng(5)
    full, periods = alphabet.full_average(), []
    for _ in range(40):
        length = int(rng.integers(asked.limits.min_period, min(6, asked.limits.max_period) + 1))
        indices = tuple(rng.integers(len(alphabet), size=length).tolist())
        periods.append(indices if full is None else (*indices[1:], full))
    tried.score(periods)
    clock.charge(-clock.position())
    assert tried.archive.front()
    return tried


def cost_of(alphabet, indices) -> float:
    return float(alphabet.costs[list(indices)].mean() / alphabet.space.instants)


def exact_value(alphabet, indices) -> float:
    return float(metrics.consensus_distance(alphabet.schedule(indices, "tried")))


@pytest.mark.parametrize("algorithm", AllReduceAlgorithm)
def test_costs_of_many_partitions_are_those_of_each(algorithm):
    hardware = replace(
        HARDWARE, num_nics=2, bus=Link.of_bandwidth(3e10), switches=(Switch((0, 1), Link.of_bandwidth(2e9)),)
    )
    asked = problem("3,3,2", hardware, algorithm=algorithm)
    labels = random_labels(np.random.default_rng(1), 300, 8)  # more than one call of `topo.timing` takes
    groups = [[tuple(np.flatnonzero(row == name)) for name in np.unique(row)] for row in labels]
    costs = [partition_cost(tuple(g for g in row if len(g) > 1), asked) for row in groups]
    assert PartitionCosts(asked).seconds(labels) == pytest.approx(np.array(costs))


@pytest.mark.parametrize("steps_per_round", [None, (1, 1, 1, 2, 2, 2, 2, 2, 2)])
def test_refined_values_are_exact_and_never_worse(steps_per_round):
    asked = problem("3,4,2")
    tried = started(asked, steps_per_round, effort=0.8)
    alphabet, archive, before = tried.alphabet, tried.archive, tried.archive.front()
    tried.refine(0.8)
    after = archive.front()
    edges = archive.edges[np.searchsorted(archive.edges, [one.cost for one in before])]  # what a bin does not tell
    gains = [archive.best_within(edge).value - one.value for edge, one in zip(edges, before, strict=True)]
    assert max(gains) < 1e-12
    assert min(gains) < -0.01
    for value, cost, indices in after[:: max(1, len(after) // 12)]:
        assert exact_value(alphabet, indices) == pytest.approx(value, rel=1e-6, abs=1e-9)
        assert communication(alphabet.schedule(indices, "x"), asked.hardware).per_step == pytest.approx(cost)


def test_the_same_seed_and_effort_give_the_same_front():
    fronts = []
    for _ in range(2):
        tried = started(problem("3,4,2"), effort=0.25, seed=7)
        tried.refine(0.25)
        phases = tried.alphabet.phases
        fronts.append([(one.value, one.cost, tuple(phases[i] for i in one.indices)) for one in tried.archive.front()])
        assert not tried.clock.capped
    assert fronts[0] == fronts[1]


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_group=3, min_period=3, max_period=5),
        Limits(max_distinct_phases=2, max_period=7),
        Limits(max_gap=1, max_period=8),
    ],
)
def test_limits_hold_on_the_whole_front(limits):
    tried = started(problem("3,4,2", limits=limits), effort=0.3)
    tried.refine(0.3)
    alphabet = tried.alphabet
    for _, _, indices in tried.archive.front():
        assert limits.min_period <= len(indices) <= limits.max_period
        phases = [alphabet.phases[i] for i in indices]
        assert limits.max_group is None or max(max(phase.sizes, default=1) for phase in phases) <= limits.max_group
        if limits.max_distinct_phases is not None:
            assert len({phase for phase in phases if len(phase)}) <= limits.max_distinct_phases
        if limits.max_gap is not None:
            crossing = np.flatnonzero(alphabet.crosses[list(indices)]).tolist()
            assert max(b - a for a, b in pairwise([*crossing, crossing[0] + len(indices)])) - 1 <= limits.max_gap


def test_the_optimum_of_a_tiny_cluster_is_found():
    """All periods of up to 3 phases over the 15 partitions of 4 workers, one NIC halved, against the refined front."""
    tried = started(problem("2x2", limits=Limits(max_period=3)), effort=0.5)
    alphabet, clock = tried.alphabet, tried.clock
    space, maps = alphabet.space, alphabet.covariance_maps()
    best: list[tuple[float, float]] = []
    for length in (1, 2, 3):
        table = np.stack(np.meshgrid(*[np.arange(len(alphabet))] * length), axis=-1).reshape(-1, length)
        values = scoring.consensus_distance(space, scoring.compose_all(space, [maps[column] for column in table.T]))
        best += zip(alphabet.costs[table].mean(axis=1).tolist(), values.tolist(), strict=True)
    clock.charge(-clock.position())  # what it took to know the answer does not count
    tried.refine(0.5)
    for value, cost, _ in tried.archive.front():
        assert value <= min(v for c, v in best if c <= cost * (1 + 1e-9)) + 1e-9
    least = min(c for c, v in best if np.isfinite(v))
    assert tried.archive.front()[0].cost == pytest.approx(least)


def test_rules_are_refined():
    even = replace(HARDWARE, node_nic=())
    asked = problem("4x4", even)
    tried = Search(rule_alphabet(asked), asked, clock=Clock(seconds=1e6, effort=0.3), seed=0)
    tried.score([(int(np.argmin(tried.alphabet.costs)),) * 5 + (tried.alphabet.full_average(),)])
    tried.refine(0.3)
    assert len(tried.archive.front()) > 1


def test_time_is_left_for_metrics_when_only_small_groups_may_meet():
    """Without a full average there is nothing on the front before the search over the alphabet."""
    found = synthesize(problem("4,2", limits=Limits(max_group=2)), effort=1.0)
    assert len(found.candidates) > 1


@pytest.mark.parametrize("seed", range(5))
def test_the_first_reported_hold_the_least_time_whatever_a_unit_of_either_cost_costs(seed):
    rng = np.random.default_rng(seed)
    points = sorted(zip(np.sort(rng.random(40)), np.sort(rng.exponential(size=40))[::-1], strict=True))
    ordered = scattered(points, lambda point: point)
    assert sorted(ordered) == points
    best = {
        min(points, key=lambda point: (computing + point[0]) * (1 + price * point[1]))
        for computing in (0.0, 0.1, 1.0)
        for price in np.geomspace(1e-3, 1e3, 100)
    }
    last = max(map(ordered.index, best))
    assert all(point in ordered[: last + 1] for point in best)
    assert last < 20
