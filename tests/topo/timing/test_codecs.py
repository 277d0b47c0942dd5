"""All-reduce with codecs and per-layer buckets: bytes and seconds against hand computations and counted messages."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.refusals import check_error
from partreduce import Cluster, Hardware, Link, Schedule, simulate
from partreduce.errors import InputError, ScheduleError
from partreduce.strategies import DrainPolicy, GradientBuckets, GroupPhases, Phase, Pipeline, StaticGroups, Transport
from partreduce.topo.strategies import AllReduce, AllReduceAlgorithm, Codec, CodecScope
from partreduce.topo.strategies.axes import SYNCHRONOUS
from partreduce.topo.timing import loads
from partreduce.topo.timing.coding import LAYERS, Coding, Travel
from partreduce.topo.timing.cost import communication, group_seconds
from partreduce.topo.timing.event_graph import cycle_time
from partreduce.topo.timing.stages import of_period, sample
from partreduce.types import CodecSeconds, ComputeTimes, Switch

HIERARCHICAL = {"algorithm": AllReduceAlgorithm.HIERARCHICAL}
LAYERED = {"gradient_buckets": GradientBuckets.PER_LAYER}
NONE = CodecSeconds()
FREE = tuple((codec.value, NONE) for codec in (Codec.BFLOAT16, Codec.FLOAT16, Codec.INT8))


def allreduce(cluster, sync=SYNCHRONOUS, **transport):
    return Schedule("a", cluster, AllReduce(sync=sync, transport=Transport(**transport)))


def test_bytes_match_a_measurement_on_16_workers():
    """A prototype over gloo measured the MB sent by each NIC in an all-reduce of 2.19 MB."""
    cluster, hardware = Cluster.regular(4, 4), Hardware(nic=Link(0.0, 1e-7), model_bytes=2_192_296)

    def megabytes(**transport):
        return communication(allreduce(cluster, **transport), hardware).nic_bytes_per_step / 1e6

    wire = 2.192296 * (1 / 4 + 1 / 256)
    assert megabytes() == pytest.approx(2.192296 * 15 / 8)
    assert megabytes(codec=Codec.FLOAT16) == pytest.approx(2.192296 * 15 / 16)
    assert megabytes(codec=Codec.INT8) == pytest.approx(wire * (4 * 12 / 16 + 15 / 16))
    assert megabytes(codec=Codec.INT8, **HIERARCHICAL) == pytest.approx(wire * 1.5)
    measured = {"none": 4.31, "bfloat16": 2.08, "int8": 2.20}
    assert megabytes(codec=Codec.INT8) == pytest.approx(measured["int8"], rel=0.01)
    assert megabytes(codec=Codec.BFLOAT16) == pytest.approx(measured["bfloat16"], rel=0.02)
    assert megabytes() == pytest.approx(measured["none"], rel=0.05)
    assert megabytes(codec=Codec.INT8, **HIERARCHICAL) == pytest.approx(0.84, rel=0.01)
    assert megabytes(codec=Codec.BFLOAT16, **HIERARCHICAL) == pytest.approx(1.66, rel=0.02)


@st.composite
def placed_groups(draw):
    count = draw(st.integers(2, 10))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    while sum(sizes) < count:
        sizes.append(1)
    nodes, first = [], 0
    for size in sizes:
        nodes.append(list(range(first, first + size)))
        first += size
    members = draw(st.sets(st.integers(0, first - 1), min_size=2, max_size=count))
    return Cluster.irregular(nodes), sorted(members)


@settings(max_examples=40)
@given(placed_groups(), st.integers(1, 3))
def test_all_to_all_costs_the_sum_of_its_messages(placed, below):
    """Every ordered pair of members exchanges 1/k over the links between them."""
    cluster, members = placed
    node_of = cluster.node_of()
    hardware = Hardware(nic=Link(0.0, 1.0), model_bytes=60)
    k, sent = len(members), np.zeros(cluster.num_nodes)
    for source in members:
        for target in members:
            if node_of[source] != node_of[target]:
                sent[node_of[source]] += 60 / k
    phase = Phase.from_groups(cluster.num_workers, [members])
    found = loads.of_exchange(phase, cluster, hardware, num_bytes=60)
    assert found.busiest_node_bytes() == pytest.approx(sent.max())
    # A group uses as many lanes as its smallest node has members, and one NIC serves one lane.
    assert found.seconds().tolist() == pytest.approx([sent.max()])
    if cluster.num_nodes > below:
        switch = Switch(tuple(range(below)), Link(0.0, 1.0))
        up = sum(
            60 / k for s in members for t in members if node_of[s] in switch.nodes and node_of[t] not in switch.nodes
        )
        alone = loads.of_exchange(phase, cluster, Hardware(switches=(switch,)), num_bytes=60)
        assert alone.seconds().tolist() == pytest.approx([up])
    coded = loads.of_phase(
        phase, cluster, hardware, model_bytes=60, algorithm="ring", coding=Coding(wire=0.5, exchanged=True)
    )
    ring = (k - 1) / k * 60 if len({node_of[m] for m in members}) > 1 else 0.0
    assert coded.busiest_node_bytes() == pytest.approx((sent.max() + ring) / 2)


def test_exchange_counts_latency_inside_links_and_bus():
    cluster, phase = Cluster.regular(1, 4), Phase.from_groups(4, [range(4)])
    inside = Hardware(inside=Link(1.0, 1.0))
    assert loads.of_exchange(phase, cluster, inside, num_bytes=8).seconds().tolist() == [3 * 1.0 + 8 * 3 / 4]
    bus = Hardware(bus=Link(1.0, 1.0))
    assert loads.of_exchange(phase, cluster, bus, num_bytes=8).seconds().tolist() == [4 * (3 * 1.0 + 8 * 3 / 4)]


def test_codec_seconds_add_to_link_seconds():
    """4 nodes of 2, 80 bytes; encoding takes 10 s a byte, decoding 1."""
    cluster = Cluster.regular(4, 2)
    seconds = CodecSeconds(10.0, 1.0)
    hardware = Hardware(nic=Link(0.0, 1e-9), codec=(("bfloat16", seconds), ("int8", seconds)), model_bytes=80)

    def cost(**transport):
        return communication(allreduce(cluster, **transport), hardware).per_step

    assert cost(codec=Codec.BFLOAT16) == pytest.approx(80 * 11, rel=1e-6)
    assert cost(codec=Codec.INT8) == pytest.approx(80 * (10 * (1 + 1 / 8) + 2), rel=1e-6)
    across = 80 * ((10 * (1 + 1 / 4) + 1) / 2 + 1)
    for codec in (Codec.BFLOAT16, Codec.INT8):  # both are reduced in float32 with a hierarchical algorithm
        assert cost(codec=codec, where=CodecScope.ACROSS_NODES, **HIERARCHICAL) == pytest.approx(across, rel=1e-6)
        assert cost(codec=codec, **HIERARCHICAL) == pytest.approx(across + 80 * 11, rel=1e-6)


def test_across_nodes_codes_inside_a_node_only_the_distributed_result():
    cluster = Cluster.regular(2, 2)
    hardware = Hardware(inside=Link(0.0, 1.0), codec=FREE, model_bytes=64)
    half = {"codec": Codec.FLOAT16, **HIERARCHICAL}
    assert communication(allreduce(cluster, **HIERARCHICAL), hardware).per_step == 64
    assert communication(allreduce(cluster, **half), hardware).per_step == 32
    assert communication(allreduce(cluster, where=CodecScope.ACROSS_NODES, **half), hardware).per_step == 16 + 32
    pairs = (Phase.from_groups(4, [(0, 1), (2, 3)]), Phase.from_groups(4, [(0, 1, 2, 3)]))
    coded = StaticGroups(phases=GroupPhases(pairs), transport=Transport(where=CodecScope.ACROSS_NODES, **half))
    assert communication(Schedule("s", cluster, coded), hardware).phases == (64, 48)


def test_codecs_are_free_without_model_bytes():
    schedule = allreduce(Cluster.regular(2, 2), codec=Codec.INT8)
    assert cycle_time(schedule, Hardware(nic=Link(1.0)), ComputeTimes(base=1.0)).per_step == 1.0 + 6.0
    assert Coding.of(schedule.strategy.transport, Hardware(nic=Link(0.0, 1.0))).seconds != NONE


def test_algorithm_incompatible_with_the_codec_is_rejected():
    schedule = allreduce(Cluster.regular(2, 2), codec=Codec.INT8, where=CodecScope.ACROSS_NODES, **HIERARCHICAL)
    with pytest.raises(ScheduleError, match=r"transport\.where: is across-nodes; algorithm ring has no separate stage"):
        communication(schedule, Hardware(model_bytes=8), algorithm=AllReduceAlgorithm.RING)


def test_scales_take_four_bytes_per_block():
    assert Coding.of(Transport(codec=Codec.INT8, block=64), Hardware()).wire == 1 / 4 + 4 / (4 * 64)
    assert Coding.of(Transport(codec=Codec.INT8), Hardware()).wire == 65 / 256


def test_per_layer_buckets_pay_latency_per_layer():
    cluster, model = Cluster.regular(1, 4), 90
    hardware = Hardware(inside=Link(1.0, 1.0), model_bytes=model, layers=3)
    whole = communication(allreduce(cluster), hardware)
    layers = communication(allreduce(cluster, **LAYERED), hardware)
    assert whole.per_step == 6 + 1.5 * model
    assert layers.per_step == pytest.approx(3 * 6 + 1.5 * model)
    assert layers.nic_bytes_per_step == whole.nic_bytes_per_step == 0
    assert len(Travel.of(Transport(**LAYERED), Hardware()).shares) == LAYERS
    assert Travel.of(Transport(**LAYERED), Hardware(layers=(30, 10))).shares == (0.75, 0.25)
    late = Travel.of(Transport(**LAYERED), Hardware(layers=(0, 30, 0, 10), backward=0.5))
    assert (late.shares, late.ready) == ((0.75, 0.25), (0.75, 1.0))
    early = Hardware(inside=Link(0.0, 1.0), model_bytes=8, layers=(8, 0), backward=0.5)
    (stage,) = of_period(allreduce(Cluster.regular(1, 2), **LAYERED), early)
    assert stage.before(np.array([4.0, 100.0])).tolist() == [3.0 + 8.0, 100.0]


def test_segments_start_during_backward():
    """A step computes 12 s, the last 6 of them backward; two segments of 2 s and 6 s, ready at 9 s and at 12 s."""
    hardware = Hardware(inside=Link(0.0, 1.0), model_bytes=8, layers=(2, 6), backward=0.5)
    schedule = allreduce(Cluster.regular(1, 2), **LAYERED)
    (stage,) = of_period(schedule, hardware)
    assert stage.before(np.full(2, 12.0)).tolist() == [18.0, 18.0]
    timeline = simulate(schedule, hardware, compute=ComputeTimes(base=12.0), num_rounds=2)
    assert timeline.communicate_start[0].tolist() == [9.0, 9.0]
    assert timeline.communicate_end.tolist() == [[18.0, 18.0], [36.0, 36.0]]
    assert timeline.communicating().tolist() == [16.0, 16.0]
    assert timeline.waiting().tolist() == [0.0, 0.0]
    slow = simulate(schedule, hardware, compute=ComputeTimes(base=1.0, slowdown=((1, 12.0),)), num_rounds=1)
    assert slow.communicate_end[0].tolist() == [18.0, 18.0]
    assert slow.waiting().tolist() == [18.0 - 1.0 - 8.0, 0.0]


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("seconds", [2.0, 7.0, 30.0])
def test_pipeline_time_matches_equation_4(width, seconds):
    """Pipe-SGD (Li et al., NeurIPS 2018): T·max(compute, all-reduce), and the first all-reduce, which is not hidden."""
    hardware = Hardware(inside=Link(0.0, 1.0), model_bytes=int(seconds))
    for drain in DrainPolicy:
        schedule = allreduce(Cluster.regular(1, 2), Pipeline(width=width, drain=drain))
        timeline = simulate(schedule, hardware, compute=ComputeTimes(base=7.0), num_rounds=20)
        whole = 7.0 + 19 * max(7.0, seconds) + seconds
        assert timeline.makespan == whole, "started operations finish, even if their gradients are dropped"
        # No step waits for the last K−1 operations.
        assert timeline.finish[-1, 0] == 7 + max(19 * 7, (20 - width + 1) * seconds if seconds > 7 else 0)
        assert timeline.waiting().tolist() == [0.0, 0.0]
        assert cycle_time(schedule, hardware, ComputeTimes(base=7.0)).per_step == max(7, seconds)


def test_published_ring_matches_the_cost_model():
    hardware = Hardware(inside=Link(0.25, 0.5), model_bytes=64)
    published = 2 * 7 * 0.25 + 2 * 7 / 8 * 64 * 0.5  # 2(p−1)α + 2(p−1)/p·nβ
    assert group_seconds(Phase.from_groups(8, [range(8)]), Cluster.regular(1, 8), hardware).tolist() == [published]


def test_pipeline_waits_for_the_gradient_of_k_steps_ago():
    """Worker 1 computes 6 s, worker 0 2 s, an operation takes 1 s, K = 2: computed by hand."""
    schedule = allreduce(Cluster.regular(1, 2), Pipeline(warm_up=1))
    hardware, compute = Hardware(inside=Link(0.0, 1.0), model_bytes=1), ComputeTimes(base=2.0, slowdown=((1, 3.0),))
    timeline = simulate(schedule, hardware, compute=compute, num_rounds=4)
    assert timeline.compute_start[:, 0].tolist() == [0, 7, 9, 14]
    assert timeline.compute_start[:, 1].tolist() == [0, 7, 13, 19]
    assert timeline.communicate_start[:, 0].tolist() == [6, 13, 19, 25]
    assert timeline.finish[:, 0].tolist() == [7, 9, 14, 20]
    assert timeline.finish[:, 1].tolist() == [7, 13, 19, 25]
    assert timeline.awaited.tolist() == [0, -1, 1, 2]
    assert timeline.drained.tolist() == [26, 26]
    assert timeline.makespan == 26
    # Worker 0 waits 4 s in the synchronous step, then 0 s, 2 s (11 to 13) and 3 s (16 to 19).
    assert timeline.waiting().tolist() == [9.0, 0.0]


@pytest.mark.parametrize("latency", [0.0, 0.5, 3.0])
def test_per_layer_pipeline_matches_equation_6(latency):
    """4 workers, 5 layers; update 1 s, forward 3 s, backward 8 s of the step."""
    hardware = Hardware(inside=Link(latency, 0.25), model_bytes=40, layers=5, backward=8 / 12)
    schedule = allreduce(Cluster.regular(1, 4), Pipeline(), **LAYERED)
    compute = ComputeTimes(base=12.0)
    expected = max(12.0, 2 * 3 * 5 * latency + 1.5 * 40 * 0.25)
    assert cycle_time(schedule, hardware, compute).per_step == pytest.approx(expected)
    whole = allreduce(schedule.cluster, Pipeline())
    ring = 2 * 3 * latency + 1.5 * 40 * 0.25
    assert cycle_time(whole, hardware, compute).per_step == pytest.approx(max(12.0, ring)), "equation 5"


def test_sampling_matches_the_exact_time_of_pipelines_and_layers():
    for gradient_buckets in GradientBuckets:
        hardware = Hardware(inside=Link(0.5, 1.0), model_bytes=9, layers=3)
        schedule = allreduce(Cluster.regular(1, 4), Pipeline(warm_up=200), gradient_buckets=gradient_buckets)
        compute = ComputeTimes(base=4.0, slowdown=((2, 3.0),))
        exact = cycle_time(schedule, hardware, compute).per_step
        found = sample(schedule, hardware, compute, num_rounds=400, num_samples=2)
        assert found.per_step == pytest.approx(exact, rel=1e-9)


def test_group_seconds_of_a_codec():
    cluster, hardware = Cluster.regular(2, 1), Hardware(nic=Link(1.0, 1.0), codec=FREE, model_bytes=256)
    coding = Coding.of(Transport(codec=Codec.INT8), hardware)
    assert group_seconds(Phase.from_groups(2, [(0, 1)]), cluster, hardware, coding=coding).tolist() == [
        2 + float(Fraction(65, 256)) * 256
    ]


@pytest.mark.parametrize("fields", [{"backward": 1.5}, *({"layers": listed} for listed in (0, (), (0, 0), (3, -1)))])
def test_invalid_hardware_is_rejected(fields):
    check_error(InputError, r"hardware(: |\.)(backward|layers)", Hardware, **fields)
    check_error(InputError, r"codec\.encode", CodecSeconds, -1.0, 0.0)
