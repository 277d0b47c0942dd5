"""A zoo of wrong group functions: each is refuted on every cluster for which it answers any worker wrongly.

Each variant is the source of `topo/rule.py` with one passage changed, imported from a file of its own and put in place
of the functions that run. The unchanged copy is proved, so what is refused is the change. Where not everybody is asked
no function is proved, right or wrong.
"""

import importlib.util
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from partreduce import Cluster, Schedule
from partreduce.strategies import AllReduce, Block, RulePhases, StaticGroups
from partreduce.topo import rule
from partreduce.topo.rule import RuleView
from partreduce.verify import Status, prove
from partreduce.verify.membership import prove_membership

SOURCE = Path(rule.__file__).read_text(encoding="utf-8")
MEMBERS = "            members = tuple("
GROUP = "            return Group(members, block.relaxation) if block.makes_groups else None\n"
NODE = "    node, local = worker // workers_per_node, worker % workers_per_node\n"
START = "    nodes = [representative(node, radices, across)]\n"
NODES = "    return tuple(nodes)\n"
FOR = "    for block in phase:\n"
DIGIT = "    return (node // stride) % radix\n"
KEPT = "    return node - sum(digit_of(node, strides[d], radices[d]) * strides[d] for d in across)\n"
STRIDES = "    return tuple(prod(radices[d + 1 :]) for d in range(len(radices)))\n"
EACH = "        nodes = [base + value * strides[d] for base in nodes for value in range(radices[d])]\n"
RANKS = "                for rank in sorted(block.local)\n"
OTHERS = "                for other in nodes_of_group(node, radices, block.across)\n"

ZOO = {
    # Groups that are cut or lose members
    "cut at 64 members": (GROUP, "            members = members[:64]\n" + GROUP),
    "the last node dropped": (NODES, "    return tuple(nodes[:-1])\n"),
    "the last node dropped in large groups": (NODES,
        "    return tuple(nodes) if len(nodes) < 100 else tuple(nodes[:-1])\n"),
    "one rank too few": (RANKS, "                for rank in sorted(block.local)[:-1]\n"),
    "the worker itself only": (GROUP, "            members = (worker,)\n" + GROUP),
    "members without the worker": (OTHERS, OTHERS + "                if other != node or not block.across\n"),
    "one value of a digit too few": (EACH, EACH.replace("range(radices[d])", "range(radices[d] - 1)")),
    "half of the values of a digit": (EACH, EACH.replace("range(radices[d])", "range(radices[d] // 2)")),
    "no more than 64 values of a digit": (EACH, EACH.replace("range(radices[d])", "range(min(64, radices[d]))")),
    "the first digit only": ("    for d in sorted(across):\n", "    for d in sorted(across)[:1]:\n"),
    "each member twice": (EACH, EACH + "        nodes = [base for base in nodes for _ in range(2)]\n"),
    "members in another order": (RANKS, "                for rank in block.local[::-1]\n"),
    "other members at odd local ranks": (RANKS,
        "                for rank in (sorted(block.local) if local % 2 == 0 else sorted(block.local, reverse=True))\n"),
    # Wrong at single places, through truth tests
    "wrong at node 100": (NODE, NODE + "    if node == 100:\n        return None\n"),
    "wrong beyond node 99": (NODE, NODE + "    if not node < 100:\n        node = node - 1\n"),
    "wrong at node 100 by a conditional expression": (START, START + "    node = node + 1 if node == 100 else node\n"),
    "wrong at node 100 without a test": (START, "    nodes = [representative(node, radices, across) + node // 100]\n"),
    "wrong at one node by an index": (START, START + "    nodes = [nodes[0] + (0, 1)[node == 7]]\n"),
    "wrong at the last worker by a power": (START, "    nodes = [representative(node, radices, across) + 0**node]\n"),
    "wrong at node 0 by or": (NODE, NODE + "    node = node or 1\n"),
    "wrong at radix 128": (DIGIT, "    return (node // stride) % radix if radix != 128 else node % 128\n"),
    "wrong at large radices": (DIGIT, "    return (node // stride) % (radix if radix < 1000 else 1000)\n"),
    "wrong from a stride of 2 to the power of 31 on": (DIGIT, "    return (node // stride) % radix & 0x7FFFFFFF\n"),
    "wrong where a group has an odd number of nodes": (GROUP,
        "            if len(members) % 2:\n                return None\n" + GROUP),
    "wrong by a float": (DIGIT, "    return int(node / stride) % radix\n"),
    "wrong by the type of the worker": (NODE,
        NODE + "    if isinstance(worker, int) and worker > 5:\n        return None\n"),
    "wrong by bit length": (NODE, NODE + "    if worker.bit_length() > 6:\n        return None\n"),
    "wrong by hash": (NODE, NODE + "    if hash(worker) == 3:\n        return None\n"),
    "wrong by text": (NODE, NODE + "    if str(worker) == '3':\n        return None\n"),
    "wrong by a set": (NODE, NODE + "    if worker in {3, 5}:\n        return None\n"),
    "wrong by max": (START, "    nodes = [max(representative(node, radices, across), 0 * node + 1)]\n"),
    "wrong by an exception": (
        NODE,
        NODE
        + "    try:\n        (0,) * 6 + (1 // (worker - 3),)\n    except ZeroDivisionError:\n        return None\n",
    ),
    # Digits
    "the digit is kept": (KEPT, "    return node\n"),
    "the last digit is kept": (KEPT, KEPT.replace("for d in across", "for d in list(across)[:-1]")),
    "digits without their weights": (KEPT, KEPT.replace(" * strides[d] for", " for")),
    "a radix too small": (DIGIT, "    return (node // stride) % (radix - 1)\n"),
    "a radix too large": (DIGIT, "    return (node // stride) % (radix + 1)\n"),
    "no remainder": (DIGIT, "    return node // stride\n"),
    "strides of the next digit": (STRIDES, STRIDES.replace("d + 1 :", "d:")),
    "least significant digit first": (STRIDES, "    return tuple(prod(radices[:d]) for d in range(len(radices)))\n"),
    "worker and node mixed up": (NODE, "    node, local = worker % workers_per_node, worker // workers_per_node\n"),
    "local ranks reversed": (NODE, NODE + "    local = workers_per_node - 1 - local\n"),
    "nodes reversed": (OTHERS, OTHERS.replace("(node,", "(prod(radices) - 1 - node,")),
    # Blocks and phases
    "the first block only": (FOR, "    for block in phase[:1]:\n"),
    "the last block only": (FOR, "    for block in phase[-1:]:\n"),
    "the second block with the first one's digits": (OTHERS, OTHERS.replace("block.across", "phase[0].across")),
    "every block with the last one's ranks": (RANKS, RANKS.replace("block.local", "phase[-1].local")),
    "skipping workers join the first block": ("    return None\n\n\n@dataclass",
        "    return group_of(worker - local, phase, workers_per_node, radices)\n\n\n@dataclass"),
    "single local ranks across nodes skip": (GROUP, GROUP.replace("block.makes_groups", "len(block.local) > 1")),
    # Relax
    "relaxation dropped": (GROUP, GROUP.replace("(members, block.relaxation)", "(members)")),
    "relaxation of the first block": (GROUP, GROUP.replace("block.relaxation", "phase[0].relaxation")),
    "relaxation of node 0 only": (GROUP, GROUP.replace("block.relaxation", "block.relaxation if node == 0 else ONE")),
    # What looks like a tuple
    "members as a list": (GROUP, GROUP.replace("(members,", "(list(members),")),
    "members as a generator": (GROUP, GROUP.replace("(members,", "((member for member in members),")),
    "a generator used up": (NODES,
        "    again = (other for other in nodes)\n    nodes = tuple(again)\n    return tuple(again) or nodes[:1]\n"),
    "a generator used twice": (NODES,
        "    again = (other for other in nodes)\n    list(again)\n    return tuple(again)\n"),
}  # fmt: skip


def small():
    phases = (
        (Block((0,), (0, 1)), Block((2, 3), (), Fraction(4, 3))),
        (Block((0, 1, 2, 3), ()),),
        (Block((0, 3), (1,)), Block((1,), (0,), Fraction(1, 2))),
    )
    return Schedule("small", Cluster.regular(12, 4), StaticGroups(phases=RulePhases((3, 4), phases), prologue=2))


def middle():
    """Three digits, one of which has radix 128, and more than 100 nodes; every worker is asked."""
    phases = ((Block((0,), (0, 2)), Block((1, 2), (1,), Fraction(1, 2))), (Block((0, 2), (0,)), Block((1,), (1, 2))))
    return Schedule("middle", Cluster.regular(2 * 128 * 3, 4), StaticGroups(phases=RulePhases((2, 128, 3), phases)))


def large():
    phases = (
        (Block((0,), (0, 1)), Block((2, 3), ())),
        (Block((0, 3), ()), Block((1,), (0,), Fraction(1, 2))),
    )
    return Schedule("large", Cluster.regular(250_000, 4), StaticGroups(phases=RulePhases((2, 125_000), phases)))


SCHEDULES = {"small": small(), "middle": middle(), "large": large()}


def imported(folder, source):
    path = folder / "variant.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("partreduce_variant", path)
    module = sys.modules["partreduce_variant"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RIGHT = {
    name: [
        [rule.group_of(worker, phase, 4, schedule.rule().radices) for worker in range(schedule.num_workers)]
        for phase in schedule.rule().phases
    ]
    for name, schedule in SCHEDULES.items()
    if name != "large"
}
"""What every worker has to answer in each phase: the groups of the function that is installed."""


@pytest.mark.parametrize("name", RIGHT)
def test_the_unchanged_copy_is_proved(monkeypatch, tmp_path, name):
    monkeypatch.setattr(rule, "group_of", imported(tmp_path, SOURCE).group_of)
    claim = prove_membership(SCHEDULES[name])
    assert claim.status is Status.PROVED, claim.explanation


@pytest.mark.parametrize("variant", ZOO.values(), ids=ZOO)
def test_a_function_is_proved_exactly_where_it_answers_every_worker_rightly(monkeypatch, tmp_path, variant):
    old, new = variant
    assert SOURCE.count(old) == 1, "the passage that the variant changes"
    monkeypatch.setattr(rule, "group_of", imported(tmp_path, SOURCE.replace(old, new)).group_of)
    for name, schedule in SCHEDULES.items():
        try:
            claim = prove_membership(schedule)
        except Exception:  # noqa: BLE001 - a function that fails proves nothing either
            continue
        if name not in RIGHT:
            assert claim.status is not Status.PROVED, "not everybody was asked"
            continue
        is_right = all(
            schedule.group_of(worker, schedule.prologue + t) == group
            for t, groups in enumerate(RIGHT[name])
            for worker, group in enumerate(groups)
        )
        assert claim.status is (Status.PROVED if is_right else Status.REFUTED), name
        assert is_right or prove(schedule).verdict is Status.REFUTED


def _next_round(self, worker, index):
    return rule.group_of(worker, self.phases[index - 1], self.workers_per_node, self.radices)


def _another_cluster(self, worker, index):
    return rule.group_of(worker, self.phases[index], self.workers_per_node, self.radices[::-1])


@pytest.mark.parametrize("method", [_next_round, _another_cluster])
def test_the_way_to_the_function_is_proved_as_well(monkeypatch, method):
    monkeypatch.setattr(RuleView, "group_of", method)
    assert all(prove_membership(schedule).status is Status.REFUTED for schedule in SCHEDULES.values())


def _wrong_later(self, worker, round_):
    phased = self.phased
    if round_ > 1_000:
        return None
    return phased.group_of(worker, (round_ - phased.prologue) % phased.period, self.cluster)


def _no_prologue(self, worker, round_):
    phased = self.phased
    return phased.group_of(
        worker, (round_ + phased.period * phased.prologue - phased.prologue) % phased.period, self.cluster
    )


@pytest.mark.parametrize("method", [_wrong_later, _no_prologue])
def test_every_round_is_covered(monkeypatch, method):
    assert prove_membership(small()).status is Status.PROVED
    monkeypatch.setattr(Schedule, "group_of", method)
    assert prove_membership(small()).status is Status.REFUTED


def _not_everyone(self, worker, index, cluster):
    from partreduce.topo.phase import Group

    return Group(tuple(range(cluster.num_workers - 1)))


def test_an_allreduce_of_all_but_one_is_refuted(monkeypatch):
    for workers in (2, 16, 100_000):
        schedule = Schedule("all", Cluster.regular(workers // 2, 2), AllReduce())
        assert prove_membership(schedule).status is (Status.PROVED if workers < 1000 else Status.NOT_PROVED)
        with monkeypatch.context() as patch:
            patch.setattr(AllReduce, "group_of", _not_everyone)
            assert prove_membership(schedule).status is Status.REFUTED


def test_what_was_asked_of_everybody_and_what_of_a_sample_is_said():
    few, many = prove_membership(small()), prove_membership(large())
    assert few.witness["asked"] == 48
    assert "all 48 workers were asked" in few.explanation
    assert "exactly this cluster" in few.explanation
    assert (many.status, many.witness) == (Status.NOT_PROVED, None)
    assert "drawn at random" in many.explanation
