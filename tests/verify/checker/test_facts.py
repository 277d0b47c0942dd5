"""What is stated without a certificate: prover and checker compute the same numbers apart, and they are true."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks.forgery.attempt import fresh
from benchmarks.forgery.oracle import Truth
from benchmarks.forgery.schedules import SCHEDULES, random_schedule, with_tables
from helpers.edges import graph, groups
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.errors import ScheduleError
from partreduce.verify import checker, prove
from partreduce.verify.base import Status

STATED = {Status.FACT, Status.FOLLOWS}


def computed(raw):
    """Of a document, every fact that the checker states, as name → (whether it follows from rules, its numbers)."""
    read = checker.read_schedule(fresh(raw))
    return {fact.name: (fact.follows, fact.numbers) for fact in checker.facts(read)}


def stated(schedule):
    """The same, as the prover says."""
    claims = [claim for claim in prove(schedule).claims if claim.status in STATED]
    return {claim.claim: (claim.status is Status.FOLLOWS, json.loads(json.dumps(claim.numbers))) for claim in claims}


def compare(schedule):
    raw = dump_schedule(schedule)
    facts = computed(raw)
    assert facts == stated(schedule)
    truth = Truth(raw)
    for name, (_, numbers) in facts.items():
        assert truth.says({"claim": name, **numbers}), (name, numbers)
    return facts


@pytest.mark.parametrize("name", SCHEDULES)
def test_prover_and_checker_state_the_same_facts_and_they_are_true(name):
    assert compare(SCHEDULES[name])


def test_so_they_do_of_random_schedules():
    draw, seen = random.Random("facts"), set()
    for number in range(60):
        schedule = random_schedule(draw)
        try:
            seen |= set(compare(with_tables(draw, schedule) if number % 3 else schedule))
        except ScheduleError:
            continue
    assert len(seen) > 10


BY_HAND = [
    (groups(3, []), "doubly-stochastic", {"smallest_weight": "0"}),
    (groups(3, []), "deadlock-free", {"height": 0}),
    (groups(3, []), "memory", {"groups": 0, "connections": 0, "splits": 0, "arrays": 1}),
    (groups(3, []), "end", {"steps": 3, "behind": -1}),
    (groups(3, [], prologue=1), "memory", {"groups": 1, "connections": 2, "splits": 0, "arrays": 1}),
    (groups(3, [([0, 1, 2], "3/2")]), "doubly-stochastic", {"smallest_weight": "0"}),
    (groups(3, [([0, 1, 2], "8/5")]), "unit-sums", {"smallest_weight": "-1/15"}),
    (graph(2, []), "doubly-stochastic", {"smallest_weight": "1"}),
    (graph(2, [(0, 1, "1/2")]), "queues", {"gap": -1, "capacities": [-1]}),
    (graph(2, [(0, 1, "1/2"), (1, 0, "1/2")]), "queues", {"gap": 1, "capacities": [2, 2]}),
    (groups(2, [[0, 1]]), "rounds", {"group": 2, "bound": "log", "at_least": 1, "prime": 0}),
    (groups(3, [[0, 1]]), "rounds", {"group": 2, "bound": "prime-factor", "at_least": "never", "prime": 3}),
    (groups(3, [([0, 1], "1/2")]), "rounds", {"group": 2, "bound": "gossip-parity", "at_least": 3, "prime": 0}),
    (groups(8, [[0, 1, 2, 3, 4]]), "rounds", {"group": 5, "bound": "log", "at_least": 2, "prime": 0}),
    (groups(128, [[0, 1, 2, 3, 4, 5]]), "rounds", {"group": 6, "bound": "p-adic", "at_least": 4, "prime": 2}),
    (groups(32, [[0, 1, 2, 3, 4, 5]]), "rounds", {"group": 6, "bound": "two-round", "at_least": 3, "prime": 0}),
    (groups(10, [[0, 1, 2, 3]]), "rounds", {"group": 4, "bound": "prime-factor", "at_least": "never", "prime": 5}),
    (groups(12, [[0, 1, 2]]), "rounds", {"group": 3, "bound": "log", "at_least": 3, "prime": 0}),
]


@pytest.mark.parametrize(("raw", "name", "numbers"), BY_HAND)
def test_facts_worked_out_by_hand(raw, name, numbers):
    facts = computed(raw)
    assert facts[name][1] == numbers
    assert not {"doubly-stochastic", "unit-sums"} <= facts.keys()


def test_what_is_not_so_is_not_stated():
    assert not {"doubly-stochastic", "unit-sums"} & computed(graph(2, [(0, 1, "1/2")])).keys(), "columns count"
    assert "rounds" not in computed(groups(3, []))
    assert "staleness" not in computed(groups(2, [([0, 1], 2)])), "a swap keeps nothing of its own"
    assert "staleness" in computed(groups(2, [([0, 1], "199/100")]))
    assert "staleness" not in computed(groups(2, [([0, 1], "-1/100")]))
    assert "staleness" not in computed(groups(4, [[0, 1], [2, 3]])), "two pairs never meet"
    assert "equal-replicas" not in computed(groups(2, [([0, 1], "1/2")]))


def test_a_fact_that_costs_too_much_is_named_and_left_out(monkeypatch):
    monkeypatch.setitem(checker.facts.__globals__, "MAX_WORK", 50)
    facts = computed(groups(4, [[0, 1], [2, 3]], [[0, 2], [1, 3]]))
    assert facts["end"] == (True, None)
    assert facts["memory"][1] is not None


def two_triangles(across, **gap):
    """Workers 0, 1, 2 hear one another, and so do 3, 4, 5; each also hears one worker of the others."""
    inside = [(s, t, "1/8") for a in (0, 3) for s in range(a, a + 3) for t in range(a, a + 3) if s != t]
    edges = [*inside, *((s, (s + 3) % 6, across) for s in range(6))]
    return graph(6, edges, when={"gap": {"max_ig": 2, **gap}})


@pytest.mark.parametrize(
    ("raw", "holds"),
    [
        (two_triangles("1/8", backup=[1, 1, 1, 0, 0, 0]), True),  # only the first can do without the others
        (two_triangles("1/8", backup=1), False),
        (two_triangles("1/8", backup=[1, 0, 0, 0, 0, 0], weights="graph"), True),
        (two_triangles("0", backup=[1, 0, 0, 0, 0, 0], weights="graph"), False),
        (two_triangles("0", backup=[1, 0, 0, 0, 0, 0], weights="uniform"), True),
    ],
)
def test_workers_agree_without_some_neighbours_unless_two_sets_of_them_can_do_without_each_other(raw, holds):
    assert ("consensus" in computed(raw)) == holds


def test_numbers_of_other_alphabets_and_what_neighbours_do_not_send_are_refused():
    for raw, refusal in (
        (groups(2, [([0, 1], "١/٢")]), "strategy.phases[0]: must be an integer or a fraction"),
        (graph(2, [(0, 1, "1/2")], how={"codec": "int8"}), "strategy.how: parameters go to neighbours as they are"),
        (groups(2, [[0, 1]], when={"pipeline": {"width": 1}}), "strategy.when.pipeline.width: must be an integer 2.."),
    ):
        with pytest.raises(checker.Refusal) as refused:
            checker.read_schedule(raw)
        assert refused.value.sentence.startswith(refusal)
