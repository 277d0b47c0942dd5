"""The membership claim, and wrong group functions, each of which is refuted."""

import functools
import hashlib
import importlib.util
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from benchmarks.forgery.dense import dense
from helpers.small import of_rule
from helpers.small_draws import random_rule
from partreduce import Cluster, Schedule
from partreduce.files import dump_schedule
from partreduce.strategies import AllReduce, Block, Group
from partreduce.topo import rule
from partreduce.topo.rule import RuleView
from partreduce.verify import Status, membership, prove
from partreduce.verify.certificate import confirm
from partreduce.verify.checker.groups import members_of_answers
from partreduce.verify.facts import ScheduleFacts
from partreduce.verify.membership import expected_group, prove_membership


def groups_of_workers(schedule):
    """Return the group of every worker in every phase with its relaxation."""
    result = []
    for phase in dense(dump_schedule(schedule))[0]:
        of_worker = [None] * schedule.num_workers
        for members, relaxation in phase:
            for worker in members:
                of_worker[worker] = tuple(sorted(members)), Fraction(relaxation).limit_denominator(9)
        result.append(of_worker)
    return result


def test_membership_evaluates_every_worker_against_the_digits():
    for seed in filter(lambda seed: seed % 7, range(30)):
        schedule = random_rule(seed, [(2,), (3, 2), (2, 2, 3)], prologue=seed % 3)
        rule = schedule.rule()
        groups = groups_of_workers(schedule)
        n = schedule.num_workers
        assert [[expected_group(rule, phase, w) for w in range(n)] for phase in rule.phases] == groups
        assert members_of_answers(ScheduleFacts(schedule).read) == sum(
            len(group[0]) if group else 1 for listed in groups for group in listed
        )
        claim = prove_membership(schedule)
        assert claim.status is Status.PROVED
        lines = [f"{group[0][0]} {group[1]}\n" if group else "-\n" for listed in groups for group in listed]
        assert claim.entry["answers"] == hashlib.sha256("".join(lines).encode()).hexdigest()
        assert set(claim.entry) == {"claim", "answers"}
        assert claim.witness["asked"] == n


def test_sampled_membership_is_not_a_proof(monkeypatch):
    schedule = random_rule(3, prologue=1)
    rule, monkey = schedule.rule(), monkeypatch.setattr
    members = members_of_answers(ScheduleFacts(schedule).read)
    monkey(membership, "EVALUATED", members)
    assert prove_membership(schedule).status is Status.PROVED
    monkey(membership, "EVALUATED", members - 1)
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
    assert proof.verdict is Status.PROVED, "the groups are the file's"
    assert "membership" not in proof.essential


def test_membership_samples_cover_blocks_nodes_and_rounds(monkeypatch):
    schedule = random_rule(3, prologue=2)
    rule = schedule.rule().canonical
    drawn = list(membership._draw(schedule, rule))
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
    groups = groups_of_workers(schedule)
    assert all(right == groups[(r - 2) % schedule.period][w] for w, r, right in later)
    size = max(rule.span(b) * len(b.local) for phase in rule.phases for b in phase)
    monkeypatch.setattr(membership, "SAMPLED", 8 * schedule.num_workers)
    assert len(list(membership._draw(schedule, rule))) - 2 <= 8 * schedule.num_workers // 50 + 1
    monkeypatch.setattr(membership, "SAMPLED", 3 * (50 + size))
    assert 3 <= len([one for one in membership._draw(schedule, rule) if one[1] >= 2]) < 4 * places


@pytest.mark.parametrize("limit", [0, 10**6])
def test_wrong_group_is_reported_with_the_expected_one(monkeypatch, limit):
    schedule = of_rule("x", Cluster.regular(2, 2), (2,), ((Block((0, 1), (0,)),),), prologue=2)
    monkeypatch.setattr(membership, "EVALUATED", limit)
    for wrong in (None, Group((0, 1), Fraction(1)), Group((0, 1, 2, 3), Fraction(1, 3))):
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


def test_membership_is_exhaustive_for_groups_of_up_to_1024():
    schedule = Schedule("all", Cluster.regular(512, 2), AllReduce())
    certified = schedule.with_certificate(prove(schedule).certificate)
    assert "membership" in confirm(certified)
    assert prove_membership(Schedule("all", Cluster.regular(1025, 1), AllReduce())).status is Status.NOT_PROVED


def test_overlapping_blocks_leave_membership_unproved():
    phases = ((Block((0, 1), ()), Block((1,), (0,))),)
    claim = prove_membership(of_rule("bad", Cluster.regular(4, 2), (4,), phases))
    assert (claim.status, claim.explanation) == (Status.NOT_PROVED, "two blocks of one phase share a local rank.")


# Wrong group functions: each is refuted on every cluster on which it returns a wrong group


SOURCE = Path(rule.__file__).read_text(encoding="utf-8")
GROUP = "            return Group(members, block.relaxation) if block.makes_groups else None\n"
NODE = "    node, local = worker // workers_per_node, worker % workers_per_node\n"
START = "    nodes = [representative(node, radices, across)]\n"
NODES = "    return tuple(nodes)\n"
DIGIT = "    return (node // stride) % radix\n"
EACH = "        nodes = [base + value * strides[d] for base in nodes for value in range(radices[d])]\n"
RANKS = "                for rank in sorted(block.local)\n"
OTHERS = "                for other in nodes_of_group(node, radices, block.across)\n"

ZOO = {
    "unchanged": (NODE, NODE),
    "cut at 64 members": (GROUP, "            members = members[:64]\n" + GROUP),
    "the last node dropped": (NODES, "    return tuple(nodes[:-1])\n"),
    "members without the worker": (OTHERS, OTHERS + "                if other != node or not block.across\n"),
    "each member twice": (EACH, EACH + "        nodes = [base for base in nodes for _ in range(2)]\n"),
    "members in another order": (RANKS, "                for rank in block.local[::-1]\n"),
    "wrong at node 100": (NODE, NODE + "    if node == 100:\n        return None\n"),
    "wrong at the last worker": (START, "    nodes = [representative(node, radices, across) + 0**node]\n"),
    "wrong at large radices": (DIGIT, "    return (node // stride) % (radix if radix < 1000 else 1000)\n"),
    "wrong from a stride of 2 to the power of 31 on": (DIGIT, "    return (node // stride) % radix & 0x7FFFFFFF\n"),
    "an exception at one worker": (NODE, NODE + "    1 // (worker - 3)\n"),
    "worker and node mixed up": (NODE, "    node, local = worker % workers_per_node, worker // workers_per_node\n"),
    "the second block with the first one's digits": (OTHERS, OTHERS.replace("block.across", "phase[0].across")),
    "skipping workers join the first block": ("    return None\n\n\n@dataclass",
        "    return group_of(worker - local, phase, workers_per_node, radices)\n\n\n@dataclass"),
    "relaxation dropped": (GROUP, GROUP.replace("(members, block.relaxation)", "(members)")),
    "relaxation of node 0 only": (GROUP, GROUP.replace("block.relaxation", "block.relaxation if node == 0 else ONE")),
    "members as a list": (GROUP, GROUP.replace("(members,", "(list(members),")),
    "members as a generator": (GROUP, GROUP.replace("(members,", "((member for member in members),")),
}  # fmt: skip


def small():
    phases = (
        (Block((0,), (0, 1)), Block((2, 3), (), Fraction(4, 3))),
        (Block((0, 1, 2, 3), ()),),
        (Block((0, 3), (1,)), Block((1,), (0,), Fraction(1, 2))),
    )
    return of_rule("small", Cluster.regular(12, 4), (3, 4), phases, prologue=2)


def middle():
    """Return a rule with three digits, one of radix 128, on more than 100 nodes; every worker is evaluated."""
    phases = ((Block((0,), (0, 2)), Block((1,), (1,), Fraction(1, 2))), (Block((0, 2), (0,)), Block((1,), (2,))))
    return of_rule("middle", Cluster.regular(3 * 128 * 2, 4), (3, 128, 2), phases)


def large():
    phases = ((Block((0,), (0, 1)), Block((2, 3), ())), (Block((0, 3), ()), Block((1,), (0,), Fraction(1, 2))))
    return of_rule("large", Cluster.regular(25_000, 4), (2, 12_500), phases)


SCHEDULES = {"small": small(), "middle": middle(), "large": large()}


def import_source(folder, source):
    path = folder / "variant.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("partreduce_variant", path)
    module = sys.modules["partreduce_variant"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RIGHT_GROUP_OF = rule.group_of


@functools.cache
def right_groups(name):
    """Return the correct group of every worker in each phase, from the installed function."""
    schedule = SCHEDULES[name]
    phases, workers = schedule.rule().phases, range(schedule.num_workers)
    return [[RIGHT_GROUP_OF(worker, phase, 4, schedule.rule().radices) for worker in workers] for phase in phases]


@pytest.mark.parametrize("variant", ZOO.values(), ids=ZOO)
def test_membership_is_proved_exactly_for_correct_functions(monkeypatch, tmp_path, variant):
    old, new = variant
    assert SOURCE.count(old) == 1, "the passage that the variant changes"
    monkeypatch.setattr(rule, "group_of", import_source(tmp_path, SOURCE.replace(old, new)).group_of)
    for name, schedule in SCHEDULES.items():
        try:
            claim = prove_membership(schedule)
        except Exception:  # noqa: BLE001 - a function that fails proves nothing either
            continue
        if name == "large":
            assert claim.status is not Status.PROVED, "only a sample was evaluated"
            continue
        is_right = all(
            schedule.group_of(worker, schedule.prologue + t) == group
            for t, groups in enumerate(right_groups(name))
            for worker, group in enumerate(groups)
        )
        assert claim.status is (Status.PROVED if is_right else Status.REFUTED), name
        assert is_right or name == "middle" or prove(schedule).verdict is Status.REFUTED


RIGHT_OF_SCHEDULE = Schedule.group_of
WRONG_WAYS = {
    "the phase before": (RuleView, lambda self, worker, t:
        rule.group_of(worker, self.phases[t - 1], self.workers_per_node, self.radices)),
    "digits in another order": (RuleView, lambda self, worker, t:
        rule.group_of(worker, self.phases[t], self.workers_per_node, self.radices[::-1])),
    "no group in late rounds": (Schedule, lambda self, worker, round_:
        None if round_ > 1_000 else RIGHT_OF_SCHEDULE(self, worker, round_)),
    "no prologue": (Schedule, lambda self, worker, round_:
        self.phased.group_of(worker, (round_ - self.prologue) % self.period, self.cluster)),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_WAYS)
def test_wrong_calls_of_the_group_function_are_refuted(monkeypatch, wrong):
    owner, method = WRONG_WAYS[wrong]
    schedules = SCHEDULES.values() if owner is RuleView else [SCHEDULES["small"]]
    monkeypatch.setattr(owner, "group_of", method)
    assert all(prove_membership(schedule).status is Status.REFUTED for schedule in schedules)


def _not_everyone(self, worker, index, cluster):
    from partreduce.topo.phase import Group

    return Group(tuple(range(cluster.num_workers - 1)))


def test_allreduce_without_one_worker_is_refuted(monkeypatch):
    for workers in (2, 16, 100_000):
        schedule = Schedule("all", Cluster.regular(workers // 2, 2), AllReduce())
        assert prove_membership(schedule).status is (Status.PROVED if workers < 1000 else Status.NOT_PROVED)
        with monkeypatch.context() as patch:
            patch.setattr(AllReduce, "group_of", _not_everyone)
            assert prove_membership(schedule).status is Status.REFUTED


def test_membership_reports_how_many_workers_were_evaluated():
    few, many = prove_membership(small()), prove_membership(large())
    assert few.witness["asked"] == 48
    assert few.explanation.startswith("On this cluster: all 48 workers were asked")
    assert (many.status, many.witness) == (Status.NOT_PROVED, None)
    assert "random workers were asked" in many.explanation
