"""The exact cycle time against the simulator, closed forms, and one-node symmetry."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.random_switches import switches_over
from helpers.small import list_groups, of_groups, of_phases, of_rule
from helpers.worked_example import FIGURE_10
from partreduce import Cluster, Hardware, Link, Schedule, simulate
from partreduce.strategies import Block, Phase
from partreduce.topo.strategies import (
    AllReduce,
    AllReduceAlgorithm,
    Codec,
    CodecScope,
    DelayedAveraging,
    GradientBuckets,
    NeighborAveraging,
    Pipeline,
    Round,
    Synchronous,
    Transport,
)
from partreduce.topo.timing import event_graph
from partreduce.topo.timing.event_graph import cycle_time
from partreduce.topo.timing.stages import Stage
from partreduce.types import CodecSeconds, ComputeTimes, Switch


@st.composite
def cases(draw):
    count = draw(st.integers(2, 9))
    cluster = Cluster.irregular(_nodes(count, draw(st.integers(1, count))))
    phases = [
        Phase.from_labels(draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count)))
        for _ in range(draw(st.integers(1, 4)))
    ]
    by_worker = st.lists(st.integers(1, 4), min_size=count, max_size=count).map(tuple)
    sync = draw(st.sampled_from([Synchronous(), DelayedAveraging()]))
    schedule = of_phases("s", cluster, phases, steps_per_round=draw(st.integers(1, 3) | by_worker), sync=sync)
    switches = draw(st.just(()) | switches_over(cluster.num_nodes))
    hardware = Hardware(inside=draw(LINKS), nic=draw(LINKS), switches=switches, model_bytes=2)
    return schedule, hardware, draw(compute_times(count, 8))


LINKS = st.builds(Link, st.integers(0, 2).map(float), st.integers(0, 4).map(float))


def compute_times(count, longest):
    slow = st.dictionaries(st.integers(0, count - 1), st.integers(1, 5).map(float))
    slowdown = slow.map(lambda factors: tuple(sorted(factors.items())))
    return st.builds(ComputeTimes, base=st.integers(0, longest), slowdown=slowdown)


def _nodes(count, num_nodes):
    bounds = np.linspace(0, count, num_nodes + 1).astype(int)
    return [list(range(a, b)) for a, b in pairwise(bounds)]


@st.composite
def gradients(draw):
    """All-reduce of gradients with any delay, codec, algorithm and buckets, on uneven clusters at uneven speeds."""
    count = draw(st.integers(2, 9))
    cluster = Cluster.irregular(_nodes(count, draw(st.integers(1, count))))
    sync = draw(st.just(Synchronous()) | st.builds(Pipeline, width=st.integers(2, 5), warm_up=st.integers(0, 3)))
    algorithm = draw(st.sampled_from([AllReduceAlgorithm.RING, AllReduceAlgorithm.HIERARCHICAL]))
    codec, buckets = draw(st.sampled_from(list(Codec))), draw(st.sampled_from(list(GradientBuckets)))
    across = algorithm is AllReduceAlgorithm.HIERARCHICAL and codec is not Codec.NONE and draw(st.booleans())
    where = CodecScope.ACROSS_NODES if across else CodecScope.ALL
    transport = Transport(algorithm=algorithm, codec=codec, where=where, gradient_buckets=buckets)
    seconds = st.builds(CodecSeconds, st.integers(0, 3).map(float), st.integers(0, 3).map(float))
    hardware = Hardware(
        inside=draw(LINKS), nic=draw(LINKS), bus=draw(LINKS),
        switches=draw(st.just(()) | switches_over(cluster.num_nodes)),
        codec=tuple((name, draw(seconds)) for name in ("bfloat16", "float16", "int8")), model_bytes=2,
        layers=draw(st.none() | st.integers(1, 5) | st.lists(st.integers(0, 4), max_size=4).filter(any).map(tuple)),
        backward=draw(st.sampled_from([0.0, 0.5, 2 / 3, 1.0])),
    )  # fmt: skip
    return Schedule("s", cluster, AllReduce(sync=sync, transport=transport)), hardware, draw(compute_times(count, 20))


@pytest.mark.parametrize("examples", [40, pytest.param(100, marks=pytest.mark.slow)])
def test_cycle_time_equals_the_simulator(examples):
    settings(max_examples=examples)(given(cases() | gradients())(check_cycle_time))()


def check_cycle_time(case):
    schedule, hardware, compute = case
    exact = cycle_time(schedule, hardware, compute)
    every = np.resize(exact.workers, schedule.num_workers)  # equal nodes are solved on one of them
    # A deterministic max-plus system of n workers repeats after a transient; its mean over a long window converges as
    # 1/window, so the window bounds the difference.
    window = 250
    timeline = simulate(schedule, hardware, compute=compute, num_rounds=2 * window * schedule.period)
    passed = timeline.finish[-1] - timeline.finish[window * schedule.period - 1]
    slack = timeline.finish[schedule.period * 30].max() / (window * schedule.period) + 1e-9
    assert passed / (window * schedule.period) == pytest.approx(every, abs=slack)
    assert exact.per_round == exact.workers.max()


def test_unconnected_workers_keep_their_own_speed():
    phases = (Phase.from_groups(5, [(0, 1), (2, 3)]),)
    schedule = of_phases("s", Cluster.regular(1, 5), phases)
    compute = ComputeTimes(base=1.0, slowdown=((1, 2.0), (3, 3.0)))
    result = cycle_time(schedule, Hardware(), compute)
    assert result.workers.tolist() == [2.0, 2.0, 3.0, 3.0, 1.0]
    assert result.critical == (3,)


def test_directed_chain_slows_only_downstream():
    edges = Round.from_edges(3, [(0, 1, "1/2"), (1, 2, "1/2")])
    schedule = Schedule("n", Cluster.regular(1, 3), NeighborAveraging(rounds=(edges,)))
    result = cycle_time(schedule, Hardware(), ComputeTimes(base=1.0, slowdown=((1, 4.0),)))
    assert result.workers.tolist() == [1.0, 4.0, 4.0]


@pytest.mark.parametrize("sync", [Synchronous(), DelayedAveraging()], ids=str)
@pytest.mark.parametrize("radices", [(2, 2, 3), (4, 3), (3, 4), (12,), (2, 6)])
@pytest.mark.parametrize("racks", [(), (3,), (3, 6), (4,), (6,)])
def test_one_node_represents_equal_nodes_below_regular_switches(radices, racks, sync):
    """Racks that match the radices are solved on one node, others on all nodes; both are exact."""
    cluster, last = Cluster.regular(12, 2), len(radices) - 1
    phases = ((Block((0,), (0,)),), (Block((0, 1), (last,)),), (Block((0,), tuple(range(last + 1))), Block((1,), (0,))))
    rule = of_rule("r", cluster, radices, phases, sync=sync)
    switches = tuple(
        Switch(tuple(range(a, a + size)), Link(2.0, 1.0 / size)) for size in racks for a in range(0, 12, size)
    )
    hardware = Hardware(inside=Link(1.0, 0.5), nic=Link(1.0, 1.0), switches=switches, model_bytes=24)
    all_workers = of_groups("all_workers", cluster, [range(24)], sync=sync)
    for schedule, whole in ((rule, list_groups(rule)), (Schedule("a", cluster, AllReduce(sync=sync)), all_workers)):
        exact = cycle_time(whole, hardware, ComputeTimes(base=1.0))
        found = cycle_time(schedule, hardware, ComputeTimes(base=1.0))
        assert found.workers.tolist() == pytest.approx(exact.workers[: len(found.workers)].tolist())


def test_million_workers_take_the_time_of_one_node():
    cluster = Cluster.regular(250_000, 4)
    rule = of_rule("r", cluster, (2, 125_000), FIGURE_10)
    hardware = Hardware(inside=Link.of_bandwidth(1e10), nic=Link.of_bandwidth(5e9), model_bytes=552_000_000)
    result = cycle_time(rule, hardware, ComputeTimes(base=0.05))
    phases = (2 * 249_999 / 250_000 * 0.1104, 0.0828, 0.1104, 0.0828)
    assert result.per_step == pytest.approx(0.05 + sum(phases) / 4)
    assert len(result.workers) == 4


def test_ties_between_equal_cycle_means_converge():
    """Workers 1 and 4 each trace back to themselves at 0.2708 s per period; together they make a cycle of 0.2734 s."""
    groups = ([((0, 1), 0.1104)], [((0, 2, 5), 0.0552), ((3, 4), 0.1104)], [((1, 3), 0.1104), ((2, 4, 5), 0.1104)])
    stages = []
    for phase in groups:
        cell_of = np.full(6, -1)
        for index, (members, _) in enumerate(phase):
            cell_of[list(members)] = index
        sources = np.array([worker for members, _ in phase for worker in members])
        offsets = np.cumsum([0, *(len(members) for members, _ in phase)])
        stages.append(Stage(sources, offsets, np.array([seconds for _, seconds in phase]), cell_of))
    means, critical = event_graph._howard(stages, np.full(6, 0.05), DelayedAveraging())
    assert means == pytest.approx([0.2734] * 6, abs=1e-12)
    assert critical == (1, 4)


@settings(deadline=None, max_examples=40)
@given(cases() | gradients())
def test_merging_workers_changes_no_time(case):
    schedule, hardware, times = case
    period = event_graph.TimedPeriod.of(schedule, hardware, times)
    assert period.merged().cycle().per_round == pytest.approx(period.cycle().per_round, rel=1e-12)


@pytest.mark.parametrize(("slowdown", "kinds"), [(((3, 4.0),), 3), (((0, 2.0), (5, 2.0)), 3)], ids=str)
def test_workers_that_arrive_together_are_merged(slowdown, kinds):
    """The classes are slow workers, workers of their nodes, and all others."""
    phases = ((Block((0, 1, 2, 3)),), (Block((0, 1, 2, 3), (0,)),))
    schedule = of_rule("s", Cluster.regular(4, 4), (4,), phases)
    hardware = Hardware(inside=Link.of_bandwidth(1e9), nic=Link.of_bandwidth(1e8), model_bytes=10**6)
    period = event_graph.TimedPeriod.of(schedule, hardware, ComputeTimes(base=0.01, slowdown=slowdown))
    merged = period.merged()
    assert len(merged.steps) == kinds
    for steps, sync in product((1, 3, 20), (Synchronous(), DelayedAveraging())):
        every, fewer = (one.cycle(steps_per_round=steps, sync=sync) for one in (period, merged))
        assert fewer.per_round == pytest.approx(every.per_round, rel=1e-12)
