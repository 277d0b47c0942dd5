"""Facts, claims without a certificate: checker and prover state the same facts, and they are true."""

from __future__ import annotations

import json
import random
from collections import Counter
from fractions import Fraction

import pytest

from benchmarks.forgery.oracle import Truth
from benchmarks.forgery.schedules import SCHEDULES, random_allreduce, random_schedule, with_tables
from benchmarks.forgery.tables import JUDGES
from helpers.edges import document, graph, groups, rule
from helpers.read_edges import gap
from helpers.readings import read
from helpers.refusals import check_error
from partreduce.errors import ScheduleError
from partreduce.files import dump_schedule, parse_schedule
from partreduce.verify import checker, prove
from partreduce.verify.base import Status
from partreduce.verify.checker.claims import ASSUMED
from partreduce.verify.checker.refusal import Work

STATED = {Status.FACT, Status.FOLLOWS}


def compute_facts(raw):
    """Return the checker's facts about a document as name → (whether it follows from rules, its numbers)."""
    return {fact.name: (fact.follows, fact.numbers) for fact in checker.facts(read(raw))}


def prove_facts(schedule):
    """Return the prover's facts in the same form."""
    claims = [claim for claim in prove(schedule).claims if claim.status in STATED]
    return {claim.claim: (claim.status is Status.FOLLOWS, json.loads(json.dumps(claim.numbers))) for claim in claims}


def same_text(facts, others):
    """Whether all numbers are equal, with 3 and 3.0 distinguished."""
    return json.dumps(facts, sort_keys=True) == json.dumps(others, sort_keys=True)


def compare(schedule):
    raw = dump_schedule(schedule)
    facts = compute_facts(raw)
    assert same_text(facts, prove_facts(schedule))
    truth = Truth(raw)
    for name, (_, numbers) in facts.items():
        assert truth.says({"claim": name, **numbers}), (name, numbers)
    return facts


@pytest.mark.parametrize("name", SCHEDULES)
def test_prover_and_checker_state_the_same_true_facts(name):
    assert compare(SCHEDULES[name])


@pytest.mark.parametrize("schedules", [60, pytest.param(180, marks=pytest.mark.slow)])
def test_facts_of_random_schedules_are_true(schedules):
    draw, seen = random.Random("facts"), Counter()
    for number in range(schedules):
        schedule = random_allreduce(draw) if number % 4 == 0 else random_schedule(draw)
        try:
            seen.update(compare(with_tables(draw, schedule) if number % 3 else schedule).keys())
        except ScheduleError:
            continue
    assert len(seen) > 10
    assert min(seen[name] for name in JUDGES) > schedules / 6, "tables are seen often"


def test_facts_of_explicit_groups_on_uneven_nodes_are_true():
    draw, kinds = random.Random("listed groups"), set()
    for _ in range(150):
        workers = draw.sample(range(count := draw.randint(4, 12)), count)
        phases = [cut(draw.sample(workers, count - draw.choice((0, 0, 1, 3))), draw) for _ in range(draw.randint(1, 4))]
        options = {"prologue": draw.choice((0, 2)), "transport": {"algorithm": draw.choice(("ring", "hierarchical"))}}
        nodes = [node["group"] for node in cut(workers, draw, least=1)]
        raw = document(1, 1, kind="static", phases=phases, **options) | {"cluster": {"nodes": nodes}}
        facts, truth = compute_facts(raw), Truth(raw)
        for name in ("memory", "sent-bytes"):
            assert truth.says({"claim": name, **facts[name][1]}), (name, facts[name][1], raw)
        kinds.add(facts["sent-bytes"][1]["of_node"])
    assert len(kinds) > 20


def cut(workers, draw, least=2):
    """Return random groups of `least` or more workers; a smaller remainder is in no group."""
    groups_, left = [], list(workers)
    while len(left) >= least:
        size = min(draw.randint(least, 4), len(left))
        groups_.append({"group": sorted(left[:size])})
        left = left[size:]
    return groups_


def staleness(rounds):
    """Return the numbers of `staleness` in synchronous rounds."""
    return {"late": 0, "steps": 0, "reach": rounds, "age": rounds - 1, "age_steps": rounds - 1}


def memory(groups, connections, splits, arrays):
    return {"groups": groups, "connections": connections, "splits": splits, "arrays": arrays}


def rounding(relative, parts, absolute, roundings):
    return {"relative": f"{relative}/{parts}", "absolute": f"1/{absolute}", "roundings": roundings}


def in_turn(fragments, every, apart, late, age, *, equal, flying=1):
    found = {"fragments": fragments, "every": every, "apart": apart, "late": late, "flying": flying}
    return found | {"age": age, "equal": equal}


def fragments_of_groups(fragments, every, apart, late, period):
    return {"fragments": fragments, "every": every, "apart": apart, "late": late, "flying": 1, "period": period}


def gradient_buckets(of_worker, of_node, in_flight=1, parts=1):
    named = {"of_worker": of_worker, "of_node": of_node, "in_flight": in_flight}
    return {"parts": parts, **{name: str(number) for name, number in named.items()}}


def pair_then_all(**options):
    """Return a schedule on two nodes of two: one local pair, then all."""
    return document(2, 2, kind="static", phases=[[{"group": [0, 1]}], [{"group": [0, 1, 2, 3]}]], **options)


def in_stages(raw, group, **transport):
    """Return a group, then all, with a second communicator for groups that int8 does not sum in stages."""
    raw["strategy"]["phases"] = [[{"group": group}], [{"group": list(range(6))}]]
    raw["strategy"]["transport"] = {"codec": "int8", "algorithm": "hierarchical", **transport}
    return raw


def blocks_staged(*blocks):
    """Return a two-digit rule on six nodes of two."""
    return rule([2, 3], 2, *([block] for block in blocks), transport={"codec": "int8", "algorithm": "hierarchical"})


def on_nodes(*nodes):
    return {**document(1, 1, kind="static"), "cluster": {"nodes": list(nodes)}}


def interleaved_table(*nodes):
    """Return a gathered table on nodes with interleaved ranks."""
    payload = {"tables": [{"parameter": "t", "rows": 6, "columns": 2, "way": "gather"}], "local_aggregation": False}
    return {**document(1, 1, kind="allreduce", payload=payload), "cluster": {"nodes": list(nodes)}}


SCALED = {"codec": "int8", "where": "across-nodes", "algorithm": "hierarchical"}
CODED = {"tables": [{"parameter": "t", "rows": 6, "columns": 2, "codec": "int8"}]}
APART, TOGETHER = [([0], [0]), ([1], [1])], [([0, 1], [])]
ABOUT = ([0], [0]), ([0, 1], []), ([1], [1]), ([0], [1]), ([1], [0])
RING: dict[str, str] = {}
STAGED = {"algorithm": "hierarchical"}
ACROSS = STAGED | {"where": "across-nodes"}
CODED_SUMS = [
    # Nodes, workers on each, codec, form. Multiplied out: (1 + e) for each rounding, (1 + (n - 1)·u) where n are added
    (3, 2, "int4", RING, rounding(635486595, 2**32, 2**116, 2)),
    (3, 2, "int4", STAGED, rounding(493831797, 2**31, 2**115, 3)),
    (3, 2, "int8", ACROSS, rounding(33890873, 2**32, 2**116, 2)),
    (3, 2, "float16", RING, rounding(12588803, 2**32, 2**22, 6)),
    (3, 2, "bfloat16", STAGED, rounding(50530067, 2**32, 2**130, 3)),
    (4, 1, "float16", ACROSS, rounding(4196225, 2**31, 2**22, 4)),  # one on each node goes as a ring
    (257, 1, "bfloat16", RING, rounding(4328523271, 2**32, 2**124, 257)),
    (1, 2, "int4", ACROSS, rounding(1025, 2**32, 2**147, 0)),
]
BY_HAND = [
    (groups(3, []), "doubly-stochastic", {"smallest_weight": "0"}),
    (groups(3, []), "deadlock-free", {}),
    (groups(3, []), "memory", {"groups": 0, "connections": 0, "splits": 0, "arrays": 1}),
    (groups(3, []), "end", {"steps": 3, "behind": -1}),
    (groups(3, [([0, 1, 2], "3/2")]), "doubly-stochastic", {"smallest_weight": "0"}),
    (groups(3, [([0, 1, 2], "8/5")]), "unit-sums", {"smallest_weight": "-1/15"}),
    (graph(2, [(0, 1, "1/2")]), "end", {"steps": 2, "behind": -1}),
    # which workers have averaged with each other
    (groups(2, [([0, 1], 0)], [[0, 1]]), "staleness", staleness(2)),
    (groups(2, [([0, 1], 0)]), "staleness", None),
    (rule([2], 2, [([0], [0])]), "staleness", None),
    (rule([2, 2], 2, *([block] for block in ABOUT)), "staleness", staleness(6)),
    (rule([2] * 3, 2, *[APART, TOGETHER] * 2, [([0, 1], [2])]), "staleness", staleness(5)),
    (graph(2, [(0, 1, 0), (1, 0, "1/2")]), "end", {"steps": 2, "behind": -1}),
    # memory and rounding
    (groups(3, [[0, 1]], averaging="step-normalized"), "memory", memory(1, 1, 1, 2)),
    (pair_then_all(transport={"codec": "int8", "algorithm": "hierarchical"}), "codec-error",
        rounding(50935427, 2**32, 2**116, 3)),
    (in_stages(document(3, 2, kind="static"), [0, 2]), "memory", memory(3, 7, 2, 2)),
    (in_stages(on_nodes([0, 2], [1, 3], [4, 5]), [0, 1, 2, 3]), "memory", memory(2, 8, 2, 2)),
    (in_stages(document(2, 3, kind="static"), [0, 1, 2, 3, 4], where="across-nodes"), "codec-error",
        rounding(33891131, 2**32, 2**116, 2)),
    (blocks_staged(([0], [0]), ([0, 1], [0, 1])), "memory", memory(3, 13, 2, 2)),
    (rule([2], 2, [([0], [], "1/10")], [([0, 1], [])]), "doubly-stochastic", {"smallest_weight": "1/2"}),
    # fragments, one after another
    (document(1, 2, kind="allreduce", steps_per_round=7, payload={"fragments": 3}), "fragments",
        in_turn(3, 7, 2, 0, 7, equal=True)),
    (document(1, 2, kind="allreduce", steps_per_round=9, payload={"fragments": 2},
        sync={"merge": {"steps": 3, "alpha": "1/2"}}),
        "fragments", in_turn(2, 9, 4, 3, 12, equal=False)),
    # groups that are not global in every round have no age
    *(
        (groups(3, *phases, steps_per_round=4, payload={"fragments": 2}), "fragments",
            fragments_of_groups(2, 4, 2, 0, period))
        for phases, period in (([[[0, 1]]], 4), ([[[0, 1, 2]], [[0, 1]]], 8))
    ),
    *((document(1, 2, kind="allreduce", steps_per_round=9, payload={"fragments": 4},
        sync={"merge": {"steps": steps}}), "fragments",
        in_turn(4, 9, 2, steps, 9 + steps, equal=True, flying=flying)) for steps, flying in ((2, 1), (3, 2), (8, 4))),
    (document(1, 2, kind="allreduce", steps_per_round=9, payload={"fragments": 4}, sync={"merge": {"steps": 3}}),
        "staleness", {"late": 2, "steps": 18, "reach": 1, "age": 2, "age_steps": 18}),
    (document(1, 2, kind="allreduce", steps_per_round=5, sync={"merge": {"alpha": "1/2"}}), "fragments", None),
    (document(1, 2, kind="allreduce", steps_per_round=5, sync={"merge": {"alpha": "1/2"}}), "equal-replicas", None),
    (document(1, 2, kind="allreduce", steps_per_round=5, payload={"fragments": 2}), "equal-replicas", None),
    (document(1, 2, kind="allreduce", steps_per_round=5, sync={"merge": {"steps": 4}}), "equal-replicas",
        {"of": "parameters", "rounds": [0]}),
    # bytes: around a ring of 4; 8 bits in blocks of 8: w = 3/8; hierarchical; only across nodes
    (document(1, 1, kind="allreduce") | {"cluster": {"nodes": [[0, 2], [1, 3]]}}, "sent-bytes",
        gradient_buckets("3/2", 3)),
    (groups(4, [[0, 1], [2, 3]], [[0, 1, 2]]), "sent-bytes", gradient_buckets("4/3", "4/3")),
    (rule([2], 2, [([0], [0]), ([1], [0])]), "sent-bytes", gradient_buckets(1, 2)),
    (document(2, 2, kind="allreduce", transport={"codec": "int8", "block": 8}), "sent-bytes",
        gradient_buckets("9/16", "21/32", "3/8")),
    (document(2, 2, kind="allreduce", transport=ACROSS | {"codec": "float16"}), "sent-bytes",
        gradient_buckets(1, "1/2")),
    (document(2, 2, kind="allreduce", transport=STAGED | {"codec": "int4", "block": 8}), "sent-bytes",
        gradient_buckets("3/8", "1/4", "1/4")),
    # fragments, of which up to 4 fly; a pipeline; edges of graphs, also of weight 0
    (document(1, 2, kind="allreduce", steps_per_round=9, payload={"fragments": 4}, sync={"merge": {"steps": 8}}),
        "sent-bytes", gradient_buckets(1, 0, 4, 4)),
    (document(1, 2, kind="allreduce", sync={"pipeline": {"width": 4}}, transport={"codec": "bfloat16"}), "sent-bytes",
        gradient_buckets("1/2", 0, "3/2")),
    (graph(3, [(0, 1, "1/4"), (0, 2, "0"), (1, 2, "1/4")]), "sent-bytes", gradient_buckets(2, 2)),
    # gaps
    (gap([], n=2), "gap", {"bound": 0}),
    (gap([(0, 1), (1, 0)], n=2, staleness=1, update_order="dpsgd"), "staleness", {"steps": 2, "ahead": 2}),
    (gap([(0, 1)], n=2, max_ig=2, backup=[0, 1]), "queues", {"update": [3], "token": [-1]}),
    # tables
    (document(2, 2, kind="allreduce", payload=CODED), "one-owner", {"tables": [["t", 4, 1, 2]]}),
    (interleaved_table([0, 2, 4], [1, 3, 5]), "nic-bytes", {"tables": [["t", 0, 1080]]}),
]  # fmt: skip

JUST_SO = [
    (graph(2, [(0, 1, "2/3"), (1, 0, "2/3")], []), "doubly-stochastic", {"smallest_weight": "1/3"}),
    # from a mean of relaxation 0 no worker takes anything of the others, so nothing of theirs has an age
    (groups(2, [([0, 1], 0)], steps_per_round=4, payload={"fragments": 2}), "fragments",
        fragments_of_groups(2, 4, 2, 0, 4)),
    (groups(2, [([0, 1], "1/99")], steps_per_round=4, payload={"fragments": 2}), "fragments",
        in_turn(2, 4, 2, 0, 4, equal=False)),
    # a scale for each number: w = 5/4, of 2 numbers 3/4; of float32 it is 1
    *((document(4, 1, kind="allreduce", steps_per_round=2, transport=SCALED | {"block": block}), "sent-bytes",
        gradient_buckets(sent, sent, in_flight)) for block, sent, in_flight in ((1, "15/8", "5/4"), (2, "9/8", 1))),
]  # fmt: skip
"""Facts that were once wrong, and similar cases."""


@pytest.mark.parametrize(("raw", "name", "numbers"), [
    *BY_HAND,
    *JUST_SO,
    *((document(nodes, size, kind="allreduce", transport={"codec": codec, **form}), "codec-error", sums) for nodes,
        size, codec, form, sums in CODED_SUMS),
])  # fmt: skip
def test_facts_match_manual_calculation(raw, name, numbers):
    facts = compute_facts(raw)
    assert (facts[name][1] if name in facts else None) == numbers
    assert not {"doubly-stochastic", "unit-sums"} <= facts.keys()
    assert same_text(facts, prove_facts(parse_schedule(json.dumps(raw).encode())))


def test_claims_list_their_assumptions_about_the_program():
    """The prover prints them in text and JSON; facts that follow from rules have none."""
    seen = set()
    for schedule in SCHEDULES.values():
        for claim in prove(schedule).claims:
            is_supposed = claim.status in (Status.PROVED, Status.FACT) and claim.claim in ASSUMED
            assert claim.assumes == (ASSUMED[claim.claim] if is_supposed else "")
            assert claim.to_json().get("assumes", "") == claim.assumes
            assert not is_supposed or claim.words.endswith(f"Assumed: {claim.assumes}.")
            seen |= {claim.claim} if is_supposed else set()
    assert seen == set(ASSUMED)


def test_checker_prints_assumptions_and_before_failure_marks(tmp_path, capsys):
    for name, until in (("survives-rule", " before a failure"), ("rule-exact", "")):
        schedule = SCHEDULES[name]
        for file, part in (("c", dict(prove(schedule).certificate)), ("s", dump_schedule(schedule))):
            (tmp_path / file).write_text(json.dumps(part))
        assert checker.main([str(tmp_path / "c"), str(tmp_path / "s")]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert f"membership: proved{until}" in lines
        assert f"assumed for membership: {ASSUMED['membership']}" in lines
        assert any(line.startswith(f"memory: fact{until}: groups") for line in lines)
        assert f"consensus: proved{until}" in lines, "survivors have a separate claim"
        assert ("survives: proved" in lines) == bool(until)
        assert (f"assumed for survives: {ASSUMED['survives']}" in lines) == bool(until)


@pytest.mark.parametrize("factors", [["1/2"], ["1/2", 1], ["3/4", "1/3"]])
@pytest.mark.parametrize("lr", ["1/10", "3/2", "9/4"])
def test_updates_reach_all_workers_through_relaxed_outer_steps(factors, lr):
    """Follow a unit update of worker 0 through global rounds: x ← x + t·(a − x), a the shared outer parameters."""
    schedule = compute_facts(groups(3, *([([0, 1, 2], t)] for t in factors), payload={"outer": {"lr": lr}}))
    assert schedule["staleness"][1]["age"] == 0
    for begin in range(len(factors)):
        values, outer = [Fraction(1), Fraction(0), Fraction(0)], Fraction(0)
        for t in factors[begin:] + factors * 20:
            outer += Fraction(lr) * (sum(values) / 3 - outer)
            values = [x + Fraction(t) * (outer - x) for x in values]
            assert min(values) > 0


def test_false_facts_are_not_stated():
    assert not {"doubly-stochastic", "unit-sums"} & compute_facts(graph(2, [(0, 1, "1/2")])).keys(), "columns count"
    assert "staleness" not in compute_facts(groups(2, [([0, 1], 2)])), "a swap keeps nothing of its own"
    assert "staleness" in compute_facts(groups(2, [([0, 1], "199/100")]))
    assert "staleness" not in compute_facts(groups(2, [([0, 1], "-1/100")]))
    assert "staleness" not in compute_facts(groups(4, [[0, 1], [2, 3]])), "two pairs never meet"
    assert "equal-replicas" not in compute_facts(groups(2, [([0, 1], "1/2")]))
    rows, columns = [[0, 1, 2], [3, 4, 5], [6, 7, 8]], [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    for lr, momentum, is_stated in (("149/100", 0, True), ("3/2", 0, False), ("7/4", 0, False), (1, "1/10", False)):
        outer = {"lr": lr, "momentum": momentum, "outer_params": "per_worker"}
        facts = compute_facts(groups(9, rows, columns, payload={"outer": outer}))
        assert ("staleness" in facts) == is_stated, "1 - r + r/3 is what a worker keeps of its outer parameters"
    pairs = [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]
    for lr, prologue, is_stated in (("8/5", 0, True), ("8/5", 1, False), ("4/3", 2, False), ("133/100", 1, True)):
        outer = {"lr": lr, "outer_params": "per_worker"}
        facts = compute_facts(groups(4, *pairs, prologue=prologue, payload={"outer": outer}))
        assert ("staleness" in facts) == is_stated, "of all four 1 - r + r/4 is kept in a round of the prologue"
    for momentum, is_stated in ((0, True), ("1/10", False)):
        outer = {"outer": {"lr": "3/2", "momentum": momentum}}
        assert ("staleness" in compute_facts(groups(2, [([0, 1], "1/2")], payload=outer))) == is_stated
        assert "staleness" in compute_facts(groups(2, [[0, 1]], payload=outer)), "nothing is left"
        merged = {"sync": {"merge": {"alpha": "1/2"}}, "payload": {"outer": {"lr": "3/2", "momentum": momentum}}}
        assert ("staleness" in compute_facts(document(2, 1, kind="allreduce", **merged))) == is_stated


def test_overlapping_groups_have_no_facts():
    check_error(checker.Refusal, "groups that do not share worker 1", compute_facts, groups(4, [[0, 1], [1, 2]]))


def test_counted_cost_of_facts_is_pinned(monkeypatch):
    """Which facts are omitted must not depend on the machine, so the counted work is part of the interface.

    The first fact of a gap pays for the bounds of all.
    """
    spent = Counter()
    monkeypatch.setattr(Work, "spend", lambda self, amount: spent.update({self.place: amount}))
    for raw, _, _ in BY_HAND:
        compute_facts(raw)
    assert dict(spent) == COSTS


COSTS = {"staleness": 35847, "end": 36627, "queues": 1520, "consensus": 4350}


def test_too_expensive_facts_lose_their_numbers(monkeypatch):
    monkeypatch.setitem(checker.facts.__globals__, "MAX_WORK", 50)
    facts = compute_facts(groups(4, [[0, 1], [2, 3]], [[0, 2], [1, 3]]))
    assert facts["end"] == (True, None)
    assert facts["memory"][1] is not None


def two_triangles(across, **gap):
    """Return two triangles, 0 1 2 and 3 4 5, whose workers also receive from one worker of the other triangle."""
    inside = [(s, t, "1/8") for a in (0, 3) for s in range(a, a + 3) for t in range(a, a + 3) if s != t]
    edges = [*inside, *((s, (s + 3) % 6, across) for s in range(6))]
    return graph(6, edges, sync={"iteration_gap": {"max_ig": 2, **gap}})


@pytest.mark.parametrize(
    ("raw", "holds"),
    [
        (two_triangles("1/8", backup=[1, 1, 1, 0, 0, 0]), True),  # only the first triangle is independent
        (two_triangles("1/8", backup=1), False),
        (two_triangles("1/8", backup=[1, 0, 0, 0, 0, 0], weights="graph"), True),
        (two_triangles("0", backup=[1, 0, 0, 0, 0, 0], weights="graph"), False),
        (two_triangles("0", backup=[1, 0, 0, 0, 0, 0], weights="uniform"), True),
        (two_triangles("3/4", backup=[1, 0, 0, 0, 0, 0], weights="graph"), False),  # no positive self-weight
        (two_triangles("3/4", backup=[1, 0, 0, 0, 0, 0], weights="uniform"), True),
    ],
)
def test_backup_consensus_fails_exactly_with_two_independent_sets(raw, holds):
    assert ("consensus" in compute_facts(raw)) == holds
