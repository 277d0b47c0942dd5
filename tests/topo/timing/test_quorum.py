"""Many rounds of a quorum, by hand and against virtual time."""

import numpy as np
import pytest

from partreduce import Cluster, Hardware, Link, Schedule, simulate
from partreduce.strategies import AllReduce, PartialAllReduce
from partreduce.topo.timing.quorum import ManyRounds, balance, sample_seconds
from partreduce.types import ComputeTimes, RandomDelay, RandomSlowdown, RotatingDelay


def in_step(seconds, setting, *, word=0.0, sum_seconds=0.0):
    """The other extreme: workers that begin each round together, as far as it waits for them."""
    needed = 1 if setting.quorum == "majority" else setting.needed(seconds.shape[1])
    starts = seconds.T if setting.quorum == "majority" else [np.sort(seconds, axis=1)[:, needed - 1]]
    period = float(np.mean([come.mean() for come in starts])) + word + sum_seconds
    return ManyRounds(period, float((period / np.maximum(seconds, period).mean(axis=0)).sum()))


def test_many_rounds_by_hand():
    # Seven workers of 1 s and one of 5 s bring 7.2 gradients a second, whoever starts rounds up to 7 of them.
    seconds = np.array([[1.0] * 7 + [5.0]])
    for number in ("solo", 2, 4, 7):
        found, needed = balance(seconds, PartialAllReduce(quorum=number)), 1 if number == "solo" else number
        assert found.active == pytest.approx(needed)
        assert found.gradients_per_second == pytest.approx(7.2)
    # A sum of 0.5 s lets no more than two rounds a second happen.
    assert balance(seconds, PartialAllReduce(quorum=2), sum_seconds=0.5).active == pytest.approx(3.6)
    # In step the seven go from round to round, and the slow one is in every fifth and sixth.
    found = in_step(seconds, PartialAllReduce(quorum=7), word=0.05, sum_seconds=0.05)
    assert (found.seconds, found.active) == (pytest.approx(1.1), pytest.approx(7 + 1.1 / 5))
    # Majority among equals: half a step, and a whole one with probability 1/n, so (n+1)/2n of it; all compute always.
    even = balance(np.ones((1, 8)), PartialAllReduce(quorum="majority"))
    assert even.seconds == pytest.approx(9 / 16, rel=0.1)
    assert even.gradients_per_second <= 8 + 1e-9
    assert balance(np.zeros((1, 4)), PartialAllReduce(quorum="solo")).gradients_per_second == float("inf")
    assert balance(np.zeros((1, 4)), PartialAllReduce(quorum="majority"), sum_seconds=1.0).seconds == 1.0


CASES = [
    (ComputeTimes(base=1.0, jitter=0.3), 0.1, ("solo", "majority", 4, 7)),
    (ComputeTimes(base=1.0, slowdown=((7, 5.0),), jitter=0.02), 0.1, ("solo", "majority", 7)),
    (ComputeTimes(base=1.0, jitter=0.02, disturbance=RandomSlowdown(6.0)), 0.001, (4, 7)),
    (ComputeTimes(base=0.4, jitter=0.02, disturbance=RandomDelay(1, 0.4)), 0.001, ("majority", 7)),
    (ComputeTimes(base=0.4, jitter=0.02, disturbance=RotatingDelay(0.05, 0.4)), 0.1, (4, 7)),
]


@pytest.mark.parametrize(("compute", "sum_seconds", "numbers"), CASES)
def test_virtual_time_lies_between_free_workers_and_such_in_step(compute, sum_seconds, numbers):
    """Gradients a second of 8 workers, within an eighth; up to half of the workers they are free, also by majority."""
    hardware = Hardware(inside=Link(1e-5), nic=Link(1e-4, sum_seconds / 1.75e6), model_bytes=1_000_000)
    seconds = sample_seconds(compute, 8)
    for number in numbers:
        schedule = Schedule("s", Cluster.regular(8, 1), AllReduce(sync=PartialAllReduce(quorum=number, staleness=64)))
        record = simulate(
            schedule, hardware, compute=compute, num_rounds=300 if number == 7 else 120, seed=1
        ).observed.quorum
        costs = {"word": 1e-4, "sum_seconds": float((record.summed[1] - record.summed[0]).mean())}
        rate = record.rates(warm_up=30)[1]
        free, step = (many(seconds, schedule.strategy.sync, **costs) for many in (balance, in_step))
        least, most = sorted((free.gradients_per_second, step.gradients_per_second))
        assert least * 0.875 < rate < most * 1.125, number
        if number != 7:
            assert rate == pytest.approx(free.gradients_per_second, rel=0.15), number
