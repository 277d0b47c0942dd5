"""Claims about strategies that decide their groups while the job runs."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from partreduce import Cluster, Schedule
from partreduce.schedulers.protocols.adpsgd import Answer, Pairing, Role
from partreduce.schedulers.protocols.base import Received, Send
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.strategies import Block
from partreduce.topo.strategies import (
    AllReduce,
    DynamicGroups,
    GroupSplit,
    NeighborAveraging,
    Pairwise,
    Round,
    RulePhases,
    Server,
    StaticGroups,
)
from partreduce.verify.asynchronous import THEOREMS, SecondEigenvalue, Theorem
from partreduce.verify.base import Status
from partreduce.verify.prove import STATEMENTS, prove

THIRD = Fraction(1, 3)


def of(strategy, cluster="4x4"):
    return Schedule("on request", Cluster.parse(cluster), strategy)


@pytest.mark.parametrize("division", [GroupSplit.RANDOM, GroupSplit.NODE_THEN_ALL])
def test_divisions_with_a_theorem_are_proved_with_what_it_assumes(division):
    proof = prove(of(DynamicGroups(group_size=3, division=division, slow_threshold=None, max_known=None)))
    assert proof.verdict is Status.FOLLOWS
    assert {claim.claim for claim in proof.claims} == {"convergence", "deadlock-free"}
    assert proof["convergence"].witness["second_eigenvalue"] < 1
    assert "Assumed: all workers take part" in proof["convergence"].explanation


@pytest.mark.parametrize("division", [GroupSplit.GLOBAL, GroupSplit.INTER_INTRA])
def test_divisions_among_the_idle_are_not_proved(division):
    proof = prove(of(DynamicGroups(group_size=3, division=division, slow_threshold=None, max_known=None)))
    assert proof.verdict is Status.NOT_PROVED
    assert "idle" in proof["convergence"].explanation


def test_inter_and_intra_groups_on_uneven_nodes_are_not_proved_and_say_why():
    proof = prove(of(DynamicGroups(slow_threshold=None, max_known=None), "3,3,2"))
    assert proof.verdict is Status.NOT_PROVED
    assert "nodes of equal size" in proof["convergence"].explanation


@pytest.mark.parametrize("division", list(GroupSplit))
def test_a_bound_on_known_groups_makes_draws_depend_on_the_past(division):
    proof = prove(of(DynamicGroups(group_size=3, division=division, slow_threshold=None, max_known=1)))
    assert proof.verdict is Status.NOT_PROVED
    assert "max_known 1" in proof["convergence"].explanation


@pytest.mark.parametrize("kind", sorted(STATEMENTS))
def test_a_missing_essential_claim_is_not_proved(kind, monkeypatch):
    """Whatever a prover forgets: the claim appears as not proved, and so does the verdict."""
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
    schedule = of(strategies[kind])
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


def test_deadlock_freedom_says_what_it_assumes_about_the_end():
    ring = NeighborAveraging(rounds=(Round.from_edges(4, [(i, (i + 1) % 4, THIRD) for i in range(4)]),))
    assert "same number of rounds" in prove(of(ring, "1x4"))["deadlock-free"].explanation
    assert "same number of rounds" in prove(of(AllReduce()))["deadlock-free"].explanation
    assert "unequal data" in prove(of(DynamicGroups()))["deadlock-free"].explanation


def test_a_filter_makes_draws_depend_on_the_past_so_nothing_is_proved():
    proof = prove(of(DynamicGroups(group_size=3, slow_threshold=4)))
    assert proof["convergence"].status is Status.NOT_PROVED
    assert proof.verdict is Status.NOT_PROVED
    assert "depend on the past" in proof["convergence"].explanation


def test_two_connected_sides_cannot_deadlock_and_reach_consensus():
    proof = prove(of(Pairwise(active=(0, 2), edges=((0, 1), (2, 1), (2, 3))), "1x4"))
    assert proof.verdict is Status.FOLLOWS
    assert {claim.claim for claim in proof.claims} == {"deadlock-free", "consensus", "queues"}


@pytest.mark.parametrize("active", [(0,), (0, 1), (0, 2, 4)])
def test_questions_that_wait_at_a_passive_worker_are_at_most_as_claimed_and_all_are_answered(active):
    """The very protocol in random order: a question waits from its asking to its answer."""
    draw, n = random.Random(1), 5
    edges = tuple((a, p) for a in active for p in range(n) if p not in active and (a + p) % 3)
    strategy = Pairwise(active=active, edges=edges)
    witness = prove(of(strategy, "1x5"))["queues"].witness
    roles = tuple(Role.ACTIVE if worker in active else Role.PASSIVE for worker in range(n))
    machine = Pairing(Digraph.undirected(n, edges), roles)
    states = [machine.start(worker)[0] for worker in range(n)]
    flying: list[tuple[int, int, object]] = []
    most = answered = asked = 0
    for turn in range(3000):
        choices = [(w, c) for w in range(n) for c in machine.ready(w, states[w])] if turn < 2500 else []
        if flying and (not choices or draw.random() < 0.3):
            source, worker, message = flying.pop(draw.randrange(len(flying)))
            event = Received(source, message)
            answered += isinstance(message, Answer)
        elif choices:
            worker, event = draw.choice(choices)
            asked += 1
        else:
            break
        states[worker], actions = machine.step(worker, states[worker], event)
        flying += [(worker, action.to, action.message) for action in actions if isinstance(action, Send)]
        waiting = [sum(state.waits_for == passive for state in states) for passive in range(n)]
        most = max(most, *waiting)
    assert (most, answered, flying) == (witness["questions"], asked, [])


def test_two_parts_without_an_edge_between_them_are_refuted_with_the_part():
    proof = prove(of(Pairwise(active=(0, 2), edges=((0, 1), (2, 3))), "1x4"))
    assert proof.verdict is Status.REFUTED
    assert proof["consensus"].witness == {"closed": [0, 1], "outside": 2}


def test_a_server_holds_one_copy():
    assert prove(of(Server(hosts=(0, 1)))).verdict is Status.FOLLOWS


def test_a_server_says_whom_a_worker_waits_for():
    waits = {
        "round r is complete once all workers have pushed": Server(),
        "wait for nobody": Server(synchronous=False),
        "more than 7 rounds ahead of the slowest": Server(synchronous=False, staleness=7),
    }
    for words, server in waits.items():
        said = prove(of(server))["deadlock-free"].explanation
        assert [text for text in waits if text in said] == [words]


@pytest.mark.parametrize(
    "strategy",
    [
        Server(), Server(synchronous=False), Server(synchronous=False, staleness=3), Pairwise(active=(0, 2)),
        DynamicGroups(), DynamicGroups(division=GroupSplit.RANDOM, slow_threshold=None, max_known=None), AllReduce(),
        Pairwise(active=(0,), edges=((0, 1),)),
    ],
)  # fmt: skip
def test_every_claim_has_a_name_and_says_why(strategy):
    for claim in prove(of(strategy)).claims:
        assert claim.claim == claim.claim.lower()
        assert claim.explanation.count(" ") > 5
        assert "None" not in claim.explanation


def test_the_busiest_passive_worker_and_its_questions_are_named():
    two = Pairwise(active=(0, 4), edges=((0, 1), (0, 3), (4, 3), (4, 2)))
    assert prove(of(two, "1x5"))["queues"].witness == {"questions": 2, "worker": 3, "gap": None}
    assert "at most 1 exchanges of others" in prove(of(two, "1x5"))["queues"].explanation
    alike = Pairwise(active=(0,), edges=((0, 2), (0, 1)))
    assert prove(of(alike, "1x3"))["queues"].witness == {"questions": 1, "worker": 1, "gap": None}
    assert prove(of(two, "1x5"))["deadlock-free"].witness == {"active": [0, 4]}
    assert "all 4 edges join 2 active and 3 passive workers" in prove(of(two, "1x5"))["deadlock-free"].explanation


def test_a_draw_that_does_not_contract_refutes_and_one_that_is_not_covered_does_not(monkeypatch):
    """Not one of the theorems says so today; a new division's might."""
    strategy = DynamicGroups(group_size=3, division=GroupSplit.RANDOM, slow_threshold=None, max_known=None)
    still = SecondEigenvalue(Fraction(1), Fraction(0), "nothing")
    monkeypatch.setitem(THEOREMS, GroupSplit.RANDOM, lambda *_: Theorem(still, (), "all"))
    claim = prove(of(strategy))["convergence"]
    assert claim.status is Status.REFUTED
    assert claim.witness == {
        "second_eigenvalue": 1.0, "trace": "1", "determinant": "0", "drawn": "nothing", "independent": True,
        "against": [], "assumes": "all",
    }  # fmt: skip
    assert claim.explanation == "λ₂ of E[WᵀW] is at most 1 for nothing."
    monkeypatch.setitem(THEOREMS, GroupSplit.RANDOM, lambda *_: Theorem(still, ("no",), "all"))
    claim = prove(of(strategy))["convergence"]
    assert (claim.status, claim.explanation) == (Status.NOT_PROVED, "no. (λ₂ of E[WᵀW] is 1 for nothing.)")
    assert claim.witness["against"] == ["no"]
    assert not claim.witness["independent"]
