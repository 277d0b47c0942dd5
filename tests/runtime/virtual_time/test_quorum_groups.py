"""Quorums of groups in virtual time: hand-made runs, and what slow workers cost with and without them."""

from __future__ import annotations

import numpy as np
import pytest

from partreduce.runtime.virtual_time.machine import VirtualMachine
from partreduce.runtime.virtual_time.predict import predict
from partreduce.runtime.virtual_time.quorum import QuorumTiming, Waiting
from partreduce.runtime.virtual_time.simulate import simulate
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import Quorum, Static
from partreduce.topo.timing.compute import ComputeTimes, RandomSlowdown

CLUSTER = Cluster.regular(4, 4)
NODES = build("node-then-all", CLUSTER)
CHAIN = {0: {0: (0, 1), 1: (0, 1), 2: (2,)}, 1: {0: (0,), 1: (1, 2), 2: (1, 2)}}


def run(setting, seconds, groups, *, sum_seconds=0.0):
    """The timing of a run in which each worker computes so long for each of its calls, (num_rounds, n)."""
    table = np.array(seconds, dtype=np.float64)

    def group_of(worker, round_):
        return groups[round_ % len(groups)][worker]

    def of_sum(worker, round_):
        return sum_seconds if len(group_of(worker, round_)) > 1 else 0.0

    timing = QuorumTiming(table, lambda source, to: 0.0, of_sum, group_of, grace=setting.grace * 1e-6)
    machine = Waiting(setting, table.shape[1], group_of=group_of, collective=False)
    VirtualMachine(machine, timing).run()
    return timing


def test_a_chain_by_hand():
    # Round 0: worker 0 comes at 1 and starts {0, 1}; worker 2 rests until its own call at 2. Round 1: worker 2 comes at
    # 4 and starts {1, 2}, which worker 1 joins with what it has, nothing; worker 0 rests until its second call at 2.5.
    timing = run(Quorum(quorum="solo"), [[1, 10, 2], [1, 10, 2]], CHAIN, sum_seconds=0.5)
    assert timing.sums[0].tolist() == [[1.0, 1.0, 2.0], [2.5, 4.0, 4.0]]
    assert timing.sums[1].tolist() == [[1.5, 1.5, 2.0], [2.5, 4.5, 4.5]]
    assert timing.finish.tolist() == [[1.5, 10.0, 2.0], [2.5, 10.0, 4.5]]
    assert timing.gradients.tolist() == [[1, 0, 1], [1, 0, 1]]
    assert timing.summed.tolist() == [[1.0, 2.5], [2.0, 4.5]]


def test_a_group_waits_for_a_member_that_is_in_an_earlier_round():
    pairs = {0: {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}, 1: {0: (0, 2), 2: (0, 2), 1: (1, 3), 3: (1, 3)}}
    timing = run(Quorum(quorum="solo"), [[1, 1, 8, 9], [1, 1, 8, 9]], pairs)
    assert timing.sums[0].tolist() == [[1.0, 1.0, 8.0, 8.0], [8.0, 8.0, 8.0, 8.0]], "nobody of {2, 3} has come before 8"


def test_grace_waits_for_a_workers_own_progress():
    everybody = {0: {0: (0, 1), 1: (0, 1)}}
    late = run(Quorum(quorum="solo"), [[1.0, 1.25]], everybody)
    assert (late.summed[0].tolist(), late.gradients.tolist()) == ([1.0], [[1, 0]])
    waited = run(Quorum(quorum="solo", grace=500_000), [[1.0, 1.25]], everybody)
    assert (waited.summed[0].tolist(), waited.gradients.tolist()) == ([1.25], [[1, 1]])


def calls_a_second(compute, *, rounds=120, **members):
    """Calls and rounds a second after a quarter of the rounds, and the largest age; of lockstep the first."""
    first = rounds // 4
    if not members:
        return CLUSTER.num_workers / simulate(NODES, compute=compute, num_rounds=rounds).per_step(warm_up=first)
    schedule = Schedule("s", CLUSTER, Static(phases=NODES.strategy.phases, when=Quorum(**members)))
    observed = simulate(schedule, compute=compute, num_rounds=rounds).observed
    return *observed.quorum.rates(warm_up=first)[::-1], observed.largest_age


def test_one_worker_five_times_slow_holds_up_nobody_but_itself():
    slow = ComputeTimes(base=1.0, slowdown=((7, 5.0),), jitter=0.02)
    lockstep = calls_a_second(slow)
    assert lockstep == pytest.approx(16 / 5, rel=0.02)
    two, _, age = calls_a_second(slow, quorum=2, staleness=16)
    assert two == pytest.approx(15 + 1 / 5, rel=0.03), "all that workers can compute"
    assert age <= 16
    _, rounds, age = calls_a_second(slow, quorum=2, staleness=2)
    assert (rounds, age) == (pytest.approx(2 / 5, rel=0.05), 2), "two rounds for each call of the slow one"
    every, _, _ = calls_a_second(slow, quorum=8, staleness=16)
    assert every < 1.5 * lockstep, "a quorum of 8 asks for all four of a node"


def test_random_slowdowns_cost_less():
    random = ComputeTimes(base=1.0, disturbance=RandomSlowdown(6.0), jitter=0.02)
    lockstep = calls_a_second(random)
    assert calls_a_second(random, quorum=2, staleness=8)[0] > 2 * lockstep


def test_words_and_sums_take_their_time():
    hardware = Hardware(inside=Link(1e-5, 1e-10), nic=Link(1e-4, 1e-9), model_bytes=2_000_000)
    schedule = Schedule("s", CLUSTER, Static(phases=NODES.strategy.phases, when=Quorum(quorum=3), pace=2, prologue=1))
    compute = ComputeTimes(base=0.01, jitter=0.5)
    timeline = simulate(schedule, hardware, compute=compute, num_rounds=40, seed=3)
    assert (np.diff(timeline.finish, axis=0) >= 0).all()
    assert (timeline.waiting() >= 0).all()
    record = timeline.observed.quorum
    of_all = np.array([round_ < 1 or len(schedule.group_of(0, round_).members) == 16 for round_ in range(40)])
    assert (record.active[of_all] >= 3).all(), "a round of all asks for three"
    assert (record.active[~of_all] >= 12).all(), "one in nodes for three of each"
    again = simulate(schedule, hardware, compute=compute, num_rounds=40, seed=3)
    assert again.makespan == timeline.makespan
    found = predict(schedule, hardware, compute=compute, num_rounds=40)
    assert (found.how, found.arrays) == ("simulated", 4)
