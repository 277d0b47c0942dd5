"""Claims about groups that a quorum starts: prover, checker and the played rules agree; nothing else is accepted."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.forgery import oracle, quorums
from benchmarks.forgery.attempt import certified, objection
from benchmarks.forgery.dense import dense
from benchmarks.forgery.schedules import SCHEDULES, explicit, in_nodes_then_all
from helpers.claims import facts_of
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.document.schedule import dump_schedule, parse_schedule
from partreduce.topo.errors import PartreduceError
from partreduce.topo.strategies import Lockstep, Quorum
from partreduce.topo.strategies.base import Averaging
from partreduce.verify import Status, checker, prove

SETTINGS = [
    {"quorum": start, "staleness": late, **more}
    for start, late, more in itertools.product(
        ("solo", "majority", 2, 3, 4),
        (1, 9),
        ({}, {"missed": "latest"}, {"count": "call"}, {"grace": 3}),
    )
]
KINDS = {name: SCHEDULES[name] for name in ("quorum-groups", "quorum-groups-exact", "quorum-groups-relaxed")} | {
    "solo": in_nodes_then_all(Quorum(quorum="solo", staleness=9))
}
STARTED = {
    "quorum-groups": "when 2 of its members have come",
    "quorum-groups-exact": "drawn from a seed",
    "quorum-groups-relaxed": "when 3 of its members have come",
    "solo": "of more only if these came before",
}
"""What is said of who starts a round."""


def written(members, **strategy):
    """The document of a setting for nodes and then all, with every member spelt out."""
    raw = dump_schedule(in_nodes_then_all(Quorum(quorum="solo")))
    raw["strategy"] |= {"when": {"quorum": dict(members)}, **strategy}
    return json.loads(json.dumps(raw))


def is_read(raw):
    try:
        checker.read_schedule(raw)
    except checker.Refusal:
        return False
    return True


def is_schedule(raw):
    try:
        parse_schedule(json.dumps(raw).encode())
    except PartreduceError:
        return False
    return True


def test_the_checker_reads_exactly_the_settings_that_there_are():
    for members in SETTINGS:
        assert is_read(written(members)) == is_schedule(written(members)), members
    assert sum(is_read(written(members)) for members in SETTINGS) == 16
    for strategy in (
        {"averaging": "step-normalised"},
        {"pace": [1, 2, 3, 1]},
        {"pace": 3, "prologue": 2},
        {"how": {"codec": "float16"}},
        {"how": {"form": "hierarchical"}},
        {"how": {"sending": "layers"}},
        {"phases": [[{"local": [0, 1], "across": []}]]},
    ):
        for members in ({"quorum": "solo"}, {"quorum": 2}):
            assert is_read(written(members, **strategy)) == is_schedule(written(members, **strategy)), strategy


@pytest.mark.parametrize("name", KINDS)
def test_what_is_stated_is_true_and_the_same_by_prover_and_checker(name):
    schedule = KINDS[name]
    raw, certificate = certified(schedule)
    read = checker.read_schedule(json.loads(json.dumps(raw)))
    assert read.sha256 == schedule_sha256(schedule)
    assert objection(read, certificate) is None
    claims = {claim.claim: claim for claim in prove(schedule).claims}
    assert {entry["claim"] for entry in certificate["claims"]} == {
        name for name, claim in claims.items() if claim.status is Status.PROVED
    }
    facts = facts_of(raw)
    stated = {name: claim.numbers for name, claim in claims.items() if claim.status in (Status.FACT, Status.FOLLOWS)}
    assert facts == stated
    assert set(quorums.OF_GROUPS) < set(facts)
    assert all(len(claim.explanation) > 40 for claim in claims.values())
    assert STARTED[name] in claims["quorum"].explanation
    for entry in [*certificate["claims"], *({"claim": name, **numbers} for name, numbers in facts.items())]:
        assert oracle.is_true(entry, raw), entry


def test_claims_of_other_rounds_are_refused():
    raw, certificate = certified(SCHEDULES["quorum-groups-exact"])
    read = checker.read_schedule(json.loads(json.dumps(raw)))
    strategy = SCHEDULES["quorum-groups-exact"].strategy
    lockstep = replace(SCHEDULES["quorum-groups-exact"], strategy=replace(strategy, when=Lockstep()))
    kept = {entry["claim"] for entry in certificate["claims"]}
    refused = set()
    for entry in certified(lockstep)[1]["claims"]:
        if objection(read, {**certificate, "claims": [entry]}) is not None:
            refused.add(entry["claim"])
        else:
            assert entry["claim"] in kept
    assert "consensus-distance" in refused
    assert not refused & kept
    of_all = checker.read_schedule(dump_schedule(SCHEDULES["quorum"]))
    shape = {"schedule_sha256": of_all.sha256, "num_workers": of_all.num_workers, "period": of_all.period}
    for entry in certificate["claims"]:
        assert objection(of_all, {**certificate, **shape, "claims": [entry]}) is not None, entry


def test_the_mean_of_groups_is_said_to_be_kept_up_to_rounding():
    claim = prove(SCHEDULES["quorum-groups"])["mean-preserved"]
    assert "in floats also by what rounding makes" in claim.explanation


def test_the_judge_says_no_to_what_is_false():
    raw, _ = certified(SCHEDULES["quorum-groups-exact"])
    listed, matrices = dense(raw)

    def judged(claim, **entry):
        return quorums.is_true_of_groups({"claim": claim, **entry}, raw, listed, matrices)

    assert not judged("staleness", rounds=3), "its queue holds 4"
    assert not judged("quorum", at_least=2)
    assert not judged("deadlock-free", needed=[[2, 2], [4, 1]])
    leaking = [matrices[0], matrices[1] - np.eye(4) / 10]
    entry = {"claim": "mean-preserved"}
    assert quorums.is_true_of_groups(entry, raw, listed, matrices)
    assert not quorums.is_true_of_groups(entry, raw, listed, leaking)


def test_averaging_and_overlaps_have_no_certificate_of_their_own():
    with pytest.raises(PartreduceError, match="averaging"):
        explicit(3, [[0, 1, 2]], when=Quorum(quorum=2), averaging=Averaging.STEP_NORMALISED)
    proof = prove(explicit(4, [[0, 1, 2], [2, 3]], when=Quorum(quorum="solo")))
    assert proof.certificate["claims"] == []
    assert proof["conflict-free"].status is Status.REFUTED
    for name in proof.essential - {"conflict-free"}:
        assert proof[name].status is Status.NOT_PROVED
        assert "conflict-freedom" in proof[name].explanation
