"""Bounds of the iteration gap: as Hop's Table 1 states them, and as runs attain them."""

import networkx as nx

from benchmarks.explore.explorer import explore
from benchmarks.explore.reductions import Hop
from benchmarks.explore.search import NoDeadlock
from benchmarks.explore.system import Network
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.schedulers.protocols.hop import check_setting
from partreduce.topo.graphs import named

DRAWN = {"ring": named.ring, "ring-based": named.ring_based, "double-ring": named.double_ring}


def graph_of(name, n):
    return Digraph.from_edges_of(DRAWN[name](n))


def path_lengths(graph):
    """Return a matrix: entry [a][b] is the number of edges on a shortest path from a to b, None without one."""
    made = nx.DiGraph(graph.edges)
    made.add_nodes_from(range(graph.num_workers))
    found = dict(nx.all_pairs_shortest_path_length(made))
    return [[found[a].get(b) for b in range(graph.num_workers)] for a in range(graph.num_workers)]


def published_bounds(graph, setting):
    """Return a matrix: entry [i][j] is the paper's bound of Step(i) − Step(j), None where it states none."""
    d, n = path_lengths(graph), graph.num_workers

    def times(length, factor):
        return None if length is None else length * factor

    def bound(i, j):
        bounds = []
        if setting.notify_ack:  # section 3
            bounds += [d[j][i], times(d[i][j], 2)]
        elif not any(setting.backups(n)):  # Theorem 1; section 4 under staleness, and nothing under backup workers
            bounds.append(times(d[j][i], setting.staleness + 1))
        if setting.max_ig is not None:  # Theorem 2
            bounds.append(times(d[i][j], setting.max_ig))
        return min((b for b in bounds if b is not None), default=None)

    return tuple(tuple(0 if i == j else bound(i, j) for j in range(n)) for i in range(n))


def attained_bounds(graph, setting, bounds, max_states=60_000):
    """Return (matrix, search): entry [i][j] is the largest reachable Step(i) − Step(j), None if unbounded.

    Messages are delivered at once: a late one only delays, so the same gaps are reached. If some pair is unbounded,
    only states are visited in which no worker is further ahead of the slowest than the largest finite bound plus one
    step; a pair that reaches this limit counts as unbounded.
    """
    check_setting(graph, setting)
    finite = [value for row in bounds for value in row if value is not None]
    unbounded = any(value is None for row in bounds for value in row)
    fence = max(finite, default=0) + 1

    def inside(view):
        steps = [worker.step for worker in view.processes]
        return max(steps) - min(steps) <= fence

    found = explore(
        Hop(graph, setting),
        properties=(NoDeadlock(),),
        network=Network(delay=False),
        max_states=max_states,
        symmetry=False,
        within=inside if unbounded else None,
    )
    assert found.complete
    assert found.holds
    return tuple(tuple(None if unbounded and gap >= fence else gap for gap in row) for row in found.gaps), found
