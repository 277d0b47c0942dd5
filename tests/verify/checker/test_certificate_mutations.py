"""Corrupted certificates and schedules, hashes recomputed: no false claim is accepted, and the refusal says where."""

import json
import os
import random

import pytest

from benchmarks.forgery.campaign import (
    WAYS,
    certify,
    donors,
    entries_by_kind,
    moved_to,
    mutate_entry,
    mutate_schedule,
    objection,
    pool,
    refusal,
    reread,
    run,
    single_claims,
)
from benchmarks.forgery.mutations import fresh, mutate
from benchmarks.forgery.oracle import Truth, is_true
from benchmarks.forgery.schedules import SCHEDULES
from helpers.readings import agree
from partreduce.errors import InputError
from partreduce.files import dump_schedule, parse_schedule, schedule_sha256
from partreduce.verify import checker

COUNT = int(os.environ.get("PARTREDUCE_TEST_FORGERIES", "120"))
"""Of every kind; `python -m benchmarks.forgery` makes as many of the same corruptions as one likes."""
CASES = entries_by_kind()
PAYLOADS = ("pipeline", "coded-rule", "coded", "tables", "tables-apart")
"""Schedules for what they send, whose groups are those of others."""
# consensus-distance: the checks take milliseconds, so fewer of them are made here, and more in
# test_steady_state_claims.py.


@pytest.mark.parametrize("kind", sorted(CASES))
def test_corrupted_certificates_are_refused_or_still_true(kind):
    slow = (
        "contraction/factor",
        "contraction/norms",
        "consensus-distance",
    )  # the matrices of the first two have 50 rows
    count = COUNT // 4 if kind in slow else COUNT
    draw = random.Random(f"certificate {kind}")
    cases = CASES[kind]
    assert cases, "every kind of claim has a schedule that shows it"
    accepted = changed = named = 0
    for number in range(10 * COUNT):
        if changed == count:
            break
        raw, certificate = (fresh(part) for part in cases[number % len(cases)])
        index = len(certificate["claims"]) - 1
        before = fresh(certificate)
        mutate_entry(draw, certificate["claims"][index])
        if certificate == before and repr(certificate) == repr(before):
            continue
        changed += 1
        said = refusal(fresh(raw), fresh(certificate))
        if said is None:
            accepted += 1
            assert is_true(certificate["claims"][index], raw), certificate["claims"][index]
        else:
            named += f"claims[{index}]" in said or "schedule" in said
    assert changed == count
    assert named >= 0.97 * (changed - accepted), "a refusal names the entry"


@pytest.mark.parametrize("name", SCHEDULES)
def test_certificates_of_another_schedule_are_refused_or_still_true(name):
    draw = random.Random(f"schedule {name}")
    raw, certificate = certify(SCHEDULES[name])
    count = COUNT // 4 if name in PAYLOADS or name.startswith("gap-") else COUNT
    changed = accepted = 0
    for _ in range(20 * COUNT):
        if changed == count:
            break
        other = fresh(raw)
        mutate_schedule(draw, other)
        read = reread(other)
        if read is None or other == raw:
            continue
        changed += 1
        truth = None
        for entry, single in single_claims(moved_to(certificate, read)):
            if entry["claim"] == "consensus-distance" and changed % 10:
                continue
            if objection(read, single) is None:
                accepted += 1
                truth = Truth(other) if truth is None else truth
                assert truth.says(entry), (entry["claim"], other)
    assert changed == count


@pytest.mark.parametrize("name", SCHEDULES)
def test_true_certificates_are_accepted(name):
    raw, certificate = certify(SCHEDULES[name])
    assert refusal(fresh(raw), certificate) is None
    assert all(is_true(entry, raw) for entry in certificate["claims"])


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_checker_computes_the_hash_that_the_documents_compute(name):
    schedule = SCHEDULES[name]
    assert checker.read_schedule(dump_schedule(schedule)).sha256 == schedule_sha256(schedule)


AXES = [
    *({"sync": sync} for sync in ("synchronous", {"delay": 1}, {"delay": 2}, {"delay": 0}, {"delay": "1"}, {}, "free",
        None, 1)),
    *({"sync": sync} for sync in ({"iteration_gap": {"staleness": 1}}, {"delay": 1, "iteration_gap": 1}, "delay")),
    *({"transport": transport}
        for transport in ({}, {"algorithm": "ring"}, {"algorithm": "hierarchical"}, {"algorithm": "tree"}, "ring",
        None)),
    *({"transport": transport} for transport in ({"algorithm": "ring", "codec": "none"}, {"codec": "none"})),
    {"sync": {"delay": 1}, "transport": {"algorithm": "hierarchical"}},
    {"sync": "synchronous", "transport": {}},
    {"overlap": True},
]  # fmt: skip


LAGS = [
    *({"pipeline": p} for p in ({}, {"width": 2}, {"width": 3}, {"width": 2**31}, {"width": 1}, [], None)),
    *({"pipeline": {name: value}} for name, value in (("drain", "drop"), ("drain", "keep"), ("warm_up", 2**53 - 1),
                                                     ("warm_up", -1), ("total", "sum"), ("wider", True), ("x", 1))),
    {"pipeline": {}, "delay": 1},
]  # fmt: skip
CODED = [
    *({"codec": codec} for codec in ("float16", "bfloat16", "int8", "fp8", 16)),
    *({"codec": "int8", name: value} for name, value in (("rounding", "nearest"), ("block", 1), ("block", 0),
                                                         ("error_feedback", True), ("where", "all"))),
    *({"codec": "bfloat16", name: value} for name, value in (("error_feedback", True), ("block", 256), ("block", 8))),
    *({"codec": codec, "algorithm": "hierarchical", "where": "across-nodes"} for codec in ("int8", "float16", "none")),
    *({"gradient_buckets": "per_layer", "codec": codec} for codec in ("none", "int8")),
    {"where": "across-nodes"},
]  # fmt: skip
OUTERS = [
    *({"lr": lr} for lr in ("7/10", "14/20", 1, "1", 0, -1, 0.7, True, "fast", None)),
    *({"momentum": momentum} for momentum in ("9/10", 0, 1, "-1/2")),
    *({"nesterov": True, "momentum": momentum} for momentum in ("1/2", 0)),
    *({"optimizer": optimizer} for optimizer in ("sgd", "adam")),
    *({"lr": "1/2", "outer_params": outer_params} for outer_params in ("per_worker", "shared", "mine", None)),
        {"outer_params": "per_worker"},
    {"nesterov": False}, {"nesterov": 1, "momentum": "1/2"}, {"dampening": 0}, {}, [], None,
]  # fmt: skip
AXES += [{"payload": {"outer": outer}} for outer in OUTERS] + [{"payload": {"outer": {"lr": 2}}, "sync": {"delay": 1}}]
TURNS = [
    *({"fragments": parts} for parts in (1, 2, 3, 4, 0, "2", True, [["a.*"], ["b", "c"]], [["a"]], [["a"], []],
                                         [["a"], ["a"]], [["a"], "b"], [["a"], [""]], [["a"], ["b" * 1001]], [])),
    *({"merge": merge} for merge in ({"steps": 1}, {"alpha": "1/2"}, {"alpha": "2/4", "steps": 0}, {"alpha": 1}, {},
                                     {"steps": -1}, {"steps": 3}, {"alpha": "-1/9", "steps": 1}, {"delay": 1}, 1)),
]  # fmt: skip
AXES += [
    {"steps_per_round": steps_per_round, "payload" if "fragments" in turn else "sync": turn}
    for turn in TURNS
    for steps_per_round in (3, [3, 3])
]
AXES += [
    {"steps_per_round": 3, "payload": {"fragments": 2}, "sync": sync}
    for sync in ({"delay": 1}, {"merge": {"alpha": "1/2"}})
]
AXES += [{"steps_per_round": 3, "averaging": "step-normalized", "sync": {"merge": {"steps": 1}}}]
AXES += [{"sync": sync} for sync in LAGS] + [{"transport": transport} for transport in CODED]


@pytest.mark.parametrize("name", ["rule", "explicit", "allreduce", "graph", "pipeline", "coded", "coded-rule"])
def test_of_when_and_how_the_checker_reads_and_refuses_what_the_documents_do(name):
    """The same canonical hash, or no schedule for either."""
    for axes in AXES:
        raw = dump_schedule(SCHEDULES[name])
        raw["strategy"] |= axes
        agree(raw)


def test_the_checker_reads_the_same_hash_from_random_axes_and_steps_per_round():
    """Whatever a file says of when, how and steps_per_round: the same canonical hash, or no schedule for either."""
    draw = random.Random("axes")
    read = refused = 0
    for _ in range(500):
        raw = dump_schedule(draw.choice([SCHEDULES[name] for name in ("allreduce", "pipeline", "coded", "coded-rule")]))
        n = load(raw).num_workers
        for _ in range(draw.randrange(1, 4)):
            mutate(draw, raw["strategy"], donors(), "strategy")
        if draw.random() < 0.3:
            raw["strategy"]["steps_per_round"] = [draw.choice([1, 1, 1, 2])] * n
        if agree(raw):
            expected = load(raw)
            found = checker.read_schedule(dump_schedule(expected))
            assert expected.strategy.averages_gradients == found.averages_gradients, raw
            assert expected.strategy.sync.lag == found.lag
            read += 1
        else:
            refused += 1
    assert min(read, refused) > 80, "both were seen often"


def load(raw):
    """The schedule of a document, None where it is refused."""
    try:
        return parse_schedule(json.dumps(raw).encode())
    except InputError:
        return None


# A short slice of the forgery campaign; `python -m benchmarks.forgery --attempts 100000` is the whole


@pytest.mark.parametrize("attempts", [1200, pytest.param(4000, marks=pytest.mark.slow)])
def test_no_false_claim_is_confirmed_and_every_honest_one_is(attempts):
    tally = run(attempts, seed=7)
    assert not tally.false
    assert not tally.refused_honest
    assert {kind for way, kind in tally.attempts if way == WAYS[0]} >= set(checker.CLAIMS)
    assert sum(tally.accepted.values()) > attempts / 20, "true claims are accepted all the same"


def test_the_campaign_forges_what_only_a_false_claim_could_gain():
    """The oracle says no as well: of claims moved to other schedules most are false."""
    tally = run(600, seed=8)
    assert not tally.false
    assert sum(tally.accepted.values()) < sum(tally.attempts.values()) / 2
    assert len(pool(8)) > 60
