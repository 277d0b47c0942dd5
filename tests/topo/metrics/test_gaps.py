"""Hop's spectral gap of a bare graph, and how much momentum a graph bears; metrics load nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.graphs.named import ring_based
from partreduce.topo.graphs.weights import weigh
from partreduce.topo.metrics import hop_gap, metrics
from partreduce.topo.metrics.stability import largest_rate
from partreduce.topo.mixing import mixing_matrix
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, NeighborAveraging, Round, StaticGroups

STAR = Round.from_edges(5, [(*edge, Fraction(1, 5)) for i in range(1, 5) for edge in ((0, i), (i, 0))])


def test_the_gap_of_a_ring_counts_edges_and_not_their_weights() -> None:
    for weight in (Fraction(1, 4), Fraction(1, 9)):
        ring = Round.from_edges(7, [(i, (i + d) % 7, weight) for i in range(7) for d in (1, 6)])
        assert hop_gap(ring) == pytest.approx(1 - np.cos(2 * np.pi / 7), abs=1e-14)


def test_the_gap_of_a_directed_ring_takes_eigenvalues_in_the_order_of_real_numbers() -> None:
    edges = [(0, 1, Fraction(1, 2)), (1, 2, Fraction(1, 4)), (2, 0, Fraction(1, 8))]
    # It has the cube roots of 1; the real order takes −1/2, the modulus would take 1.
    assert hop_gap(Round.from_edges(3, edges)) == pytest.approx(1.5, abs=1e-12)


def test_only_a_schedule_of_one_graph_has_a_hop_gap() -> None:
    rng = np.random.default_rng(0)
    phases = tuple(Phase.from_labels(rng.integers(-1, 4, size=9)) for _ in range(3))
    found = metrics(Schedule("s", Cluster.parse("9x1"), StaticGroups(phases=GroupPhases(phases)))).hop_gap
    assert found.value is None
    assert "fixed graph" in found.how
    star = metrics(Schedule("star", Cluster.parse("5x1"), NeighborAveraging(rounds=(STAR,))))
    assert star.hop_gap.value == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (Round.from_edges(3, [(0, 1, Fraction(1, 2)), (1, 0, Fraction(1, 2))]), "worker 2 has no neighbor"),
        (Round.from_edges(5000, [(0, 1, Fraction(1, 2))]), "at most 4000"),
    ],
)
def test_what_has_no_gap_is_refused_in_one_line(graph: Round, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        hop_gap(graph)
    assert "\n" not in str(caught.value)


def test_importing_metrics_loads_nothing_heavy() -> None:
    code = "import sys, partreduce.topo.metrics; print(sorted({'scipy', 'networkx', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def spread_after(matrix, momentum, rate, *, parallel, steps=4000):
    """What is left of the differences between workers on the loss x²/2, from a random start; 1 at the start."""
    x = np.random.default_rng(1).standard_normal(len(matrix))
    x -= x.mean()
    x /= np.linalg.norm(x)
    velocity = np.zeros_like(x)
    for _ in range(steps):
        velocity = momentum * velocity + x
        x = matrix @ x - rate * velocity if parallel else matrix @ (x - rate * velocity)
        x -= x.mean()
        if np.linalg.norm(x) > 1e6:
            break
    return np.linalg.norm(x)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("num_workers", [8, 16])
def test_differences_between_workers_shrink_below_the_largest_rate_and_grow_above_it(num_workers, momentum, parallel):
    graph = weigh(ring_based(num_workers))
    limit = largest_rate(graph, momentum, parallel=parallel)
    matrix = mixing_matrix(graph)
    assert spread_after(matrix, momentum, 0.98 * limit, parallel=parallel) < 0.5
    if limit < 2 * (1 + momentum):  # otherwise the mean of all is what grows first
        assert spread_after(matrix, momentum, 1.02 * limit, parallel=parallel) > 2


def test_the_serial_order_of_the_ring_based_graph_bears_little_momentum():
    """Its smallest eigenvalue over 16 workers is -0.462: 0.32 instead of All-Reduce's 3.8."""
    graph = weigh(ring_based(16))
    assert largest_rate(graph, 0.9, parallel=False) == pytest.approx(0.3165, abs=1e-4)
    assert largest_rate(graph, 0.9, parallel=True) == pytest.approx(1.0224, abs=1e-3)
