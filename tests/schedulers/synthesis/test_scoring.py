"""The batched evaluators against topo.metrics and topo.timing, which share no code with them."""

from dataclasses import replace

import numpy as np
import pytest

from partreduce.schedulers.synthesis import Problem, scoring
from partreduce.schedulers.synthesis.alphabet import Alphabet
from partreduce.schedulers.synthesis.explicit_alphabet import explicit_alphabet
from partreduce.schedulers.synthesis.rule_alphabet import all_phases, count_phases, prime_radices, rule_alphabet
from partreduce.topo import metrics
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.timing.cost import communication

HARDWARE = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9, latency=1e-5), model_bytes=552_000_000)


def problem(shape: str, **more) -> Problem:
    return Problem(cluster=replace(Cluster.parse(shape), hardware=replace(HARDWARE, **more)))


def alphabets() -> dict[str, Alphabet]:
    def never() -> bool:
        return False

    return {
        "rules 4x4": rule_alphabet(problem("4x4")),
        "rules 6x2": rule_alphabet(problem("6x2")),
        "explicit 3,2": explicit_alphabet(problem("3,2"), (1,) * 5, seed=0, expired=never),
        "steps per round 3,2": explicit_alphabet(problem("3,2"), (1, 1, 1, 3, 3), seed=0, expired=never),
        "steps per round uniform": explicit_alphabet(problem("3,2"), (2,) * 5, seed=0, expired=never),
    }


ALPHABETS = alphabets()


@pytest.mark.parametrize("name", ALPHABETS)
def test_consensus_distance_and_cost_agree_with_topo(name):
    alphabet, rng, compared = ALPHABETS[name], np.random.default_rng(1), 0
    maps = alphabet.covariance_maps()
    for _ in range(25):
        indices = tuple(rng.integers(0, len(alphabet), int(rng.integers(1, 7))).tolist())
        schedule = alphabet.schedule(indices, "drawn")
        mine = float(
            scoring.consensus_distance(alphabet.space, scoring.compose_all(alphabet.space, [maps[i] for i in indices]))
        )
        theirs = float(metrics.consensus_distance(schedule))
        assert mine == pytest.approx(theirs, rel=1e-6)
        compared += np.isfinite(theirs)
        cost = communication(schedule, HARDWARE).per_step
        assert alphabet.costs[list(indices)].mean() / alphabet.space.instants == pytest.approx(cost, rel=1e-9)
    assert compared >= 5


def test_composition_is_associative_and_rotation_free():
    alphabet = ALPHABETS["rules 4x4"]
    space, maps = alphabet.space, alphabet.covariance_maps()
    a, b, c = (maps[i] for i in (5, 40, 100))
    left = scoring.compose(space, scoring.compose(space, a, b), c)
    right = scoring.compose(space, a, scoring.compose(space, b, c))
    assert np.allclose(left.noise, right.noise)
    assert np.allclose(left.weight, right.weight)
    assert np.allclose(left.constant, right.constant)
    turned = scoring.compose(space, scoring.compose(space, b, c), a)
    assert scoring.consensus_distance(space, left) == pytest.approx(float(scoring.consensus_distance(space, turned)))


@pytest.mark.parametrize(("ranks", "digits"), [(1, 1), (2, 1), (2, 2), (3, 2), (4, 2), (3, 3)])
def test_all_phases_are_counted_once(ranks, digits):
    listed = list(all_phases(ranks, digits))
    assert len(listed) == len(set(listed)) == count_phases(ranks, digits)


def test_pruned_phases_are_beaten_by_the_full_average():
    alphabet = ALPHABETS["rules 4x4"]
    full = alphabet.full_average()
    assert full is not None
    assert alphabet.costs.max() == alphabet.costs[full]
    assert np.abs(alphabet.matrices[full]).max() < 1e-12


@pytest.mark.parametrize("nodes", [2, 3, 4, 7, 8, 12, 16, 64, 96])
def test_radices_multiply_to_the_number_of_nodes(nodes):
    radices = prime_radices(nodes)
    assert np.prod(radices) == nodes
    assert len(radices) <= 4
    assert min(radices) >= 2
