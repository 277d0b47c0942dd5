"""Fragments in turn, merged late, as seconds: by hand, in virtual time and by the event graph alike."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from partreduce.planner.predict import predict
from partreduce.schedulers.registry import build
from partreduce.schedulers.simulator.simulate import simulate
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, DelayedMerge, OuterStep, Payload, Synchronous
from partreduce.topo.strategies.payload import round_ends
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.cost import communication
from partreduce.topo.timing.event_graph import cycle_time
from partreduce.topo.timing.stages import sample

LATENCY, INVERSE, SIZE = 0.01, 1e-9, 4 * 10**8


def hardware():
    return Hardware(nic=Link(LATENCY, INVERSE), model_bytes=SIZE, compute=0.1)


def schedule(steps_per_round, fragments=1, steps=0, alpha=0, n=4):
    sync = DelayedMerge(steps=steps, alpha=alpha) if steps or alpha else Synchronous()
    payload = Payload(outer=OuterStep(lr=0.7), fragments=fragments)
    return Schedule("s", Cluster.regular(n, 1), AllReduce(steps_per_round=steps_per_round, sync=sync, payload=payload))


def seconds_of_sum(share, n=4):
    """A ring of n nodes of one worker."""
    return 2 * (n - 1) * LATENCY + 2 * (n - 1) / n * SIZE * share * INVERSE


def by_hand(streaming, times, num_rounds):
    """When every worker is done with so many rounds, and the last sum is: step by step, one sum after the other."""
    strategy = streaming.strategy
    steps_per_round, count, late = strategy.steps_per_round, strategy.payload.num_fragments, strategy.sync.late_steps
    now, free, over = np.zeros(len(times)), 0.0, {}
    for step in range(1, num_rounds * steps_per_round + 1):
        now = now + times
        ends = [(number, (number + 1) * steps_per_round // count) for number in range(count)]
        merged = [number for number, end in ends if (step - end) % steps_per_round == 0 and step > late]
        if late:
            now = np.maximum(now, max((over[number] for number in merged), default=0))
        for number, end in ends:
            if (step + late - end) % steps_per_round == 0:
                free = over[number] = max(now.max(), free) + seconds_of_sum(1 / count)
        now = np.maximum(now, max((over[number] for number in merged), default=0))
    return now, free


@pytest.mark.parametrize("seed", range(25))
def test_a_round_of_equal_workers_takes_what_turns_do_not_hide(seed):
    draw = random.Random(seed)
    steps_per_round = draw.randint(1, 20)
    fragments = draw.randint(1, min(steps_per_round, 5))
    late = draw.randrange(steps_per_round // fragments)
    streaming = schedule(steps_per_round, fragments, late)
    each, expected, before = seconds_of_sum(1 / fragments), 0.0, 0
    for end in round_ends(fragments, steps_per_round):
        expected += max((end - before) * 0.1, (end - before - late) * 0.1 + each)
        before = end
    assert cycle_time(streaming, hardware()).per_round == pytest.approx(expected)
    assert simulate(streaming, hardware(), num_rounds=5).per_step() == pytest.approx(expected / steps_per_round)
    sampled = sample(streaming, hardware(), ComputeTimes.of(hardware()), num_rounds=4, num_samples=2)
    assert sampled.per_round == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(50))
def test_of_unequal_workers_event_graph_and_virtual_time_say_the_same(seed):
    """Also where several fragments are in flight, some of them from one round to the next."""
    draw = random.Random(seed)
    steps_per_round = draw.randint(1, 12)
    fragments = draw.randint(1, min(steps_per_round, 4))
    streaming = schedule(steps_per_round, fragments, draw.randrange(steps_per_round), "1/2")
    slow = ComputeTimes(base=0.1, slowdown=tuple((worker, draw.choice([1.0, 1.5, 4.0])) for worker in range(4)))
    exact = cycle_time(streaming, hardware(), slow)
    run = simulate(streaming, hardware(), compute=slow, num_rounds=80)
    assert run.per_step(warm_up=20) == pytest.approx(exact.per_step)
    now, free = by_hand(streaming, slow.fixed(4), 80)
    np.testing.assert_allclose(run.finish[-1], now)
    assert run.makespan == pytest.approx(max(now.max(), free))


@pytest.mark.parametrize("seed", range(20))
def test_at_unequal_steps_per_round_each_turn_waits_for_the_last_workers_share_of_its_own_steps(seed):
    draw = random.Random(seed)
    fragments = draw.randint(2, 4)
    worker_steps = tuple(draw.randint(fragments, 12) for _ in range(4))
    streaming = schedule(worker_steps, fragments)
    slow = ComputeTimes(base=0.1, slowdown=tuple((worker, draw.choice([1.0, 1.5, 4.0])) for worker in range(4)))
    ends = np.array([[0, *round_ends(fragments, steps_per_round)] for steps_per_round in worker_steps]).T
    each = [(slow.fixed(4) * (after - before)).max() for before, after in pairwise(ends)]
    expected = sum(each) + fragments * seconds_of_sum(1 / fragments)
    assert cycle_time(streaming, hardware(), slow).per_round == pytest.approx(expected)
    run = simulate(streaming, hardware(), compute=slow, num_rounds=6)
    assert run.makespan == pytest.approx(6 * expected)


@pytest.mark.parametrize("name", ["node-then-all", "prague-figure-10", "one-peer-hypercube"])
def test_fragments_over_groups_take_as_long_in_virtual_time_as_the_event_graph_says(name):
    base = build(name, Cluster.parse("4x4"))
    turns = Schedule("s", base.cluster, replace(base.strategy, steps_per_round=7, payload=Payload(fragments=3)))
    run = simulate(turns, hardware(), num_rounds=48)
    assert run.per_step(warm_up=24) == pytest.approx(cycle_time(turns, hardware()).per_step)
    whole = Schedule("s", base.cluster, replace(base.strategy, steps_per_round=7))
    costs = communication(whole, hardware()), communication(turns, hardware())
    assert costs[1].nic_bytes_per_step == pytest.approx(costs[0].nic_bytes_per_step)
    assert costs[1].peak_nic_bytes == pytest.approx(costs[0].peak_nic_bytes / 3)


def test_streaming_sends_the_same_bytes_with_a_peak_of_one_fragment():
    whole, parts = schedule(12), schedule(12, 4, 2)
    costs = communication(whole, hardware()), communication(parts, hardware())
    assert costs[0].nic_bytes_per_step == pytest.approx(costs[1].nic_bytes_per_step)
    assert costs[0].peak_nic_bytes == pytest.approx(1.5 * SIZE)
    assert costs[1].peak_nic_bytes == pytest.approx(1.5 * SIZE / 4)
    assert costs[1].per_round - costs[0].per_round == pytest.approx(3 * 6 * LATENCY)
    answer = predict(parts, hardware())
    assert (answer.largest_age, answer.peak_nic_bytes) == (2, costs[1].peak_nic_bytes)


def test_a_sum_that_fits_into_the_window_costs_nothing():
    """0.66 s for all, 0.21 s for a quarter: hidden behind three steps of 0.1 s, not behind two."""
    assert cycle_time(schedule(12, 4, 2), hardware()).per_step == pytest.approx(0.1 + 4 * 0.01 / 12)
    assert cycle_time(schedule(16, 4, 3), hardware()).per_step == pytest.approx(0.1)
    assert cycle_time(schedule(16), hardware()).per_step == pytest.approx(0.1 + 0.66 / 16)
