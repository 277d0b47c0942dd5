"""Claim `outer-consensus`: prover, checker and workers one by one agree, and nothing else is accepted."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.forgery.oracle import is_true
from benchmarks.forgery.schedules import SCHEDULES, explicit, random_blocks
from partreduce.__main__ import main
from partreduce.planner.predict import predict
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.errors import ScheduleError
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.metrics.stability import outer_radius
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, OuterStep, Payload, RulePhases, StaticGroups
from partreduce.verify import checker, prove

NAMES = ("outer-own", "outer-own-rule")


def certified(schedule):
    proof = prove(schedule)
    raw, certificate = (json.loads(json.dumps(part)) for part in (dump_schedule(schedule), dict(proof.certificate)))
    return proof, raw, certificate


def held(raw, certificate):
    return list(checker.check(certificate, checker.read_schedule(json.loads(json.dumps(raw)))))


def entry_of(certificate):
    return next(entry for entry in certificate["claims"] if entry["claim"] == "outer-consensus")


def random_own(draw):
    """Groups or a rule whose members have outer parameters of their own; some agree, some do not."""
    momentum = Fraction(draw.randrange(10), 10)
    nesterov = momentum > 0 and draw.random() < 0.5
    outer = OuterStep(
        lr=Fraction(draw.randrange(1, 19), 10), momentum=momentum, nesterov=nesterov, outer_params="per_worker"
    )
    if outer.is_plain:
        return random_own(draw)
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
    return Schedule("r", cluster, StaticGroups(phases=RulePhases(radices, tuple(phases)), payload=Payload(outer=outer)))


def test_prover_checker_and_workers_one_by_one_agree_on_random_schedules():
    """Proved exactly where differences die out, and the checker computes the numbers that the prover states."""
    draw, seen = random.Random("own anchors"), {"proved": 0, "refuted": 0}
    for _ in range(150):
        schedule = random_own(draw)
        proof, raw, certificate = certified(schedule)
        claim = proof["outer-consensus"]
        is_below = {"claim": "outer-consensus", "squared": str(1 - Fraction(1, 10**6))}
        assert is_true(is_below, raw) == claim.holds, (raw, claim)
        assert proof.verdict.value == claim.status.value
        if claim.holds:
            assert "outer-consensus" in held(raw, certificate)
            assert is_true(entry_of(certificate), raw)
        stated = {fact.name: fact.numbers for fact in checker.facts(checker.read_schedule(raw))}
        told = {one.claim: one.numbers for one in proof.claims if one.numbers is not None}
        assert stated == told
        seen[claim.status.value] += 1
    assert min(seen.values()) > 30, seen


def test_a_radius_of_1_or_more_is_refuted_with_the_number():
    pairs = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    schedule = explicit(
        4, *pairs, payload=Payload(outer=OuterStep(lr=1.9, momentum=0.9, nesterov=True, outer_params="per_worker"))
    )
    claim = prove(schedule)["outer-consensus"]
    assert claim.status.value == "refuted"
    assert claim.witness["radius"] == pytest.approx(4.394810, abs=1e-5)
    assert outer_radius(schedule) == pytest.approx(claim.witness["radius"])


def test_own_anchors_over_everybody_agree_as_the_quadratic_says():
    """One group of all, no Nesterov: differences follow x² − (1 + μ − r) x + μ, whose roots have modulus √μ."""
    schedule = explicit(
        3, [range(3)], payload=Payload(outer=OuterStep(lr=0.7, momentum=0.36, outer_params="per_worker"))
    )
    assert outer_radius(schedule) == pytest.approx(0.6)


@pytest.mark.parametrize("name", NAMES)
def test_a_bound_that_is_just_too_small_is_refused(name):
    _, raw, certificate = certified(SCHEDULES[name])
    entry, true = entry_of(certificate), Fraction(entry_of(certificate)["squared"])
    radius = Fraction(outer_radius(SCHEDULES[name])).limit_denominator(10**9)
    assert radius**2 < true
    for squared in (radius**2 * Fraction(999, 1000), Fraction(0), Fraction(1), Fraction(-1)):
        entry["squared"] = str(squared)
        with pytest.raises(checker.Refusal):
            held(raw, certificate)


@pytest.mark.parametrize("name", NAMES)
def test_weights_that_are_not_positive_or_not_enough_are_refused(name):
    _, raw, certificate = certified(SCHEDULES[name])
    whole = entry_of(certificate)["weights"]
    zeros = [[0] * len(part) for part in whole]
    smaller = [[entry // 2**40 for entry in part] for part in whole]
    first = [[-whole[0][0], *whole[0][1:]], *whole[1:]]
    for weights in (zeros, smaller, first, whole[:-1], [whole[0][:-1], *whole[1:]], [*whole, whole[0]]):
        entry_of(certificate)["weights"] = weights
        with pytest.raises(checker.Refusal):
            held(raw, certificate)
    entry_of(certificate)["weights"] = whole
    assert "outer-consensus" in held(raw, certificate)


def test_a_claim_about_matrices_is_refused_and_none_is_made():
    own = SCHEDULES["outer-own"]
    proof, raw, certificate = certified(own)
    assert {"contraction", "consensus", "doubly-stochastic", "equal-replicas"}.isdisjoint(c.claim for c in proof.claims)
    strategy = own.strategy
    plain = Schedule(own.name, own.cluster, StaticGroups(phases=strategy.phases, prologue=strategy.prologue))
    _, _, of_matrices = certified(plain)
    for entry in of_matrices["claims"]:
        if entry["claim"] == "membership":
            continue
        with pytest.raises(checker.Refusal, match="a claim about own outer parameters"):
            held(raw, certificate | {"claims": [entry]})
    with pytest.raises(checker.Refusal, match="a claim about rounds"):
        held(dump_schedule(plain), of_matrices | {"claims": [entry_of(certificate)]})
    with pytest.raises(ScheduleError, match="outer steps from each worker's own outer parameters are no mixing matrix"):
        own.steps()


def test_groups_that_leave_a_worker_out_are_refuted_by_name():
    alone = StaticGroups(
        phases=GroupPhases((Phase.from_groups(4, [[0, 1, 3]]),)), payload=SCHEDULES["outer-own"].strategy.payload
    )
    claim = prove(Schedule("alone", Cluster.regular(2, 2), alone))["outer-consensus"]
    assert claim.status.value == "refuted"
    assert "{2}" in claim.explanation


def test_time_is_that_of_the_same_meetings_and_memory_that_of_anchors(tmp_path, capsys):
    own, path = SCHEDULES["outer-own"], tmp_path / "own.json"
    wire = Hardware(inside=Link(1e-5, 1e-10), nic=Link(1e-4, 1e-8), compute=0.08, model_bytes=2_000_000)
    found, plain = predict(own, wire), predict(own.meetings, wire)
    assert found.arrays == plain.arrays + 2
    assert replace(found, arrays=plain.arrays, memory_bytes=plain.memory_bytes) == plain
    write_schedule(path, own)
    assert main(["simulate", str(path), "--rounds", "4"]) == 0
    assert capsys.readouterr().err == ""
