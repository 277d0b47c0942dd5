"""Building blocks of schedules: groups and blocks with costs, meetings and classes, against `topo`."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from partreduce.schedulers import registry
from partreduce.schedulers.synthesis import Limits, Problem
from partreduce.schedulers.synthesis.choices import (
    FEW_WORKERS,
    MAX_PLACES,
    MAX_RULE_PLACES,
    MAX_TIMED,
    choices_of,
    explicit_groups,
    rule_blocks,
)
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.cluster_shape import MAX_DIGITS, crossing_bound, node_radices
from partreduce.schedulers.synthesis.long_periods import Exchanges, compositions
from partreduce.topo import metrics
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link, Switch
from partreduce.topo.rule import Block
from partreduce.topo.strategies import GroupPhases
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.timing.cost import communication
from partreduce.topo.timing.event_graph import cycle_time

HARDWARE = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9, latency=1e-5), model_bytes=552_000_000)
LINKS = {
    "plain": HARDWARE,
    "a slow NIC": replace(HARDWARE, node_nic=((1, Link.of_bandwidth(2.5e9)),)),
    "two NICs": replace(HARDWARE, num_nics=2),
    "a bus": replace(HARDWARE, bus=Link.of_bandwidth(3e10)),
    "an uplink": replace(HARDWARE, switches=(Switch((0, 1), Link.of_bandwidth(2e9)),)),
}


def problem(shape, hardware=HARDWARE, algorithm=AllReduceAlgorithm.RING, **limits):
    cluster = replace(Cluster.parse(shape), hardware=hardware)
    return Problem(cluster=cluster, algorithm=algorithm, limits=Limits(**limits))


CHOICES = {
    "rules 4x4": rule_blocks(problem("4x4")),
    "rules 6x2": rule_blocks(problem("6x2")),
    "rules 4x32, local ranks in pairs": rule_blocks(problem("4x32")),
    "explicit 3,2": explicit_groups(problem("3,2")),
    "explicit 4,2,1": explicit_groups(problem("4,2,1")),
    "explicit 50,20, two by two": explicit_groups(problem("50,20")),
}


def random_phases(choices, rng, count):
    """Yield phases of disjoint blocks."""
    for _ in range(count):
        chosen, taken = [], set()
        for b in rng.permutation(len(choices.blocks))[: int(rng.integers(1, 40))].tolist():
            if taken.isdisjoint(choices.blocks[b].local):
                chosen.append(choices.blocks[b])
                taken.update(choices.blocks[b].local)
        yield tuple(sorted(chosen, key=str))


@pytest.mark.parametrize("name", CHOICES)
def test_costs_match_their_schedules(name):
    choices = CHOICES[name]
    for phase in random_phases(choices, np.random.default_rng(2), 12):
        schedule = choices.schedule((phase,), (1,))
        assert choices.cost(phase) == pytest.approx(communication(schedule, HARDWARE).per_step, rel=1e-9)


@pytest.mark.parametrize("algorithm", AllReduceAlgorithm)
@pytest.mark.parametrize("links", LINKS)
def test_loads_are_lower_bounds_of_phase_cost(links, algorithm):
    requested = problem("2,2,1", LINKS[links], algorithm)
    choices, rng = explicit_groups(requested), np.random.default_rng(3)
    seconds, busy = choices.seconds_and_loads
    place, compared = {block: b for b, block in enumerate(choices.blocks)}, 0
    for phase in random_phases(choices, rng, 60):
        chosen = [place[block] for block in phase]
        least = max(seconds[chosen].max(), busy[chosen].sum(axis=0).max(initial=0.0))
        assert least <= choices.cost(phase) * (1 + 1e-9)
        compared += len(phase) > 1
    assert compared > 5


@pytest.mark.parametrize("name", CHOICES)
def test_meetings_count_every_pair_of_group_members(name):
    choices, rng = CHOICES[name], np.random.default_rng(4)
    n = choices.problem.cluster.num_workers
    for phase in random_phases(choices, rng, 8):
        chosen = {b for b, block in enumerate(choices.blocks) if block in phase}
        met = sum(count for count, blocks in choices.meetings if chosen.intersection(blocks))
        groups = [group.members for group in choices.schedule((phase,), (1,)).phase(0)]
        assert met == sum(len(list(combinations(group, 2))) for group in groups)
        left = n - choices.joined[sorted(chosen)].sum()
        assert left == pytest.approx(n - sum(len(group) - 1 for group in groups)), "groups and lone workers"


def random_exchanges(name, steps, count=6):
    choices, rng = CHOICES[name], np.random.default_rng(5)
    phases = [*dict.fromkeys(random_phases(choices, rng, count)), choices.everybody()]
    return Exchanges(choices, (1,) if choices.radices else steps, phases, seed=0), rng


STEPS = [(name, (1,) * CHOICES[name].problem.cluster.num_workers) for name in CHOICES if "pairs" not in name]
STEPS += [("explicit 3,2", (1, 1, 1, 3, 3)), ("explicit 3,2", (2,) * 5)]


@pytest.mark.parametrize(("name", "steps"), STEPS)
def test_compositions_have_the_metrics_of_their_schedules(name, steps):
    """Class matrices and sums over pieces against `topo.metrics` and `topo.timing`."""
    choices, rng = CHOICES[name], np.random.default_rng(5)
    full = choices.everybody()
    phases = ((), *dict.fromkeys(random_phases(choices, rng, 4)), full)
    found = list(compositions(choices, phases, steps, Clock(seconds=1e6, effort=5.0), 5.0))
    assert len(found) > 20
    for period, value in found[:: len(found) // 10]:
        schedule = choices.schedule(period, steps if not choices.radices else (1,))
        assert value == pytest.approx(float(metrics.consensus_distance(schedule)), rel=1e-6, abs=1e-9)
        cost = sum(map(choices.cost, period)) / (len(period) * max(steps))
        assert cost == pytest.approx(communication(schedule, HARDWARE).per_step, rel=1e-9)


@pytest.mark.parametrize(("name", "steps"), STEPS)
def test_exchanged_periods_have_the_metrics_of_their_schedules(name, steps):
    """Class matrices against `topo.metrics`."""
    exchanges, rng = random_exchanges(name, steps)
    table = rng.integers(0, len(exchanges.phases), (8, 5))
    found = exchanges.distances(table, Clock(seconds=1e6))
    assert np.isfinite(found).sum() >= 4
    for row, value in zip(table.tolist(), found.tolist(), strict=True):
        schedule = exchanges.choices.schedule(tuple(exchanges.phases[i] for i in row), exchanges.worker_steps)
        assert value == pytest.approx(float(metrics.consensus_distance(schedule)), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("name", "steps"), STEPS)
def test_exchange_estimate_is_exact_with_a_global_phase(name, steps):
    exchanges, rng = random_exchanges(name, steps)
    clock, full, others = Clock(seconds=1e6), len(exchanges.phases) - 1, np.arange(len(exchanges.phases))
    own = (*rng.integers(0, full, 3).tolist(), full, *rng.integers(0, full, 2).tolist())
    total, replaced, inserted, removed = exchanges._estimates(own, others, clock)

    def whole(indices):
        return float(exchanges.distances(np.array([indices]), clock)[0] - exchanges.space.floor) * len(indices)

    assert total == pytest.approx(whole(own))
    for t in (0, 2, 5):
        assert total + removed[t] == pytest.approx(whole((*own[:t], *own[t + 1 :])))
        for a in (0, 1, full - 1):
            assert total + replaced[t, a] == pytest.approx(whole((*own[:t], a, *own[t + 1 :])))
            assert total + inserted[t, a] == pytest.approx(whole((*own[:t], a, *own[t:])))


@pytest.mark.parametrize("limits", [{}, {"max_distinct_phases": 2, "max_period": 4}])
def test_exchanges_improve_the_front_within_the_limits(limits):
    choices = explicit_groups(problem("3,2", **limits))
    everybody, pair = choices.everybody(), (choices.blocks[0],)
    steps, clock = (1,) * 5, Clock(seconds=1e6)
    exchanges = Exchanges(choices, steps, [everybody, pair], seed=0)
    front = [(float(choices.step_seconds([(everybody, (), ())], steps)[0]), 9.0)]
    found = list(exchanges.better((everybody, (), ()), front, clock))
    assert {len(period) for period, _ in found} == {2, 3, 4}
    assert min(value for _, (_, value) in found) < 9.0
    assert (everybody, pair, ()) in [period for period, _ in found]


@pytest.mark.parametrize("name", CHOICES)
def test_step_seconds_match_the_cycle_times(name):
    """Rounds with disjoint groups overlap if few ranks are distinguished; otherwise every round is a barrier."""
    hardware = replace(LINKS["an uplink"] if name == "explicit 4,2,1" else HARDWARE, compute=0.05)
    requested = CHOICES[name].problem
    choices = replace(CHOICES[name], problem=replace(requested, cluster=replace(requested.cluster, hardware=hardware)))
    rng, overlapped = np.random.default_rng(1), 0
    phases = [(), *random_phases(choices, rng, 12)]
    steps = (1,) * (1 if choices.radices else choices.num_ranks)
    periods = [tuple(phases[i] for i in rng.integers(0, len(phases), 8)) for _ in range(6)]
    for period, seconds in zip(periods, choices.step_seconds(periods, steps).tolist(), strict=True):
        apart = 0.05 + sum(map(choices.cost, period)) / 8
        exact = cycle_time(choices.schedule(period, steps), hardware, algorithm=requested.algorithm).per_step
        told_apart = choices.num_ranks <= MAX_TIMED
        assert seconds == pytest.approx(exact if told_apart else apart, rel=0.03)
        overlapped += seconds < apart * 0.999
    assert overlapped or name in {"explicit 50,20, two by two", "explicit 4,2,1"}


@pytest.mark.parametrize("nodes", [2, 3, 4, 7, 8, 12, 16, 64, 96])
def test_radices_multiply_to_the_number_of_nodes(nodes):
    radices = node_radices(problem(f"{nodes}x1").cluster)
    assert np.prod(radices) == nodes
    assert len(radices) <= 4
    assert min(radices) >= 2


def test_explicit_groups_are_complete_and_respect_max_group():
    assert len(explicit_groups(problem("3,2")).blocks) == 2**5 - 5 - 1
    assert explicit_groups(problem("3,2")).is_complete
    limited = explicit_groups(problem("5,3,1", max_group=3))
    assert limited.is_complete
    assert set(limited.sizes.tolist()) == {2, 3}
    assert not explicit_groups(problem("4x4")).is_complete
    assert all(size <= 8 for size in rule_blocks(problem("8x8", max_group=8)).sizes)


@pytest.mark.parametrize(("shape", "kinds"), [("4x4", 1), ("2x2", 2), ("3,2", 1), ("64x8", 1), ("64x32", 1)])
def test_rules_need_regular_clusters(shape, kinds):
    requested = problem(shape)
    listed = choices_of(requested)
    assert len(listed) == kinds
    assert bool(listed[0].radices) == requested.cluster.is_regular
    assert len(choices_of(replace(requested, limits=Limits(max_group=4)))) == (
        2 if requested.cluster.is_regular and requested.cluster.num_workers <= MAX_PLACES else 1
    )
    assert kinds == 1 or requested.cluster.num_workers <= FEW_WORKERS
    assert all(len(one.places) <= (MAX_RULE_PLACES if one.radices else MAX_PLACES) for one in listed)


def test_schedule_names_describe_their_phases():
    choices = rule_blocks(problem("4x4"))
    blocks = {str(block): (block,) for block in choices.blocks}
    node, full = blocks["LW{0,1,2,3} inside each node"], choices.everybody()
    assert choices.schedule(((), node, (), full), (1,)).name == "node-every-4-all-every-4"
    assert choices.schedule((node, node, full), (1,)).name == "node-2-of-3-all-every-3"
    pairs = (*blocks["LW{0,1} inside each node"], *blocks["LW{2,3} inside each node"])
    assert choices.schedule((pairs, blocks["LW{0} across digits {0,1}"]), (1,)).name == (
        "node-parts-of-2-every-2-groups-of-4-every-2"
    )
    few = explicit_groups(problem("3,1"))
    inside, (everybody,) = next(b for b in few.blocks if b.local == (0, 1, 2)), few.everybody()
    assert few.schedule(((inside,), (everybody,)), (1,) * 4).name == "node-every-2-all-every-2"


# Switches: clusters with rules, radices of racks, bounds and phases with uplinks


BYTES = Hardware(inside=Link.of_bandwidth(10.0), nic=Link.of_bandwidth(5.0), model_bytes=10)
THIN = Link.of_bandwidth(1.0)


def in_racks(shape, *racks, uplink=THIN):
    switches = tuple(Switch(tuple(nodes), uplink) for nodes in racks)
    return replace(Cluster.parse(shape), hardware=replace(BYTES, switches=switches))


def test_only_regular_racks_get_rules():
    assert node_radices(in_racks("6x2", range(3), range(3, 6)))
    assert not node_radices(in_racks("6x2", range(2), range(2, 6)))
    assert node_radices(in_racks("6x2", range(2), range(2, 6), uplink=Link())), "free uplinks make no node special"
    assert node_radices(in_racks("6x2", range(6)))


def test_radices_list_racks_first():
    assert node_radices(in_racks("12x1", *(range(a, a + 3) for a in range(0, 12, 3)))) == (2, 2, 3)
    assert node_radices(in_racks("12x1")) == (3, 2, 2)
    many = in_racks("64x1", *(range(a, a + 8) for a in range(0, 64, 8)))
    assert len(node_radices(many)) == MAX_DIGITS
    assert node_radices(many) == (4, 2, 4, 2)


def test_rule_cost_matches_its_explicit_schedule():
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
def test_crossing_bound_is_a_lower_bound_of_connected_schedules(cluster):
    """No connected schedule communicates less than the bound."""
    requested = Problem(cluster=cluster, limits=Limits(max_period=1))
    bound = crossing_bound(requested)
    assert bound == pytest.approx(10 / 1.0), "a pair across the thin uplink"
    assert bound > crossing_bound(Problem(cluster=in_racks(str(cluster)), limits=Limits(max_period=1)))
    choices = explicit_groups(requested)
    assert choices.cost(choices.everybody()) >= bound


def test_hierarchy_levels_follow_the_switches():
    racks = in_racks("8x2", *(range(a, a + 2) for a in range(0, 8, 2)))
    assert registry.build("hierarchy", racks).rule().radices == (4, 2)
    assert registry.build("hierarchy", Cluster.parse("8x2")).rule().radices == (2, 4)
    odd = in_racks("8x2", (0, 1, 2), (3, 4, 5, 6, 7))
    assert registry.build("hierarchy", odd).rule().radices == (2, 4)


def test_cross_rack_groups_cost_more_at_equal_mixing():
    """Two rule phases that differ in one digit of radix 2 mix equally; the one inside racks is cheaper."""
    requested = Problem(cluster=in_racks("4x2", (0, 1), (2, 3)))
    across, within = (rule_blocks(requested).cost((Block((0,), (digit,)),)) for digit in range(2))
    assert across == pytest.approx(2 * 10 / 1.0), "two pairs share each uplink"
    assert within == pytest.approx(10 / 5.0)
