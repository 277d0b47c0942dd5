"""What is stated without a certificate: prover and checker compute the same numbers apart, and they are true."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks.forgery.attempt import fresh
from benchmarks.forgery.oracle import Truth
from benchmarks.forgery.schedules import SCHEDULES, random_schedule, with_tables
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
