"""AD-PSGD's pairing and its graph: deadlock-free if bipartite, deadlocked by an odd cycle."""

from random import Random

import networkx as nx
import pytest

from benchmarks.explore.explorer import explore
from benchmarks.explore.pairing import shortest_deadlock
from benchmarks.explore.reductions import Pairing, all_both, automorphisms, two_sides
from benchmarks.explore.search import NoDeadlock, PerPair, Progress
from helpers.machine_invariants import check_renaming
from helpers.orbits import renamings
from helpers.refusals import check_error
from partreduce.errors import InputError
from partreduce.schedulers.protocols.adpsgd import Answer, Ask, Choose, PairState, Role, pairing_of
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.strategies import Pairwise


def complete(n):
    return Digraph.undirected(n, [(u, v) for u in range(n) for v in range(u)])


def ring(n):
    return Digraph.of(n, [(v, (v + 1) % n) for v in range(n)])


def test_edges_are_sorted_unique_and_without_loops():
    graph = Digraph.of(4, [(2, 0), (0, 1), (2, 0), (1, 1), (0, 3), ("2", 1)])
    assert graph.edges == ((0, 1), (0, 3), (2, 0), (2, 1))
    assert graph.num_workers == 4
    assert graph.sources == ((2,), (0, 2), (), (0,))
    assert graph.targets == ((1, 3), (), (0, 1), ())
    assert not graph.is_symmetric
    assert Digraph.of(1, []).edges == ()


def test_undirected_edges_have_both_directions():
    graph = Digraph.undirected(3, [(0, 2), ("1", "2")])
    assert graph.edges == ((0, 2), (1, 2), (2, 0), (2, 1))
    assert graph.is_symmetric
    assert Digraph.of(3, []).is_symmetric
    assert not ring(3).is_symmetric
    assert not Digraph.of(4, [(0, 1), (1, 0), (2, 3)]).is_symmetric


@pytest.mark.parametrize(("edge", "shown"), [((-1, 0), "-1→0"), ((0, -1), "0→-1"), ((3, 0), "3→0"), ((0, 3), "0→3")])
def test_rank_out_of_range_is_refused(edge, shown):
    check_error(InputError, f"edge {shown}: ranks are 0..2", Digraph.of, 3, [(0, 1), edge])


def test_empty_graph_is_refused():
    check_error(InputError, "graph: has 0 workers", Digraph.of, 0, [])


@pytest.mark.parametrize("seed", range(50))
def test_automorphisms_match_brute_force(seed):
    """Also for directed cycles, in which all workers are equivalent."""
    chance = Random(seed)
    n = chance.choice([1, 2, 3, 4, 4, 5])
    graph = Digraph.of(n, [(u, v) for u in range(n) for v in range(n) if chance.random() < 0.5])
    if seed % 5 == 4:
        graph = Digraph.of(n + 1, enumerate(chance.sample(range(n + 1), n + 1)))
    elif seed % 3 == 0:
        graph = Digraph.undirected(n, graph.edges)
    labels = [chance.choice("ab") for _ in range(graph.num_workers)] if seed % 2 else "a" * graph.num_workers
    assert sorted(automorphisms(graph, labels, limit=720)) == renamings(graph, labels)


def test_too_many_automorphisms_reduce_to_cyclic_shifts():
    shifts = {tuple((v + k) % 4 for v in range(4)) for k in range(4)}
    assert len(automorphisms(complete(4), "aaaa", limit=24)) == 24
    assert set(automorphisms(complete(4), "aaaa", limit=23)) == shifts
    assert set(automorphisms(complete(4), "abab", limit=3)) == {(0, 1, 2, 3), (2, 3, 0, 1)}
    assert set(automorphisms(complete(4), "aaab", limit=5)) == {(0, 1, 2, 3)}
    assert len(automorphisms(complete(5), "aaaaa")) == 5  # more than the default limit: 120
    assert len(automorphisms(Digraph.of(4, []), "aaaa")) == 24


def test_shifts_that_move_an_edge_are_excluded():
    """Two disjoint pairs have 8 automorphisms; how many are shifts depends on the pairs."""
    opposite, adjacent = Digraph.undirected(4, [(0, 2), (1, 3)]), Digraph.undirected(4, [(0, 1), (2, 3)])
    assert len(automorphisms(opposite, "aaaa")) == len(automorphisms(adjacent, "aaaa")) == 8
    assert len(automorphisms(opposite, "aaaa", limit=7)) == 4
    assert set(automorphisms(adjacent, "aaaa", limit=7)) == {(0, 1, 2, 3), (2, 3, 0, 1)}
    assert len(automorphisms(ring(6), "aaaaaa")) == 6


# AD-PSGD's pairing


def cycle(n):
    return Digraph.undirected(n, [(i, (i + 1) % n) for i in range(n)])


def served_once():
    """While a worker waits, exactly one of these holds: its request is in flight, is kept, or is answered."""

    def check(pair):
        asking = pair.first_state.waits_for == pair.second
        kept = pair.second_state.askers.count(pair.first)
        requested = sum(isinstance(m, Ask) for m in pair.there)
        crossed = pair.second_state.waits_for == pair.first
        answered = len(pair.back) - sum(isinstance(m, Ask) for m in pair.back)
        if crossed or any(isinstance(m, Ask) for m in pair.back):
            return None
        return None if requested + kept + answered == asking else f"{pair}"

    return check


BIPARTITE = {
    "path of 4": Digraph.undirected(4, [(0, 1), (1, 2), (2, 3)]),
    "ring of 4": cycle(4),
    "ring of 6": cycle(6),
    "2 and 3": Digraph.undirected(5, [(a, b) for a in (0, 1) for b in (2, 3, 4)]),
    "star of 5": Digraph.undirected(5, [(0, i) for i in range(1, 5)]),
}


@pytest.mark.parametrize("name", BIPARTITE)
def test_bipartite_pairing_is_deadlock_free_and_fair(name):
    graph = BIPARTITE[name]
    sides = nx.bipartite.color(nx.Graph(graph.edges))
    active = frozenset(worker for worker, side in sides.items() if side)
    machine = two_sides(graph, active)
    pairs = PerPair("served once", graph.edges, served_once())
    found = explore(machine, properties=(NoDeadlock(), pairs))
    assert found.holds, found
    goals = [
        Progress(f"{w} is served", lambda label, w=w: label.process == w and label.verb == "deliver")
        for w in sorted(active)
    ]
    assert explore(machine, properties=goals).holds


@pytest.mark.parametrize("n", [3, 5])
def test_odd_cycle_deadlocks_after_one_request_per_worker(n):
    """For n = 3 as in Prague's figure 2a: A waits for B, B for C, C for A, and all requests are kept forever."""
    trace = shortest_deadlock(n)
    picks = [step for step in trace.steps if step.verb == "step"]
    assert len(picks) == n
    assert str(trace).count("Choose(partner=") == n
    waits = [state.waits_for for state in trace.end.processes]
    assert sorted(waits) == list(range(n))
    assert all(len(state.askers) == 1 for state in trace.end.processes)
    assert (trace.end.in_flight, len(trace.steps)) == ({}, 2 * n)
    assert not any(all_both(cycle(n)).ready(worker, state) for worker, state in enumerate(trace.end.processes))


def test_even_ring_deadlocks_without_active_and_passive_sides():
    """A bipartite graph alone is not enough; only the split into active and passive workers prevents deadlock."""
    assert explore(all_both(cycle(4))).finding("no deadlock").verdict == "fails"


def test_crossing_requests_answer_each_other():
    """Two workers that choose each other have both sent their parameters, and do not block."""
    assert explore(all_both(Digraph.undirected(2, [(0, 1)]))).holds


def test_invalid_graphs_and_roles_are_refused():
    check_error(InputError, "undirected", all_both, Digraph.of(2, [(0, 1)]))
    check_error(InputError, "roles", Pairing, cycle(3), (Role.BOTH,))


def test_request_partners_follow_the_roles():
    """Passive workers send no requests, active ones get none, and waiting workers send no second request."""
    roles = (Role.ACTIVE, Role.ACTIVE, Role.PASSIVE, Role.BOTH)
    everybody = Digraph.undirected(4, [(u, v) for u in range(4) for v in range(u)])
    pairing = Pairing(everybody, roles)
    requested = [[event.partner for event in pairing.ready(v, PairState())] for v in range(4)]
    assert requested == [[2, 3], [2, 3], [], [2]]
    assert all(pairing.ready(v, PairState(waits_for=w)) == () for v in range(4) for w in (0, 2))


def test_pairing_transitions():
    """A free worker answers at once; a waiting one keeps requests in order until its own answer arrives."""
    pairing, idle = all_both(cycle(5)), PairState()
    assert pairing.start(0) == (idle, ())
    assert pairing.num_processes == 5
    waiting, actions = pairing.step(0, idle, Choose(1))
    assert (waiting, actions) == (PairState(waits_for=1), (Send(1, Ask()),))
    assert pairing.step(0, idle, Received(4, Ask())) == (idle, (Send(4, Answer()), Note(("averaged", 4))))
    one, actions = pairing.step(0, waiting, Received(4, Ask()))
    assert (one, actions) == (PairState(1, (4,)), ())
    two, _ = pairing.step(0, one, Received(3, Ask()))
    assert two == PairState(1, (4, 3))
    answered = (idle, (Note(("averaged", 1)), Send(4, Answer()), Send(3, Answer())))
    assert pairing.step(0, two, Received(1, Answer())) == answered
    assert pairing.step(0, two, Received(1, Ask())) == answered  # crossing requests answer each other
    check_error(AssertionError, "not an event", pairing.step, 0, idle, Received(1, "hello"))
    assert PairState().waits_for < 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("roles", [(Role.BOTH,) * 4, (Role.ACTIVE, Role.PASSIVE) * 2])
def test_pairing_commutes_with_renaming(roles, seed):
    machine = Pairing(cycle(4), roles)
    assert len(machine.symmetries()) == (8 if roles[0] == Role.BOTH else 4)
    assert sorted(machine.channels) == sorted(cycle(4).edges)
    check_renaming(machine, seed, own=lambda e, p: Choose(p[e.partner]), note=lambda what, p: (what[0], p[what[1]]))


def test_pairing_of_a_schedule_uses_its_edges_or_all_pairs():
    both_ways = {(0, 1), (0, 3), (2, 1), (2, 3)}
    machine = pairing_of(Pairwise(active=(0, 2)), 4)
    assert set(machine.graph.edges) == both_ways | {(v, u) for u, v in both_ways}
    assert machine.roles == (Role.ACTIVE, Role.PASSIVE, Role.ACTIVE, Role.PASSIVE)
    few = pairing_of(Pairwise(active=(0, 2), edges=((0, 1), (2, 1), (2, 3))), 4)
    assert set(few.graph.edges) == {(0, 1), (1, 0), (2, 1), (1, 2), (2, 3), (3, 2)}
