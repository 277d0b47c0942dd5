"""Claims about per-worker outer parameters, quorums and tables: prover, checker and simulation agree."""

import itertools
import json
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.forgery import quorums
from benchmarks.forgery.campaign import certify, objection
from benchmarks.forgery.oracle import is_true
from benchmarks.forgery.schedules import (
    SCHEDULES,
    TABLES,
    by_quorum,
    explicit,
    random_blocks,
)
from benchmarks.forgery.tables import JUDGES
from helpers.claims import claims_of_tables, facts_of
from helpers.command_runs import ran
from helpers.readings import agree
from helpers.refusals import check_error
from helpers.small import of_rule
from partreduce import Cluster, Hardware, Link, PartreduceError, Schedule, predict, write_schedule
from partreduce.errors import ScheduleError
from partreduce.files import dump_schedule, parse_schedule, schedule_sha256
from partreduce.strategies import Payload, Phase, Placement, Server, StaticGroups, TablePlacement
from partreduce.topo.metrics.stability import outer_radius
from partreduce.topo.strategies import AllReduce, GroupPhases, OuterParams, OuterStep, PartialAllReduce
from partreduce.verify import checker, prove
from partreduce.verify.base import Status


def certified_parts(schedule):
    proof = prove(schedule)
    raw, certificate = (json.loads(json.dumps(part)) for part in (dump_schedule(schedule), dict(proof.certificate)))
    return proof, raw, certificate


def confirm(raw, certificate):
    return list(checker.check(certificate, checker.read_schedule(json.loads(json.dumps(raw)))))


def consensus_entry(certificate):
    return next(entry for entry in certificate["claims"] if entry["claim"] == "outer-consensus")


def random_per_worker_outer(draw):
    """Return groups or a rule with per-worker outer parameters; only some reach consensus."""
    momentum = Fraction(draw.randrange(10), 10)
    nesterov = momentum > 0 and draw.random() < 0.5
    outer = OuterStep(
        lr=Fraction(draw.randrange(1, 19), 10), momentum=momentum, nesterov=nesterov, outer_params="per_worker"
    )
    if outer.is_plain:
        return random_per_worker_outer(draw)
    period = draw.randrange(1, 4)
    if draw.random() < 0.5:
        n, phases = draw.randrange(2, 7), []
        for _ in range(period):
            ranks = draw.sample(range(n), n)
            cut = draw.randrange(2, n + 1)
            phases.append([group for group in (ranks[:cut], ranks[cut:]) if len(group) > 1])
        return explicit(n, *phases, payload=Payload(outer=outer), steps_per_round=draw.randrange(1, 3))
    radices, size = draw.choice([((2,), 2), ((3,), 2), ((2, 2), 2), ((2, 3), 3), ((), 4)])
    phases = [tuple(random_blocks(draw, radices, size)) for _ in range(period)]
    cluster = Cluster.regular(int(np.prod(radices)), size)
    return of_rule("r", cluster, radices, tuple(phases), payload=Payload(outer=outer))


def test_outer_consensus_agrees_between_prover_checker_and_simulation():
    """Consensus is proved exactly if differences vanish, and the checker computes the numbers of the prover."""
    draw, seen = random.Random("own anchors"), {"proved": 0, "refuted": 0}
    for _ in range(150):
        schedule = random_per_worker_outer(draw)
        proof, raw, certificate = certified_parts(schedule)
        claim = proof["outer-consensus"]
        is_below = {"claim": "outer-consensus", "squared": str(1 - Fraction(1, 10**6))}
        assert is_true(is_below, raw) == claim.holds, (raw, claim)
        assert proof.verdict.value == claim.status.value
        if claim.holds:
            assert "outer-consensus" in confirm(raw, certificate)
            assert is_true(consensus_entry(certificate), raw)
        stated = {fact.name: fact.numbers for fact in checker.facts(checker.read_schedule(raw))}
        notified = {one.claim: one.numbers for one in proof.claims if one.numbers is not None}
        assert stated == notified
        seen[claim.status.value] += 1
    assert min(seen.values()) > 30, seen


def test_spectral_radius_of_at_least_1_is_refuted_with_its_value():
    pairs = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    schedule = explicit(
        4, *pairs, payload=Payload(outer=OuterStep(lr=1.9, momentum=0.9, nesterov=True, outer_params="per_worker"))
    )
    claim = prove(schedule)["outer-consensus"]
    assert claim.status.value == "refuted"
    assert claim.witness["radius"] == pytest.approx(4.394810, abs=1e-5)
    assert outer_radius(schedule) == pytest.approx(claim.witness["radius"])


def test_per_worker_outer_parameters_have_no_matrix_claims():
    own = SCHEDULES["outer-own"]
    names = {claim.claim for claim in prove(own).claims}
    assert {"contraction", "consensus", "doubly-stochastic", "equal-replicas"}.isdisjoint(names)
    check_error(ScheduleError, "outer steps from each worker's own outer parameters are no mixing matrix", own.steps)


def test_worker_outside_all_groups_is_refuted_by_rank():
    alone = StaticGroups(
        phases=GroupPhases((Phase.from_groups(4, [[0, 1, 3]]),)), payload=SCHEDULES["outer-own"].strategy.payload
    )
    claim = prove(Schedule("alone", Cluster.regular(2, 2), alone))["outer-consensus"]
    assert claim.status.value == "refuted"
    assert "{2}" in claim.explanation


def test_outer_parameters_cost_memory_but_no_time(tmp_path, capsys):
    own, path = SCHEDULES["outer-own"], tmp_path / "own.json"
    wire = Hardware(inside=Link(1e-5, 1e-10), nic=Link(1e-4, 1e-8), compute=0.08, model_bytes=2_000_000)
    found, plain = predict(own, wire), predict(own.meetings, wire)
    assert found.arrays == plain.arrays + 2
    assert replace(found, arrays=plain.arrays, memory_bytes=plain.memory_bytes) == plain
    write_schedule(path, own)
    assert ran(capsys, ["simulate", str(path), "--rounds", "4"]).err == ""


# Quorum rounds: prover, checker and simulated rules agree; nothing else is accepted


OF_ALL = [
    {"quorum": start, "staleness": late, "missed": missed, "count": count, "synchronize_every": every}
    for start, late, missed, count, every in itertools.product(
        ("solo", "majority", 2, 3), (1, 4, 9), ("each", "sum", "latest"), ("open-round", "call"), (0, 3)
    )
]


def quorum_document(members):
    """Return the document of a quorum setting with every member, defaults included."""
    raw = dump_schedule(by_quorum(4, PartialAllReduce(quorum="solo")))
    raw["strategy"]["sync"] = {"partial": dict(members)}
    return json.loads(json.dumps(raw))


def is_valid(members):
    """Whether the strategies accept a quorum setting."""
    try:
        schedule = by_quorum(4, PartialAllReduce(**members))
        schedule.strategy.check(schedule.cluster)
    except PartreduceError:
        return False
    return True


def test_checker_accepts_exactly_the_valid_quorum_settings():
    assert [agree(quorum_document(members)) for members in OF_ALL] == list(map(is_valid, OF_ALL))
    assert sum(map(is_valid, OF_ALL)) > 30
    assert not any(agree(quorum_document({"quorum": strange})) for strange in (1, 4, -2, "all", True, 2.0, None))
    groups = quorum_document({"quorum": "solo"})
    groups["strategy"] |= {"kind": "static", "phases": [[{"group": [0, 1]}], [{"group": [0, 1, 2, 3]}]]}
    with pytest.raises(checker.Refusal, match="a pipeline and a quorum go with allreduce at steps_per_round 1"):
        checker.read_schedule(groups)


def test_quorum_facts_are_true_and_equal_in_prover_and_checker():
    for members in filter(is_valid, OF_ALL):
        schedule = by_quorum(4, PartialAllReduce(**members))
        raw, certificate = certify(schedule)
        spelled = parse_schedule(json.dumps(quorum_document(members)).encode())
        assert spelled.strategy == schedule.strategy
        assert checker.read_schedule(dump_schedule(spelled)).sha256 == schedule_sha256(schedule), "one canonical form"
        assert certificate["claims"] == []
        played, facts = quorums.quorum_of(raw), facts_of(raw)
        assert facts == {claim.claim: claim.numbers for claim in prove(schedule).claims if claim.holds}
        for name, numbers in facts.items():
            assert quorums.is_true({"claim": name, **numbers}, played, 4), (members, name, numbers)
        assert ("staleness" in facts) == quorums.is_true({"claim": "staleness", "rounds": 999}, played, 4)
        equal = any(
            quorums.is_true({"claim": "equal-replicas", "of": of, "every": every}, played, 4)
            for of in ("gradients", "models")
            for every in (1, 3)
        )
        assert ("equal-replicas" in facts) == equal


def test_smaller_staleness_bounds_and_synchronous_certificates_are_refused():
    assert not quorums.is_true({"claim": "staleness", "rounds": 3}, quorums.USUAL | {"quorum": "solo"}, 4)
    assert not quorums.is_true({"claim": "deadlock-free"}, quorums.USUAL | {"quorum": 4}, 4)
    raw, certificate = certify(SCHEDULES["quorum"])
    of_synchronous = certify(Schedule("a", SCHEDULES["quorum"].cluster, AllReduce()))[1]
    read = checker.read_schedule(json.loads(json.dumps(raw)))
    assert of_synchronous["claims"]
    for entry in of_synchronous["claims"]:
        assert "rounds by quorum" in objection(read, {**certificate, "claims": [entry]}), entry


# Table claims: prover, checker and a count row by row agree, and nothing else holds


def test_table_claims_are_essential_unless_all_tables_are_dense():
    proof = prove(SCHEDULES["tables"])
    assert proof.essential >= {"one-owner", "table-order"}
    assert proof.verdict is Status.PROVED
    assert [claim.claim for claim in proof.claims if claim.holds][-3:] == list(JUDGES)
    dense_only = Payload(tables=(TablePlacement(parameter="words", rows=5, columns=2, way=Placement.DENSE),))
    plain = prove(Schedule("s", Cluster.regular(2, 2), AllReduce(payload=dense_only)))
    assert not {"one-owner", "table-order"} & {*plain.essential, *(claim.claim for claim in plain.claims)}
    assert "nic-bytes" not in prove(Schedule("s", Cluster.regular(2, 2), AllReduce()))


@pytest.mark.parametrize(
    "members", [{"outer": OuterStep(momentum=0.5, outer_params=OuterParams.PER_WORKER)}, {"fragments": 2}], ids=str
)
def test_table_claims_hold_with_outer_steps_and_fragments(members):
    group = GroupPhases((Phase.from_groups(4, [[0, 1, 2, 3]]),))
    strategy = StaticGroups(phases=group, steps_per_round=2, payload=replace(TABLES_OF_4, **members))
    proof = prove(Schedule("s", Cluster.regular(2, 2), strategy))
    assert {claim.claim for claim in proof.claims if claim.holds} >= {"one-owner", "table-order"}


def test_synchronous_server_has_table_claims_without_certificate():
    proof = prove(Schedule("s", Cluster.regular(2, 2), Server(payload=TABLES_OF_4)))
    assert proof["one-owner"].status is Status.FACT
    assert not proof.certificate


TABLES_OF_4 = Payload(tables=(TablePlacement(parameter="words", rows=9, columns=2),))


def test_table_claims_are_not_proved_for_overlapping_groups():
    clash = StaticGroups(phases=GroupPhases((Phase.from_groups(4, [[0, 1], [1, 2]]),)), payload=TABLES_OF_4)
    proof = prove(Schedule("s", Cluster.regular(2, 2), clash))
    assert proof["one-owner"].status is Status.NOT_PROVED
    assert proof.certificate["claims"] == []


def test_wrong_row_owner_in_the_code_is_refuted(monkeypatch):
    def wrong(self, route, row, num_workers):
        return 3 if row == 6 else row % num_workers

    monkeypatch.setattr(Payload, "owner", wrong)
    claim = prove(Schedule("s", Cluster.regular(2, 2), AllReduce(payload=TABLES_OF_4)))["one-owner"]
    assert claim.status is Status.REFUTED
    assert claim.witness == {"parameter": "words", "row": 6, "owner": 3}


@pytest.mark.parametrize("cluster", [Cluster.regular(1, 4), Cluster.regular(4, 1)], ids=str)
def test_only_multi_node_clusters_send_rows_between_nodes(cluster):
    proof = prove(Schedule("s", cluster, AllReduce(payload=TABLES_OF_4)))
    assert (proof["nic-bytes"].numbers["tables"][0][1:] == [0, 0]) == (cluster.num_nodes == 1)


def test_table_traffic_on_4x4_matches_manual_calculation():
    """Of 100,000 rows of 16 columns each node requests 75,000; without local aggregation four times as many."""
    words = TablePlacement(parameter="words", rows=100_000, columns=16)
    for is_local, times in ((True, 1), (False, 4)):
        payload = Payload(tables=(words,), local_aggregation=is_local)
        proof = prove(Schedule("s", Cluster.regular(4, 4), AllReduce(payload=payload)))
        lookup, gradients = 75_000 * 4 + 75_000 * 64, 75_000 * 68
        assert proof["nic-bytes"].numbers["tables"] == [["words", times * lookup, times * gradients]]
        assert proof["one-owner"].numbers["tables"] == [["words", 16, 6250, 6250]]


def test_table_claims_scale_to_a_million_workers():
    payload = Payload(tables=(TablePlacement(parameter="words", rows=2**31 - 1, columns=512),))
    schedule = Schedule("s", Cluster.regular(2**17, 8), AllReduce(payload=payload))
    raw = dump_schedule(schedule)
    stated = facts_of(raw)
    for claim in claims_of_tables(schedule).values():
        assert stated[claim.claim] == json.loads(json.dumps(dict(claim.numbers)))


def test_forgery_schedules_cover_every_table_placement():
    assert {route.way for route in TABLES.tables} == set(Placement)
