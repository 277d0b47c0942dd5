"""Switches above the nodes: nesting, uplink costs, and invariants."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.drawn_schedules import draw_schedules
from helpers.random_switches import switches_over
from helpers.refusals import check_error
from helpers.small import list_groups, of_rule
from partreduce import Cluster, Hardware, Link, Schedule, simulate
from partreduce.errors import InputError
from partreduce.strategies import Block, Phase, Round
from partreduce.topo.hardware import regular_levels, switches_above
from partreduce.topo.strategies import AllReduce, AllReduceAlgorithm, StaticGroups
from partreduce.topo.timing.coding import Travel
from partreduce.topo.timing.cost import communication, group_seconds, phase_loads, round_seconds
from partreduce.types import ComputeTimes, Switch

CLUSTER = Cluster.regular(4, 2)
RACKS = (Switch((0, 1), Link.of_bandwidth(0.5)), Switch((2, 3), Link.of_bandwidth(0.5)))
HARDWARE = Hardware(nic=Link.of_bandwidth(1.0), model_bytes=1, switches=RACKS)


def seconds(*groups, hardware=HARDWARE, cluster=CLUSTER, algorithm=AllReduceAlgorithm.RING):
    return group_seconds(
        Phase.from_groups(cluster.num_workers, groups), cluster, hardware, algorithm=algorithm
    ).tolist()


def test_group_across_a_switch_loads_its_uplink():
    """Two pairs, one inside a rack: 1 byte each at 1 byte/s through NICs and 0.5 byte/s through uplinks."""
    assert seconds((0, 2)) == [1.0], "inside a rack only the NICs count"
    assert seconds((0, 4)) == [2.0], "across racks the uplink is the slowest"
    assert seconds((0, 2), (1, 5)) == [2.0, 2.0], "the pair inside shares node 0's NIC, the other waits for the uplink"
    assert seconds(range(8)) == pytest.approx([2 * 7 / 8 / 0.5])
    assert seconds(range(8), algorithm=AllReduceAlgorithm.HIERARCHICAL) == pytest.approx([2 * 3 / 4 / 0.5])


def test_groups_across_one_uplink_add_up():
    """Four NICs of 1 byte/s are below two uplinks of 0.5: two pairs on different nodes share each uplink."""
    assert seconds((0, 4), (2, 6)) == [4.0, 4.0]
    assert seconds((0, 4), (1, 5), (2, 6), (3, 7)) == [8.0] * 4
    wide = replace(HARDWARE, switches=tuple(Switch(s.nodes, Link.of_bandwidth(2.0)) for s in RACKS))
    assert seconds((0, 4), (2, 6), hardware=wide) == [1.0, 1.0], "an uplink as wide as its NICs together costs nothing"


def test_nested_switches_load_only_the_path():
    cluster = Cluster.regular(8, 1)
    racks = tuple(Switch((a, a + 1), Link.of_bandwidth(0.5)) for a in (0, 2, 4, 6))
    pods = (Switch((4, 5, 6, 7), Link.of_bandwidth(0.1)), Switch((0, 1, 2, 3), Link.of_bandwidth(0.125)))
    hardware = Hardware(nic=Link.of_bandwidth(1.0), model_bytes=1, switches=(*pods, *racks))
    assert seconds((0, 1), cluster=cluster, hardware=hardware) == [1.0]
    assert seconds((0, 2), cluster=cluster, hardware=hardware) == [2.0]
    assert seconds((0, 4), cluster=cluster, hardware=hardware) == pytest.approx([10.0])
    assert seconds((0, 1), (2, 4), cluster=cluster, hardware=hardware) == pytest.approx([1.0, 10.0])


def test_latency_of_a_path_follows_its_longer_side():
    racks = (Switch((0, 1), Link(4.0)), Switch((2, 3), Link(16.0)))
    hardware = Hardware(inside=Link(0.25), nic=Link(1.0), node_nic=((0, Link(2.0)),), model_bytes=1, switches=racks)
    assert seconds((0, 1), hardware=hardware) == [2 * 0.25]
    assert seconds((0, 2), hardware=hardware) == [2 * 2.0]
    assert seconds((0, 4), hardware=hardware) == [2 * (16.0 + 1.0)]
    edges = Round.from_edges(8, [(0, 2, "1/2"), (0, 4, "1/2"), (4, 0, "1/2"), (4, 6, "1/2"), (0, 1, "1/2")])
    hardware = replace(hardware, nic=Link(1.0), inside=Link(0.25))
    assert round_seconds(edges, CLUSTER, hardware).tolist() == [17.0, 0.25, 2.0, 0.0, 17.0, 0.0, 1.0, 0.0]


def test_latencies_of_nested_uplinks_add_up():
    cluster = Cluster.regular(4, 1)
    switches = (Switch((0, 1), Link(4.0)), Switch((0,), Link(16.0)), Switch((1,), Link(32.0)), Switch((2,), Link(8.0)))
    hardware = Hardware(nic=Link(1.0), model_bytes=1, switches=switches)
    assert seconds((0, 1), cluster=cluster, hardware=hardware) == [2 * (1.0 + 32.0)]
    assert seconds((0, 2), cluster=cluster, hardware=hardware) == [2 * (1.0 + 16.0 + 4.0)]
    edges = Round.from_edges(4, [(0, 1, "1/2"), (0, 2, "1/2"), (1, 3, "1/2")])
    assert round_seconds(edges, cluster, hardware).tolist() == [0.0, 33.0, 21.0, 37.0]


def test_edges_share_the_uplink_of_their_direction():
    """Two messages leave rack 0 and one enters it; a fourth stays inside rack 1."""
    edges = Round.from_edges(8, [(0, 4, "1/4"), (2, 6, "1/4"), (5, 1, "1/4"), (4, 6, "1/4")])
    assert round_seconds(edges, CLUSTER, HARDWARE).tolist() == [0.0, 2.0, 0.0, 0.0, 4.0, 0.0, 4.0, 0.0]


def test_rule_crosses_racks_only_in_its_rack_digit():
    def rule(digit):
        return of_rule("r", CLUSTER, (2, 2), ((Block((0,), (digit,)),),))

    assert communication(rule(1), HARDWARE).phases == (1.0,)
    assert communication(rule(0), HARDWARE).phases == (4.0,)


@st.composite
def schedules(draw):
    """A random schedule of each kind on a random cluster under random switches."""
    schedule = draw(draw_schedules())
    hardware = Hardware(
        inside=Link(0.5, 1.0), nic=Link(1.0, 2.0), model_bytes=3, num_nics=draw(st.integers(1, 2)),
        bus=draw(st.sampled_from([Link(), Link(0.5, 0.5)])), switches=draw(switches_over(schedule.cluster.num_nodes)),
    )  # fmt: skip
    return schedule, hardware


def costs(schedule, hardware, algorithm):
    """Return the seconds of each group; rules are expanded, because they merge equal groups depending on switches."""
    if isinstance(schedule.strategy, StaticGroups):
        schedule = list_groups(schedule)
    return np.concatenate([
        phase_loads(schedule, index, hardware, model_bytes=3, travel=Travel(algorithm))[0].seconds()
        for index in range(schedule.period)
    ])  # fmt: skip


@settings(max_examples=50)
@given(schedules(), st.sampled_from(list(AllReduceAlgorithm)), st.data())
def test_slower_uplink_never_lowers_a_cost(case, algorithm, data):
    schedule, hardware = case
    before = costs(schedule, hardware, algorithm)
    if hardware.switches:
        index = data.draw(st.integers(0, len(hardware.switches) - 1))
        listed = list(hardware.switches)
        uplink = listed[index].uplink
        listed[index] = Switch(listed[index].nodes, Link(uplink.latency + 1, 2 * uplink.seconds_per_byte))
        assert (costs(schedule, replace(hardware, switches=tuple(listed)), algorithm) >= before).all()
    assert (before >= costs(schedule, replace(hardware, switches=()), algorithm)).all()


@settings(max_examples=25)
@given(schedules(), st.sampled_from(list(AllReduceAlgorithm)))
def test_root_switch_and_free_uplinks_change_nothing(case, algorithm):
    schedule, hardware = case
    bare = costs(schedule, replace(hardware, switches=()), algorithm)
    root = Switch(tuple(range(schedule.cluster.num_nodes)), Link(9.0, 9.0))
    free = tuple(Switch(s.nodes) for s in hardware.switches if s.nodes != root.nodes)
    assert (costs(schedule, replace(hardware, switches=(root,)), algorithm) == bare).all()
    assert (costs(schedule, replace(hardware, switches=(*free, root)), algorithm) == bare).all()


@settings(max_examples=25)
@given(switches_over(5), st.data(), st.sampled_from(list(AllReduceAlgorithm)))
def test_groups_inside_a_rack_do_not_load_its_uplink(switches, data, algorithm):
    """Every group lies below one lowest switch, so neither bytes nor latency of an uplink above count."""
    cluster = Cluster.regular(5, 2)
    rows = switches_above(switches, 5)
    lowest = {node: [tuple(rows[:, node]), node] for node in range(5)}
    racks = {}
    for node, (chain, _) in lowest.items():
        racks.setdefault(chain, []).append(node)
    labels = np.full(10, -1)
    for index, nodes in enumerate(racks.values()):
        for worker in (2 * np.array(nodes)[:, None] + [0, 1]).ravel():
            labels[worker] = 2 * index + data.draw(st.integers(0, 1))
    phase = Phase.from_labels(labels)
    hardware = Hardware(nic=Link(1.0, 2.0), inside=Link(0.5, 1.0), model_bytes=3, switches=switches)
    inside = group_seconds(phase, cluster, hardware, algorithm=algorithm)
    assert (inside == group_seconds(phase, cluster, replace(hardware, switches=()), algorithm=algorithm)).all()


@settings(max_examples=25)
@given(schedules(), st.sampled_from(list(AllReduceAlgorithm)))
def test_simulator_seconds_equal_the_cost_model(case, algorithm):
    schedule, hardware = case
    timeline = simulate(
        schedule, hardware, compute=ComputeTimes(base=7.0), num_rounds=schedule.period, algorithm=algorithm
    )
    assert (timeline.communicate_end - timeline.communicate_start).max(axis=1) == pytest.approx(
        communication(schedule, hardware, algorithm=algorithm).phases
    )
    if isinstance(schedule.strategy, AllReduce):
        seconds_per_step = communication(schedule, hardware, algorithm=algorithm).per_step
        expected = max(7.0, seconds_per_step) if schedule.strategy.is_delayed else 7.0 + seconds_per_step
        assert timeline.per_step() == pytest.approx(expected)


def test_switches_that_do_not_nest_are_rejected_in_one_line():
    for switches, words in (
        ([(0, 1), (1, 2)], r"switches\[1\]: shares node 1 with switches\[0\], and neither holds all nodes"),
        ([(0, 1), (0, 1)], r"switches\[1\]: stands above the same nodes as switches\[0\]; keep one"),
        ([(0, 1, 2, 3), (0, 1), (1, 2)], r"switches\[2\]: shares node 1 with switches\[1\]"),
    ):
        check_error(InputError, words, Hardware, switches=tuple(Switch(nodes) for nodes in switches))
    for nodes, words in (((), "no nodes"), ((0, -1), "node -1"), ((1, 1), "1 different")):
        check_error(InputError, words, Switch, nodes)
    with pytest.raises(InputError, match=r"node 4; the nodes are 0\.\.3"):
        communication(Schedule("a", CLUSTER, AllReduce()), replace(HARDWARE, switches=(Switch((3, 4)),)))


@settings(max_examples=25)
@given(switches_over(6))
def test_every_switch_is_in_one_level_above_its_children(switches):
    rows = switches_above(switches, 6)
    level = {}
    for index, switch in enumerate(switches):
        (row,) = {int(r) for r in np.argwhere(rows == index)[:, 0]}
        assert tuple(np.flatnonzero(rows[row] == index)) == switch.nodes
        level[index] = row
    for a, inner in enumerate(switches):
        for b, outer in enumerate(switches):
            if a != b and set(inner.nodes) < set(outer.nodes):
                assert level[a] < level[b]


def test_regular_levels_describe_a_regular_tree():
    thin, thick = Link.of_bandwidth(1e9), Link.of_bandwidth(2e9)

    def row(size, uplink, num_nodes=8):
        return [Switch(tuple(range(a, a + size)), uplink) for a in range(0, num_nodes, size)]

    assert regular_levels((), 8) == (8,)
    assert regular_levels(tuple(row(4, thin)), 8) == (2, 4)
    assert regular_levels((*row(2, thick), *row(4, thin)), 8) == (2, 2, 2)
    assert regular_levels(tuple(row(1, thin)), 8) == (8,)
    assert regular_levels((Switch((0, 1, 2, 3), thin), Switch((4, 5, 6, 7), thick)), 8) is None, "unequal uplinks"
    assert regular_levels((Switch((0, 2), thin), Switch((1, 3), thin)), 4) is None, "not consecutive"
    assert regular_levels((Switch((0, 1), thin),), 4) is None, "nodes left out"
    assert regular_levels((Switch((0, 1), thin), Switch((2, 3, 4, 5), thin)), 6) is None, "unequal sizes"
