"""A quorum in virtual time: hand-made runs, the published limits, and what a slow worker costs under each setting."""

from __future__ import annotations

import numpy as np
import pytest

from preduce.runtime.virtual_time.machine import VirtualMachine
from preduce.runtime.virtual_time.partial import PartialTiming
from preduce.runtime.virtual_time.predict import predict
from preduce.runtime.virtual_time.simulate import simulate
from preduce.schedulers.protocols.partial import Partial
from preduce.topo.cluster import Cluster
from preduce.topo.errors import MissingFeatureError
from preduce.topo.hardware import Hardware, Link
from preduce.topo.schedule import Schedule
from preduce.topo.strategies import AllReduce, Quorum
from preduce.topo.timing.compute import ComputeTimes


def run(setting, seconds, *, sum_seconds=0.0, initiators=None):
    """The timing of a run in which each worker computes so long for each of its gradients, (num_rounds, n)."""
    table = np.array(seconds, dtype=np.float64)
    timing = PartialTiming(table, lambda source, to: 0.0, sum_seconds=sum_seconds)
    machine = Partial(setting, table.shape[1], initiators=initiators, collective=False)
    VirtualMachine(machine, timing).run()
    return timing


def test_a_solo_round_by_hand():
    # Worker 0 starts round 0 at 1 and has it at 1.5; its call at 2.5 starts round 1, which worker 1 joins only when it
    # has taken round 0 at its own call at 3 (C is 1). What it computes then is taken with round 1 at 6.
    timing = run(Quorum(quorum="solo", staleness=1), [[1, 3], [1, 3]], sum_seconds=0.5)
    assert timing.finish.tolist() == [[1.5, 3.0], [3.5, 6.0]]
    assert timing.begun.tolist() == [[0.0, 0.0], [1.5, 3.0]]
    assert timing.computed.tolist() == [[1.0, 3.0], [2.5, 6.0]]
    assert timing.summed.tolist() == [[1.0, 3.0], [1.5, 3.5]]
    assert timing.gradients.tolist() == [[1, 0], [1, 1]]
    assert timing.ages == [0, 0, 1]


def test_with_a_longer_queue_nobody_waits_for_the_slow_one():
    timing = run(Quorum(quorum="solo", staleness=2), [[1, 3.25], [1, 3.25]], sum_seconds=0.5)
    assert timing.finish.tolist() == [[1.5, 3.25], [3.0, 3.25]]
    assert timing.begun[1, 1] == timing.computed[1, 1] == 3.25, "both results in one call: the second row is empty"


@pytest.mark.parametrize("size", [4, 16, 32])
def test_latencies_under_a_linear_skew_have_the_published_limits(size):
    """Majority waits 3P/(P+1) times less than all-reduce on average, a quorum of half of them 4(P-1)/(P-2) times."""
    skew = [list(range(size))]
    everybody = (size - 1) / 2

    def latency(timing):
        return float(np.maximum(timing.finish - timing.computed, 0).mean())

    majority = [latency(run(Quorum(quorum="majority"), skew, initiators=(first,))) for first in range(size)]
    assert everybody / np.mean(majority) == pytest.approx(3 * size / (size + 1), rel=1e-12)
    active = [run(Quorum(quorum="majority"), skew, initiators=(first,)).gradients.sum() for first in range(size)]
    assert np.mean(active) == (size + 1) / 2
    half = run(Quorum(quorum=size // 2), skew)
    assert everybody / latency(half) == pytest.approx(4 * (size - 1) / (size - 2), rel=1e-12)
    assert half.gradients.sum() == size // 2
    assert latency(run(Quorum(quorum="solo"), skew)) == 0


SLOW = ComputeTimes(base=1.0, slowdown=((7, 5.0),), jitter=0.02)


def against_all_reduce(*, rounds=200, **members):
    """(gradients a second over all-reduce's 8/5, active workers a round, largest age); one of 8 is 5 times slow."""
    schedule = Schedule("s", Cluster.regular(8, 1), AllReduce(when=Quorum(**members)))
    observed = simulate(schedule, Hardware(), compute=SLOW, num_rounds=rounds, seed=1).observed
    first = rounds // 4
    rate = observed.quorum.rates(warm_up=first)[1] / (8 / 5)
    return rate, float(observed.quorum.active[first:].mean()), observed.largest_age


def test_one_worker_five_times_slow():
    """What late arrivals count for decides: by call all wait for the slow one at last, by open round they do not."""
    by_call, _, _ = against_all_reduce(quorum="majority", count="call", missed="latest")
    assert by_call == pytest.approx(1.0, abs=0.03)
    majority, active, _ = against_all_reduce(quorum="majority", staleness=32)
    assert majority > 3
    assert active == pytest.approx(4.5, abs=0.3)
    solo, alone, _ = against_all_reduce(quorum="solo", staleness=64)
    assert solo > 4
    assert alone < 1.5
    most, active, _ = against_all_reduce(quorum=7, staleness=32)
    assert most == pytest.approx((7 + 1 / 5) / (8 / 5), rel=0.05)
    assert active == pytest.approx(7, abs=0.1)


@pytest.mark.parametrize("capacity", [1, 2, 4])
def test_the_slow_workers_queue_bounds_rounds_and_ages(capacity):
    rate, _, age = against_all_reduce(quorum="solo", staleness=capacity, rounds=60)
    assert age == capacity, "attained"
    schedule = Schedule("s", Cluster.regular(8, 1), AllReduce(when=Quorum(quorum="solo", staleness=capacity)))
    observed = simulate(schedule, Hardware(), compute=SLOW, num_rounds=60).observed
    assert observed.quorum.rates(warm_up=15)[0] == pytest.approx(capacity / 5, rel=0.1)
    assert rate <= 4.5 + 1e-9


def test_every_gradient_counts_once_and_words_and_sums_take_their_time():
    hardware = Hardware(inside=Link(1e-5, 1e-10), nic=Link(1e-4, 1e-9), model_bytes=2_000_000)
    schedule = Schedule("s", Cluster.regular(2, 2), AllReduce(when=Quorum(quorum=2)))
    compute = ComputeTimes(base=0.01, jitter=0.5)
    timeline = simulate(schedule, hardware, compute=compute, num_rounds=50, seed=3)
    assert (np.diff(timeline.finish, axis=0) >= 0).all()
    assert (timeline.waiting() >= 0).all()
    summed = timeline.observed.quorum.summed
    one = float(np.diff(summed[:, 0])[0])
    assert np.diff(summed, axis=0) == pytest.approx(one)
    assert (summed[0, 1:] >= summed[1, :-1]).all(), "one at a time"
    assert (timeline.observed.quorum.active >= 2).all()
    assert simulate(schedule, hardware, compute=compute, num_rounds=50, seed=3).makespan == timeline.makespan
    found = predict(schedule, hardware, compute=compute, num_rounds=50)
    assert found.how == "simulated"
    assert found.arrays == 5
    assert found.largest_age <= 4


def test_what_virtual_time_does_not_know_is_refused():
    schedule = Schedule("s", Cluster.regular(2, 2), AllReduce(when=Quorum(quorum="solo", grace=500)))
    with pytest.raises(MissingFeatureError, match=r"when\.quorum\.grace: is 500; virtual time knows none"):
        simulate(schedule, num_rounds=2)
