"""Rules: digits, and the agreement of the two ways to read a rule phase (a worker's group, all groups)."""

from fractions import Fraction
from itertools import chain, combinations, product
from math import prod

import pytest

from partreduce import Cluster
from partreduce.errors import ScheduleError
from partreduce.strategies import Block, Phase
from partreduce.topo.rule import RuleView, check_rule, digit_of, group_of, nodes_of_group, representative, strides_of

RADICES = [(), (2,), (3,), (4,), (2, 2), (2, 3), (3, 2), (2, 2, 2), (4, 2), (3, 3)]


def subsets(items):
    return chain.from_iterable(combinations(items, size) for size in range(len(items) + 1))


def partial_partitions(items):
    """Every way to put some of the items into disjoint, non-empty sets."""
    if not items:
        yield []
        return
    for rest in partial_partitions(items[1:]):
        yield rest
        yield [(items[0],), *rest]
        for index, part in enumerate(rest):
            yield [*rest[:index], (items[0], *part), *rest[index + 1 :]]


def rule_phases(size, digits):
    """Every rule phase over `size` local ranks and `digits` digits."""
    for parts in partial_partitions(tuple(range(size))):
        for across in product(list(subsets(range(digits))), repeat=len(parts)):
            yield tuple(Block(local, digits_of) for local, digits_of in zip(parts, across, strict=True))


@pytest.mark.parametrize("radices", RADICES, ids=str)
def test_digits_and_strides_are_positional_notation(radices):
    strides = strides_of(radices)
    for node, digits in enumerate(product(*map(range, radices))):
        assert tuple(digit_of(node, s, r) for s, r in zip(strides, radices, strict=True)) == digits
        assert sum(s * d for s, d in zip(strides, digits, strict=True)) == node


@pytest.mark.parametrize("radices", RADICES, ids=str)
def test_nodes_of_a_group_agree_on_the_other_digits(radices):
    every = list(product(*map(range, radices)))
    for across in subsets(range(len(radices))):
        kept = [d for d in range(len(radices)) if d not in across]
        for node, digits in enumerate(every):
            expected = tuple(m for m, other in enumerate(every) if all(other[d] == digits[d] for d in kept))
            assert nodes_of_group(node, radices, across) == expected
            assert nodes_of_group(node, radices, across[::-1]) == expected
            assert representative(node, radices, across) == expected[0]


@pytest.mark.parametrize(
    ("size", "radices"),
    [(size, radices) for size in (1, 2, 3) for radices in RADICES if size < 3 or len(radices) < 3],
    ids=str,
)
def test_group_of_a_worker_is_its_group_in_the_expansion(size, radices):
    """Exhaustive: every rule phase of every small cluster."""
    cluster = Cluster.regular(prod(radices), size)
    for phase in rule_phases(size, len(radices)):
        groups = {group.members: group for group in RuleView(radices, (phase,), cluster.workers_per_node).expand(0)}
        mine = [group_of(worker, phase, size, radices) for worker in range(cluster.num_workers)]
        for worker, group in enumerate(mine):
            assert group is None or worker in group.members
        assert {group.members: group for group in mine if group} == groups
        assert sum(map(len, groups)) == sum(group is not None for group in mine)


def test_relax_is_kept_per_block():
    cluster, radices = Cluster.regular(4, 3), (2, 2)
    phase = (Block((2, 0), (1,), Fraction(1, 2)), Block((1,), (0,)))
    expanded = RuleView(radices, (phase,), cluster.workers_per_node).expand(0)
    assert expanded == Phase.from_groups(
        12, [g for w in range(12) if (g := group_of(w, phase, 3, radices)) and g.members[0] == w]
    )
    assert {g.relaxation for g in expanded} == {Fraction(1), Fraction(1, 2)}


def test_overlapping_blocks_are_refused_by_expand_only():
    phase, cluster = (Block((0, 1)), Block((1, 2))), Cluster.regular(2, 3)
    check_rule([phase], cluster, (2,))
    with pytest.raises(ScheduleError, match="share a local rank"):
        RuleView((2,), (phase,), cluster.workers_per_node).expand(0)


@pytest.mark.parametrize(
    ("block", "radices", "words"),
    [
        (Block((0, 2)), (2, 2), r"phases\[0\]\[0\].local: local rank 2 is out of range"),
        (Block((-1,)), (2, 2), "local rank -1 is out of range"),
        (Block((0, 0)), (2, 2), "names a local rank twice"),
        (Block(()), (2, 2), "is empty"),
        (Block((0,), (2,)), (2, 2), "digit 2 is out of range"),
        (Block((0,), (1, 1)), (2, 2), "names a digit twice"),
        (Block((0,)), (2, 3), "their product is the number of nodes, 4"),
        (Block((0,)), (4, 1), "every radix is >= 2"),
    ],
)
def test_check_rule_refuses(block, radices, words):
    with pytest.raises(ScheduleError, match=words):
        check_rule([(block,)], Cluster.regular(4, 2), radices)


def test_rules_need_equally_sized_nodes():
    with pytest.raises(ScheduleError, match="equally sized nodes"):
        check_rule([], Cluster.parse("3,2"), (2,))
    with pytest.raises(ScheduleError, match="equally sized nodes"):
        check_rule([], Cluster.irregular([[0, 2], [1, 3]]), (2,))


def test_a_workers_group_costs_its_size_and_not_the_cluster():
    phase = (Block((0,), (0,)), Block((1, 3)))
    assert group_of(4 * 10**12, phase, 4, (2, 10**12)).members == (0, 4 * 10**12)
    assert group_of(4 * 10**12 + 3, phase, 4, (2, 10**12)).members == (4 * 10**12 + 1, 4 * 10**12 + 3)


def test_blocks_print_as_people_write_them():
    assert str(Block((0, 3))) == "LW{0,3} inside each node"
    assert str(Block((1,), (0, 2), Fraction(4, 3))) == "LW{1} across digits {0,2} relaxation 4/3"
