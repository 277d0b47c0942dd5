"""The membership claim piece by piece: who is asked, what is expected of whom, and what is compared with it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from fractions import Fraction
from itertools import product
from random import Random

import pytest

from partreduce.topo.cluster import Cluster
from partreduce.topo.phase import Group
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, RulePhases, Static
from partreduce.verify import Status, membership
from partreduce.verify.affine import Affine, GroupRead, Listed, Loop, Symbol, UnprovedError
from partreduce.verify.membership import answers_of, expected_group, prove_membership
from partreduce.verify.reading import Reader

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
    strategy = Static(phases=RulePhases(radices, tuple(phases)), prologue=prologue)
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
        result.append((tuple(group), block.relax) if group and len(group) > 1 else None)
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
        across = sorted({tuple(sorted(block.across)) for phase in rule.phases for block in phase})
        assert claim.entry["across"] == [list(one) for one in across]
        used = sorted({digit for one in across for digit in one})
        assert [step["digit"] for step in claim.entry["steps"]] == used
        assert all(step["quotient"] + step["remainder"] == [*range(len(rule.radices))] and step["quotient"][-1] ==
                   step["digit"] for step in claim.entry["steps"])  # fmt: skip
        assert claim.entry["digits"] == len(rule.radices)
        assert claim.witness["asked"] == n


def test_a_sample_is_asked_where_all_answers_are_too_long(monkeypatch):
    schedule = random_rule(Random(3), prologue=1)
    rule, monkey = schedule.rule(), monkeypatch.setattr
    monkey(membership, "EVALUATED", answers_of(rule))
    assert prove_membership(schedule).witness["all"]
    monkey(membership, "EVALUATED", answers_of(rule) - 1)
    claim = prove_membership(schedule)
    assert claim.status is Status.PROVED
    assert claim.entry["answers"] == ""
    places = sum(len(block.local) for phase in rule.phases for block in phase)
    assert (claim.witness["all"], claim.witness["asked"]) == (False, 4 * places)
    asked, group_of = [], Schedule.group_of
    monkey(Schedule, "group_of", lambda self, w, r: asked.append((w, r)) or group_of(self, w, r))
    membership._sample(schedule, rule.canonical)
    last = schedule.num_workers - rule.workers_per_node
    locals_ = {local for phase in rule.phases for block in phase for local in block.local}
    assert {w for w, _ in asked[:places]} == {last + local for local in locals_}, "the last node, at every local rank"
    assert len({w for w, _ in asked}) > len(locals_)
    assert {(r - 1) % schedule.period for _, r in asked} == set(range(schedule.period))
    assert max(r for _, r in asked) > 1000
    assert all(r >= 1 for _, r in asked)
    monkey(membership, "SAMPLED", 3 * (50 + max(rule.span(b) * len(b.local) for phase in rule.phases for b in phase)))
    assert 3 <= membership._sample(schedule, rule.canonical)[1] < 4 * places


@pytest.mark.parametrize("limit", [0, 10**6])
def test_a_wrong_answer_is_shown_beside_the_right_one(monkeypatch, limit):
    schedule = Schedule(
        "x", Cluster.regular(2, 2), Static(phases=RulePhases((2,), ((Block((0, 1), (0,)),),)), prologue=2)
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
                "relax": str(wrong.relax),
            }
            assert claim.witness["answered"] == shown
            assert claim.witness["block"] == {"members": "{0,1,2,3}", "size": 4, "relax": "1"}
            round_, worker = claim.witness["round"], claim.witness["worker"]
            assert round_ >= 2
            assert claim.explanation.startswith(f"in round {round_} worker {worker} ")


def read(schedule, round_=0, local=0):
    """The group of a general worker of a local rank, and what it is compared with."""
    rule = schedule.rule().canonical
    digits = [Symbol(f"x{d}", radix) for d, radix in enumerate(rule.radices)]
    strides = membership._strides(rule.radices)
    node = Affine(0, tuple(zip(digits, strides, strict=True)))
    worker = node.times(Affine(rule.workers_per_node)).plus(Affine(local))
    found = Reader().call(schedule.group_of, (worker, round_))
    block = next((block for block in rule.phases[round_] if local in block.local and block.makes_groups), None)
    return found, block, digits, strides, rule.workers_per_node


def others(items):
    """Every sequence with one thing changed: an item that is moved, scaled, dropped or twice, or a loop."""
    for place, item in enumerate(items):
        before, after = items[:place], items[place + 1 :]
        yield (*before, *after)
        yield (*before, item, item, *after)
        if isinstance(item, Loop):
            yield (*before, Loop(Symbol("other", item.symbol.bound), item.body), *after)
            yield (*before, Loop(Symbol("longer", item.symbol.bound + 1), item.body), *after)
            yield from ((*before, Loop(item.symbol, body), *after) for body in others(item.body))
        else:
            value = item if isinstance(item, Affine) else Affine(item)
            yield (*before, value.plus(Affine(1)), *after)
            yield (*before, "a", *after)
            for number in range(len(value.terms)):
                rest = [*value.terms[:number], *value.terms[number + 1 :]]
                symbol, factor = value.terms[number]
                yield (*before, Affine(value.constant, (*rest, (symbol, factor + 1))), *after)
                yield (*before, Affine(value.constant, tuple(rest)), *after)


@pytest.mark.parametrize("radices", [(3,), (100,), (2, 70), (70, 2, 65)])
def test_one_thing_changed_in_what_was_read_is_refused(radices):
    every = tuple(range(len(radices)))
    phases = ((Block((0, 1), every, THIRD), Block((3,), (0,)), Block((2,), ())), (Block((0, 3)),))
    nodes = len(list(product(*map(range, radices))))
    schedule, tried = Schedule("x", Cluster.regular(nodes, 4), Static(phases=RulePhases(radices, phases))), 0
    for round_, local in product(range(2), range(4)):
        found, block, digits, strides, size = read(schedule, round_, local)
        compare = lambda group: membership._compare(group, block, digits, strides, size=size, place="here")  # noqa: B023, E731
        compare(found)
        if block is None:
            assert found is None
            with pytest.raises(UnprovedError, match="skips"):
                compare(GroupRead((0, 1), Fraction(1)))
            continue
        members = found.members
        items = members.items if isinstance(members, Listed) else members
        if len(items) > 200:
            continue
        wrong = [GroupRead(replace(members, items=c) if isinstance(members, Listed) else c, found.relax)
                 for c in others(items)]  # fmt: skip
        wrong += [None, (1, 2), replace(found, relax=Fraction(2)), replace(found, relax=float(found.relax))]
        for group in wrong:
            tried += 1
            with pytest.raises(UnprovedError, match="in here"):
                compare(group)
    assert tried > 15


def test_all_workers_of_a_prologue_are_one_loop_over_everybody():
    symbol = Symbol("v", 70)
    whole = Listed((Loop(symbol, (Affine(0, ((symbol, 1),)),)),), is_tuple=True)
    membership._compare_everyone(GroupRead(whole, Fraction(1)), 70)
    for group in (
        None, GroupRead(whole, THIRD), GroupRead((0, 1), Fraction(1)),
        GroupRead(Listed((*whole.items, *whole.items)), Fraction(1)),
        *(GroupRead(Listed(items), Fraction(1)) for items in others(whole.items) if items != whole.items
          and not (len(items) == 1 and items[0].symbol.bound == 70 and items[0].body[:1] == ())),
    ):  # fmt: skip
        with pytest.raises(UnprovedError, match="prologue"):
            membership._compare_everyone(group, 70)
    with pytest.raises(UnprovedError, match="prologue"):
        membership._compare_everyone(GroupRead(whole, Fraction(1)), 71)


def test_what_cannot_be_read_is_not_proved_and_says_why(monkeypatch):
    schedule = Schedule("all", Cluster.regular(2, 2), AllReduce())
    assert prove_membership(schedule).status is Status.PROVED
    group_of = Schedule.group_of
    monkeypatch.setattr(Schedule, "group_of", lambda self, w, r: group_of(self, w, r))
    claim = prove_membership(schedule)
    assert (claim.status, claim.claim) == (Status.NOT_PROVED, "membership")
    assert "could not be read for all workers: " in claim.explanation


def _down_to_zero(number):
    return 0 if number == 0 else _down_to_zero(number - 1)


def _everyone(self, worker, index, cluster):
    return Group(tuple(range(cluster.num_workers + _down_to_zero(400))))


def test_code_that_calls_itself_too_often_is_not_proved(monkeypatch):
    monkeypatch.setattr(AllReduce, "group_of", _everyone)
    claim = prove_membership(Schedule("all", Cluster.regular(2, 2), AllReduce()))
    assert (claim.claim, claim.status) == ("membership", Status.NOT_PROVED)
    assert "recursive" in claim.explanation


def test_two_blocks_of_one_rank_are_not_looked_at():
    phases = ((Block((0, 1), ()), Block((1,), (0,))),)
    claim = prove_membership(Schedule("bad", Cluster.regular(4, 2), Static(phases=RulePhases((4,), phases))))
    assert (claim.status, claim.explanation) == (Status.NOT_PROVED, "two blocks of one phase share a local rank.")
