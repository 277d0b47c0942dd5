"""Claims about rounds that a quorum starts: prover, checker and the played rules agree; nothing else is accepted."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.forgery import oracle, quorums
from benchmarks.forgery.attempt import certified, objection
from benchmarks.forgery.dense import dense
from benchmarks.forgery.schedules import SCHEDULES, by_quorum, explicit, in_nodes_then_all
from helpers.claims import facts_of
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.document.schedule import dump_schedule, parse_schedule
from partreduce.topo.errors import PartreduceError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, Lockstep, Quorum
from partreduce.topo.strategies.base import Averaging
from partreduce.verify import Status, checker, prove

OF_ALL = [
    {"quorum": start, "staleness": late, "missed": missed, "count": count, "synchronise_every": every}
    for start, late, missed, count, every in itertools.product(
        ("solo", "majority", 2, 3), (1, 4, 9), ("each", "sum", "latest"), ("open-round", "call"), (0, 3)
    )
]
OF_GROUPS = [
    {"quorum": start, "staleness": late, **more}
    for start, late, more in itertools.product(
        ("solo", "majority", 2, 3, 4), (1, 9), ({}, {"missed": "latest"}, {"count": "call"}, {"grace": 3})
    )
]
MADE = {"all": lambda when: by_quorum(4, when), "groups": in_nodes_then_all}
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


def written(members, of="all", **strategy):
    """The document of a setting, for all or for nodes and then all, with every member spelt out."""
    raw = dump_schedule(MADE[of](Quorum(quorum="solo")))
    raw["strategy"] |= {"when": {"quorum": dict(members)}, **strategy}
    return json.loads(json.dumps(raw))


def fits(members):
    """Whether a setting is one, as the strategies say."""
    try:
        schedule = by_quorum(4, Quorum(**members))
        schedule.strategy.check(schedule.cluster)
    except PartreduceError:
        return False
    return True


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
    assert [is_read(written(members)) for members in OF_ALL] == list(map(fits, OF_ALL))
    assert sum(map(fits, OF_ALL)) > 30
    assert not any(is_read(written({"quorum": strange})) for strange in (1, 4, -2, "all", True, 2.0, None))
    for members in OF_GROUPS:
        assert is_read(written(members, "groups")) == is_schedule(written(members, "groups")), members
    assert sum(is_read(written(members, "groups")) for members in OF_GROUPS) == 16
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
            raw = written(members, "groups", **strategy)
            assert is_read(raw) == is_schedule(raw), strategy


def test_what_is_stated_of_all_is_true_and_the_same_by_prover_and_checker():
    for members in filter(fits, OF_ALL):
        schedule = by_quorum(4, Quorum(**members))
        raw, certificate = certified(schedule)
        spelt = parse_schedule(json.dumps(written(members)).encode())
        assert spelt.strategy == schedule.strategy
        assert checker.read_schedule(written(members)).sha256 == schedule_sha256(spelt), "one canonical form"
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


def test_a_smaller_bound_is_false_and_a_certificate_of_other_rounds_is_refused():
    assert not quorums.is_true({"claim": "staleness", "rounds": 3}, quorums.USUAL | {"quorum": "solo"}, 4)
    assert not quorums.is_true({"claim": "quorum", "at_least": 2}, quorums.USUAL | {"quorum": "majority"}, 4)
    raw, certificate = certified(SCHEDULES["quorum"])
    of_lockstep = certified(Schedule("a", SCHEDULES["quorum"].cluster, AllReduce()))[1]
    read = checker.read_schedule(json.loads(json.dumps(raw)))
    assert of_lockstep["claims"]
    for entry in of_lockstep["claims"]:
        assert "rounds by quorum" in objection(read, {**certificate, "claims": [entry]}), entry


@pytest.mark.parametrize("name", KINDS)
def test_what_is_stated_of_groups_is_true_and_the_same_by_prover_and_checker(name):
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
