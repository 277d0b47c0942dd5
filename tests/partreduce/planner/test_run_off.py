"""The run-off: what a pilot would have recommended runs on the job, and what it took there decides."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from partreduce.planner.calibration import calibrate, trained_sha256
from partreduce.planner.job import PlanRequest
from partreduce.planner.measuring import as_ran
from partreduce.planner.plan import RunOff, finalists, plan
from partreduce.runtime.pilot.job import Curve, probes, reference
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.metrics import consensus_distance, late_distance
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPE = Cluster.parse("2x4")
SLOW = Hardware(inside=Link.of_bandwidth(1e9), nic=Link.of_bandwidth(3e7), model_bytes=2_000_000, compute=0.05)
JOB = PlanRequest(cluster=replace(SHAPE, hardware=SLOW), effort=0.2, time_limit=3600.0)
STEPS = 60


def by_distance(schedule: Schedule) -> float:
    return 1 + 0.01 * float(consensus_distance(schedule)) + 0.01 * late_distance(schedule)


def train(schedules: list[Schedule], steps_ratio: Callable[[Schedule], float]) -> list[Curve]:
    """Runs of two seeds of a job that takes so many times All-Reduce's steps; where that is infinite it diverges."""
    found = []
    for schedule in schedules:
        for seed in range(2):
            ratio = steps_ratio(schedule) * (1 + 0.01 * seed * (not schedule.strategy.averages_gradients))
            at = 3.0 * np.arange(21) / ratio
            losses = [math.nan] * 21 if math.isinf(ratio) else (0.08 + 2.2 / (1 + (at / 14) ** 2)).tolist()
            found.append(Curve(schedule, seed, 3, (2.28, *losses[1:])))
    return found


def run_off(steps_ratio: Callable[[Schedule], float]) -> tuple[RunOff, list[Curve]]:
    given, curves = RunOff(JOB, steps=STEPS), list[Curve]()
    compared = [reference(SHAPE), *probes(SHAPE, steps=STEPS, data="shuffled")]
    while compared:
        curves += train(compared, steps_ratio)
        compared = given.next(curves)
    return given, curves


def test_where_prices_hold_the_run_off_changes_nothing_and_its_winner_ran() -> None:
    given, curves = run_off(by_distance)
    first, last = (planned.recommendation for planned in (given.plans[0], given.plans[-1]))
    assert trained_sha256(first.schedule) in {trained_sha256(curve.schedule) for curve in curves}
    assert last.time == pytest.approx(first.time, rel=0.02)
    assert last.surprise is not None
    assert last.steps_ratio == pytest.approx(by_distance(last.schedule), rel=0.02)


def test_what_takes_more_steps_than_its_price_says_is_not_recommended_after_it_ran() -> None:
    """Probes are as cheap as their distances say; whatever else averages parameters takes eight times the steps."""
    known = {trained_sha256(one) for one in [reference(SHAPE), *probes(SHAPE, steps=STEPS, data="shuffled")]}

    def steps_ratio(schedule: Schedule) -> float:
        return by_distance(schedule) * (1 if trained_sha256(schedule) in known else 8)

    given, _ = run_off(steps_ratio)
    first = given.plans[0].recommendation
    assert steps_ratio(first.schedule) > 7, "the prices of the probes mislead"
    last = given.plans[-1].recommendation
    assert last.step_seconds * steps_ratio(last.schedule) < 0.5 * first.step_seconds * steps_ratio(first.schedule)


def test_a_finalist_under_which_the_loss_is_lost_is_not_recommended() -> None:
    known = {trained_sha256(one) for one in [reference(SHAPE), *probes(SHAPE, steps=STEPS, data="shuffled")]}
    given, curves = run_off(lambda schedule: 1.01 if trained_sha256(schedule) in known else math.inf)
    pilot = given.pilot(curves)
    assert {probe.sha256 for probe in pilot.unstable} <= given.finalists
    last = given.plans[-1].recommendation
    assert trained_sha256(last.schedule) not in {probe.sha256 for probe in pilot.unstable}
    assert all(math.isinf(one.time) for one in given.plans[-1].options if one.surprise == math.inf)


def test_only_what_could_be_faster_and_fits_into_a_run_is_a_finalist() -> None:
    curves = train([reference(SHAPE), *probes(SHAPE, steps=STEPS, data="shuffled")], by_distance)
    job = replace(JOB, pilot=calibrate(curves, data="shuffled", steps=STEPS))
    planned = plan(job)
    chosen = planned.recommendation
    found = finalists(chosen, planned.options, job)
    assert len({one.delay for one in found}) == len(found)
    for one in found:
        assert one is chosen or one.step_seconds < chosen.time
        longest = one.schedule.worker_steps().max()
        assert one.schedule.strategy.averages_gradients or one.schedule.rounds_to_connect() * longest <= STEPS
    brief = replace(job, pilot=calibrate(curves, data="shuffled", steps=2))
    for one in finalists(chosen, planned.options, brief):
        assert one.schedule.rounds_to_connect() * one.schedule.worker_steps().max() <= 2


def test_where_a_worker_is_slow_what_gives_it_fewer_steps_runs_too() -> None:
    curves = train([reference(SHAPE), *probes(SHAPE, steps=STEPS, data="shuffled")], by_distance)
    hardware = replace(SLOW, slowdown=((3, 4.0),))
    pilot = calibrate(curves, data="shuffled", steps=STEPS)
    job = replace(JOB, cluster=replace(SHAPE, hardware=hardware), pilot=pilot)
    planned = plan(job)
    found = finalists(planned.recommendation, planned.options, job)
    assert not isinstance(planned.recommendation.steps_per_round, int), "else this shows nothing"
    assert planned.recommendation in found


def test_runs_of_a_pipeline_are_its_own_price_and_nobody_elses() -> None:
    pipeline = Schedule("pipeline", SHAPE, AllReduce(sync=Pipeline()))
    compared = [reference(SHAPE), *probes(SHAPE, steps=STEPS, data="shuffled")]

    def steps_ratio(schedule: Schedule) -> float:
        return 1.7 if schedule is pipeline else by_distance(schedule)

    without = calibrate(train(compared, steps_ratio), data="shuffled", steps=STEPS)
    curves = train([*compared, pipeline], steps_ratio)
    pilot = calibrate(curves, data="shuffled", steps=STEPS, finalists={trained_sha256(pipeline)})
    assert pilot.prices == without.prices
    job = replace(JOB, pilot=pilot)
    options = as_ran(plan(replace(job, pilot=without)).options, job)
    (piped,) = {one.steps_ratio for one in options if one.schedule.strategy.sync.delays_gradients}
    assert piped == pytest.approx(1.7, rel=0.02)


def test_a_noisy_run_moves_a_prediction_less_than_a_sure_one() -> None:
    compared = [reference(SHAPE), *probes(SHAPE, steps=STEPS, data="shuffled")]
    curves = train(compared, by_distance)
    pilot = calibrate(curves, data="shuffled", steps=STEPS, finalists={trained_sha256(compared[1])})
    known = next(probe for probe in pilot.probes if probe.sha256)
    job = replace(JOB, pilot=pilot)
    option = next(one for one in plan(job).options if trained_sha256(one.schedule) == known.sha256)
    before = option.steps_ratio - (option.surprise or 0.0)

    def after(*steps_ratios: float) -> float:
        ran = replace(known, steps_ratios=steps_ratios)
        changed = replace(pilot, probes=(ran, *(one for one in pilot.probes if one is not known)))
        (found,) = as_ran([replace(option, steps_ratio=before, surprise=None)], replace(job, pilot=changed))
        return found.steps_ratio

    assert after(2.0, 2.0) == pytest.approx(2.0)
    assert before < after(0.5, 3.5) < 1.5 < after(1.99, 2.01)
