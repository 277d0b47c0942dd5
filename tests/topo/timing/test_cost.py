"""The α–β cost of phases: the worked example, contention, algorithms, and rules against their expansion."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.drawn_schedules import draw_schedules, random_rule
from helpers.random_switches import switches_over
from helpers.refusals import check_error
from helpers.small import list_groups, of_groups, of_rule
from helpers.worked_example import CLUSTER, EVERYBODY, FIGURE_10, HARDWARE, METRICS, NODE
from partreduce import Cluster, Hardware, Link, Schedule
from partreduce.errors import InputError
from partreduce.strategies import GroupPhases, NeighborAveraging, Phase, Round, StaticGroups
from partreduce.topo.strategies import AllReduce, AllReduceAlgorithm, Transport
from partreduce.topo.timing import loads
from partreduce.topo.timing.cost import communication, group_seconds, round_seconds
from partreduce.topo.timing.event_graph import cycle_time


def static(*phases, cluster=CLUSTER, radices=(2, 2)):
    return of_rule("s", cluster, radices, phases)


def test_worked_example_of_16_workers():
    expected = {name: value[0] for name, value in METRICS["ms_per_step_and_disagreement"].items()}
    every = Schedule("a", CLUSTER, AllReduce())
    found = {
        "prague_figure_10": communication(static(*FIGURE_10), HARDWARE),
        "hierarchical_allreduce_each_step": communication(every, HARDWARE, algorithm=AllReduceAlgorithm.HIERARCHICAL),
        "flat_ring_allreduce_each_step": communication(every, HARDWARE),
        "allreduce_every_2": communication(Schedule("a", CLUSTER, AllReduce(steps_per_round=2)), HARDWARE),
        "allreduce_every_4": communication(Schedule("a", CLUSTER, AllReduce(steps_per_round=4)), HARDWARE),
        "node_x3_then_all": communication(static(NODE, NODE, NODE, EVERYBODY), HARDWARE),
    }
    for name, cost in found.items():
        assert cost.per_step * 1000 == pytest.approx(expected[name], rel=1e-12), name


def test_groups_across_one_nic_add_up():
    cluster = Cluster.regular(2, 3)
    hardware = Hardware(nic=Link.of_bandwidth(1.0), model_bytes=1)
    phase = Phase.from_groups(6, [(0, 3), (1, 4)])
    assert group_seconds(phase, cluster, hardware).tolist() == [2.0, 2.0]
    rails = Hardware(nic=Link.of_bandwidth(1.0), model_bytes=1, num_nics=2)
    assert group_seconds(phase, cluster, rails).tolist() == [1.0, 1.0]
    three = Phase.from_groups(6, [(0, 3), (1, 4), (2, 5)])
    assert group_seconds(three, cluster, rails).tolist() == [1.5, 1.5, 1.5]


def test_smaller_load_leaves_a_shared_nic_earlier():
    cluster = Cluster.regular(4, 2)
    hardware = Hardware(nic=Link.of_bandwidth(1.0), model_bytes=1)
    pair, all_four = group_seconds(Phase.from_groups(8, [(0, 2), (1, 3, 5, 7)]), cluster, hardware).tolist()
    assert pair == pytest.approx(2.0)
    assert all_four == pytest.approx(2.5)


def test_latency_counts_the_hops_of_each_algorithm():
    cluster = Cluster.regular(1, 8)
    hardware = Hardware(inside=Link(1.0, 0.0), nic=Link(10.0, 0.0), model_bytes=1)
    phase = Phase.from_groups(8, [range(8)])
    assert group_seconds(phase, cluster, hardware).tolist() == [14.0]
    two = Cluster.regular(2, 4)
    assert group_seconds(phase, two, hardware).tolist() == [140.0]
    assert group_seconds(phase, two, hardware, algorithm=AllReduceAlgorithm.HIERARCHICAL).tolist() == [6.0 + 20.0]


def test_bus_of_a_node_is_shared():
    """Two pairs of one node send 4 messages of 1 byte in 2 hops each over a bus of 1 byte/s and 10 s per message."""
    hardware = Hardware(bus=Link(10.0, 1.0), model_bytes=1)
    one = of_groups("one pair", Cluster.regular(1, 4), [(0, 1)])
    two = of_groups("two pairs", Cluster.regular(1, 4), [(0, 1), (2, 3)])
    assert communication(one, hardware).per_step == pytest.approx(2 * (2 * 10 + 1))
    assert communication(two, hardware).per_step == pytest.approx(4 * (2 * 10 + 1))
    apart = of_groups("apart", Cluster.regular(2, 2), [(0, 1), (2, 3)])
    assert communication(apart, hardware).per_step == pytest.approx(2 * (2 * 10 + 1)), "each node has a separate bus"


def test_rails_carry_parallel_rings_and_shards():
    hardware = Hardware(nic=Link.of_bandwidth(5e9), inside=Link.of_bandwidth(1e12), model_bytes=552_000_000, num_nics=4)
    every = Schedule("a", CLUSTER, AllReduce())
    assert communication(every, hardware, algorithm=AllReduceAlgorithm.HIERARCHICAL).per_step == pytest.approx(
        0.1656 / 4
    )
    assert communication(every, hardware).per_step == pytest.approx(0.207 / 4), "one ring per rail, as in NCCL"


def test_group_has_as_many_rings_as_its_smallest_node_and_rails_allow():
    cluster = Cluster.regular(2, 4)
    hardware = Hardware(nic=Link.of_bandwidth(1.0), model_bytes=12, num_nics=3)
    groups = [(0, 4), (0, 1, 4), (0, 1, 4, 5), (0, 1, 2, 3, 4, 5, 6, 7)]
    alone = [group_seconds(Phase.from_groups(8, [group]), cluster, hardware)[0] for group in groups]
    rings = [1, 1, 2, 3]
    assert alone == pytest.approx([12 * 2 * (len(g) - 1) / len(g) / r for g, r in zip(groups, rings, strict=True)])


def test_intra_node_links_bound_the_rings():
    hardware = Hardware(nic=Link.of_bandwidth(5e9), inside=Link.of_bandwidth(10e9), model_bytes=552_000_000, num_nics=8)
    every = Schedule("a", Cluster.regular(8, 8), AllReduce())
    assert communication(every, hardware).per_step == pytest.approx(2 * 63 / 64 * 0.0552)


def test_million_workers_need_no_expansion():
    big = static(*FIGURE_10, cluster=Cluster.regular(250_000, 4), radices=(2, 125_000))
    cost = communication(big, HARDWARE)
    assert cost.phases[1] == pytest.approx(0.0828)
    assert cost.phases[2] == pytest.approx(0.1104)
    assert cost.phases[0] == pytest.approx(2 * (250_000 - 1) / 250_000 * 0.1104)


def test_missing_model_bytes_are_rejected():
    check_error(InputError, "model_bytes", communication, static(*FIGURE_10), Hardware())


def test_neighbor_rounds_share_the_nic_of_their_node():
    cluster = Cluster.regular(2, 2)
    hardware = Hardware(inside=Link.of_bandwidth(4.0), nic=Link.of_bandwidth(1.0), model_bytes=1)
    edges = Round.from_edges(4, [(0, 1, "1/2"), (0, 2, "1/3"), (1, 2, "1/3"), (3, 0, "1/2")])
    assert round_seconds(edges, cluster, hardware).tolist() == [1.0, 0.25, 2.0, 0.0]
    schedule = Schedule("n", cluster, NeighborAveraging(rounds=(edges,)))
    assert communication(schedule, hardware).per_step == 2.0


@st.composite
def rules(draw):
    schedule = draw(draw_schedules(random_rule))
    cluster = schedule.cluster
    own = draw(st.lists(st.integers(0, cluster.num_nodes - 1), max_size=3, unique=True))
    links = st.builds(Link, st.floats(0, 2), st.floats(0.1, 3))
    hardware = Hardware(
        inside=draw(links),
        nic=draw(links),
        node_nic=tuple((node, draw(links)) for node in own),
        node_inside=tuple((node, draw(links)) for node in own if draw(st.booleans())),
        bus=draw(st.just(Link()) | links),
        switches=draw(st.just(()) | switches_over(cluster.num_nodes, links)),
        num_nics=draw(st.integers(1, 3)),
        model_bytes=3,
    )
    return schedule, hardware


@settings(max_examples=80)
@given(rules(), st.sampled_from(list(AllReduceAlgorithm)))
def test_rule_costs_equal_their_expansion(case, algorithm):
    schedule, hardware = case
    explicit = list_groups(schedule)
    rule_cost = communication(schedule, hardware, algorithm=algorithm)
    explicit_cost = communication(explicit, hardware, algorithm=algorithm)
    assert rule_cost.phases == pytest.approx(explicit_cost.phases)
    assert rule_cost.nic_bytes_per_step == pytest.approx(explicit_cost.nic_bytes_per_step)


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5), st.sampled_from(list(AllReduceAlgorithm)), st.integers(1, 3)
)
def test_allreduce_costs_equal_one_group_of_all(sizes, algorithm, num_nics):
    cluster = Cluster.parse(",".join(map(str, sizes))) if sum(sizes) > 1 else Cluster.regular(1, 2)
    hardware = Hardware(
        inside=Link(0.5, 1.0), nic=Link(2.0, 3.0), node_nic=((0, Link(1.0, 4.0)),), num_nics=num_nics, model_bytes=5
    )
    whole = StaticGroups(phases=GroupPhases((Phase.from_groups(cluster.num_workers, [range(cluster.num_workers)]),)))
    every = communication(Schedule("a", cluster, AllReduce()), hardware, algorithm=algorithm)
    explicit = communication(Schedule("e", cluster, whole), hardware, algorithm=algorithm)
    assert every == explicit


@settings(max_examples=40)
@given(rules())
def test_hierarchical_never_costs_more_than_ring(case):
    schedule, hardware = case
    ring, hierarchical = (
        communication(schedule, hardware, algorithm=algorithm).phases
        for algorithm in (AllReduceAlgorithm.RING, AllReduceAlgorithm.HIERARCHICAL)
    )
    assert all(split <= flat * (1 + 1e-12) for split, flat in zip(hierarchical, ring, strict=True))


@pytest.mark.parametrize("schedule", [static(*FIGURE_10), Schedule("a", CLUSTER, AllReduce())])
def test_links_of_unknown_nodes_are_rejected(schedule):
    with pytest.raises(InputError, match=r"node 4; the nodes are 0\.\.3"):
        communication(schedule, Hardware(node_nic=((4, Link()),), model_bytes=1))


def test_cost_uses_the_algorithm_of_the_schedule():
    cluster = Cluster.regular(4, 4)
    hardware = Hardware(nic=Link(1e-5, 1e-9), inside=Link(1e-6, 1e-10), model_bytes=10**6)
    ring = Schedule("a", cluster, AllReduce())
    transport = Transport(algorithm=AllReduceAlgorithm.HIERARCHICAL)
    formed = Schedule("a", cluster, AllReduce(transport=transport))
    requested = communication(ring, hardware, algorithm=AllReduceAlgorithm.HIERARCHICAL)
    assert communication(formed, hardware) == requested != communication(ring, hardware)
    assert communication(formed, hardware, algorithm=AllReduceAlgorithm.RING) == communication(ring, hardware)
    assert (
        cycle_time(formed, hardware).per_step
        == cycle_time(ring, hardware, algorithm=AllReduceAlgorithm.HIERARCHICAL).per_step
    )


def test_returned_seconds_are_copies_of_the_cache():
    """Loads of a rule's phases are cached and shared by all callers."""

    def seconds():
        return loads.of_rule(NODE, (2, 2), CLUSTER, HARDWARE, model_bytes=8, algorithm="ring").seconds()

    first = seconds()
    before = first.tolist()
    first *= 0
    assert seconds().tolist() == before != first.tolist()
