"""Claims about strategies that form groups at run time, and Prague's convergence conditions."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from helpers.exact_matrices import exact_matrix
from helpers.machine_invariants import Walk
from helpers.refusals import check_error
from partreduce import Cluster, Schedule
from partreduce.errors import ScheduleError
from partreduce.schedulers.protocols.adpsgd import Answer, Choose, pairing_of
from partreduce.schedulers.protocols.base import Received
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.schedulers.protocols.group_generator.service import Ask, GroupGenerator
from partreduce.strategies import Block, NeighborAveraging, Pairwise, Round, RulePhases, Server, StaticGroups
from partreduce.topo.strategies import AllReduce, DynamicGroups, GroupSplit
from partreduce.verify.asynchronous import (
    THEOREMS,
    SecondEigenvalue,
    Theorem,
    any_requester,
    groups_of_a_worker,
    inter_intra,
    partition,
    theorem_of,
)
from partreduce.verify.base import Status
from partreduce.verify.prove import STATEMENTS, prove

THIRD = Fraction(1, 3)


def make(strategy, cluster="4x4"):
    return Schedule("on request", Cluster.parse(cluster), strategy)


@pytest.mark.parametrize("division", [GroupSplit.RANDOM, GroupSplit.NODE_THEN_ALL])
def test_divisions_with_a_theorem_are_proved_with_its_assumptions(division):
    proof = prove(make(DynamicGroups(group_size=3, division=division, slow_threshold=None, max_known=None)))
    assert proof.verdict is Status.FOLLOWS
    assert {claim.claim for claim in proof.claims} == {"convergence", "deadlock-free"}
    assert proof["convergence"].witness["second_eigenvalue"] < 1
    assert "Assumed: all workers take part" in proof["convergence"].explanation


@pytest.mark.parametrize(("members", "cluster", "words"), [
    *(({"division": division}, "4x4", "idle") for division in (GroupSplit.GLOBAL, GroupSplit.INTER_INTRA)),
    ({"group_size": 4}, "3,3,2", "nodes of equal size"),
    *(({"division": division, "max_known": 1}, "4x4", "max_known 1") for division in GroupSplit),
    ({"slow_threshold": 4, "max_known": 200}, "4x4", "depend on the past"),
])  # fmt: skip
def test_divisions_without_a_theorem_are_not_proved(members, cluster, words):
    options = {"group_size": 3, "slow_threshold": None, "max_known": None} | members
    proof = prove(make(DynamicGroups(**options), cluster))
    assert proof.verdict is proof["convergence"].status is Status.NOT_PROVED
    assert words in proof["convergence"].explanation


@pytest.mark.parametrize("kind", sorted(STATEMENTS))
def test_missing_essential_claim_is_not_proved(kind, monkeypatch):
    """A claim that its prover omits is listed as not proved, and so is the verdict."""
    strategies: dict[str, object] = {
        "static": StaticGroups(phases=RulePhases((4,), ((Block((0, 1, 2, 3), (0,)),),))),
        "allreduce": AllReduce(),
        "neighbor": NeighborAveraging(
            rounds=(Round.from_edges(16, [(i, (i + d) % 16, THIRD) for i in range(16) for d in (1, 15)]),)
        ),
        "dynamic_groups": DynamicGroups(group_size=3, division=GroupSplit.RANDOM, slow_threshold=None, max_known=None),
        "pairwise": Pairwise(active=(0, 2)),
        "server": Server(),
    }
    schedule = make(strategies[kind])
    whole = prove(schedule)
    is_certified = kind in {"static", "allreduce", "neighbor"}
    assert whole.verdict is (Status.PROVED if is_certified else Status.FOLLOWS), whole.explain()
    statements = STATEMENTS[kind]
    assert whole.essential
    for name in whole.essential:
        forgetful = tuple(replace(one, prove=lambda _: None) if one.name == name else one for one in statements)
        monkeypatch.setitem(STATEMENTS, kind, forgetful)
        proof = prove(schedule)
        assert proof[name].status is Status.NOT_PROVED
        assert proof.verdict is Status.NOT_PROVED
        assert replace(whole, claims=tuple(c for c in whole.claims if c.claim != name)).verdict is Status.NOT_PROVED


def test_connected_bipartite_pairing_is_deadlock_free():
    proof = prove(make(Pairwise(active=(0, 2), edges=((0, 1), (2, 1), (2, 3))), "1x4"))
    assert proof.verdict is Status.FOLLOWS
    assert {claim.claim for claim in proof.claims} == {"deadlock-free", "consensus", "queues"}


@pytest.mark.parametrize("active", [(0,), (0, 1), (0, 2, 4)])
def test_passive_worker_queue_bound_holds_in_random_runs(active):
    """The protocol itself in random order: a request waits from its sending to its answer."""
    n = 5
    edges = tuple((a, p) for a in active for p in range(n) if p not in active and (a + p) % 3)
    strategy = Pairwise(active=active, edges=edges)
    walk, most, pending = Walk(pairing_of(strategy, n), seed=1), 0, 0
    for _, _, event, _, _ in walk.steps(3000):
        pending += isinstance(event, Choose)
        pending -= isinstance(event, Received) and isinstance(event.message, Answer)
        most = max(most, *(sum(state.waits_for == passive for state in walk.states) for passive in range(n)))
    assert most == prove(make(strategy, "1x5"))["queues"].witness["questions"]
    assert pending == sum(state.waits_for >= 0 for state in walk.states)
    walk.deliver()
    assert all(state.waits_for < 0 for state in walk.states)


def test_disconnected_pairing_is_refuted_with_a_closed_set():
    proof = prove(make(Pairwise(active=(0, 2), edges=((0, 1), (2, 3))), "1x4"))
    assert proof.verdict is Status.REFUTED
    assert proof["consensus"].witness == {"closed": [0, 1], "outside": 2}


RING = NeighborAveraging(rounds=(Round.from_edges(16, [(i, (i + 1) % 16, THIRD) for i in range(16)]),))
SERVERS = {
    "round r is complete once all workers have pushed": [Server()],
    "wait for no worker": [Server(synchronous=False)],
    "more than 7 rounds ahead of the slowest": [Server(synchronous=False, staleness=7)],
}
WAITS = {**SERVERS, "same number of rounds": [RING, AllReduce()], "unequal data": [DynamicGroups()]}


@pytest.mark.parametrize("words", WAITS)
def test_deadlock_freedom_explains_waits_and_assumptions(words):
    for strategy in WAITS[words]:
        explanation = prove(make(strategy))["deadlock-free"].explanation
        assert words in explanation
        assert {text for text in SERVERS if text in explanation} <= {words}


@pytest.mark.parametrize(
    "strategy",
    [
        Server(), Server(synchronous=False), Server(synchronous=False, staleness=3), Pairwise(active=(0, 2)),
        DynamicGroups(), DynamicGroups(division=GroupSplit.RANDOM, slow_threshold=None, max_known=None), AllReduce(),
        Pairwise(active=(0,), edges=((0, 1),)),
    ],
)  # fmt: skip
def test_every_claim_has_a_name_and_an_explanation(strategy):
    for claim in prove(make(strategy)).claims:
        assert claim.claim == claim.claim.lower()
        assert claim.explanation.count(" ") > 5
        assert "None" not in claim.explanation


def test_pairs_without_edges_are_proved_like_all_edges_for_any_number_of_workers():
    active = (1, 2, 5)
    every = tuple((a, p) for a in active for p in (0, 3, 4, 6))
    assert prove(make(Pairwise(active=active), "1x7")) == prove(make(Pairwise(active=active, edges=every), "1x7"))
    many = prove(make(Pairwise(active=tuple(range(0, 200_000, 2))), "1x200000"))
    assert many["queues"].witness == {"questions": 100_000, "worker": 1, "gap": None}


def test_busiest_passive_worker_is_reported():
    two = Pairwise(active=(0, 4), edges=((0, 1), (0, 3), (4, 3), (4, 2)))
    assert prove(make(two, "1x5"))["queues"].witness == {"questions": 2, "worker": 3, "gap": None}
    assert "at most 1 exchanges of others" in prove(make(two, "1x5"))["queues"].explanation
    tied = Pairwise(active=(0,), edges=((0, 2), (0, 1)))
    assert prove(make(tied, "1x3"))["queues"].witness == {"questions": 1, "worker": 1, "gap": None}
    assert prove(make(two, "1x5"))["deadlock-free"].witness == {"active": [0, 4]}
    assert "all 4 edges join 2 active and 3 passive workers" in prove(make(two, "1x5"))["deadlock-free"].explanation


def test_non_contracting_draw_is_refuted_only_within_the_theorem(monkeypatch):
    """No current theorem gives this result; the theorem of a new division might."""
    strategy = DynamicGroups(group_size=3, division=GroupSplit.RANDOM, slow_threshold=None, max_known=None)
    still = SecondEigenvalue(Fraction(1), Fraction(0), "nothing")
    monkeypatch.setitem(THEOREMS, GroupSplit.RANDOM, lambda *_: Theorem(still, (), "all"))
    claim = prove(make(strategy))["convergence"]
    assert claim.status is Status.REFUTED
    assert claim.witness == {
        "second_eigenvalue": 1.0, "trace": "1", "determinant": "0", "drawn": "nothing", "independent": True,
        "against": [], "assumes": "all",
    }  # fmt: skip
    assert claim.explanation == "λ₂ of E[WᵀW] is at most 1 for nothing."
    monkeypatch.setitem(THEOREMS, GroupSplit.RANDOM, lambda *_: Theorem(still, ("no",), "all"))
    claim = prove(make(strategy))["convergence"]
    assert (claim.status, claim.explanation) == (Status.NOT_PROVED, "no. (λ₂ of E[WᵀW] is 1 for nothing.)")
    assert claim.witness["against"] == ["no"]
    assert not claim.witness["independent"]


# Prague's convergence conditions: the closed forms against the full expectation, enumerated in fractions


def projection(n, groups):
    return exact_matrix(n, [(group, 1) for group in groups])


def divisions(workers, size):
    """Yield every split of an order into groups of `size`, once per order."""
    for order in itertools.permutations(workers):
        yield tuple(tuple(order[k : k + size]) for k in range(0, len(order), size))


def expectation(draws):
    squares = [w.T @ w for w in draws]
    return (sum(squares) / len(squares)).astype(float)


def second_eigenvalue(matrix):
    return np.sort(np.linalg.eigvalsh(matrix))[-2]


@pytest.mark.parametrize(("n", "g"), [(3, 2), (4, 2), (5, 2), (5, 3), (6, 3)])
def test_second_eigenvalue_of_a_random_partition(n, g):
    parts = expectation(projection(n, groups) for groups in divisions(range(n), g))
    assert second_eigenvalue(parts) == pytest.approx(float(partition(n, g)), abs=1e-12)


@pytest.mark.parametrize(("nodes", "p", "g"), [(2, 2, 2), (3, 2, 2), (3, 3, 2), (4, 2, 3), (4, 2, 2), (2, 4, 2)])
def test_second_eigenvalue_of_inter_then_intra(nodes, p, g):
    n = nodes * p
    intra = projection(n, [tuple(range(k * p, k * p + p)) for k in range(nodes)])
    heads = [k * p for k in range(nodes)]
    inside = [set(divisions(range(k * p + 1, k * p + p), g)) for k in range(nodes)]

    def draws():
        for across in divisions(heads, g):
            for rest in itertools.product(*inside):
                yield intra @ projection(n, [*across, *itertools.chain(*rest)])

    assert second_eigenvalue(expectation(draws())) == pytest.approx(float(inter_intra(nodes, p, g)), abs=1e-12)


@pytest.mark.parametrize(("n", "g"), [(2, 2), (3, 2), (4, 2), (5, 2), (5, 3), (6, 3), (6, 5), (7, 4), (5, 5)])
def test_second_eigenvalue_of_a_random_group_for_any_requester(n, g):
    """For every requester the theorem gives exactly the largest eigenvalue off the mean."""
    for asks in range(n):
        others = [worker for worker in range(n) if worker != asks]
        mean = expectation(projection(n, [(asks, *rest)]) for rest in itertools.combinations(others, g - 1))
        off = mean - np.full((n, n), 1 / n)
        assert np.linalg.eigvalsh(off)[-1] == pytest.approx(float(any_requester(n, g)), abs=1e-12)


def test_every_division_has_its_own_theorem():
    cluster = Cluster.regular(4, 4)
    free = {
        division: theorem_of(DynamicGroups(division=division, slow_threshold=None, max_known=None), cluster)
        for division in GroupSplit
    }
    assert {division for division, found in free.items() if found.holds} == {
        GroupSplit.RANDOM,
        GroupSplit.NODE_THEN_ALL,
    }
    assert all("idle" in " ".join(free[one].against) for one in (GroupSplit.GLOBAL, GroupSplit.INTER_INTRA))
    assert len({found.second_eigenvalue.how for found in free.values()}) == len(GroupSplit)
    for division in GroupSplit:
        filtered = theorem_of(DynamicGroups(division=division, slow_threshold=4), cluster)
        assert filtered.second_eigenvalue.is_below_one
        assert not filtered.holds
        assert "progress" in " ".join(filtered.against)


@pytest.mark.parametrize("every", [1, 16, 100_000])
def test_node_then_all_bound_needs_complete_cycles(every):
    strategy = DynamicGroups(division=GroupSplit.NODE_THEN_ALL, slow_threshold=None, all_every=every)
    found = theorem_of(strategy, Cluster.regular(4, 4))
    assert found.holds
    assert float(found.second_eigenvalue) == 0
    assert f"after {16 * every} requests ({every} rounds" in found.second_eigenvalue.how
    assert "no bound holds over fewer rounds" in found.second_eigenvalue.how


def test_global_group_is_drawn_within_the_stated_requests():
    """The runtime state machine, under an order of requests that starves the other node's workers."""
    strategy = DynamicGroups(division=GroupSplit.NODE_THEN_ALL, slow_threshold=None, all_every=3, group_size=2)
    machine = GroupGenerator(GeneratorSetting.of(strategy, Cluster.regular(2, 2)))
    for seed in range(20):
        chance, state, since, met = random.Random(seed), machine.initial(), 0, 0
        for _ in range(400):
            free = [w for w in range(4) if state.requests[w] < 0 or state.answers[w] is not None]
            worker = chance.choice(free[: 1 + chance.randrange(len(free))])
            known = len(state.buffers.groups), state.buffers.next_seq
            state, _ = machine.handle(
                state, worker, Ask(state.requests[worker] + 1, getattr(state.answers[worker], "seq", -1))
            )
            since += 1
            if state.buffers.next_seq > known[1] and len(state.buffers.groups[-1].members) == 4:
                since, met = 0, met + 1
            assert since <= 3 * 4 + 2 * 4, "at most two groups per worker precede the global one"
        assert met > 10


@pytest.mark.parametrize(("division", "cluster", "size", "bound", "holds"), [
    (GroupSplit.RANDOM, (4, 4), 3, 106, True),
    (GroupSplit.RANDOM, (4, 4), 3, 105, False),
    (GroupSplit.RANDOM, (4, 4), 3, 32, False),
    (GroupSplit.RANDOM, (7, 2), 2, 1, False),
    (GroupSplit.RANDOM, (1, 4), 2, 32, True),
    (GroupSplit.NODE_THEN_ALL, (4, 4), 2, 9, True),
    (GroupSplit.NODE_THEN_ALL, (4, 4), 2, 1, False),
    (GroupSplit.NODE_THEN_ALL, (4, 8), 2, 32, False),
    (GroupSplit.RANDOM, (50_000, 20), 300_000, 32, False),
    (GroupSplit.NODE_THEN_ALL, (2, 100_000), 2, 32, False),
])  # fmt: skip
def test_max_known_is_covered_only_if_it_never_binds(division, cluster, size, bound, holds):
    strategy = DynamicGroups(division=division, group_size=size, slow_threshold=None, max_known=bound)
    found = theorem_of(strategy, Cluster.regular(*cluster))
    assert found.holds is holds
    if not holds:
        assert any("max_known" in reason for reason in found.against)


def test_max_known_of_1_can_partition_the_workers():
    """The service draws the same seven pairs forever."""
    strategy = DynamicGroups(division=GroupSplit.RANDOM, group_size=2, slow_threshold=None, max_known=1)
    cluster = Cluster.regular(7, 2)
    machine = GroupGenerator(GeneratorSetting.of(strategy, cluster))
    state = machine.initial()
    for step in range(2000):
        worker = step % 14
        if state.requests[worker] < 0 or state.answers[worker] is not None:
            state, _ = machine.handle(
                state, worker, Ask(state.requests[worker] + 1, getattr(state.answers[worker], "seq", -1))
            )
    graph = nx.Graph(pair for pair in state.known)
    assert nx.number_connected_components(graph) > 1
    assert not theorem_of(strategy, cluster).holds


def test_is_below_one_matches_both_roots():
    chance = random.Random(4)
    for _ in range(400):
        roots = [Fraction(chance.randint(-3, 6), 4) for _ in range(2)]
        second = SecondEigenvalue(sum(roots), roots[0] * roots[1], "")
        assert second.is_below_one == (max(roots) < 1)
        assert float(second) == pytest.approx(float(max(roots)))


@pytest.mark.parametrize(("n", "g"), [(2, 2), (9, 4), (60, 59), (60, 58), (60, 60), (200, 4), (1415, 3), (1416, 3)])
def test_possible_groups_of_a_worker_are_counted(n, g):
    """All choices of partners are counted up to a limit."""
    count = groups_of_a_worker(DynamicGroups(division=GroupSplit.RANDOM, group_size=g), Cluster.regular(1, n))
    choices = math.comb(n - 1, g - 1)
    assert count == choices if choices <= 10**6 else 10**6 < count <= choices
    inside = groups_of_a_worker(DynamicGroups(division=GroupSplit.NODE_THEN_ALL), Cluster.parse("4,3"))
    assert inside == 2**3 - 1 + 1
    assert groups_of_a_worker(DynamicGroups(division=GroupSplit.GLOBAL), Cluster.regular(2, 2)) > 10**6


@pytest.mark.parametrize("against", [(), ("a reason",)])
@pytest.mark.parametrize("trace", [Fraction(1, 2), Fraction(1)])
def test_theorem_holds_if_it_contracts_without_objection(trace, against):
    found = Theorem(SecondEigenvalue(trace, Fraction(0), ""), against)
    assert found.holds == (trace < 1 and not against)


def test_irregular_clusters_are_refused_for_inter_intra():
    check_error(ScheduleError, "equal size", theorem_of, DynamicGroups(), Cluster.parse("3,2"))
