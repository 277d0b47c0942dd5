"""Ages, queues, ends and memory of small schedules: what a run shows, and what is said.

Factors that move nothing, that move half of the way and that leave less than nothing are among them.
"""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest

from benchmarks.forgery import runs
from benchmarks.forgery.dense import dense
from benchmarks.forgery.schedules import explicit, graph, rule, shift
from helpers.claims import claims_of_runs
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.phase import Group
from partreduce.topo.rule import Block
from partreduce.topo.strategies.axes import DelayedAveraging
from partreduce.verify import Status
from partreduce.verify import facts as facts_module

FACTORS = [1, 1, 1, Fraction(1, 2), Fraction(4, 3), 0, Fraction(3, 2), Fraction(-1, 2)]


def of_groups(chance):
    n, phases = chance.randint(2, 6), []
    for _ in range(chance.randint(1, 3)):
        order, groups = chance.sample(range(n), n), []
        while len(order) > 1:
            size = min(chance.randint(1, 3), len(order))
            members, order = order[:size], order[size:]
            if size > 1:
                groups.append(Group(tuple(sorted(members)), Fraction(chance.choice(FACTORS))))
        phases.append(groups)
    options = {"prologue": chance.randint(0, 1), "steps_per_round": chance.choice([1, 2, tuple(range(1, n + 1))])}
    return explicit(n, *phases, **options, **({"sync": DelayedAveraging()} if chance.random() < 0.3 else {}))


def of_rules(chance):
    radices, size, phases = chance.choice([(2,), (3,), (2, 2)]), chance.randint(1, 3), []
    for _ in range(chance.randint(1, 3)):
        ranks, blocks = chance.sample(range(size), size), []
        while ranks:
            count = chance.randint(1, len(ranks))
            across = tuple(d for d in range(len(radices)) if chance.random() < 0.6)
            blocks.append(Block(tuple(sorted(ranks[:count])), across, Fraction(chance.choice(FACTORS))))
            ranks = ranks[count:]
        phases.append(tuple(blocks))
    return rule(radices, size, *phases)


def of_graphs(chance):
    n, rounds = chance.randint(2, 6), []
    for _ in range(chance.randint(1, 2)):
        pairs = {(u, v) for u in range(n) for v in range(n) if u != v and chance.random() < 0.4} or {(0, 1)}
        share = chance.choice([Fraction(1, n), Fraction(1, 2), Fraction(-1, 5)])
        rounds.append([(u, v, share if chance.random() < 0.9 else Fraction(1, 3 * n)) for u, v in sorted(pairs)])
    return graph(n, *rounds)


def speaks(claim):
    return claim.explanation.count(" ") > 5 and "None" not in claim.explanation


@pytest.mark.parametrize("make", [of_groups, of_rules, of_graphs])
def test_what_is_said_is_what_a_run_of_a_small_schedule_shows(make):
    chance, seen = Random(make.__name__), set()
    for _ in range(90):
        schedule = make(chance)
        raw, n = dump_schedule(schedule), schedule.num_workers
        listed, matrices = dense(raw)
        waits = runs.partners(raw, listed, n)
        gap = runs.largest_gap(waits)
        claims = claims_of_runs(schedule)
        assert all(map(speaks, claims.values()))
        assert claims["memory"].numbers == runs.busiest(raw, listed, n)
        keeps = all((w >= 0).all() and (w.diagonal() > 1e-12).all() for w in matrices)
        age = claims["staleness"]
        assert (age.status is Status.FOLLOWS) == (keeps and gap is not None)
        if age.status is Status.FOLLOWS:
            late, steps_per_round = int(schedule.strategy.is_delayed), int(schedule.worker_steps().max())
            oldest = runs.oldest_age(matrices, late=late)
            assert age.numbers == {"late": late, "steps": late * steps_per_round, "reach": gap, "age": oldest,
                                   "age_steps": oldest * steps_per_round}  # fmt: skip
            assert ("late average" in age.explanation) == bool(late)
        elif gap is None:
            assert "never hears of" in age.explanation
        end = claims["end"]
        assert end.numbers == {"steps": int(schedule.worker_steps().sum()), "behind": -1 if gap is None else gap}
        assert ("leaves early" in end.explanation) == (gap is not None)
        assert ("queues" in claims) == (make is of_graphs)
        if make is of_graphs:
            capacities = runs.waiting_messages(raw, waits)
            queues = claims["queues"]
            assert queues.numbers == {"gap": -1 if gap is None else gap, "capacities": capacities}
            assert ("rounds ahead" in queues.explanation) == (gap is not None)
            assert ("that has a bound" in queues.explanation) == (-1 in capacities)
            free = f"{capacities.count(-1)} of {len(capacities)} edges have none"
            assert (free in queues.explanation) == (-1 in capacities)
        seen.add((age.status, keeps))
    assert {(Status.FOLLOWS, True), (Status.NOT_PROVED, True), (Status.NOT_PROVED, False)} <= seen


@pytest.mark.parametrize("name", ["staleness", "queues", "end"])
def test_what_would_take_too_long_is_not_proved_and_said(monkeypatch, name):
    schedule = graph(6, shift(6, Fraction(1, 3)))
    monkeypatch.setattr(facts_module, "MAX_WORK", 5)
    claim = claims_of_runs(schedule)[name]
    assert claim.status is Status.NOT_PROVED
    assert "over a second" in claim.explanation
    assert speaks(claim)
