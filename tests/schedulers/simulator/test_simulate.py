"""The virtual-time engine: timelines of workers, determinism, sampling, and table exchanges."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.refusals import check_error
from helpers.small import of_groups, of_phases
from partreduce import Cluster, Hardware, Link, Schedule, predict, simulate
from partreduce.errors import InputError, ScheduleError
from partreduce.strategies import GroupPhases, OuterStep, Payload, Phase, Pipeline, Server, StaticGroups, TablePlacement
from partreduce.topo.strategies import AllReduce, DelayedAveraging
from partreduce.topo.timing.compute import MOST_DRAWN, read_trace
from partreduce.topo.timing.cost import communication
from partreduce.topo.timing.event_graph import cycle_time
from partreduce.topo.timing.stages import sample
from partreduce.topo.timing.tables import exchanges
from partreduce.types import ComputeTimes, RandomDelay, RandomSlowdown, RotatingDelay, RowAccess

PAIR = of_groups("p", Cluster.regular(1, 3), [(0, 1)])
UNIT = Hardware(inside=Link.of_bandwidth(1.0), model_bytes=1)


def test_worker_waits_only_for_its_group():
    timeline = simulate(PAIR, UNIT, compute=ComputeTimes(base=2.0, slowdown=((1, 3.0),)), num_rounds=2)
    assert timeline.compute_end[0].tolist() == [2.0, 6.0, 2.0]
    assert timeline.communicate_start[0].tolist() == [6.0, 6.0, 2.0]
    assert timeline.communicate_end[0].tolist() == [7.0, 7.0, 2.0]
    assert timeline.finish[1].tolist() == [14.0, 14.0, 4.0]
    assert timeline.waiting().tolist() == [8.0, 0.0, 0.0]
    assert timeline.makespan == 14.0
    assert timeline.round_seconds().tolist() == [7.0, 7.0]


def test_overlapped_averaging_starts_with_the_round():
    schedule = Schedule("p", PAIR.cluster, StaticGroups(phases=PAIR.strategy.phases, sync=DelayedAveraging()))
    timeline = simulate(schedule, UNIT, compute=ComputeTimes(base=2.0, slowdown=((1, 3.0),)), num_rounds=2)
    assert timeline.communicate_start[0].tolist() == [0.0, 0.0, 0.0]
    assert timeline.finish[0].tolist() == [2.0, 6.0, 2.0]
    assert timeline.communicate_start[1].tolist() == [6.0, 6.0, 2.0]
    assert timeline.finish[1].tolist() == [7.0, 12.0, 4.0]
    assert timeline.waiting().tolist() == [2.0, 0.0, 0.0]


def test_fewer_steps_per_round_compensate_a_slow_worker():
    schedule = Schedule("p", PAIR.cluster, StaticGroups(phases=PAIR.strategy.phases, steps_per_round=(3, 1, 3)))
    timeline = simulate(schedule, UNIT, compute=ComputeTimes(base=2.0, slowdown=((1, 3.0),)), num_rounds=4)
    assert timeline.waiting().tolist() == [0.0, 0.0, 0.0]
    assert timeline.per_step() == pytest.approx(7.0 / 3)


def test_prologue_runs_first_and_averages_all_workers():
    schedule = Schedule("p", PAIR.cluster, StaticGroups(phases=PAIR.strategy.phases, prologue=1))
    timeline = simulate(schedule, UNIT, num_rounds=2)
    assert timeline.finish[0].tolist() == pytest.approx([4 / 3] * 3)
    assert timeline.finish[1].tolist() == pytest.approx([7 / 3, 7 / 3, 4 / 3])


def test_per_worker_outer_steps_take_no_extra_time():
    plain = Schedule("p", PAIR.cluster, StaticGroups(phases=PAIR.strategy.phases, steps_per_round=2))
    outer = OuterStep(lr="1/2", momentum="1/2", nesterov=True, outer_params="per_worker")
    schedule = Schedule(
        "p", PAIR.cluster, StaticGroups(phases=PAIR.strategy.phases, steps_per_round=2, payload=Payload(outer=outer))
    )
    one, other = (simulate(each, UNIT, compute=ComputeTimes(base=2.0), num_rounds=3) for each in (plain, schedule))
    assert np.array_equal(one.finish, other.finish)


def test_jitter_has_the_configured_mean_and_variation():
    compute = ComputeTimes(base=2.0, jitter=0.5)
    drawn = compute.step_seconds(4, 0, np.random.default_rng(3), num_samples=200_000)
    assert drawn.mean() == pytest.approx(2.0, rel=0.01)
    assert drawn.std() / drawn.mean() == pytest.approx(0.5, rel=0.02)


def test_disturbances_match_their_published_definitions():
    rng = np.random.default_rng(5)
    ones = np.ones((20_000, 8))
    slowed = RandomSlowdown(6.0).disturb(ones, 0, rng)
    assert set(np.unique(slowed)) == {1.0, 6.0}
    assert (slowed == 6.0).mean() == pytest.approx(1 / 8, rel=0.05)
    delayed = RandomDelay(4, 0.3).disturb(ones, 0, rng)
    assert ((delayed > 1).sum(axis=1) == 4).all()
    first, second = (RotatingDelay(0.05, 0.4).disturb(np.zeros((1, 8)), step, rng)[0] for step in (0, 1))
    assert first == pytest.approx(np.linspace(0.05, 0.4, 8))
    assert second == pytest.approx(np.roll(first, -1))


def test_trace_repeats(tmp_path):
    (tmp_path / "t.csv").write_text("1,2,3\n4,5,6\n")
    compute = ComputeTimes(trace=read_trace(tmp_path / "t.csv"))
    timeline = simulate(PAIR, compute=compute, num_rounds=3)
    assert (timeline.compute_end - timeline.compute_start).tolist() == [[1, 2, 3], [4, 5, 6], [1, 2, 3]]


@pytest.mark.parametrize("text", ["", "a,b", "1,2\n3", "1,-2", "1,inf", "1,nan"])
def test_malformed_trace_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    check_error(InputError, r"t\.csv: [^\n]*$", read_trace, tmp_path / "t.csv")


def test_sampling_matches_the_closed_form_of_a_two_point_maximum():
    # All-reduce over n workers of which each takes 6 instead of 1 with probability 1/n: a round takes 6 unless none
    # is slow, so its mean is 6 − 5·(1 − 1/n)^n.
    n = 16
    schedule = Schedule("a", Cluster.regular(4, 4), AllReduce())
    result = sample(
        schedule, Hardware(), ComputeTimes(base=1.0, disturbance=RandomSlowdown(6.0)), num_rounds=400, num_samples=64
    )
    assert result.per_step == pytest.approx(6 - 5 * (1 - 1 / n) ** n, abs=5 * result.error)
    assert result.error < 0.05


@pytest.mark.parametrize(("arguments", "message"), [
    ({"num_rounds": 0}, "rounds: 0"),
    ({"num_rounds": 10**9}, "at most 16666666 rounds fit"),
    ({"compute": ComputeTimes(slowdown=((3, 2.0),))}, "workers are 0..2"),
    ({"compute": ComputeTimes(trace=np.ones((1, 2)))}, "2 columns, there are 3 workers"),
])  # fmt: skip
def test_invalid_simulations_raise_input_error(arguments, message):
    check_error(InputError, message, simulate, PAIR, UNIT, **arguments)


def test_simulation_scales_to_4000_workers():
    schedule = Schedule("a", Cluster.regular(1000, 4), AllReduce())
    timeline = simulate(
        schedule, Hardware(nic=Link(1e-6, 0.0)), compute=ComputeTimes(base=1.0, jitter=0.1), num_rounds=50
    )
    assert timeline.finish.shape == (50, 4000)
    assert (timeline.waiting() >= 0).all()


@pytest.mark.parametrize("rotation", range(4))
def test_sampling_counts_complete_periods(rotation):
    quiet, pairs = Phase.from_groups(3, []), Phase.from_groups(3, [(0, 1)])
    phases = (pairs, quiet, quiet, Phase.from_groups(3, [(0, 1, 2)]))
    turned = of_phases("turned", PAIR.cluster, phases[rotation:] + phases[:rotation])
    exact = cycle_time(turned, UNIT, ComputeTimes(base=0.1)).per_step
    for num_rounds in (50, 51, 52, 53):
        sampled = sample(turned, UNIT, ComputeTimes(base=0.1), num_rounds=num_rounds, num_samples=2)
        assert sampled.per_step == pytest.approx(exact, rel=1e-12)
        assert sampled.rounds % 4 == 0


@pytest.mark.parametrize("disturbance", [None, RandomSlowdown(6.0, 0.3)])
def test_batched_draws_equal_draws_step_by_step(disturbance):
    compute = ComputeTimes(base=0.1, slowdown=((1, 2.0),), jitter=0.3, disturbance=disturbance)
    worker_steps, samples = np.array([3, 1, 2]), MOST_DRAWN // 20  # batches of two rounds, and a remainder of one
    drawn = list(compute.rounds(worker_steps, 5, np.random.default_rng(1), num_samples=samples))
    rng = np.random.default_rng(1)
    for number, found in enumerate(drawn):
        steps = [compute.step_seconds(3, 3 * number + step, rng, num_samples=samples) for step in range(3)]
        expected = sum(np.where(step < worker_steps, seconds, 0.0) for step, seconds in enumerate(steps))
        assert np.array_equal(found, expected)


# Table exchanges in virtual time: they synchronize all workers in every step


CLUSTER = Cluster.regular(2, 2)
PAYLOAD = Payload(tables=(TablePlacement(parameter="words.weight", rows=1000, columns=16),))
TOUCHED = {"words.weight": RowAccess(0.1, 0.15, 0.3)}
HARDWARE = Hardware(inside=Link(1e-5, 1e-9), nic=Link(1e-4, 1e-7), model_bytes=10_000)
TABLES = exchanges(PAYLOAD, TOUCHED, CLUSTER, HARDWARE)
TIMES = ComputeTimes(base=0.01, slowdown=((3, 4.0),))


def schedule(strategy):
    return Schedule("s", CLUSTER, replace(strategy, payload=PAYLOAD))


def pairs(**members):
    """Return groups of which only one pair averages per round."""
    phases = tuple(Phase.from_groups(4, [pair]) for pair in ([0, 1], [2, 3]))
    return StaticGroups(phases=GroupPhases(phases), **members)


def test_step_time_adds_compute_table_exchange_and_averaging():
    found = schedule(AllReduce())
    timeline = simulate(found, HARDWARE, compute=TIMES, num_rounds=5, touched=TOUCHED)
    sums = communication(found, HARDWARE).per_step
    assert timeline.makespan == pytest.approx(5 * (0.04 + TABLES.seconds + sums))
    assert timeline.computing() == pytest.approx([0.05, 0.05, 0.05, 0.2])
    assert timeline.communicating() == pytest.approx([5 * (TABLES.seconds + sums)] * 4)
    assert timeline.waiting() == pytest.approx([0.15, 0.15, 0.15, 0.0], abs=1e-12)


def test_table_exchange_synchronizes_disconnected_groups():
    alone = simulate(Schedule("s", CLUSTER, pairs(steps_per_round=3)), HARDWARE, compute=TIMES, num_rounds=4)
    met = simulate(schedule(pairs(steps_per_round=3)), HARDWARE, compute=TIMES, num_rounds=4, touched=TOUCHED)
    assert alone.finish[-1, 0] < 0.5 * alone.finish[-1, 3]
    own = communication(schedule(pairs()), HARDWARE).per_round
    assert met.makespan == pytest.approx(4 * (3 * (0.04 + TABLES.seconds) + own))
    assert met.computing() == pytest.approx(12 * TIMES.fixed(4))
    spent = met.computing() + met.communicating() + met.waiting()
    assert spent.max() == pytest.approx(met.makespan)


@pytest.mark.parametrize("strategy", [
    AllReduce(), AllReduce(sync=DelayedAveraging()), AllReduce(sync=Pipeline()), AllReduce(steps_per_round=4), pairs(),
    pairs(sync=DelayedAveraging()),
], ids=str)  # fmt: skip
def test_predicted_step_equals_the_simulated_steady_state(strategy):
    found = schedule(strategy)
    timeline = simulate(found, HARDWARE, compute=TIMES, num_rounds=40, touched=TOUCHED)
    predicted = predict(found, HARDWARE, compute=TIMES, touched=TOUCHED)
    assert predicted.step_seconds == pytest.approx(timeline.per_step(warm_up=20), rel=1e-9)
    assert predicted.how == "exact"
    without = predict(Schedule("s", CLUSTER, strategy), HARDWARE, compute=TIMES)
    assert predicted.nic_bytes == pytest.approx(without.nic_bytes + TABLES.nic_bytes)


def test_overlap_hides_averaging_but_not_table_rows():
    fast, slow = (replace(HARDWARE, model_bytes=size) for size in (1_000, 1_000_000))
    for hardware in (fast, slow):
        found = predict(schedule(AllReduce(sync=DelayedAveraging())), hardware, compute=TIMES, touched=TOUCHED)
        sums = communication(schedule(AllReduce()), hardware).per_step
        assert found.step_seconds == pytest.approx(max(0.04 + TABLES.seconds, sums))


def test_table_steps_wait_for_the_slowest_worker_under_jitter():
    times = ComputeTimes(base=0.01, jitter=0.5)
    timeline = simulate(schedule(AllReduce(steps_per_round=2)), HARDWARE, compute=times, num_rounds=30, touched=TOUCHED)
    plain = simulate(Schedule("s", CLUSTER, AllReduce(steps_per_round=2)), HARDWARE, compute=times, num_rounds=30)
    assert timeline.computing() == pytest.approx(plain.computing())
    assert timeline.makespan > plain.makespan + 60 * TABLES.seconds
    found = predict(schedule(AllReduce(steps_per_round=2)), HARDWARE, compute=times, touched=TOUCHED)
    assert found.step_seconds == pytest.approx(timeline.per_step(), rel=0.2)


def test_row_access_is_required_unless_links_are_free():
    free = simulate(schedule(AllReduce()), compute=TIMES, num_rounds=3)
    assert free.makespan == pytest.approx(0.12)
    assert np.array_equal(free.communicating(), np.zeros(4))
    unknown = TOUCHED | {"other": TOUCHED["words.weight"]}
    for error, words, simulated, touched in (
        (InputError, r"does not say how much of 'words\.weight' a step touches", schedule(AllReduce()), None),
        (InputError, r"names 'other'; tables of schedule 's' are 'words\.weight'", schedule(AllReduce()), unknown),
        (InputError, "tables of schedule 's' are none", Schedule("s", CLUSTER, AllReduce()), TOUCHED),
        (ScheduleError, "has no tables with strategy 'server'; take allreduce", schedule(Server()), TOUCHED),
    ):
        check_error(error, words, simulate, simulated, HARDWARE, touched=touched)
