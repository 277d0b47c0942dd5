"""Quorums in virtual time: manual calculations, published limits, and the cost of slow workers."""

import numpy as np
import pytest

from partreduce import Cluster, Hardware, Link, Schedule, predict, simulate
from partreduce.schedulers.simulator.machine import VirtualMachine
from partreduce.schedulers.simulator.quorum import QuorumTiming, Waiting
from partreduce.strategies import AllReduce, PartialAllReduce
from partreduce.types import ComputeTimes


def run(setting, seconds, *, sum_seconds=0.0, initiators=None, way=0.0):
    """Return the timing of a run with compute seconds per call and worker, (num_rounds, n)."""
    table = np.array(seconds, dtype=np.float64)
    machine = Waiting(setting, table.shape[1], initiators=initiators, collective=False)
    timing = QuorumTiming(table, lambda source, to: way, sum_seconds, grace=setting.grace * 1e-6)
    VirtualMachine(machine, timing).run()
    return timing


def test_solo_rounds_match_manual_calculation():
    # Worker 0 starts round 0 at 1 and has it at 1.5; its call at 2.5 starts round 1, which worker 1 joins only when it
    # has taken round 0 at its own call at 3 (C is 1). What it computes then is taken with round 1 at 6.
    timing = run(PartialAllReduce(quorum="solo", staleness=1), [[1, 3], [1, 3]], sum_seconds=0.5)
    assert timing.finish.tolist() == [[1.5, 3.0], [3.5, 6.0]]
    assert timing.begun.tolist() == [[0.0, 0.0], [1.5, 3.0]]
    assert timing.computed.tolist() == [[1.0, 3.0], [2.5, 6.0]]
    assert timing.summed.tolist() == [[1.0, 3.0], [1.5, 3.5]]
    assert timing.gradients.tolist() == [[1, 0], [1, 1]]
    assert timing.ages == [0, 0, 1]


def test_longer_queue_avoids_waiting_for_a_slow_worker():
    timing = run(PartialAllReduce(quorum="solo", staleness=2), [[1, 3.25], [1, 3.25]], sum_seconds=0.5)
    assert timing.finish.tolist() == [[1.5, 3.25], [3.0, 3.25]]
    assert timing.begun[1, 1] == timing.computed[1, 1] == 3.25, "one call takes both results"


@pytest.mark.parametrize("size", [4, 16, 32])
def test_latencies_under_linear_skew_match_published_limits(size):
    """Majority waits 3P/(P+1) times less than all-reduce on average, a quorum of P/2 4(P-1)/(P-2) times less."""
    skew = [list(range(size))]
    everybody = (size - 1) / 2

    def latency(timing):
        return float(np.maximum(timing.finish - timing.computed, 0).mean())

    majority = [latency(run(PartialAllReduce(quorum="majority"), skew, initiators=(first,))) for first in range(size)]
    assert everybody / np.mean(majority) == pytest.approx(3 * size / (size + 1), rel=1e-12)
    active = [
        run(PartialAllReduce(quorum="majority"), skew, initiators=(first,)).gradients.sum() for first in range(size)
    ]
    assert np.mean(active) == (size + 1) / 2
    half = run(PartialAllReduce(quorum=size // 2), skew)
    assert everybody / latency(half) == pytest.approx(4 * (size - 1) / (size - 2), rel=1e-12)
    assert half.gradients.sum() == size // 2
    assert latency(run(PartialAllReduce(quorum="solo"), skew)) == 0


SLOW = ComputeTimes(base=1.0, slowdown=((7, 5.0),), jitter=0.02)


def against_all_reduce(*, rounds=200, **members):
    """Return (gradient rate over all-reduce's 8/5, active workers per round, largest age), 1 of 8 workers 5x slower."""
    schedule = Schedule("s", Cluster.regular(8, 1), AllReduce(sync=PartialAllReduce(**members)))
    observed = simulate(schedule, Hardware(), compute=SLOW, num_rounds=rounds, seed=1).observed
    first = rounds // 4
    rate = observed.quorum.rates(warm_up=first)[1] / (8 / 5)
    return rate, float(observed.quorum.active[first:].mean()), observed.largest_age


def test_quorum_throughput_with_one_worker_five_times_slower():
    """With count="call" all workers end up waiting for the slow one; with count="open-round" they do not."""
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
def test_slow_workers_queue_bounds_rounds_and_ages(capacity):
    rate, _, age = against_all_reduce(quorum="solo", staleness=capacity, rounds=60)
    assert age == capacity, "attained"
    schedule = Schedule("s", Cluster.regular(8, 1), AllReduce(sync=PartialAllReduce(quorum="solo", staleness=capacity)))
    observed = simulate(schedule, Hardware(), compute=SLOW, num_rounds=60).observed
    assert observed.quorum.rates(warm_up=15)[0] == pytest.approx(capacity / 5, rel=0.1)
    assert rate <= 4.5 + 1e-9


def test_quorum_sums_take_time_and_run_one_at_a_time():
    hardware = Hardware(inside=Link(1e-5, 1e-10), nic=Link(1e-4, 1e-9), model_bytes=2_000_000)
    schedule = Schedule("s", Cluster.regular(2, 2), AllReduce(sync=PartialAllReduce(quorum=2)))
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
    assert found.arrays == 10, "mean model, send buffer, four queued results, four applied ones"
    assert found.largest_age <= 4


def test_grace_period_matches_manual_calculation():
    # Worker 0 arrives at 1, worker 1 at 1.5: within a grace of 0.75 s the round waits for worker 1, and no longer.
    both = run(PartialAllReduce(quorum="solo", grace=750_000), [[1, 1.5]] * 3, sum_seconds=0.25)
    assert both.gradients.tolist() == [[1, 1]] * 3
    assert both.summed[0].tolist() == [1.5, 3.25, 5.0]
    assert both.ages == [0] * 6
    # A grace of 0.25 s ends at 1.25; worker 1 arrives at 1.5, after round 0, and starts round 1. The thread of worker
    # 0, whose next call is at 2.5, waits for that call until 1.75. In every later round the grace also expires.
    one = run(PartialAllReduce(quorum="solo", grace=250_000), [[1, 1.5]] * 3, sum_seconds=0.25)
    assert one.summed[0].tolist() == [1.25, 1.75, 2.75]
    assert one.gradients.tolist() == [[1, 0], [0, 1], [1, 0]]
    assert one.finish.T.tolist() == [[1.5, 2.5, 3.5], [1.5, 3.0, 3.0]]
    # The message that starts the round takes 0.125 s, and grace begins on its arrival.
    later = run(PartialAllReduce(quorum="solo", grace=250_000), [[1, 1.5]] * 3, sum_seconds=0.25, way=0.125)
    assert later.summed[0, 0] == 1.375


def test_model_synchronization_matches_manual_calculation():
    # Worker 0 has round 0 at 1.5 and waits with its model for worker 1, which takes it at 3; the mean takes 0.5 s. Only
    # then threads enter round 1, which worker 1 started with its call at 3; both compute from 3.5 on.
    timing = run(PartialAllReduce(quorum="solo", missed="latest", synchronize_every=1), [[1, 3]] * 2, sum_seconds=0.5)
    assert timing.summed.tolist() == [[1.0, 3.5], [1.5, 4.0]]
    assert timing.finish.tolist() == [[3.5, 3.5], [7.0, 7.0]]
    assert timing.begun.tolist() == [[0.0, 0.0], [3.5, 3.5]]
    assert timing.gradients.tolist() == [[1, 0], [0, 1]]
    assert (timing.rounds, timing.ages) == ([0, 1], [0, 1])
    # Every second round: worker 0 does not wait after round 0, and worker 1 takes both at its call.
    timing = run(
        PartialAllReduce(quorum="solo", missed="latest", synchronize_every=2), [[1, 3.25]] * 2, sum_seconds=0.5
    )
    assert timing.summed[0].tolist() == [1.0, 2.5]
    assert timing.finish.tolist() == [[1.5, 3.25], [3.75, 3.75]]


def test_grace_period_gathers_similarly_fast_workers():
    """Solo rounds have few of eight workers; with a grace period of several times their jitter they have all."""
    hardware = Hardware(inside=Link(1e-5, 1e-10), nic=Link(1e-4, 1e-9), model_bytes=2_000_000)
    compute = ComputeTimes(base=0.02, jitter=0.05)

    def run_solo(**members):
        schedule = Schedule("s", Cluster.regular(2, 4), AllReduce(sync=PartialAllReduce(quorum="solo", **members)))
        return simulate(schedule, hardware, compute=compute, num_rounds=60, seed=2).observed

    alone, met = run_solo(), run_solo(grace=8000)
    assert alone.quorum.active[15:].mean() < 4
    assert met.quorum.active[15:].mean() == 8
    assert met.mean_age < alone.mean_age
    record = alone.quorum
    assert record.oldest().max() == alone.largest_age
    assert record.shares_of_ages().sum() == pytest.approx(1)
    assert len(record.ages) == record.gradients.sum()
    plain, mean = run_solo(missed="latest"), run_solo(missed="latest", synchronize_every=10)
    assert mean.nic_bytes == pytest.approx(plain.nic_bytes * 66 / 60)
    assert mean.largest_age <= 10
