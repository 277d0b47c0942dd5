"""Switches in the search: which clusters rules fit, radices that say racks, bounds and phases that know uplinks."""

from dataclasses import replace

import pytest

from partreduce.schedulers import registry
from partreduce.schedulers.synthesis import Limits, Problem
from partreduce.schedulers.synthesis.choices import choices_of, explicit_groups, rule_blocks
from partreduce.schedulers.synthesis.cluster_shape import MAX_DIGITS, crossing_bound, is_even, node_radices
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link, Switch
from partreduce.topo.rule import Block
from partreduce.topo.strategies import GroupPhases
from partreduce.topo.timing.cost import communication

HARDWARE = Hardware(inside=Link.of_bandwidth(10.0), nic=Link.of_bandwidth(5.0), model_bytes=10)
THIN = Link.of_bandwidth(1.0)


def in_racks(shape, *racks, uplink=THIN):
    switches = tuple(Switch(tuple(nodes), uplink) for nodes in racks)
    return replace(Cluster.parse(shape), hardware=replace(HARDWARE, switches=switches))


def test_regular_racks_get_rules_and_others_explicit_groups():
    assert is_even(in_racks("6x2", range(3), range(3, 6)))
    assert not is_even(in_racks("6x2", range(2), range(2, 6)))
    assert is_even(in_racks("6x2", range(2), range(2, 6), uplink=Link())), "free uplinks make no node special"
    assert is_even(in_racks("6x2", range(6)))


def test_radices_put_the_racks_first():
    assert node_radices(in_racks("12x1", *(range(a, a + 3) for a in range(0, 12, 3)))) == (2, 2, 3)
    assert node_radices(in_racks("12x1")) == (3, 2, 2)
    many = in_racks("64x1", *(range(a, a + 8) for a in range(0, 64, 8)))
    assert len(node_radices(many)) == MAX_DIGITS
    assert node_radices(many) == (4, 2, 4, 2)


def test_a_rule_of_the_search_costs_what_its_schedule_costs():
    cluster = in_racks("4x2", (0, 1), (2, 3))
    choices = choices_of(Problem(cluster=cluster))[0]
    assert choices.radices == (2, 2)
    for block in choices.blocks:
        schedule = choices.schedule(((block,),), (1,))
        explicit = replace(schedule, strategy=replace(schedule.strategy, phases=GroupPhases((schedule.phase(0),))))
        assert communication(explicit, cluster.hardware).per_step == pytest.approx(choices.cost((block,)))


def test_whole_racks_are_among_the_explicit_groups():
    cluster = in_racks("7x2", (0, 3), (1, 2, 4), (5, 6), (0, 3, 5, 6))
    groups = {block.local for block in explicit_groups(Problem(cluster=cluster)).blocks}
    assert groups >= {(0, 1, 6, 7), (2, 3, 4, 5, 8, 9), (10, 11, 12, 13), (0, 1, 6, 7, 10, 11, 12, 13)}


@pytest.mark.parametrize(
    "cluster",
    [
        in_racks("4x1", (0, 2), (1, 3)),
        in_racks("4x1", (0,)),
        in_racks("2,1,1", (0, 1)),
        in_racks("2,1,1", (0, 1), (2,)),
    ],
)
def test_the_crossing_bound_is_below_every_connected_schedule_and_above_a_pair_inside_a_rack(cluster):
    """Averaging in pairs along a tree connects everybody; nothing connected communicates less than the bound."""
    problem = Problem(cluster=cluster, limits=Limits(max_period=1))
    bound = crossing_bound(problem)
    assert bound == pytest.approx(10 / 1.0), "a pair across the thin uplink"
    assert bound > crossing_bound(Problem(cluster=in_racks(str(cluster)), limits=Limits(max_period=1)))
    choices = explicit_groups(problem)
    assert choices.cost(choices.everybody()) >= bound


def test_the_hierarchy_takes_its_levels_from_the_switches():
    racks = in_racks("8x2", *(range(a, a + 2) for a in range(0, 8, 2)))
    assert registry.build("hierarchy", racks).rule().radices == (4, 2)
    assert registry.build("hierarchy", Cluster.parse("8x2")).rule().radices == (2, 4)
    odd = in_racks("8x2", (0, 1, 2), (3, 4, 5, 6, 7))
    assert registry.build("hierarchy", odd).rule().radices == (2, 4)


def test_crossing_racks_costs_more_than_staying_inside_at_equal_mixing():
    """Two rule phases that differ in one digit of radix 2 mix equally; the one inside racks is the cheaper."""
    problem = Problem(cluster=in_racks("4x2", (0, 1), (2, 3)))
    across, within = (rule_blocks(problem).cost((Block((0,), (digit,)),)) for digit in range(2))
    assert across == pytest.approx(2 * 10 / 1.0), "two pairs share each uplink"
    assert within == pytest.approx(10 / 5.0)
