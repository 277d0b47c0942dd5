"""Hints from the catalogue, and windows rebuilt: what is known is never lost, and improving never worsens."""

from dataclasses import replace

import numpy as np
import pytest

from partreduce.schedulers import registry
from partreduce.schedulers.synthesis import Limits, Problem, scoring
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.explicit_alphabet import explicit_alphabet
from partreduce.schedulers.synthesis.hints import indices_of, rule_rounds
from partreduce.schedulers.synthesis.period_search import Search, Target
from partreduce.schedulers.synthesis.rule_alphabet import rule_alphabet
from partreduce.topo import metrics
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.timing.cost import communication

HARDWARE = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9), model_bytes=552_000_000)
HINTS = [
    ("allreduce", {"every": 3}),
    ("pairs-pairs-all", {"pair_rounds": 2}),
    ("node-then-all", {"node_rounds": 3}),
    ("prague-figure-10", {}),
]


def never() -> bool:
    return False


def problem(shape: str, hints=HINTS, **limits) -> Problem:
    cluster = replace(Cluster.parse(shape), hardware=HARDWARE)
    fitting = [(name, more) for name, more in hints if registry.entry(name).why_not(cluster, **more) is None]
    schedules = tuple(registry.build(name, cluster, **more) for name, more in fitting)
    return Problem(cluster=cluster, hints=schedules, limits=Limits(**limits))


def alphabet_of(asked: Problem):
    if asked.cluster.is_regular:
        return rule_alphabet(asked)
    return explicit_alphabet(asked, (1,) * asked.cluster.num_workers, seed=0, expired=never)


@pytest.mark.parametrize("shape", ["4x4", "8x4", "3,2"])
def test_hints_spelled_in_phases_keep_their_metrics(shape):
    asked = problem(shape)
    alphabet = alphabet_of(asked)
    maps = alphabet.covariance_maps()
    assert len(asked.hints) >= 3
    for hint, indices in zip(asked.hints, indices_of(alphabet, asked.hints), strict=True):
        assert indices is not None
        value = scoring.consensus_distance(
            alphabet.space, scoring.compose_all(alphabet.space, [maps[i] for i in indices])
        )
        assert float(value) == pytest.approx(float(metrics.consensus_distance(hint)), rel=1e-6)
        assert alphabet.costs[list(indices)].mean() == pytest.approx(communication(hint, HARDWARE).per_step)


def test_radices_that_do_not_refine_are_no_hint():
    hint = problem("6x4", [("prague-figure-10", {})]).hints[0]
    assert hint.rule().radices == (2, 3)
    assert rule_rounds(hint, (2, 3)) is not None
    assert rule_rounds(hint, (3, 2)) is None


def test_phases_of_hints_join_an_incomplete_alphabet():
    asked = problem("3,3,3", [("pairs-pairs-all", {"pair_rounds": 2})])
    (spelled,) = indices_of(alphabet_of(asked), asked.hints)
    assert spelled is not None
    assert len(set(spelled)) == asked.hints[0].num_distinct_phases()


def test_hint_for_another_cluster_is_refused():
    other = problem("2,3").hints
    with pytest.raises(InputError, match=r"hints: .* is for the cluster 2,3, not for 3,2"):
        replace(problem("3,2"), hints=other)


@pytest.mark.parametrize("shape", ["3,2", "4x4"])
def test_no_hint_beats_the_archive(shape):
    asked = problem(shape)
    tried = Search(alphabet_of(asked), asked, clock=Clock(seconds=600, effort=0.1), seed=0)
    tried.start(until=0.1)
    for hint in asked.hints:
        found = tried.archive.best_within(communication(hint, HARDWARE).per_step)
        assert found is not None
        assert found.value <= float(metrics.consensus_distance(hint)) * (1 + 1e-9)


@pytest.mark.parametrize("shape", ["4x2", "3,2"])
def test_rebuilt_period_is_never_worse(shape):
    asked = problem(shape, max_period=9)
    tried = Search(alphabet_of(asked), asked, clock=Clock(seconds=600), seed=5)
    alphabet, rng, improved = tried.alphabet, np.random.default_rng(5), 0
    full, target = alphabet.full_average(), Target(budget=float(alphabet.costs.max()) / 3)
    for _ in range(12):
        indices = (full, *rng.integers(0, len(alphabet), int(rng.integers(1, 8))).tolist())
        built = tried.rebuild(indices, target, np.arange(len(alphabet)), until=600)
        values, costs = tried.score([indices, built])
        before, after = target.energy(costs, values)
        assert after <= before + 1e-9
        improved += after < before - 1e-6
    assert improved >= 6
