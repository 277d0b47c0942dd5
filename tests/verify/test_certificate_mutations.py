"""Corrupted certificates and schedules, hashes recomputed: no false claim is accepted, and the refusal says where."""

from __future__ import annotations

import copy
import json
import random

import pytest

from benchmarks.forgery.attempt import certified, entries_by_kind, moved_to, objection, refusal, reread, single_claims
from benchmarks.forgery.corruptions import aimed_entry, aimed_schedule, blind
from benchmarks.forgery.oracle import STEADY, is_true
from benchmarks.forgery.schedules import SCHEDULES
from preduce.topo.document.canonical import schedule_sha256
from preduce.topo.document.schedule import dump_schedule, load_schedule
from preduce.topo.errors import InputError
from preduce.verify import checker

COUNT = 1000
CASES = entries_by_kind()
# STEADY: the checks take milliseconds, so fewer of them are made here, and more in test_steady_state_claims.py.


@pytest.mark.parametrize("kind", sorted(CASES))
def test_corrupted_certificates_are_refused_or_still_true(kind):
    slow = ("contraction/factor", "contraction/norms", *STEADY)  # the matrices of the first two have 50 rows
    count = COUNT // 4 if kind in slow else COUNT
    draw = random.Random(f"certificate {kind}")
    cases = CASES[kind]
    assert cases, "every kind of claim has a schedule that shows it"
    accepted = changed = named = 0
    for number in range(10 * COUNT):
        if changed == count:
            break
        raw, certificate = (copy.deepcopy(part) for part in cases[number % len(cases)])
        index = len(certificate["claims"]) - 1
        before = copy.deepcopy(certificate)
        if number % 2:
            aimed_entry(draw, certificate["claims"][index])
        else:
            blind(draw, certificate["claims"][index])
        if certificate == before and repr(certificate) == repr(before):
            continue
        changed += 1
        said = refusal(copy.deepcopy(raw), copy.deepcopy(certificate))
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
    raw, certificate = certified(SCHEDULES[name])
    changed = accepted = 0
    for number in range(10 * COUNT):
        if changed == COUNT:
            break
        other = copy.deepcopy(raw)
        try:
            aimed_schedule(draw, other) if number % 2 else blind(draw, other["strategy"])
        except (TypeError, ValueError, AttributeError, KeyError):
            continue
        read = reread(other)
        if read is None or other == raw:
            continue
        changed += 1
        for entry, single in single_claims(moved_to(certificate, read)):
            if entry["claim"] in STEADY and changed % 10:
                continue
            if objection(read, single) is None:
                accepted += 1
                assert is_true(entry, other), (entry["claim"], other)
    assert changed == COUNT


@pytest.mark.parametrize("name", SCHEDULES)
def test_true_certificates_are_accepted(name):
    raw, certificate = certified(SCHEDULES[name])
    assert refusal(copy.deepcopy(raw), certificate) is None
    assert all(is_true(entry, raw) for entry in certificate["claims"])


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_checker_computes_the_hash_that_the_documents_compute(name):
    schedule = SCHEDULES[name]
    assert checker.read_schedule(dump_schedule(schedule)).sha256 == schedule_sha256(schedule)


AXES = [
    *(
        {"when": when}
        for when in ("lockstep", {"late": 1}, {"late": 2}, {"late": 0}, {"late": "1"}, {}, "free", None, 1)
    ),
    *({"when": when} for when in ({"gap": {"staleness": 1}}, {"late": 1, "gap": 1}, "late")),
    *({"how": how} for how in ({}, {"form": "ring"}, {"form": "hierarchical"}, {"form": "tree"}, "ring", None)),
    *({"how": how} for how in ({"form": "ring", "codec": "none"}, {"codec": "none"})),
    {"when": {"late": 1}, "how": {"form": "hierarchical"}},
    {"when": "lockstep", "how": {}},
    {"overlap": True},
]


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("name", ["rule", "explicit", "allreduce", "graph"])
def test_of_when_and_how_the_checker_reads_and_refuses_what_the_documents_do(name, axes, tmp_path):
    """The same canonical hash, or no schedule for either."""
    raw = dump_schedule(SCHEDULES[name])
    raw["strategy"] |= axes
    (tmp_path / "s.json").write_text(json.dumps(raw))
    try:
        read = schedule_sha256(load_schedule(tmp_path / "s.json"))
    except InputError:
        read = None
    try:
        checked = checker.read_schedule(raw).sha256
    except checker.Refusal:
        checked = None
    assert checked == read
