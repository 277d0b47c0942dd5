"""Claims about tables that go their own way: prover, checker, and counting row by row agree, and nothing else holds."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from benchmarks.forgery.dense import dense
from benchmarks.forgery.schedules import SCHEDULES, TABLES, random_allreduce, random_schedule, with_tables
from benchmarks.forgery.tables import JUDGES
from helpers.claims import claims_of_tables, facts_of
from helpers.coded_sums import UNDERFLOW, rounding_error
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, GroupPhases, Payload, Placement, Server, StaticGroups, TablePlacement
from partreduce.topo.strategies.payload import OuterParams, OuterStep
from partreduce.verify.base import Status
from partreduce.verify.prove import prove


def test_prover_checker_and_counting_agree_on_random_schedules():
    draw, made = random.Random(5), Counter()
    for number in range(150):
        schedule = with_tables(draw, random_allreduce(draw) if number % 2 else random_schedule(draw))
        raw = dump_schedule(schedule)
        listed, matrices = dense(raw)
        for claim in claims_of_tables(schedule).values():
            made[claim.claim] += 1
            numbers = json.loads(json.dumps(dict(claim.numbers)))
            assert facts_of(raw)[claim.claim] == numbers, (raw, numbers)
            assert JUDGES[claim.claim]({"claim": claim.claim, **numbers}, raw, listed, matrices), (raw, numbers)
        assert JUDGES.keys() & facts_of(raw).keys() == claims_of_tables(schedule).keys()
    assert min(made[name] for name in JUDGES) > 40


def test_they_are_essential_where_they_are_due():
    proof = prove(SCHEDULES["tables"])
    assert proof.essential >= {"one-owner", "table-order", "row-error"}
    assert proof.verdict is Status.PROVED
    assert [claim.claim for claim in proof.claims if claim.holds][-4:] == list(JUDGES)
    dense_only = Payload(tables=(TablePlacement(parameter="words", rows=5, columns=2, way=Placement.DENSE),))
    plain = prove(Schedule("s", Cluster.regular(2, 2), AllReduce(payload=dense_only)))
    assert not {"one-owner", "table-order", "row-error"} & {*plain.essential, *(claim.claim for claim in plain.claims)}
    assert "row-error" not in prove(Schedule("s", Cluster.regular(2, 2), AllReduce(payload=TABLES_OF_4)))
    assert "nic-bytes" not in prove(Schedule("s", Cluster.regular(2, 2), AllReduce()))


@pytest.mark.parametrize(
    "beside", [{"outer": OuterStep(momentum=0.5, outer_params=OuterParams.PER_WORKER)}, {"fragments": 2}], ids=str
)
def test_they_are_stated_beside_outer_steps_and_fragments_that_all_reduce_could_not_have(beside):
    group = GroupPhases((Phase.from_groups(4, [[0, 1, 2, 3]]),))
    strategy = StaticGroups(phases=group, steps_per_round=2, payload=replace(TABLES_OF_4, **beside))
    proof = prove(Schedule("s", Cluster.regular(2, 2), strategy))
    assert {claim.claim for claim in proof.claims if claim.holds} >= {"one-owner", "table-order"}


def test_a_synchronous_server_has_them_without_a_certificate():
    proof = prove(Schedule("s", Cluster.regular(2, 2), Server(payload=TABLES_OF_4)))
    assert proof["one-owner"].status is Status.FACT
    assert not proof.certificate


TABLES_OF_4 = Payload(tables=(TablePlacement(parameter="words", rows=9, columns=2),))


def test_where_groups_overlap_nothing_rests_on_anything():
    clash = StaticGroups(phases=GroupPhases((Phase.from_groups(4, [[0, 1], [1, 2]]),)), payload=TABLES_OF_4)
    proof = prove(Schedule("s", Cluster.regular(2, 2), clash))
    assert proof["one-owner"].status is Status.NOT_PROVED
    assert proof.certificate["claims"] == []


def test_code_that_gives_a_row_to_another_worker_refutes_it(monkeypatch):
    def wrong(self, route, row, num_workers):
        return 3 if row == 6 else row % num_workers

    monkeypatch.setattr(Payload, "owner", wrong)
    claim = prove(Schedule("s", Cluster.regular(2, 2), AllReduce(payload=TABLES_OF_4)))["one-owner"]
    assert claim.status is Status.REFUTED
    assert claim.witness == {"parameter": "words", "row": 6, "owner": 3}


@pytest.mark.parametrize("cluster", [Cluster.regular(1, 4), Cluster.regular(4, 1)], ids=str)
def test_one_node_sends_nothing_and_nodes_of_one_worker_agree_on_nothing(cluster):
    proof = prove(Schedule("s", cluster, AllReduce(payload=TABLES_OF_4)))
    assert proof["table-order"].numbers["lookup"] == ["all"] * 3
    assert (proof["nic-bytes"].numbers["tables"][0][1:] == [0, 0]) == (cluster.num_nodes == 1)


def test_numbers_by_hand_on_4x4():
    """100,000 rows of 16 columns: 75,000 asked for and 25,000 handed out thrice; four times that unaggregated."""
    words = TablePlacement(parameter="words", rows=100_000, columns=16)
    for is_local, times in ((True, 1), (False, 4)):
        payload = Payload(tables=(words,), local_aggregation=is_local)
        proof = prove(Schedule("s", Cluster.regular(4, 4), AllReduce(payload=payload)))
        lookup, gradients = 75_000 * 4 + 75_000 * 64, 75_000 * 68
        assert proof["nic-bytes"].numbers["tables"] == [["words", times * lookup, times * gradients]]
        assert proof["one-owner"].numbers["tables"] == [["words", 16, 6250, 6250]]


@pytest.mark.parametrize(("codec", "row"), [("float16", 32), ("bfloat16", 32), ("int8", 20)])
def test_numbers_by_hand_with_a_codec(codec, row):
    """A row of 16 numbers in its codec; gradients are added by fours, rounded once, and the nodes' four added."""
    words = TablePlacement(parameter="words", rows=100_000, columns=16, codec=codec)
    proof = prove(Schedule("s", Cluster.regular(4, 4), AllReduce(payload=Payload(tables=(words,)))))
    lookup, gradients = 75_000 * 4 + 75_000 * row, 75_000 * (row + 4)
    assert proof["nic-bytes"].numbers["tables"] == [["words", lookup, gradients]]
    ((_, relative, absolute),) = proof["row-error"].numbers["rows"]
    assert float(Fraction(relative)) == pytest.approx(float(rounding_error(codec)), rel=1e-6)
    assert Fraction(absolute) == UNDERFLOW[codec]
    ((_, relative, absolute),) = proof["row-error"].numbers["gradients"]
    assert float(Fraction(relative)) == pytest.approx(float(rounding_error(codec)) + 6 * 2.0**-24, rel=1e-4)
    assert UNDERFLOW[codec] * 4 <= Fraction(absolute) <= UNDERFLOW[codec] * 8


def test_a_million_workers_take_no_longer_than_their_list():
    payload = Payload(tables=(TablePlacement(parameter="words", rows=2**31 - 1, columns=512),))
    schedule = Schedule("s", Cluster.regular(2**17, 8), AllReduce(payload=payload))
    raw = dump_schedule(schedule)
    stated = facts_of(raw)
    for claim in claims_of_tables(schedule).values():
        assert stated[claim.claim] == json.loads(json.dumps(dict(claim.numbers)))


def test_tables_of_the_forged_schedules_are_of_every_way():
    assert {route.way for route in TABLES.tables} == set(Placement)
