"""Graphs and their weights against closed forms, networkx and published metrics."""

import inspect
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.graphs import ours, theirs
from helpers.refusals import check_error
from partreduce.errors import ScheduleError
from partreduce.topo.graphs import Graph
from partreduce.topo.graphs import weights as weights_module
from partreduce.topo.graphs.named import (
    complete,
    double_ring,
    exponential,
    grid,
    hypercube,
    random_regular,
    ring,
    ring_based,
    star,
    torus,
)
from partreduce.topo.graphs.weights import METHODS, best_constant_weight, constant, weigh
from partreduce.topo.mixing import has_negative_entries, is_doubly_stochastic, mixing_matrix


def norm(round_):
    matrix = mixing_matrix(round_)
    return np.linalg.norm(matrix - 1 / len(matrix), 2)


@pytest.mark.parametrize("n", [8, 16, 40])
def test_double_ring_joins_two_ring_based_graphs(n):
    graph = double_ring(n)
    assert set(graph.in_degrees().tolist()) == {4}
    half = theirs(graph).subgraph(range(n // 2))
    assert nx.is_isomorphic(half, theirs(ring_based(n // 2)))
    assert graph.is_connected


@pytest.mark.parametrize(("n", "degree"), [(6, 5), (6, 4), (7, 4), (8, 2), (9, 6), (64, 6), (501, 4)])
def test_random_regular_is_regular_connected_and_reproducible(n, degree):
    graph = random_regular(n, degree, seed=3)
    assert set(graph.in_degrees().tolist()) == {degree}
    assert graph.is_connected
    assert graph == random_regular(n, degree, seed=3)
    assert n < 60 or graph != random_regular(n, degree, seed=4)


def test_large_graphs_are_vectorized():
    for graph in (ring(10**5), torus(300, 300), exponential(10**4), random_regular(10**4, 4, 0), hypercube(13)):
        round_ = weigh(graph)
        assert len(round_) == len(graph)
        assert graph.is_connected


def test_grid_hypercube_and_star():
    for dimension in (1, 3, 5):
        assert nx.is_isomorphic(theirs(hypercube(dimension)), nx.hypercube_graph(dimension))
    assert nx.is_isomorphic(theirs(grid(3, 5)), nx.grid_2d_graph(3, 5))
    assert norm(weigh(star(7))) == pytest.approx(1 - 1 / 7)


GRAPHS = st.builds(
    lambda n, p, seed: ours(nx.gnp_random_graph(n, p, seed=seed)),
    st.integers(2, 9),
    st.floats(0.3, 1),
    st.integers(0, 10**6),
).filter(lambda graph: graph.is_connected)


@pytest.mark.parametrize("method", ["metropolis", "best-constant"])
@given(graph=GRAPHS)
@settings(max_examples=25)
def test_weights_are_doubly_stochastic_and_contract(method, graph):
    round_ = weigh(graph, method)
    assert is_doubly_stochastic(round_)
    assert norm(round_) < 1 - 1e-4
    assert method == "best-constant" or not has_negative_entries(round_)


def test_best_constant_beats_other_constants():
    for graph in (ring(7), hypercube(3), complete(5)):
        best = norm(weigh(graph, "best-constant"))
        for factor in (Fraction(99, 100), Fraction(101, 100)):
            other = Fraction(best_constant_weight(graph)).limit_denominator(10**6) * factor
            assert best < norm(constant(graph, other))
    assert best_constant_weight(hypercube(3)) == pytest.approx(2 / (2 + 6))


def test_invalid_weights_are_rejected_in_one_line():
    with pytest.raises(ScheduleError, match=r"^edge 0→1: has no reverse"):
        weigh(Graph.directed(3, [0, 1, 2, 0], [1, 2, 0, 2]), "metropolis")
    two = Graph.undirected(4, [0, 2], [1, 3])
    check_error(ScheduleError, "workers 0 and 2 do not reach each other", weigh, two, "best-constant")
    check_error(ScheduleError, "is not one of metropolis", weigh, ring(4), "best")
    check_error(ScheduleError, "3000 workers", weigh, ring(3001), "best-constant")
    check_error(ScheduleError, r"edge 0→5: ranks are 0\.\.3", Graph.directed, 4, [0], [5])


def test_every_weighting_method_is_registered():
    """Every function Graph → Round of the module is a method under its own name."""
    methods = {
        name.replace("_", "-"): function
        for name, function in inspect.getmembers(weights_module, inspect.isfunction)
        if list(inspect.signature(function).parameters) == ["graph"]
        and inspect.signature(function).return_annotation == "Round"
    }
    assert methods == METHODS


@given(st.integers(2, 12), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=40))
def test_graph_agrees_with_networkx(n, pairs):
    pairs = [(a % n, b % n) for a, b in pairs]
    graph = Graph.directed(n, [a for a, _ in pairs], [b for _, b in pairs])
    reference = nx.DiGraph()
    reference.add_nodes_from(range(n))
    reference.add_edges_from((a, b) for a, b in pairs if a != b)
    assert graph.is_connected == nx.is_strongly_connected(reference)
    assert ours(reference) == graph
    assert ours(theirs(graph)) == graph
    assert graph.in_degrees().tolist() == [reference.in_degree(i) for i in range(n)]
