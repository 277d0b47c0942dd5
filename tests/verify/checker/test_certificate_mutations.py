"""Corrupted certificates and schedules, hashes recomputed: no false claim is accepted, and the refusal says where."""

import os
import random

import pytest

from benchmarks.forgery.campaign import (
    WAYS,
    certify,
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
from benchmarks.forgery.mutations import fresh
from benchmarks.forgery.oracle import Truth, is_true
from benchmarks.forgery.schedules import SCHEDULES
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


# A short slice of the forgery campaign; `python -m benchmarks.forgery --attempts 100000` is the whole


@pytest.mark.parametrize("attempts", [800, pytest.param(4000, marks=pytest.mark.slow)])
def test_no_false_claim_is_confirmed_and_every_honest_one_is(attempts):
    """The oracle refuses false claims as well: of claims moved to other schedules most are false."""
    tally = run(attempts, seed=7)
    assert not tally.false
    assert not tally.refused_honest
    assert {kind for way, kind in tally.attempts if way == WAYS[0]} >= set(checker.CLAIMS)
    assert attempts / 20 < sum(tally.accepted.values()) < sum(tally.attempts.values()) / 2
    assert len(pool(7)) > 60
