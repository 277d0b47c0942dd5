"""Gap bounds, capacities and liveness on graphs whose answers are known by hand or from the paper."""

import itertools

import networkx as nx
import pytest

from benchmarks.explore.hop import both_ways, diamond, ring
from helpers.gap_bounds import attained, named, path_lengths, published
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.strategies import IterationGap
from partreduce.verify.gap_bounds import distances_near, events_of, exact_bounds

MAX_IG, STALENESS = 5, 3
DIAMETER = {"ring": 8, "ring-based": 4, "double-ring": 3}

ENTER, SEND, REDUCE = range(3)
WIDE = Digraph.of(5, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 0), (2, 0)])


def lengths(graph):
    made = nx.DiGraph(graph.edges)
    return dict(nx.all_pairs_shortest_path_length(made))


@pytest.mark.parametrize("name", ["ring", "ring-based", "double-ring"])
def test_table_1_of_hop_at_16_workers(name):
    """The six rows of Hop's Table 1 on its three graphs, from path lengths that networkx finds."""
    graph = named(name, 16)
    d = lengths(graph)
    rows = {
        IterationGap(): lambda i, j: d[j][i],
        IterationGap(staleness=STALENESS): lambda i, j: (STALENESS + 1) * d[j][i],
        IterationGap(backup=1): lambda i, j: None,
        IterationGap(backup=1, staleness=STALENESS): lambda i, j: None,
        IterationGap(notify_ack=True): lambda i, j: min(d[j][i], 2 * d[i][j]),
        IterationGap(max_ig=MAX_IG): lambda i, j: min(d[j][i], MAX_IG * d[i][j]),
        IterationGap(max_ig=MAX_IG, staleness=STALENESS): lambda i, j: min((STALENESS + 1) * d[j][i], MAX_IG * d[i][j]),
        IterationGap(max_ig=MAX_IG, backup=1): lambda i, j: MAX_IG * d[i][j],
        IterationGap(max_ig=MAX_IG, backup=1, staleness=STALENESS): lambda i, j: MAX_IG * d[i][j],
    }
    for setting, formula in rows.items():
        printed = published(graph, setting)
        for i in range(16):
            for j in range(16):
                assert printed[i][j] == (0 if i == j else formula(i, j)), (setting, i, j)
    assert max(max(row) for row in published(graph, IterationGap())) == DIAMETER[name]
    # On undirected graphs the bounds are exact without backup workers and acknowledgements.
    for setting in rows:
        if not setting.backup and not setting.notify_ack:
            assert exact_bounds(graph, setting) == published(graph, setting)


def test_theorem_2_is_not_tight_on_the_diamond():
    """A path that goes forward and then backward is shorter than the best of all-forward and all-backward."""
    graph, setting = diamond(), IterationGap(max_ig=1)
    paper, exact = published(graph, setting), exact_bounds(graph, setting)
    assert paper[1][2] == paper[2][1] == 3
    assert exact[1][2] == exact[2][1] == 2
    assert attained(graph, setting, exact)[0] == exact


def test_theorem_2_is_tight_on_all_other_digraphs_of_up_to_4_workers_but_one():
    """All strongly connected digraphs, standard setting with token queues, max_ig 1, 2 and 3."""
    for max_ig, expected in ((1, {(4, 5), (4, 6)}), (2, set()), (3, set())):
        loose = set()
        for n in (2, 3, 4):
            for graph in strongly_connected(n):
                if exact_bounds(graph, IterationGap(max_ig=max_ig)) != published(graph, IterationGap(max_ig=max_ig)):
                    loose.add((n, len(graph.edges)))
        assert loose == expected


def strongly_connected(n):
    pairs = list(itertools.permutations(range(n), 2))
    for size in range(n, len(pairs) + 1):
        for edges in itertools.combinations(pairs, size):
            graph = Digraph.of(n, edges)
            if all(length is not None for row in path_lengths(graph) for length in row):
                yield graph


def test_notify_ack_is_tighter_than_published_on_an_undirected_ring():
    """Opposite workers of a ring of 6 are never more than 2 steps apart; the published bound is 3."""
    graph, setting = both_ways(6), IterationGap(notify_ack=True)
    exact = exact_bounds(graph, setting)
    assert published(graph, setting)[0][3] == 3
    assert attained(graph, setting, exact)[0][0][3] == exact[0][3] == 2


def test_notify_ack_over_l_backward_hops_is_l_plus_1():
    """On a long directed ring the published 2·length is loose from length 2 on."""
    graph, n = ring(12), 12
    exact, paper = exact_bounds(graph, IterationGap(notify_ack=True)), published(graph, IterationGap(notify_ack=True))
    for hops in range(1, 6):
        i, j = 0, hops  # i sends along `hops` edges to j
        assert exact[i][j] == hops + 1
        assert paper[i][j] == min(n - hops, 2 * hops)


def test_one_backup_worker_on_a_ring_of_4_is_tighter_than_published():
    """Exploration showed 3, 4, 5 against the published 4, 6, 8; the exact bound says so without exploring."""
    for max_ig, across in ((2, 3), (3, 4), (4, 5)):
        graph, setting = both_ways(4), IterationGap(backup=1, max_ig=max_ig)
        exact = exact_bounds(graph, setting)
        assert exact[0][2] == across == attained(graph, setting, exact)[0][0][2]
        assert published(graph, setting)[0][2] == 2 * max_ig


def marked(graph, setting):
    """The needs of verify/checker/events.py, without backup workers: arcs between events, by their tokens."""
    arcs = nx.MultiDiGraph()
    for v in range(graph.num_workers):
        listed = [((ENTER, v), (SEND, v), 1), ((SEND, v), (REDUCE, v), 0), ((REDUCE, v), (ENTER, v), 0)]
        arcs.add_weighted_edges_from(listed)
    for u, v in graph.edges:
        arcs.add_edge((SEND, u), (REDUCE, v), weight=setting.staleness)
        if setting.notify_ack:
            arcs.add_edge((REDUCE, v), (SEND, u), weight=1)
        if setting.max_ig is not None:
            arcs.add_edge((ENTER, v), (ENTER, u), weight=setting.max_ig)
    return arcs


def test_every_live_setting_has_a_token_on_every_cycle():
    """The marked graph's token-free arcs are acyclic, checked with networkx."""

    def free(setting):
        arcs = marked(both_ways(4), setting).edges(data="weight")
        return nx.DiGraph([(before, after) for before, after, tokens in arcs if not tokens])

    for setting in (
        IterationGap(),
        IterationGap(max_ig=1),
        IterationGap(staleness=2),
        IterationGap(notify_ack=True, max_ig=1),
    ):
        assert nx.is_directed_acyclic_graph(free(setting))
    assert not nx.is_directed_acyclic_graph(free(IterationGap(max_ig=0)))


def test_distances_agree_with_networkx_on_marked_graphs():
    for setting in (
        IterationGap(max_ig=2, staleness=1),
        IterationGap(notify_ack=True, max_ig=3),
        IterationGap(staleness=2),
        IterationGap(),
    ):
        arcs = marked(WIDE, setting)
        for start in range(5):
            expected = nx.single_source_dijkstra_path_length(arcs, (ENTER, start))
            entered = {v: expected.get((ENTER, v)) for v in range(5)}
            assert distances_near(events_of(WIDE, setting), start, {*range(5)}) == entered


def test_graphs_without_a_path_have_no_bound():
    graph = Digraph.of(2, [(0, 1)])
    exact = exact_bounds(graph, IterationGap())
    assert exact == ((0, None), (1, 0)) == attained(graph, IterationGap(), exact)[0]
    assert exact_bounds(graph, IterationGap(max_ig=2)) == ((0, 2), (1, 0))
