"""Spectral gaps of matrices and graphs, the closed form of random partitions, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.figures import (
    GapKind,
    figures,
    spectral_gap,
)
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, Neighbor, Round, Static


def test_gaps_of_a_weighted_graph_are_those_of_its_matrix() -> None:
    graph = nx.cycle_graph(7)
    nx.set_edge_attributes(graph, 0.25, "weight")
    matrix = nx.to_numpy_array(graph) + 0.5 * np.eye(7)
    for kind in ("slem", "sigma"):
        assert spectral_gap(graph, kind) == pytest.approx(spectral_gap(matrix, kind), abs=1e-14)
    assert spectral_gap(graph, GapKind.HOP) == pytest.approx(1 - np.cos(2 * np.pi / 7), abs=1e-14)


def test_gaps_of_a_directed_graph_take_weights_along_the_edges() -> None:
    graph = nx.DiGraph()
    graph.add_weighted_edges_from([(0, 1, 0.5), (1, 2, 0.25), (2, 0, 0.125)])
    matrix = np.array([[0.875, 0, 0.125], [0.5, 0.5, 0], [0, 0.25, 0.75]])
    assert spectral_gap(graph, "slem") == pytest.approx(spectral_gap(matrix, "slem"), abs=1e-14)
    values = np.sort(np.abs(np.linalg.eigvals(matrix)))
    assert spectral_gap(matrix, "slem") == pytest.approx(1 - values[-2], abs=1e-12)
    assert spectral_gap(matrix, "sigma") == pytest.approx(1 - np.linalg.svd(matrix)[1][1], abs=1e-12)
    # The directed ring without loops has the cube roots of 1; the real order takes −1/2, the modulus takes 1.
    assert spectral_gap(graph, "hop") == pytest.approx(1.5, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_sigma_of_a_schedule_is_1_minus_contraction_and_slem_1_minus_radius(seed: int) -> None:
    rng = np.random.default_rng(seed)
    phases = tuple(Phase.from_labels(rng.integers(-1, 4, size=9)) for _ in range(3))
    found = figures(Schedule("s", Cluster.parse("9x1"), Static(phases=GroupPhases(phases))))
    assert found.spectral_gap.sigma.value == pytest.approx(1 - found.contraction.value)
    assert found.spectral_gap.slem.value == pytest.approx(1 - found.radius.value)
    assert found.spectral_gap.hop.value is None
    assert "fixed graph" in found.spectral_gap.hop.how


def test_hop_gap_of_a_fixed_graph_schedule() -> None:
    star = Round.from_edges(
        5, [(0, i, Fraction(1, 5)) for i in range(1, 5)] + [(i, 0, Fraction(1, 5)) for i in range(1, 5)]
    )
    found = figures(Schedule("star", Cluster.parse("5x1"), Neighbor(rounds=(star,))))
    assert found.spectral_gap.hop.value == pytest.approx(1.0, abs=1e-12)


def test_de_bruijn_gap_is_1_by_modulus_and_0_by_singular_values() -> None:
    n = 27
    matrix = np.zeros((n, n))
    for i in range(n):
        for a in range(3):
            matrix[(3 * i + a) % n, i] += 1 / 3
    assert spectral_gap(matrix, "slem") == 1.0
    assert spectral_gap(matrix, "sigma") == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        (np.eye(3), "fiedler", "choose hop, slem or sigma"),
        (np.ones((2, 3)), "slem", "square"),
        (np.full((2, 2), np.nan), "slem", "square matrix of numbers"),
        (np.ones((2, 2)), "slem", "sum to 1"),
        (np.ones((1, 1)), "slem", "1 worker"),
        (np.eye(3), "hop", "worker 0 has no neighbour"),
        (nx.empty_graph(0), "hop", "no neighbour"),
        (nx.path_graph(4), "slem", "weight"),
        (nx.empty_graph(5000), "hop", "at most 4000"),
        (Phase.from_groups(5000, [(0, 1)]), "slem", "at most 4000"),
    ],
)
def test_what_has_no_gap_is_refused_in_one_line(target: object, kind: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        spectral_gap(target, kind)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_importing_figures_loads_nothing_heavy() -> None:
    code = "import sys, partreduce.topo.figures; print(sorted({'scipy', 'networkx', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
