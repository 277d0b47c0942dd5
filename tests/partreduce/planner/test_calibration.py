"""Calibration: prices are recovered from noisy curves, the planner uses them, and runs of finalists correct them."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from helpers.jobs import jobs, with_links
from helpers.refusals import check_error
from partreduce import Cluster, Data, PlanRequest, Schedule
from partreduce.errors import InputError
from partreduce.planner.calibration import (
    calibrate,
    drift_that_counts,
    fit_prices,
    steps_model,
    steps_ratio_between,
    trained_sha256,
)
from partreduce.planner.measuring import as_ran
from partreduce.planner.options import competitors
from partreduce.planner.plan import RunOff, finalists, plan
from partreduce.planner.recommend import recommend
from partreduce.planner.steps_model import FITTED
from partreduce.report.reasons import add_reasons, reasons
from partreduce.runtime.pilot.job import Curve, probes, reference, ring_pairs
from partreduce.strategies import AllReduce, Pipeline
from partreduce.topo.metrics import consensus_distance, contraction, late_distance
from partreduce.topo.pilot import Price, Prices, Probe
from partreduce.types import Delay, Pilot

CLUSTER = Cluster.parse("1x8")
POINTS = 21


def loss_at(steps):
    """Return the loss of a training that falls slowly, then fast, then slowly."""
    return 0.08 + 2.2 / (1 + (steps / 14) ** 2)


def curve(schedule, seed, steps_ratio, rng, noise):
    steps = 3.0 * np.arange(POINTS)
    losses = loss_at(steps / steps_ratio) * np.exp(noise * rng.normal(size=POINTS))
    return Curve(schedule, seed, 3, tuple(losses.tolist()))


def simulate_pilot(a, late, *, c=0.0, averaging=0.0, later=0.0, data="shuffled", seeds=4, rng=0):
    """Return a pilot of known prices; every loss has 3 % noise, every steps ratio 1 %."""
    draw = np.random.default_rng(rng)
    factors = []
    for schedule in (reference(CLUSTER), *probes(CLUSTER, steps=60, data=data)):
        factor, apart = 1 + a * float(consensus_distance(schedule)), late_distance(schedule)
        factor += late * apart + later * apart * max(0.0, apart - 1)
        factor += c * drift_that_counts(schedule, data) ** FITTED.p
        factors.append((schedule, factor + averaging * (not schedule.strategy.averages_gradients)))
    curves = []
    for seed in range(seeds):
        for schedule, factor in factors:
            curves.append(curve(schedule, seed, factor * math.exp(0.01 * draw.normal()), draw, 0.03))
    return calibrate(curves, data=data, steps=60)


@pytest.mark.parametrize("steps_ratio", [0.8, 1.0, 1.05, 1.5, 4.0])
def test_steps_ratio_of_a_stretched_curve(steps_ratio):
    rng, schedule = np.random.default_rng(1), reference(CLUSTER)
    base, other = (np.array(curve(schedule, 0, ratio, rng, 0.0).losses) for ratio in (1.0, steps_ratio))
    for lowered in (0, 1):  # losses below 0 have no logarithm; a shift of both curves must not matter
        assert steps_ratio_between(other - lowered, base - lowered) == pytest.approx(steps_ratio, rel=0.02)


def test_steps_ratio_of_equal_curves_is_1():
    noisy = curve(reference(CLUSTER), 0, 1.0, np.random.default_rng(2), 0.1).losses
    assert steps_ratio_between(noisy, noisy) == pytest.approx(1.0, abs=0.02)


def test_intervals_have_their_stated_coverage():
    """Of 40 intervals with 90 % coverage 4 miss on average, and 8 or more once in 25 times."""
    a, late = 0.03, 0.08
    pilots = [simulate_pilot(a, late, rng=rng).prices for rng in range(40)]
    within = [
        sum(p.consensus_distance.low <= a <= p.consensus_distance.high for p in pilots),
        sum(p.late.low <= late <= p.late.high for p in pilots),
    ]
    assert all(33 <= count <= 40 for count in within), within
    assert np.mean([p.consensus_distance.value for p in pilots]) == pytest.approx(a, rel=0.1)
    assert np.mean([p.late.value for p in pilots]) == pytest.approx(late, rel=0.1)
    assert np.median([p.error for p in pilots]) < 0.03


def test_interval_of_a_zero_price_starts_at_0():
    """The interval is one-sided: 19 of 20 start at 0."""
    pilots = [simulate_pilot(0.0, 0.0, rng=rng).prices for rng in range(10)]
    assert sum(p.consensus_distance.low == 0 for p in pilots) >= 8
    assert sum(p.late.low == 0 for p in pilots) >= 8
    assert all(0 <= p.consensus_distance.value <= p.consensus_distance.high < 0.01 for p in pilots)


def test_price_of_averaging_is_separate_from_distance():
    """As under Adam, whose second moments are those of single workers' gradients."""
    pilot = simulate_pilot(0.02, 0.0, averaging=0.6)
    prices = pilot.prices
    assert prices.averaging.value == pytest.approx(0.6, abs=0.1)
    assert prices.consensus_distance.value < 0.06
    model = steps_model(pilot)
    assert model.steps_ratio(1.0, 0.0) == pytest.approx(1.62, rel=0.05)
    assert model.steps_ratio(0.0, 0.0, gradients=True) == 1


def test_delay_price_of_long_rounds_is_not_charged_to_short_ones():
    """As under momentum, where delay is free at one step per round."""
    pilot = simulate_pilot(0.02, 0.0, later=0.1)
    model = steps_model(pilot)
    for schedule in probes(CLUSTER, steps=60, data="shuffled"):
        late = late_distance(schedule)
        true = 1 + 0.02 * float(consensus_distance(schedule)) + 0.1 * late * max(0.0, late - 1)
        assert model.steps_ratio(float(consensus_distance(schedule)), 0.0, late=late) == pytest.approx(true, rel=0.1)


def probe(distance, late, *steps_ratios):
    steps_ratios *= 1 if len(steps_ratios) > 1 else 2
    metrics = {"consensus_distance": distance, "drift": 0.0, "late": late}
    return Probe(schedule=str(distance), steps_ratios=steps_ratios, **metrics)


def test_too_few_probes_leave_prices_unset():
    rows = [probe(d, late, 1 + 0.1 * d) for d, late in ((1.0, 0.0), (2.0, 0.0), (3.0, 3.0))]
    prices = fit_prices(rows, data="shuffled")
    assert prices.averaging is None
    assert prices.later is None


def test_drift_price_is_recovered_on_unequal_data():
    pilot = simulate_pilot(0.02, 0.1, c=0.4, data="per-worker", seeds=6)
    assert pilot.prices.drift.value == pytest.approx(0.4, rel=0.15)
    model = steps_model(pilot)
    unseen = ring_pairs(CLUSTER, 2, late=True)
    metrics = float(consensus_distance(unseen)), drift_that_counts(unseen, "per-worker")
    apart = late_distance(unseen)
    truth = 1 + 0.02 * metrics[0] + 0.4 * metrics[1] ** FITTED.p + 0.1 * apart
    assert model.steps_ratio(*metrics, late=apart) == pytest.approx(truth, rel=0.1)


def diverging(fails):
    """Return a pilot in which some schedules diverge in the second of two seeds."""
    draw, curves = np.random.default_rng(3), []
    for seed in range(2):
        for schedule in [reference(CLUSTER), *probes(CLUSTER, steps=60, data="shuffled")]:
            factor = 1 + 0.03 * float(consensus_distance(schedule)) + 0.05 * late_distance(schedule)
            run = curve(schedule, seed, factor, draw, 0.01)
            curves.append(replace(run, losses=(*run.losses[:9], *[math.nan] * 12)) if seed and fails(schedule) else run)
    return calibrate(curves, data="shuffled", steps=60)


def test_unstable_probe_excludes_its_class_only():
    late = diverging(lambda schedule: schedule.strategy.is_delayed and schedule.strategy.steps_per_round == 8)
    assert [probe.schedule for probe in late.unstable] == ["allreduce-every-8-late"]
    assert all(probe.schedule != "allreduce-every-8-late" for probe in late.probes)
    assert late.prices.consensus_distance.value == pytest.approx(0.03, rel=0.3)
    model = steps_model(late)
    planned = plan(job(pilot=late))
    assert not planned.recommendation.late
    assert all(math.isinf(option.time_at_worst) for option in planned.options if option.late)
    assert math.isfinite(model.steps_ratio(1.0, 0.0, late=1.0)), "delay can still be requested"


def test_pilot_without_stable_delay_keeps_the_default_price():
    pilot = diverging(lambda schedule: schedule.strategy.is_delayed)
    assert len(pilot.unstable) == 3
    assert pilot.prices.late == Price(FITTED.late, 0.0, max(task.late for task in FITTED.tasks))
    assert math.isinf(steps_model(pilot).late_more(1.0))


def test_nothing_beyond_an_unstable_round_is_recommended():
    pilot = diverging(lambda schedule: schedule.strategy.steps_per_round == 16)
    model = steps_model(pilot)
    assert model.steps_ratio(pilot.max_consensus_distance * 1.01, 0.0) == math.inf
    assert math.isfinite(model.steps_ratio(pilot.max_consensus_distance, 0.0))


def test_unexplained_cost_shows_in_the_error():
    """One probe costs 50 % more than its metrics predict, so a fit without this probe misses by a third."""
    known = ((1.0, False), (2.0, False), (4.0, False), (1.0, True), (3.0, True))
    rows = [probe(d, late, 1 + 0.05 * d + 0.1 * late) for d, late in known]
    assert fit_prices(rows, data="shuffled").error < 1e-9
    odd = replace(rows[1], steps_ratios=(1.65, 1.65))
    assert fit_prices([rows[0], odd, *rows[2:]], data="shuffled").error == pytest.approx(1 / 3, abs=0.05)


@pytest.mark.parametrize("probes", [[(1.0, False), (2.0, False)], [(1.0, True), (1.0, True)]])
def test_probes_that_do_not_identify_the_prices_are_rejected(probes):
    rows = [probe(d, late, 1.1, 1.2) for d, late in probes]
    check_error(InputError, "do not tell the prices apart", fit_prices, rows, data="shuffled")


def test_job_that_does_not_learn_is_rejected():
    flat = [Curve(schedule, seed, 3, (1.0,) * POINTS) for seed in (0, 1)
            for schedule in (reference(CLUSTER), *probes(CLUSTER, steps=60, data="shuffled"))]  # fmt: skip
    check_error(InputError, "All-Reduce's loss did not fall in 60 steps", calibrate, flat, data="shuffled", steps=60)
    check_error(InputError, "at least 2", calibrate, flat[:8], data="shuffled", steps=60)


@pytest.mark.parametrize("shape", ["1x2", "1x3", "2x2", "3,2", "1x7"])
@pytest.mark.parametrize("data", ["shuffled", "per-worker", "per-node"])
def test_probes_of_every_small_cluster_identify_the_prices(shape, data):
    cluster = Cluster.parse(shape)
    if data == "per-node" and cluster.num_nodes == 1:
        check_error(InputError, "there is one node", probes, cluster, steps=24, data=data)
        return
    found = probes(cluster, steps=24, data=data)
    assert len({schedule.name for schedule in found}) == len(found) >= 4
    assert all(schedule.num_workers == cluster.num_workers for schedule in found)
    assert all((contraction(schedule).value or 0) < 1 for schedule in found)
    rows = [
        Probe(
            schedule=schedule.name,
            consensus_distance=float(consensus_distance(schedule)),
            drift=drift_that_counts(schedule, data),
            late=late_distance(schedule),
            steps_ratios=(1.5, 1.6),
        )
        for schedule in found
    ]
    fit_prices(rows, data=data)
    check_error(InputError, "at least 24", probes, cluster, steps=23, data=data)


PRICED = Pilot(
    num_workers=8,
    data="shuffled",
    steps=60,
    seeds=(0, 1),
    prices=Prices(consensus_distance=Price(0.5, 0.4, 0.6), late=Price(2.0, 1.9, 2.1), drift=None, error=0.07),
    probes=tuple(probe(d, late, 1 + 0.5 * d + 2 * late) for d, late in ((1.0, False), (2.0, True))),
)
HARDWARE = with_links(10e9, 1e9, model_bytes=100_000_000, compute=0.05)
job = jobs("2x4", HARDWARE, effort=0.5, time_limit=3600.0)


def test_pilot_model_uses_its_prices_and_the_larger_error():
    model = steps_model(PRICED)
    assert model.steps_ratio(1.0, 0.0) == 1.5
    assert model.steps_ratio(1.0, 0.0, late=1.0) == 3.5
    # Half the intervals: 0.1 · 2 + 0.1 of a steps ratio of 4, which is more than the 7 % of the left-out probes.
    assert model.error("shuffled") == model.error("shuffled", late=True) == pytest.approx(0.3 / 4)
    assert model.extrapolates(2.1, 0.0)
    assert not model.extrapolates(2.0, 0.0)


def test_extrapolation_uses_the_upper_end_of_the_interval():
    assert steps_model(PRICED).steps_ratio(10.0, 0.0) == pytest.approx(1 + 2 * 0.5 + 8 * 0.6)
    free = replace(PRICED, prices=replace(PRICED.prices, consensus_distance=Price(0.0, 0.0, 0.01)))
    assert steps_model(free).steps_ratio(2.0, 0.0) == 1
    assert steps_model(free).steps_ratio(10.0, 0.0) == pytest.approx(1 + 8 * FITTED.a)
    assert steps_model(free).steps_ratio(math.inf, 0.0) == steps_model(free).steps_ratio(0.0, math.inf) == math.inf
    assert FITTED.steps_ratio(100.0, 0.0) - FITTED.steps_ratio(50.0, 0.0) == pytest.approx(50 * FITTED.a)


def test_design_uses_and_reports_pilot_prices():
    request, model = job(pilot=replace(PRICED, num_workers=4)), steps_model(PRICED)
    planned = add_reasons(plan(request), request)
    for option in planned.options:
        spread = option.consensus_distance.value
        if spread is not None:
            late = option.late_distance or float(option.delay is Delay.PIPELINE)  # a pilot has one price for both
            assert option.steps_ratio == pytest.approx(model.steps_ratio(spread, 0.0, late=late))
    document = planned.to_json()
    assert document["pilot"]["prices"]["consensus_distance"] == {"value": 0.5, "low": 0.4, "high": 0.6}
    json.dumps(document, allow_nan=False)
    assert any("left out of the fit of your pilot (4 workers, 60 steps)" in reason for reason in planned.reasons)
    assert any("the pilot had 4 workers and this cluster has 8" in caution for caution in planned.cautions)


def test_free_parameter_delay_does_not_make_gradient_delay_free():
    """Pilots run no pipeline: for a perceptron under Adam delayed averages were free, and a pipeline took 2.9."""
    free = replace(PRICED, prices=replace(PRICED.prices, late=Price(0.0, 0.0, 0.0)))
    model = steps_model(free)
    assert model.steps_ratio(1.0, 0.0, late=1.0) == model.steps_ratio(1.0, 0.0)
    assert model.delay == FITTED.delay
    assert model.delay_more == FITTED.delay_more
    assert steps_model(PRICED).delay == 2.0, "at least the price of delayed parameters"


def test_pilot_on_another_data_distribution_is_rejected():
    check_error(
        InputError, "ran on shuffled data and the job's are per-worker", job, pilot=PRICED, data=Data.PER_WORKER
    )


def test_reasons_report_the_cost_and_effect_of_the_pilot():
    """A pilot that finds consensus distance almost free lengthens the rounds."""
    free = replace(PRICED.prices, consensus_distance=Price(0.0, 0.0, 0.001), late=Price(0.0, 0.0, 0.001))
    probes = tuple(replace(probe, consensus_distance=50.0) for probe in PRICED.probes)
    request = job(pilot=replace(PRICED, prices=free, probes=probes))
    options = competitors(request, until=0.0)
    chosen = recommend(options, request)
    (text,) = (sentence for sentence in reasons(chosen, options, request) if "the pilot took" in sentence)
    words = r"the pilot took 360 steps of your job; without it (.+) would be recommended, .* takes (.+) times as long"
    match = re.fullmatch(words, text)
    other = next(option for option in options if option.name == match[1])
    assert float(match[2]) == pytest.approx(other.time / chosen.time, abs=0.01)
    assert other.consensus_distance.value < chosen.consensus_distance.value


# Finalists: the schedules that the pilot would recommend run on the job, and their measured steps decide


SHAPE = Cluster.parse("2x4")
SLOW = with_links(1e9, 3e7, model_bytes=2_000_000, compute=0.05)
JOB = PlanRequest(cluster=replace(SHAPE, hardware=SLOW), effort=0.2, time_limit=3600.0)
STEPS = 60


def ratio_by_distance(schedule):
    return 1 + 0.01 * float(consensus_distance(schedule)) + 0.01 * late_distance(schedule)


def train(schedules, steps_ratio):
    """Train two seeds at these steps ratios; an infinite ratio diverges."""
    found = []
    for schedule in schedules:
        for seed in range(2):
            ratio = steps_ratio(schedule) * (1 + 0.01 * seed * (not schedule.strategy.averages_gradients))
            losses = loss_at(3.0 * np.arange(POINTS) / ratio) + (math.nan if math.isinf(ratio) else 0)
            found.append(Curve(schedule, seed, 3, (2.28, *losses[1:].tolist())))
    return found


COMPARED = [reference(SHAPE), *probes(SHAPE, steps=STEPS, data="shuffled")]
KNOWN = {trained_sha256(one) for one in COMPARED}


def pilot_of(curves, steps=STEPS, **options):
    return calibrate(curves, data="shuffled", steps=steps, **options)


def run_off(steps_ratio):
    given, curves = RunOff(JOB, steps=STEPS), list[Curve]()
    compared = COMPARED
    while compared:
        curves += train(compared, steps_ratio)
        compared = given.next(curves)
    return given, curves


def test_accurate_prices_leave_the_recommendation_unchanged():
    given, curves = run_off(ratio_by_distance)
    first, last = (planned.recommendation for planned in (given.plans[0], given.plans[-1]))
    assert trained_sha256(first.schedule) in {trained_sha256(curve.schedule) for curve in curves}
    assert last.time == pytest.approx(first.time, rel=0.02)
    assert last.surprise is not None
    assert last.steps_ratio == pytest.approx(ratio_by_distance(last.schedule), rel=0.02)


def test_finalist_with_more_steps_than_predicted_is_not_recommended():
    """Probes cost what their distances predict; all others that average parameters take eight times the steps."""

    def steps_ratio(schedule):
        return ratio_by_distance(schedule) * (1 if trained_sha256(schedule) in KNOWN else 8)

    given, _ = run_off(steps_ratio)
    first = given.plans[0].recommendation
    assert steps_ratio(first.schedule) > 7, "the prices of the probes mislead"
    last = given.plans[-1].recommendation
    assert last.step_seconds * steps_ratio(last.schedule) < 0.5 * first.step_seconds * steps_ratio(first.schedule)


def test_diverging_finalist_is_not_recommended():
    given, curves = run_off(lambda schedule: 1.01 if trained_sha256(schedule) in KNOWN else math.inf)
    pilot = given.pilot(curves)
    assert {probe.sha256 for probe in pilot.unstable} <= given.finalists
    last = given.plans[-1].recommendation
    assert trained_sha256(last.schedule) not in {probe.sha256 for probe in pilot.unstable}
    assert all(math.isinf(one.time) for one in given.plans[-1].options if one.surprise == math.inf)


def test_finalists_could_be_faster_and_fit_into_a_run():
    curves = train(COMPARED, ratio_by_distance)
    job = replace(JOB, pilot=pilot_of(curves))
    planned = plan(job)
    chosen = planned.recommendation
    found = finalists(chosen, planned.options, job)
    assert len({one.delay for one in found}) == len(found)
    for one in found:
        assert one is chosen or one.step_seconds < chosen.time
        longest = one.schedule.worker_steps().max()
        assert one.schedule.strategy.averages_gradients or one.schedule.rounds_to_connect() * longest <= STEPS
    brief = replace(job, pilot=pilot_of(curves, steps=2))
    for one in finalists(chosen, planned.options, brief):
        assert one.schedule.rounds_to_connect() * one.schedule.worker_steps().max() <= 2


def test_unequal_steps_become_a_finalist_with_a_slow_worker():
    hardware = replace(SLOW, slowdown=((3, 4.0),))
    job = replace(JOB, cluster=replace(SHAPE, hardware=hardware), pilot=pilot_of(train(COMPARED, ratio_by_distance)))
    planned = plan(job)
    found = finalists(planned.recommendation, planned.options, job)
    assert not isinstance(planned.recommendation.steps_per_round, int), "otherwise the test is void"
    assert planned.recommendation in found


def test_omitted_steps_of_slow_workers_do_not_change_the_distance_price():
    """Half of the workers take a quarter of the steps, so the run needs more steps than its distance predicts."""
    unequal = AllReduce(steps_per_round=(4, 4, 1, 1) * (SHAPE.num_workers // 4))
    slow = Schedule("slow", SHAPE, unequal)
    curves = train(COMPARED, ratio_by_distance)
    curves += train([slow], lambda schedule: ratio_by_distance(schedule) * (8 / 5) ** 0.83)
    prices, usual = (pilot_of(some).prices for some in (curves, curves[:-2]))
    assert prices.consensus_distance.value == pytest.approx(usual.consensus_distance.value, abs=0.003)


def test_pipeline_runs_price_pipelines_only():
    pipeline = Schedule("pipeline", SHAPE, AllReduce(sync=Pipeline()))

    def steps_ratio(schedule):
        return 1.7 if schedule is pipeline else ratio_by_distance(schedule)

    without = pilot_of(train(COMPARED, steps_ratio))
    pilot = pilot_of(train([*COMPARED, pipeline], steps_ratio), finalists={trained_sha256(pipeline)})
    assert pilot.prices == without.prices
    job = replace(JOB, pilot=pilot)
    options = as_ran(plan(replace(job, pilot=without)).options, job)
    (piped,) = {one.steps_ratio for one in options if one.schedule.strategy.sync.delays_gradients}
    assert piped == pytest.approx(1.7, rel=0.02)


def test_noisy_run_corrects_a_prediction_less_than_a_precise_run():
    pilot = pilot_of(train(COMPARED, ratio_by_distance), finalists={trained_sha256(COMPARED[1])})
    known = next(probe for probe in pilot.probes if probe.sha256)
    job = replace(JOB, pilot=pilot)
    option = next(one for one in plan(job).options if trained_sha256(one.schedule) == known.sha256)
    before = option.steps_ratio - (option.surprise or 0.0)

    def after(*steps_ratios):
        ran = replace(known, steps_ratios=steps_ratios)
        changed = replace(pilot, probes=(ran, *(one for one in pilot.probes if one is not known)))
        (found,) = as_ran([replace(option, steps_ratio=before, surprise=None)], replace(job, pilot=changed))
        return found.steps_ratio

    assert after(2.0, 2.0) == pytest.approx(2.0)
    assert before < after(0.5, 3.5) < 1.5 < after(1.99, 2.01)
