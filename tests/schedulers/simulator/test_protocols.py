"""Protocols in virtual time, by the state machines of the runtime: waits, generated groups and pairs."""

import random
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from helpers.small import of_groups
from partreduce import Cluster, Hardware, Link, Schedule, simulate
from partreduce.errors import InputError
from partreduce.schedulers.protocols.adpsgd import Choose, Pairing, Role
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.schedulers.protocols.hop import Advance, Hop
from partreduce.schedulers.simulator.asynchronous import GroupTiming, group_machine
from partreduce.schedulers.simulator.machine import Meeting, Timing, VirtualMachine
from partreduce.strategies import DelayedAveraging, DynamicGroups, GroupSplit, IterationGap, Pairwise, SlowWorkerPolicy
from partreduce.types import ComputeTimes, RandomSlowdown

CLUSTER = Cluster.regular(2, 4)
ONE_SECOND = ComputeTimes(base=1.0)
SLOW = ComputeTimes(base=1.0, slowdown=((1, 5.0),))
WIRES = Hardware(inside=Link.of_bandwidth(20.0), nic=Link.of_bandwidth(4.0), model_bytes=1)


def build_generated(cluster=CLUSTER, **options):
    return Schedule("g", cluster, DynamicGroups(**options))


def pairwise(**options):
    return Schedule("p", CLUSTER, Pairwise(active=(0, 1, 2, 3), **options))


def parts(timeline):
    """Return computing, communicating and waiting times per worker, and their total."""
    listed = timeline.computing(), timeline.communicating(), timeline.waiting()
    return listed, sum(float(part.sum()) for part in listed)


@pytest.mark.parametrize("division", GroupSplit)
@pytest.mark.parametrize("rule", SlowWorkerPolicy)
def test_generated_rounds_are_contiguous_and_members_synchronize(division, rule):
    schedule = build_generated(division=division, slow_worker_policy=rule)
    timeline = simulate(schedule, WIRES, compute=SLOW, num_rounds=30)
    assert timeline.free_running
    assert timeline.finish.shape == (30, 8)
    assert np.array_equal(timeline.compute_start[1:], timeline.finish[:-1])
    assert np.allclose(timeline.compute_end - timeline.compute_start, [1, 5, 1, 1, 1, 1, 1, 1])
    assert (timeline.communicate_start >= timeline.compute_end).all()
    (_, communicating, waiting), total = parts(timeline)
    assert (waiting >= -1e-9).all()
    assert (communicating > 0).all(), "every worker is in groups"
    assert total == pytest.approx(timeline.finish[-1].sum())
    met = timeline.communicate_end > timeline.communicate_start
    begins = timeline.communicate_start[met]  # a member of a group begins together with another one
    assert all((begins == begin).sum() >= 2 for begin in begins if begin < timeline.finish[-1].min())


def test_generated_pair_takes_the_time_of_a_static_pair():
    pair = build_generated(Cluster.regular(1, 2), group_size=2, division=GroupSplit.GLOBAL, slow_threshold=None)
    compute = ComputeTimes(base=1.0, slowdown=((1, 3.0),))
    timeline = simulate(pair, Hardware(inside=Link.of_bandwidth(1.0), model_bytes=1), compute=compute, num_rounds=4)
    assert timeline.finish.tolist() == [[4.0, 4.0], [8.0, 8.0], [12.0, 12.0], [16.0, 16.0]]
    assert timeline.waiting().tolist() == [8.0, 0.0]
    assert timeline.per_step() == 4.0


def test_fast_workers_do_not_wait_for_a_deferred_straggler():
    late = {"division": GroupSplit.GLOBAL, "slow_worker_policy": SlowWorkerPolicy.DEFER}
    timeline = simulate(build_generated(Cluster.regular(4, 4), **late), compute=SLOW, num_rounds=60)
    everybody = simulate(build_generated(Cluster.regular(4, 4), **late), compute=ONE_SECOND, num_rounds=60)
    fast = np.delete(timeline.finish[-1], 1)
    assert timeline.finish[-1, 1] >= 5 * 60
    assert fast.mean() < 1.5 * everybody.finish[-1].mean()
    assert timeline.per_step() < 1.6, "the mean over all workers' steps, not the slowest worker's"


def test_only_active_workers_wait_for_answers():
    timeline = simulate(pairwise(), WIRES, compute=SLOW, num_rounds=3)
    assert timeline.finish[:, 4:].tolist() == [[1.0] * 4, [2.0] * 4, [3.0] * 4]
    assert timeline.waiting().tolist() == [0.0] * 8
    # Active and passive workers are on different nodes: a model crosses NICs there and back, a quarter second each if
    # it is alone. Three workers come at a time; then the slow one's question meets theirs.
    assert timeline.finish[:2, 0].tolist() == [2.5, 5.0]
    alone = simulate(pairwise(edges=((0, 4),)), WIRES, compute=ONE_SECOND, num_rounds=3)
    assert alone.finish[:, 0].tolist() == [1.5, 3.0, 4.5]
    assert alone.communicating().tolist() == [1.5] + [0.0] * 7


def test_overlap_hides_an_exchange_behind_the_next_round():
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


def test_active_worker_without_neighbors_continues_alone():
    timeline = simulate(pairwise(edges=((0, 4), (1, 4), (2, 5))), WIRES, compute=ONE_SECOND, num_rounds=2)
    assert timeline.finish[:, 3].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("schedule", [build_generated(), pairwise(), of_groups("p", CLUSTER, [(0, 1)])])
def test_same_seed_gives_the_same_timeline(schedule):
    compute = ComputeTimes(base=1.0, jitter=0.3, disturbance=RandomSlowdown())
    one, two, other = (simulate(schedule, WIRES, compute=compute, num_rounds=12, seed=s).finish for s in (1, 1, 2))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


def test_round_duration_includes_all_steps():
    timeline = simulate(build_generated(steps_per_round=3), compute=ONE_SECOND, num_rounds=5)
    assert np.allclose(timeline.compute_end - timeline.compute_start, 3.0)


def test_zero_compute_time_is_allowed():
    assert simulate(build_generated(), num_rounds=5).per_step() == 0.0
    assert simulate(pairwise(), num_rounds=5).makespan == 0.0


def test_deferred_straggler_round_is_counted_once():
    """A deferred worker computes first, then repeats its request; its round has one entry."""
    ended = []
    seconds = np.tile([1.0, 5.0, 1.0, 1.0], (10, 1))
    setting = GeneratorSetting(nodes=(0, 0, 1, 1), group_size=2, slow_worker_policy=SlowWorkerPolicy.DEFER)
    timing = GroupTiming(seconds, lambda members: 0.25, lambda worker, seq, members: ended.append(worker))
    machine = group_machine(setting, timing, rounds=10, costs=(1, 5, 1, 1))
    machine.run()
    machine.run()
    assert sorted(ended) == [w for w in range(4) for _ in range(10)]
    assert np.array_equal(timing.computed - timing.begun, seconds)
    assert not np.isnan(timing.finish).any()


SIXTEEN = GeneratorSetting(nodes=tuple(w // 4 for w in range(16)), seed=1, slow_worker_policy=SlowWorkerPolicy.DEFER)


class TaskEnd(NamedTuple):
    worker: int
    seq: int
    members: tuple[int, ...]


def steps_of_groups(setting, slow, *, rounds):
    """Run until the fastest worker has done `rounds`: computing takes 1 ± 5 % (times `slow`), groups 0.07 inside a node
    and 0.97 across. Return the rounds, and mean steps of workers on a slow worker's node and of all others."""
    listed, steps, chance = [], [0] * 16, random.Random(setting.seed)

    def record(worker, seq, members):
        listed.append(TaskEnd(worker, seq, members))
        steps[worker] += 1

    timing = GroupTiming(
        np.array([[slow.get(w, 1.0) * chance.uniform(0.95, 1.05) for w in range(16)] for _ in range(rounds + 1)]),
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
def test_deferred_straggler_neither_blocks_others_nor_starves(division):
    """One of 16 workers computes 5 times as long; the others of its node keep up with other nodes."""
    setting = replace(SIXTEEN, division=division)
    listed, same_node, other_nodes = steps_of_groups(setting, {5: 5.0}, rounds=80)
    assert same_node > 0.9 * other_nodes
    assert all(done.members for done in listed if done.worker == 5), "the straggler is in a group in every round"
    local = replace(setting, slow_worker_policy=SlowWorkerPolicy.PAIR_LOCALLY)
    _, same_node, other_nodes = steps_of_groups(local, {5: 5.0}, rounds=80)
    assert same_node < 0.8 * other_nodes


@pytest.mark.parametrize("every", [1, 3, 16])
def test_node_then_all_averages_globally_at_the_given_interval(every):
    """With one slow worker, global groups have all other workers; between two of them only node groups occur."""
    setting = replace(SIXTEEN, division=GroupSplit.NODE_THEN_ALL, all_every=every)
    listed, same_node, other_nodes = steps_of_groups(setting, {5: 5.0}, rounds=100)
    groups = {done.seq: done.members for done in listed if done.members}
    met = [members for members in groups.values() if len({w // 4 for w in members}) > 1]
    assert set(met) == {tuple(w for w in range(16) if w != 5)}
    assert len(met) == pytest.approx(100 / every, rel=0.15)
    assert all(done.members for done in listed if done.worker == 5)
    assert same_node > 0.9 * other_nodes


# Waits, AD-PSGD's throughput, collectives


def both_ways(pairs):
    return [edge for a, b in pairs for edge in ((a, b), (b, a))]


class RecordingTiming(Timing):
    """Records the notes of processes with their times."""

    def __init__(self):
        self.noted = []

    def happened(self, step):
        self.noted += [(step.end, step.process, one.what) for one in step.actions if isinstance(one, Note)]


class FunctionTiming(RecordingTiming):
    """Work seconds by a function of (process, event, rng), message seconds by one of (source, destination)."""

    def __init__(self, seconds, way=lambda source, to: 0.0):
        super().__init__()
        self.seconds, self.wire = seconds, way

    def work(self, process, state, event, rng):
        return self.seconds(process, event, rng)

    def message_seconds(self, source, to, message, rng):
        return self.wire(source, to)


def compute(times, **wire):
    """Return times of Hop's parallel order: updates are sent at the beginning of a step."""
    return FunctionTiming(lambda process, event, rng: times[process] if isinstance(event, Advance) else 0.0, **wire)


def test_slow_message_delays_only_its_receiver():
    pair = Digraph.of(3, [(0, 1), (1, 2)])
    machine = VirtualMachine(
        Hop(pair, IterationGap()), compute([1.0, 1.0, 1.0], way=lambda source, to: 5.0 if source == 0 else 0.0)
    )
    machine.run(until=6.0)
    entered = {(process, what[1]): at for at, process, what in machine.timing.noted if what[0] == "entered"}
    assert entered[0, 1] == 1.0
    assert entered[1, 1] == 5.0
    assert entered[2, 1] == 1.0


def test_adpsgd_fast_workers_do_not_wait():
    pairs = both_ways([(a, b) for a in range(4) for b in range(4, 8)])
    roles = (Role.ACTIVE,) * 4 + (Role.PASSIVE,) * 4
    speed = [1.0, 1.0, 1.0, 5.0]
    machine = VirtualMachine(
        Pairing(Digraph.of(8, pairs), roles),
        FunctionTiming(lambda process, event, rng: speed[process] if isinstance(event, Choose) else 0.0),
        seed=4,
    )
    machine.run(until=200.0)
    steps = [sum(process == worker for _, process, _ in machine.timing.noted) for worker in range(4)]
    assert steps[:3] == [200, 200, 200]
    assert steps[3] == 40
    partners = [what[1] for _, process, what in machine.timing.noted if process == 0]
    assert set(partners) == {4, 5, 6, 7}, "ties between neighbors are drawn"


def test_cyclic_wait_leaves_the_machine_idle():
    triangle = Pairing(Digraph.of(3, both_ways([(0, 1), (1, 2), (2, 0)])), (Role.BOTH,) * 3)
    preferred = {0: 1, 1: 2, 2: 0}
    machine = VirtualMachine(
        triangle,
        FunctionTiming(lambda process, event, rng: 0.0 if event.partner == preferred[process] else 1.0, lambda *_: 1.0),
    )
    machine.run(max_events=100)
    machine.run()
    assert not machine.timing.noted, "every worker has a pending request and none answers"
    assert machine.now == 1.0


def test_negative_times_are_refused():
    ring = Digraph.of(2, [(0, 1), (1, 0)])
    with pytest.raises(InputError, match="finite time >= 0"):
        VirtualMachine(Hop(ring, IterationGap()), FunctionTiming(lambda *_: -1.0)).run(max_events=10)


def test_virtual_machine_scales_to_1000_workers():
    count = 1000
    ring = Digraph.of(count, both_ways([(i, (i + 1) % count) for i in range(count)]))
    machine = VirtualMachine(Hop(ring, IterationGap(max_ig=2)), compute([1.0] * count))
    machine.run(until=5.0)
    assert sum(what == ("entered", 5) for _, _, what in machine.timing.noted) == count


class Pair:
    """Processes 0 and 1 have one collective; process 2 cancels the participation of process 0."""

    num_processes = 3
    channels = ((2, 0),)

    def start(self, process):
        return True, ()

    def ready(self, process, state):
        return (("call off" if process == 2 else "meet"),) if state else ()

    def step(self, process, state, event):
        if event == "call off":
            return False, (Send(0, "stay away"),)
        return False, () if isinstance(event, Received) else (Note("met"),)


class PairTimes(RecordingTiming):
    """Process p arrives after `comes[p]`; the collective takes 2."""

    def __init__(self, *comes):
        super().__init__()
        self.comes, self.steps = comes, []

    def work(self, process, state, event, rng):
        return self.comes[process]

    def meeting(self, process, state, event):
        return Meeting("only", (0, 1), 2.0) if event == "meet" else None

    def happened(self, step):
        super().happened(step)
        self.steps.append((step.process, step.work_end, step.start, step.end))


def test_collective_starts_with_the_last_member_and_ends_together():
    times = PairTimes(1.0, 3.0, None)
    machine = VirtualMachine(Pair(), times)
    machine.run()
    machine.run()
    assert [(at, process) for at, process, _ in times.noted] == [(5.0, 0), (5.0, 1)], "in the order of the members"
    assert times.steps == [(0, 1.0, 3.0, 5.0), (1, 3.0, 3.0, 5.0)]


@pytest.mark.parametrize("called_off", [0.5, 2.0, 4.0])
def test_canceled_member_leaves_the_collective(called_off):
    """Canceling before or during the wait prevents the collective; later, only the other member finishes."""
    times = PairTimes(1.0, 3.0, called_off)
    VirtualMachine(Pair(), times).run()
    assert [(at, process) for at, process, _ in times.noted] == ([(5.0, 1)] if called_off == 4.0 else [])
