"""Schedules without fixed phases in virtual time, by the protocol objects of the run-time: generated and pairwise."""

import random
from dataclasses import replace

import numpy as np
import pytest

from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.schedulers.simulator.asynchronous import GroupTiming, group_machine
from partreduce.schedulers.simulator.simulate import simulate
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import DelayedAveraging, DynamicGroups, Pairwise
from partreduce.topo.strategies.dynamic_groups import GroupSplit, SlowWorkerPolicy
from partreduce.topo.timing.compute import ComputeTimes

CLUSTER = Cluster.regular(2, 4)
ONE_SECOND = ComputeTimes(base=1.0)
SLOW = ComputeTimes(base=1.0, slowdown=((1, 5.0),))
WIRES = Hardware(inside=Link.of_bandwidth(20.0), nic=Link.of_bandwidth(4.0), model_bytes=1)


def generated(cluster=CLUSTER, **options):
    return Schedule("g", cluster, DynamicGroups(**options))


def pairwise(**options):
    return Schedule("p", CLUSTER, Pairwise(active=(0, 1, 2, 3), **options))


def parts(timeline):
    """Computing, communicating and waiting of each worker, and their sum over all."""
    listed = timeline.computing(), timeline.communicating(), timeline.waiting()
    return listed, sum(float(part.sum()) for part in listed)


@pytest.mark.parametrize("division", GroupSplit)
@pytest.mark.parametrize("rule", SlowWorkerPolicy)
def test_rounds_of_generated_groups_follow_one_another_and_members_meet(division, rule):
    schedule = generated(division=division, slow_worker_policy=rule)
    timeline = simulate(schedule, WIRES, compute=SLOW, num_rounds=30)
    assert timeline.free_running
    assert timeline.finish.shape == (30, 8)
    assert np.array_equal(timeline.compute_start[1:], timeline.finish[:-1])
    assert np.allclose(timeline.compute_end - timeline.compute_start, [1, 5, 1, 1, 1, 1, 1, 1])
    assert (timeline.communicate_start >= timeline.compute_end).all()
    (_, communicating, waiting), total = parts(timeline)
    assert (waiting >= -1e-9).all()
    assert (communicating > 0).all(), "everybody is in groups"
    assert total == pytest.approx(timeline.finish[-1].sum())
    met = timeline.communicate_end > timeline.communicate_start
    begins = timeline.communicate_start[met]  # a member of a group begins together with another one
    assert all((begins == begin).sum() >= 2 for begin in begins if begin < timeline.finish[-1].min())


def test_one_pair_of_a_generated_schedule_takes_what_a_static_pair_takes():
    pair = generated(Cluster.regular(1, 2), group_size=2, division=GroupSplit.GLOBAL, slow_threshold=None)
    compute = ComputeTimes(base=1.0, slowdown=((1, 3.0),))
    timeline = simulate(pair, Hardware(inside=Link.of_bandwidth(1.0), model_bytes=1), compute=compute, num_rounds=4)
    assert timeline.finish.tolist() == [[4.0, 4.0], [8.0, 8.0], [12.0, 12.0], [16.0, 16.0]]
    assert timeline.waiting().tolist() == [8.0, 0.0]
    assert timeline.per_step() == 4.0


def test_fast_workers_do_not_wait_for_a_late_straggler():
    late = {"division": GroupSplit.GLOBAL, "slow_worker_policy": SlowWorkerPolicy.DEFER}
    timeline = simulate(generated(Cluster.regular(4, 4), **late), compute=SLOW, num_rounds=60)
    everybody = simulate(generated(Cluster.regular(4, 4), **late), compute=ONE_SECOND, num_rounds=60)
    fast = np.delete(timeline.finish[-1], 1)
    assert timeline.finish[-1, 1] >= 5 * 60
    assert fast.mean() < 1.5 * everybody.finish[-1].mean()
    assert timeline.per_step() < 1.6, "the mean over all workers' steps, not the slowest worker's"


def test_active_workers_wait_for_the_answer_and_passive_ones_for_nobody():
    timeline = simulate(pairwise(), WIRES, compute=SLOW, num_rounds=3)
    assert timeline.finish[:, 4:].tolist() == [[1.0] * 4, [2.0] * 4, [3.0] * 4]
    assert timeline.waiting().tolist() == [0.0] * 8
    # Active and passive workers are on different nodes: a model crosses NICs there and back, a quarter second each if
    # it is alone. Three workers come at a time; then the slow one's question meets theirs.
    assert timeline.finish[:2, 0].tolist() == [2.5, 5.0]
    alone = simulate(pairwise(edges=((0, 4),)), WIRES, compute=ONE_SECOND, num_rounds=3)
    assert alone.finish[:, 0].tolist() == [1.5, 3.0, 4.5]
    assert alone.communicating().tolist() == [1.5] + [0.0] * 7


def test_an_exchange_hides_behind_the_next_round_under_overlap():
    wires = replace(WIRES, nic=Link.of_bandwidth(16.0))  # four models at once take a quarter second each way
    timeline = simulate(pairwise(sync=DelayedAveraging()), wires, compute=ONE_SECOND, num_rounds=3)
    assert timeline.finish[:, 0].tolist() == [1.0, 2.0, 3.0]
    assert timeline.communicate_start[:, 0].tolist() == [0.0, 1.0, 2.0]
    assert timeline.communicate_end[:, 0].tolist() == [0.0, 1.5, 2.5]
    assert timeline.waiting().tolist() == [0.0] * 8
    slow_wire = Hardware(nic=Link.of_bandwidth(2.0), model_bytes=1)
    longer = simulate(pairwise(sync=DelayedAveraging()), slow_wire, compute=ONE_SECOND, num_rounds=3)
    assert longer.finish[:, 0].tolist() == [1.0, 5.0, 9.0], "the answer takes longer than the round"
    assert longer.waiting().tolist() == [0.0] * 8


def test_an_active_worker_without_neighbors_goes_on_alone():
    timeline = simulate(pairwise(edges=((0, 4), (1, 4), (2, 5))), WIRES, compute=ONE_SECOND, num_rounds=2)
    assert timeline.finish[:, 3].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("schedule", [generated(), pairwise()])
def test_the_same_seed_gives_the_same_timeline(schedule):
    compute = ComputeTimes(base=1.0, jitter=0.3)
    one, two, other = (simulate(schedule, WIRES, compute=compute, num_rounds=12, seed=s).finish for s in (1, 1, 2))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


def test_a_round_takes_its_steps():
    timeline = simulate(generated(steps_per_round=3), compute=ONE_SECOND, num_rounds=5)
    assert np.allclose(timeline.compute_end - timeline.compute_start, 3.0)


def test_workers_that_take_no_time_are_no_error():
    assert simulate(generated(), num_rounds=5).per_step() == 0.0
    assert simulate(pairwise(), num_rounds=5).makespan == 0.0


def test_a_group_that_starts_a_stragglers_round_is_not_counted_twice():
    """A worker that was told to ask later computes once, then asks; its round is one entry."""
    rounds = []
    setting = GeneratorSetting(nodes=(0, 0, 1, 1), group_size=2, slow_worker_policy=SlowWorkerPolicy.DEFER)
    timing = GroupTiming(lambda worker, _: 5.0 if worker == 1 else 1.0, lambda members: 0.25, rounds.append)
    machine = group_machine(setting, timing, rounds=10, costs=(1, 5, 1, 1))
    machine.run()
    assert not machine.run()
    assert sorted((done.worker, done.round) for done in rounds) == [(w, r) for w in range(4) for r in range(10)]
    assert all(done.computed - done.begun == (5.0 if done.worker == 1 else 1.0) for done in rounds)


SIXTEEN = GeneratorSetting(nodes=tuple(w // 4 for w in range(16)), seed=1, slow_worker_policy=SlowWorkerPolicy.DEFER)


def steps_of_groups(setting, slow, *, rounds):
    """The rounds until the fastest worker has done so many: computing takes 1 ± 5 % (times `slow`), groups 0.07 inside
    a node and 0.97 across. Returns them, and the mean steps of those on a slow worker's node and of all others."""
    listed, steps, chance = [], [0] * 16, random.Random(setting.seed)

    def record(done):
        listed.append(done)
        steps[done.worker] += 1

    timing = GroupTiming(
        lambda worker, _: slow.get(worker, 1.0) * chance.uniform(0.95, 1.05),
        lambda members: 0.97 if len({setting.nodes[w] for w in members}) > 1 else 0.07,
        record,
    )
    costs = tuple(round(1000 * slow.get(worker, 1.0)) for worker in range(16))
    machine = group_machine(setting, timing, rounds=rounds + 1, costs=costs)
    while max(steps) < rounds:
        machine.run(max_events=1)
    near = [w for w in range(16) if w not in slow and any(setting.nodes[w] == setting.nodes[s] for s in slow)]
    far = [w for w in range(16) if w not in slow and w not in near]
    return listed, sum(steps[w] for w in near) / len(near), sum(steps[w] for w in far) / len(far)


@pytest.mark.parametrize("division", [GroupSplit.GLOBAL, GroupSplit.INTER_INTRA])
def test_a_late_straggler_holds_nobody_up_and_is_not_starved(division):
    """One of 16 workers computes 5 times as long; the others of its node keep up with all others."""
    setting = replace(SIXTEEN, division=division)
    listed, same_node, other_nodes = steps_of_groups(setting, {5: 5.0}, rounds=80)
    assert same_node > 0.9 * other_nodes
    assert all(done.members for done in listed if done.worker == 5), "it is in a group in every round"
    local = replace(setting, slow_worker_policy=SlowWorkerPolicy.PAIR_LOCALLY)
    _, same_node, other_nodes = steps_of_groups(local, {5: 5.0}, rounds=80)
    assert same_node < 0.8 * other_nodes


@pytest.mark.parametrize("every", [1, 3, 16])
def test_node_then_all_meets_after_every_so_many_rounds(every):
    """With one slow worker: all others meet, and only they; between two meetings only nodes do."""
    setting = replace(SIXTEEN, division=GroupSplit.NODE_THEN_ALL, all_every=every)
    listed, same_node, other_nodes = steps_of_groups(setting, {5: 5.0}, rounds=100)
    groups = {done.seq: done.members for done in listed if done.members}
    met = [members for members in groups.values() if len({w // 4 for w in members}) > 1]
    assert set(met) == {tuple(w for w in range(16) if w != 5)}
    assert len(met) == pytest.approx(100 / every, rel=0.15)
    assert all(done.members for done in listed if done.worker == 5)
    assert same_node > 0.9 * other_nodes
