"""The graph that protocols stand on, and its automorphisms against every permutation."""

from itertools import permutations
from random import Random

import pytest

from benchmarks.explore.reductions import automorphisms
from partreduce.errors import InputError
from partreduce.schedulers.protocols.digraph import Digraph


def complete(n):
    return Digraph.undirected(n, [(u, v) for u in range(n) for v in range(u)])


def ring(n):
    return Digraph.of(n, [(v, (v + 1) % n) for v in range(n)])


def keeps(graph, labels, p):
    edges = {(p[u], p[v]) for u, v in graph.edges}
    return edges == set(graph.edges) and all(labels[p[v]] == labels[v] for v in range(graph.num_workers))


def test_edges_are_sorted_once_each_and_without_loops():
    graph = Digraph.of(4, [(2, 0), (0, 1), (2, 0), (1, 1), (0, 3), ("2", 1)])
    assert graph.edges == ((0, 1), (0, 3), (2, 0), (2, 1))
    assert graph.num_workers == 4
    assert graph.sources == ((2,), (0, 2), (), (0,))
    assert graph.targets == ((1, 3), (), (0, 1), ())
    assert not graph.is_symmetric
    assert Digraph.of(1, []).edges == ()


def test_an_undirected_edge_stands_in_both_directions():
    graph = Digraph.undirected(3, [(0, 2), ("1", "2")])
    assert graph.edges == ((0, 2), (1, 2), (2, 0), (2, 1))
    assert graph.is_symmetric
    assert Digraph.of(3, []).is_symmetric
    assert not ring(3).is_symmetric
    assert not Digraph.of(4, [(0, 1), (1, 0), (2, 3)]).is_symmetric


@pytest.mark.parametrize(("edge", "shown"), [((-1, 0), "-1→0"), ((0, -1), "0→-1"), ((3, 0), "3→0"), ((0, 3), "0→3")])
def test_a_rank_out_of_range_is_refused(edge, shown):
    with pytest.raises(InputError, match=f"edge {shown}: ranks are 0..2"):
        Digraph.of(3, [(0, 1), edge])


def test_a_graph_of_nobody_is_refused():
    with pytest.raises(InputError, match="graph: has 0 workers"):
        Digraph.of(0, [])


@pytest.mark.parametrize("seed", range(40))
def test_automorphisms_are_all_permutations_that_keep_edges_and_labels(seed):
    chance = Random(seed)
    n = chance.choice([1, 2, 3, 4, 4, 5])
    graph = Digraph.of(n, [(u, v) for u in range(n) for v in range(n) if chance.random() < 0.5])
    if seed % 3 == 0:
        graph = Digraph.undirected(n, graph.edges)
    labels = [chance.choice("ab") for _ in range(n)] if seed % 2 else ["a"] * n
    right = {p for p in permutations(range(n)) if keeps(graph, labels, p)}
    result = automorphisms(graph, labels, limit=200)
    assert set(result) == right
    assert len(result) == len(right)


@pytest.mark.parametrize("seed", range(12))
def test_automorphisms_of_directed_cycles_keep_every_edge_both_ways(seed):
    """All workers look the same: each sends to one and hears from one."""
    n = 4 + seed % 3
    onward = Random(seed).sample(range(n), n)
    graph = Digraph.of(n, enumerate(onward))
    right = {p for p in permutations(range(n)) if keeps(graph, "a" * n, p)}
    assert set(automorphisms(graph, "a" * n, limit=720)) == right


def test_with_too_many_automorphisms_only_cyclic_shifts_come_back():
    shifts = {tuple((v + k) % 4 for v in range(4)) for k in range(4)}
    assert len(automorphisms(complete(4), "aaaa", limit=24)) == 24
    assert set(automorphisms(complete(4), "aaaa", limit=23)) == shifts
    assert set(automorphisms(complete(4), "abab", limit=3)) == {(0, 1, 2, 3), (2, 3, 0, 1)}
    assert set(automorphisms(complete(4), "aaab", limit=5)) == {(0, 1, 2, 3)}
    assert len(automorphisms(complete(5), "aaaaa")) == 5  # 120 of them: more than are worth their time
    assert len(automorphisms(Digraph.of(4, []), "aaaa")) == 24


def test_shifts_that_move_an_edge_do_not_come_back():
    """Two pairs and nothing else: 8 automorphisms, of which two are shifts when the pairs are opposite."""
    opposite, adjacent = Digraph.undirected(4, [(0, 2), (1, 3)]), Digraph.undirected(4, [(0, 1), (2, 3)])
    assert len(automorphisms(opposite, "aaaa")) == len(automorphisms(adjacent, "aaaa")) == 8
    assert len(automorphisms(opposite, "aaaa", limit=7)) == 4
    assert set(automorphisms(adjacent, "aaaa", limit=7)) == {(0, 1, 2, 3), (2, 3, 0, 1)}
    assert len(automorphisms(ring(6), "aaaaaa")) == 6
