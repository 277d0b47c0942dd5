"""Tables that go their own way in virtual time: all meet in every step, wherever else they would go by themselves."""

from dataclasses import replace

import numpy as np
import pytest

from partreduce import Cluster, Hardware, Link, Schedule, predict, simulate
from partreduce.errors import InputError, MissingDependencyError
from partreduce.strategies import Phase
from partreduce.topo.strategies import (
    AllReduce,
    DelayedAveraging,
    GroupPhases,
    Payload,
    Pipeline,
    Server,
    StaticGroups,
    TablePlacement,
)
from partreduce.topo.timing.cost import communication
from partreduce.topo.timing.tables import exchanges
from partreduce.types import ComputeTimes, RowAccess

CLUSTER = Cluster.regular(2, 2)
PAYLOAD = Payload(tables=(TablePlacement(parameter="words.weight", rows=1000, columns=16),))
TOUCHED = {"words.weight": RowAccess(0.1, 0.15, 0.3)}
HARDWARE = Hardware(inside=Link(1e-5, 1e-9), nic=Link(1e-4, 1e-7), model_bytes=10_000)
TABLES = exchanges(PAYLOAD, TOUCHED, CLUSTER, HARDWARE)
TIMES = ComputeTimes(base=0.01, slowdown=((3, 4.0),))


def schedule(strategy):
    return Schedule("s", CLUSTER, replace(strategy, payload=PAYLOAD))


def pairs(**members):
    """Only one pair at a time averages, the others go on."""
    phases = tuple(Phase.from_groups(4, [pair]) for pair in ([0, 1], [2, 3]))
    return StaticGroups(phases=GroupPhases(phases), **members)


def test_a_step_takes_the_slowest_computing_the_exchange_and_the_strategy_s_own_averages():
    found = schedule(AllReduce())
    timeline = simulate(found, HARDWARE, compute=TIMES, num_rounds=5, touched=TOUCHED)
    sums = communication(found, HARDWARE).per_step
    assert timeline.makespan == pytest.approx(5 * (0.04 + TABLES.seconds + sums))
    assert timeline.computing() == pytest.approx([0.05, 0.05, 0.05, 0.2])
    assert timeline.communicating() == pytest.approx([5 * (TABLES.seconds + sums)] * 4)
    assert timeline.waiting() == pytest.approx([0.15, 0.15, 0.15, 0.0], abs=1e-12)


def test_workers_of_groups_that_never_meet_meet_in_every_step():
    alone = simulate(Schedule("s", CLUSTER, pairs(steps_per_round=3)), HARDWARE, compute=TIMES, num_rounds=4)
    met = simulate(schedule(pairs(steps_per_round=3)), HARDWARE, compute=TIMES, num_rounds=4, touched=TOUCHED)
    assert alone.finish[-1, 0] < 0.5 * alone.finish[-1, 3]
    own = communication(schedule(pairs()), HARDWARE).per_round
    assert met.makespan == pytest.approx(4 * (3 * (0.04 + TABLES.seconds) + own))
    assert met.computing() == pytest.approx(12 * TIMES.fixed(4))
    spent = met.computing() + met.communicating() + met.waiting()
    assert spent.max() == pytest.approx(met.makespan)


@pytest.mark.parametrize(
    "strategy",
    [
        AllReduce(),
        AllReduce(sync=DelayedAveraging()),
        AllReduce(sync=Pipeline()),
        AllReduce(steps_per_round=4),
        pairs(),
        pairs(sync=DelayedAveraging()),
    ],
    ids=str,
)
def test_the_steady_step_is_the_simulated_one(strategy):
    found = schedule(strategy)
    timeline = simulate(found, HARDWARE, compute=TIMES, num_rounds=40, touched=TOUCHED)
    predicted = predict(found, HARDWARE, compute=TIMES, touched=TOUCHED)
    assert predicted.step_seconds == pytest.approx(timeline.per_step(warm_up=20), rel=1e-9)
    assert predicted.how == "exact"
    without = predict(Schedule("s", CLUSTER, strategy), HARDWARE, compute=TIMES)
    assert predicted.nic_bytes == pytest.approx(without.nic_bytes + TABLES.nic_bytes)


def test_late_averages_are_hidden_behind_computing_and_rows_are_not():
    fast, slow = (replace(HARDWARE, model_bytes=size) for size in (1_000, 1_000_000))
    for hardware in (fast, slow):
        found = predict(schedule(AllReduce(sync=DelayedAveraging())), hardware, compute=TIMES, touched=TOUCHED)
        sums = communication(schedule(AllReduce()), hardware).per_step
        assert found.step_seconds == pytest.approx(max(0.04 + TABLES.seconds, sums))


def test_with_jitter_every_step_waits_for_its_slowest_and_draws_stay_the_same():
    times = ComputeTimes(base=0.01, jitter=0.5)
    timeline = simulate(schedule(AllReduce(steps_per_round=2)), HARDWARE, compute=times, num_rounds=30, touched=TOUCHED)
    plain = simulate(Schedule("s", CLUSTER, AllReduce(steps_per_round=2)), HARDWARE, compute=times, num_rounds=30)
    assert timeline.computing() == pytest.approx(plain.computing())
    assert timeline.makespan > plain.makespan + 60 * TABLES.seconds
    found = predict(schedule(AllReduce(steps_per_round=2)), HARDWARE, compute=times, touched=TOUCHED)
    assert found.step_seconds == pytest.approx(timeline.per_step(), rel=0.2)


def test_what_is_touched_must_be_said_unless_links_take_no_time():
    free = simulate(schedule(AllReduce()), compute=TIMES, num_rounds=3)
    assert free.makespan == pytest.approx(0.12)
    assert np.array_equal(free.communicating(), np.zeros(4))
    with pytest.raises(InputError, match=r"does not say how much of 'words\.weight' a step touches"):
        simulate(schedule(AllReduce()), HARDWARE)
    with pytest.raises(InputError, match=r"names 'other'; tables of schedule 's' are 'words\.weight'"):
        simulate(schedule(AllReduce()), HARDWARE, touched=TOUCHED | {"other": TOUCHED["words.weight"]})
    with pytest.raises(InputError, match="tables of schedule 's' are none"):
        simulate(Schedule("s", CLUSTER, AllReduce()), HARDWARE, touched=TOUCHED)
    with pytest.raises(MissingDependencyError, match="knows no tables with strategy 'server'; take allreduce"):
        simulate(schedule(Server()), HARDWARE, touched=TOUCHED)
