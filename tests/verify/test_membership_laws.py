"""The membership claim piece by piece: who is asked, what is expected of whom, and what is compared with it."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from itertools import product
from random import Random

import pytest

from partreduce.topo.cluster import Cluster
from partreduce.topo.phase import Group
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, RulePhases, StaticGroups
from partreduce.verify import Status, membership, prove
from partreduce.verify.certificate import confirm
from partreduce.verify.membership import answers_of, expected_group, prove_membership

THIRD = Fraction(1, 3)


def random_rule(chance, prologue=0):
    radices, size, phases = chance.choice([(2,), (3, 2), (2, 2, 3)]), chance.randint(1, 4), []
    for _ in range(chance.randint(1, 3)):
        ranks, blocks = chance.sample(range(size), size), []
        while ranks:
            count = chance.randint(1, len(ranks))
            across = tuple(d for d in range(len(radices)) if chance.random() < 0.5)
            blocks.append(Block(tuple(ranks[:count]), across, chance.choice([Fraction(1), THIRD])))
            ranks = ranks[count + (chance.random() < 0.2) :]
        phases.append(tuple(blocks))
    nodes = len(list(product(*map(range, radices))))
    strategy = StaticGroups(phases=RulePhases(radices, tuple(phases)), prologue=prologue)
    return Schedule("rule", Cluster.regular(nodes, size), strategy)


def groups_by_digits(rule, phase):
    """The group of every worker: all whose local rank is in its block and whose digits agree outside `across`."""
    digits = list(product(*map(range, rule.radices)))
    workers = [(node, local) for node in range(len(digits)) for local in range(rule.workers_per_node)]
    result = []
    for node, local in workers:
        block = next((block for block in phase if local in block.local), None)
        group = block and [
            number
            for number, (other, rank) in enumerate(workers)
            if rank in block.local
            and all(a == b for d, (a, b) in enumerate(zip(digits[node], digits[other], strict=True))
                    if d not in block.across)
        ]  # fmt: skip
        result.append((tuple(group), block.relaxation) if group and len(group) > 1 else None)
    return result


def test_everybody_is_asked_and_expected_where_the_digits_say():
    chance = Random(0)
    for _ in range(25):
        schedule = random_rule(chance, prologue=chance.randint(0, 2))
        rule = schedule.rule()
        groups = [groups_by_digits(rule, phase) for phase in rule.phases]
        n = schedule.num_workers
        assert [[expected_group(rule, phase, w) for w in range(n)] for phase in rule.phases] == groups
        assert answers_of(rule) == sum(len(group[0]) if group else 1 for listed in groups for group in listed)
        claim = prove_membership(schedule)
        assert claim.status is Status.PROVED
        lines = [f"{group[0][0]} {group[1]}\n" if group else "-\n" for listed in groups for group in listed]
        assert claim.entry["answers"] == hashlib.sha256("".join(lines).encode()).hexdigest()
        assert set(claim.entry) == {"claim", "answers"}
        assert claim.witness["asked"] == n


def test_a_sample_is_asked_where_all_answers_are_too_long_and_proves_nothing(monkeypatch):
    schedule = random_rule(Random(3), prologue=1)
    rule, monkey = schedule.rule(), monkeypatch.setattr
    monkey(membership, "EVALUATED", answers_of(rule))
    assert prove_membership(schedule).status is Status.PROVED
    monkey(membership, "EVALUATED", answers_of(rule) - 1)
    claim = prove_membership(schedule)
    assert (claim.status, claim.entry) == (Status.NOT_PROVED, None)
    places = sum(len(block.local) for phase in rule.phases for block in phase)
    assert f"{1 + 4 * places} random workers were asked" in claim.explanation
    assert "assumed of the installed code" in claim.explanation
    everywhere = Schedule("all", Cluster.regular(16, 2), AllReduce())
    monkey(membership, "EVALUATED", 32**2)
    assert "membership" in prove(everywhere).essential
    monkey(membership, "EVALUATED", 32**2 - 1)
    proof = prove(everywhere)
    assert proof.verdict is Status.PROVED, "the groups are the file's, whoever computes them"
    assert "membership" not in proof.essential


def test_who_is_drawn_comes_from_every_block_the_last_node_the_prologue_and_later_periods(monkeypatch):
    schedule = random_rule(Random(3), prologue=2)
    rule = schedule.rule().canonical
    drawn = list(membership._drawn(schedule, rule))
    later, early = drawn[:-2], drawn[-2:]
    assert [round_ for _, round_, _ in early] == [0, 1]
    assert all(right == (tuple(range(schedule.num_workers)), 1) for _, _, right in early)
    places = sum(len(block.local) for phase in rule.phases for block in phase)
    locals_ = {local for phase in rule.phases for block in phase for local in block.local}
    last = schedule.num_workers - rule.workers_per_node
    assert len(later) == 4 * places
    assert {w for w, *_ in later[:places]} == {last + local for local in locals_}, "the last node, at every local rank"
    assert len({w for w, *_ in later}) > len(locals_)
    assert {(r - 2) % schedule.period for _, r, _ in later} == set(range(schedule.period))
    assert max(r for _, r, _ in later) > 10**6
    assert all(r >= 2 for _, r, _ in later)
    groups = [groups_by_digits(rule, phase) for phase in rule.phases]
    assert all(right == groups[(r - 2) % schedule.period][w] for w, r, right in later)
    size = max(rule.span(b) * len(b.local) for phase in rule.phases for b in phase)
    monkeypatch.setattr(membership, "SAMPLED", 8 * schedule.num_workers)
    assert len(list(membership._drawn(schedule, rule))) - 2 <= 8 * schedule.num_workers // 50 + 1
    monkeypatch.setattr(membership, "SAMPLED", 3 * (50 + size))
    assert 3 <= len([one for one in membership._drawn(schedule, rule) if one[1] >= 2]) < 4 * places


@pytest.mark.parametrize("limit", [0, 10**6])
def test_a_wrong_answer_is_shown_beside_the_right_one(monkeypatch, limit):
    schedule = Schedule(
        "x", Cluster.regular(2, 2), StaticGroups(phases=RulePhases((2,), ((Block((0, 1), (0,)),),)), prologue=2)
    )
    monkeypatch.setattr(membership, "EVALUATED", limit)
    for wrong in (None, Group((0, 1), Fraction(1)), Group((0, 1, 2, 3), THIRD)):
        with monkeypatch.context() as patch:
            patch.setattr(Schedule, "group_of", lambda *_, wrong=wrong: wrong)
            claim = prove_membership(schedule)
            assert (claim.claim, claim.status) == ("membership", Status.REFUTED)
            shown = wrong and {
                "members": "{" + ",".join(map(str, wrong.members)) + "}",
                "size": len(wrong.members),
                "relaxation": str(wrong.relaxation),
            }
            assert claim.witness["answered"] == shown
            assert claim.witness["block"] == {"members": "{0,1,2,3}", "size": 4, "relaxation": "1"}
            round_, worker = claim.witness["round"], claim.witness["worker"]
            assert round_ >= 2
            assert claim.explanation.startswith(f"in round {round_} worker {worker} ")


def test_a_group_of_1024_is_the_largest_of_which_everybody_is_asked_and_the_checker_follows():
    schedule = Schedule("all", Cluster.regular(512, 2), AllReduce())
    certified = schedule.with_certificate(prove(schedule).certificate)
    assert "membership" in confirm(certified)
    assert prove_membership(Schedule("all", Cluster.regular(1025, 1), AllReduce())).status is Status.NOT_PROVED


def test_two_blocks_of_one_rank_are_not_looked_at():
    phases = ((Block((0, 1), ()), Block((1,), (0,))),)
    claim = prove_membership(Schedule("bad", Cluster.regular(4, 2), StaticGroups(phases=RulePhases((4,), phases))))
    assert (claim.status, claim.explanation) == (Status.NOT_PROVED, "two blocks of one phase share a local rank.")
