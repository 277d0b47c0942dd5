"""Calibrate the prices of consensus distance, drift and delay, with intervals, from the loss curves of a pilot.

There are three steps, which docs/pilot.md describes:

1. A run's *steps ratio* is the factor σ by which All-Reduce's loss curve of the same seed must be stretched in steps to
   match the run's: it minimizes Σ (loss(t) − reference(t/σ))², in logarithms if all losses are positive.
2. steps ratio = 1 + averaging + a·consensus distance + c·drift^p + late·L + later·L·max(0, L − 1), with the late
   distance L, is linear in the prices averaging, a, c, late and later (p is the shipped model's). They are fitted to
   the mean steps ratios by least squares of relative errors, none below 0. All-Reduce's run of a seed is as noisy as
   the others and enters every steps ratio of that seed. It is therefore one more run, with steps ratio 1, and all runs
   of a seed share a free common factor (generalized least squares for the covariance I + 11ᵀ of such ratios).
3. Each seed is a complete pilot, so separate fits give independent estimates, whose Student's t interval is that of the
   prices. The error on schedules left out of the fit measures the misfit of the model itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf

import numpy as np
import numpy.typing as npt

from partreduce.planner.steps_model import FITTED, NEVER, StepsModel, long_delay, step_progress
from partreduce.planner.steps_model import Prices as TaskPrices
from partreduce.runtime.pilot.job import Curve
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.errors import InputError
from partreduce.topo.metrics import consensus_distance, drift, late_distance
from partreduce.topo.pilot import CONFIDENCE, Pilot, Price, Prices, Probe
from partreduce.topo.schedule import Schedule

LEAST_STEPS_RATIO, MOST_STEPS_RATIO = 0.5, 20.0
GRID = np.geomspace(LEAST_STEPS_RATIO, MOST_STEPS_RATIO, 400)
"""Stretch factors to try, each 0.9 % larger than the previous one; a parabola interpolates the minimum."""

Array = npt.NDArray[np.float64]


def calibrate(curves: Sequence[Curve], *, data: str, steps: int, finalists: Collection[str] = ()) -> Pilot:
    """Fit the prices of consensus distance, drift and delay to the loss curves of a pilot's training runs.

    Args:
        curves: the loss curves of all runs, with All-Reduce's for at least two seeds.
        data: how training data differ between workers: shuffled, per-worker or per-node.
        steps: the training steps of a run.
        finalists: hashes (`trained_sha256`) of schedules whose own steps ratios plans shall use (`measuring.as_ran`).

    Returns:
        The Pilot: the prices with intervals, and the schedules that ran.

    Raises:
        InputError: All-Reduce did not learn, there are fewer than two seeds, or a price cannot be determined.
    """
    references = {curve.seed: curve for curve in curves if curve.is_reference}
    if len(references) < 2:
        raise InputError("seeds: an interval takes at least 2")
    for seed, curve in references.items():
        if not min(curve.losses[1:]) < curve.losses[0]:
            raise InputError(
                f"pilot: All-Reduce's loss did not fall in {steps} steps (seed {seed}: {curve.losses[0]:.4g} to "
                f"{curve.losses[-1]:.4g}), so there is nothing to compare; take more steps or another learning rate"
            )
    by_schedule: dict[str, list[Curve]] = {}
    for curve in curves:
        if not curve.is_reference:
            by_schedule.setdefault(trained_sha256(curve.schedule), []).append(curve)
    found = [
        replace(_probe(runs, references, data), sha256=sha256 if sha256 in finalists else "")
        for sha256, runs in by_schedule.items()
    ]
    probes = tuple(probe for probe in found if probe.steps_ratios)
    unstable = tuple(probe for probe in found if not probe.steps_ratios)
    has_delay = any(probe.late for probe in probes) or not unstable
    # The steps that slow workers leave out have a price that is not fitted.
    priced = [
        replace(probe, steps_ratios=tuple(ratio * step_progress(runs[0].schedule) for ratio in probe.steps_ratios))
        for probe, runs in zip(found, by_schedule.values(), strict=True)
        if probe.steps_ratios and not probe.is_pipeline
    ]
    return Pilot(
        num_workers=curves[0].schedule.num_workers,
        data=data,  # type: ignore[arg-type]  # one of the three words
        steps=steps,
        seeds=tuple(references),
        prices=fit_prices(priced, data=data, bears_delay=has_delay),
        probes=probes,
        unstable=unstable,
    )


def _probe(runs: Sequence[Curve], references: dict[int, Curve], data: str) -> Probe:
    """Return the probe of one schedule: its metrics, and its steps ratio for each seed.

    `runs` are the schedule's loss curves, one per seed, `references` All-Reduce's by seed. If a run was unstable,
    missing, or slower than `MOST_STEPS_RATIO` can express, there are no steps ratios. `data` as in `calibrate`.
    """
    schedule = runs[0].schedule
    steps_ratios: tuple[float, ...] = ()
    if len(runs) == len(references) and all(run.is_stable for run in runs):
        steps_ratios = tuple(_six_digits(steps_ratio_between(run.losses, references[run.seed].losses)) for run in runs)
    return Probe(
        schedule=schedule.name,
        consensus_distance=_six_digits(float(consensus_distance(schedule))),
        drift=_six_digits(drift_that_counts(schedule, data)),
        late=_six_digits(late_distance(schedule)),
        steps_ratios=() if max(steps_ratios, default=0.0) > 0.99 * MOST_STEPS_RATIO else steps_ratios,
    )


def trained_sha256(schedule: Schedule) -> str:
    """Return the SHA-256 of the fields of a schedule that affect training steps; equal for equal numerical results."""
    return schedule_sha256(as_trained(schedule, name=""))


def as_trained(schedule: Schedule, *, name: str) -> Schedule:
    """Return a schedule under another name with only the fields that affect training steps: no links, no transport."""
    plain = replace(schedule.strategy, transport=type(schedule.strategy.transport)())
    return Schedule(name, schedule.cluster.shape(), plain)


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")


def drift_that_counts(schedule: Schedule, data: str) -> float:
    """Return the drift that costs steps: of workers, or nodes if `data` is "per-node"; 0 if it is "shuffled"."""
    return 0.0 if data == "shuffled" else float(drift(schedule, "node" if data == "per-node" else "worker"))


def steps_ratio_between(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Return the least-squares factor by which the reference curve must be stretched in steps to match this one.

    The reference is first made nonincreasing, so that its noise does not count as progress. Points beyond its end,
    which a factor below 1 needs, are ignored.
    """
    from scipy.optimize import isotonic_regression

    both = np.array([losses, reference])  # (2, points)
    curve, known = np.log(both) if (both > 0).all() else both
    falling, steps = isotonic_regression(known, increasing=False).x, np.arange(len(curve), dtype=float)
    where = steps / GRID[:, None]  # (factors, points)
    inside = where <= steps[-1]
    costs = ((np.interp(where, steps, falling) - curve) ** 2 * inside).sum(axis=1) / inside.sum(axis=1)
    best = int(np.argmin(costs))
    if best in (0, len(GRID) - 1):
        return float(GRID[best])
    before, least, after = costs[best - 1 : best + 2]
    bend = before - 2 * least + after
    shift = (before - after) / (2 * bend) if bend > 0 else 0.0
    return float(GRID[best] * (GRID[1] / GRID[0]) ** shift)


def fit_prices(probes: Sequence[Probe], *, data: str, bears_delay: bool = True) -> Prices:
    """Fit the prices to the probes (schedules that the pilot ran), each with a 90 % interval over the seeds.

    Args:
        probes: the metrics and steps ratios of each schedule, none of which was unstable.
        data: how training data differ between workers: shuffled (no price of drift), per-worker or per-node.
        bears_delay: false if every late probe was unstable; the shipped price of delay is then kept.

    Raises:
        InputError: fewer probes than prices, or probes that do not separate one price from the others.
    """
    columns = _features(probes, data, bears_delay=bears_delay)
    features = np.array([*columns.values()]).T  # (probes, prices)
    if np.linalg.matrix_rank(features) < features.shape[1]:
        raise InputError(
            "schedules: do not tell the prices apart; take some synchronous and some late ones, with different "
            "consensus distances"
        )
    ratios = np.array([probe.steps_ratios for probe in probes])  # (probes, seeds)
    weights = 1 / ratios.mean(axis=1, keepdims=True)
    # All-Reduce's run is one more row, of zeros.
    features, excess = (np.pad(rows * weights, ((1, 0), (0, 0))) for rows in (features, ratios - 1))
    found = zip(columns, _prices(features, excess), *np.maximum(_intervals(features, excess), 0), strict=True)
    prices = {
        name: Price(_six_digits(value), _six_digits(min(value, bottom)), _six_digits(max(value, top)))
        for name, value, bottom, top in found
    }
    return Prices(
        consensus_distance=prices["consensus_distance"],
        late=prices.get("late") or Price(FITTED.late, 0.0, max(task.late for task in FITTED.tasks)),
        drift=prices.get("drift"),
        error=_six_digits(_error_left_out(features, excess)),
        averaging=prices.get("averaging"),
        later=prices.get("later"),
    )


def _features(probes: Sequence[Probe], data: str, *, bears_delay: bool) -> dict[str, list[float]]:
    """Return what each price multiplies, by the price's name, with one value for each probe; `data` as in `calibrate`.

    The prices "averaging" and "later" are fitted only if the others remain determined without any single probe.
    """
    columns = {"consensus_distance": [probe.consensus_distance for probe in probes]}
    if bears_delay:
        columns["late"] = [probe.late for probe in probes]
    if data != "shuffled":
        columns["drift"] = [probe.drift**FITTED.p for probe in probes]
    wider = {"averaging": [1.0] * len(probes)}
    if bears_delay:
        wider["later"] = [long_delay(probe.late) for probe in probes]
    for name, column in wider.items():
        features = np.array([*columns.values(), column]).T  # (probes, prices)
        ranks = [np.linalg.matrix_rank(np.delete(features, index, axis=0)) for index in range(len(features))]
        if min(ranks) == features.shape[1]:
            columns[name] = column
    return columns


def _subtract_means(rows: Array) -> Array:
    """Return the data minus their means over all runs, which removes the factor common to the runs of a seed."""
    return np.asarray(rows - rows.mean(axis=0))


def _prices(features: Array, excess: Array) -> Array:
    """Return the nonnegative least-squares prices for the mean over seeds.

    `features`, shape (runs, prices), are what the prices multiply, `excess`, shape (runs, seeds), is the steps ratio
    minus 1, of All-Reduce's run first. Both are divided by the run's mean steps ratio.
    """
    from scipy.optimize import nnls

    return np.asarray(nnls(_subtract_means(features), _subtract_means(excess).mean(axis=1))[0], dtype=float)


def _intervals(features: Array, excess: Array) -> tuple[Array, Array]:
    """Return Student's t interval of each price over the estimates of single seeds; it may extend below 0."""
    from scipy.stats import t

    by_seed = np.linalg.lstsq(_subtract_means(features), _subtract_means(excess), rcond=None)[0]
    seeds, middle = by_seed.shape[1], by_seed.mean(axis=1)
    half = t.ppf((1 + CONFIDENCE) / 2, seeds - 1) * by_seed.std(axis=1, ddof=1) / np.sqrt(seeds)
    return middle - half, middle + half


def _error_left_out(features: Array, excess: Array) -> float:
    """Return the largest relative error on a left-out probe; 1 if the fit needs every probe."""
    errors = []
    for index in range(1, len(features)):
        others, their_excess = (np.delete(rows, index, axis=0) for rows in (features, excess))
        if np.linalg.matrix_rank(others) < others.shape[1]:
            return 1.0
        prices = _prices(others, their_excess)
        common = (their_excess.mean(axis=1) - others @ prices).mean()
        errors.append(abs(features[index] @ prices + common - excess[index].mean()))
    return float(max(errors))


def steps_model(pilot: Pilot) -> StepsModel:
    """Return the steps model with a pilot's prices; for shuffled data the shipped price of drift is kept.

    Beyond the largest metrics of the probes, a unit costs the upper end of the interval and at least the shipped price,
    so that a price of 0 is no reason to average almost never. If a synchronous probe was unstable, nothing beyond the
    stable probes is recommended; if a late probe was, no late schedule is recommended unless the job asks for one. Late
    gradients, which a pilot does not measure, cost at least the shipped price.
    """
    prices, nothing = pilot.prices, Price(0.0, 0.0, 0.0)
    averaging, later = prices.averaging or nothing, prices.later or nothing
    has_delay = all(not probe.late for probe in pilot.unstable)
    has_pipelines = has_delay and not any(probe.is_pipeline for probe in pilot.unstable)
    is_safe = not any(not probe.late and not probe.is_pipeline for probe in pilot.unstable)
    error = _error(pilot)
    return replace(
        FITTED,
        a=prices.consensus_distance.value,
        c=FITTED.c if prices.drift is None else prices.drift.value,
        noise=0.0,
        own=averaging.value,
        late=prices.late.value,
        later=later.value,
        tasks=tuple(
            TaskPrices(a=a, late=late, own=own, later=more)
            for a in {prices.consensus_distance.low, prices.consensus_distance.high}
            for late in {prices.late.low, prices.late.high if has_delay else inf}
            for own in {averaging.low, averaging.high}
            for more in {later.low, later.high}
        ),
        errors=((pilot.data, error),),
        late_errors=(),
        delay=max(prices.late.value, FITTED.delay),
        delay_error=error,
        lost=NEVER,
        delay_more=max(prices.late.high - prices.late.value, FITTED.delay_more) if has_pipelines else inf,
        max_consensus_distance=pilot.max_consensus_distance,
        max_drift=pilot.max_drift,
        a_beyond=max(prices.consensus_distance.high, FITTED.a) if is_safe else inf,
        c_beyond=FITTED.c if prices.drift is None else max(prices.drift.high, FITTED.c),
        basis=f"schedules left out of the fit of your pilot ({pilot.num_workers} workers, {pilot.steps} steps)",
    )


def _error(pilot: Pilot) -> float:
    """Return the relative error of a pilot's predictions of steps.

    It is the error on probes left out of the fit, or, if larger, the relative half-width of a probe's predicted steps
    over the intervals of the prices.
    """
    prices = pilot.prices
    errors = [prices.error]
    for probe in pilot.probes:
        terms = (
            (prices.consensus_distance, probe.consensus_distance),
            (prices.late, probe.late),
            (prices.drift, probe.drift**FITTED.p),
            (prices.averaging, 1.0),
            (prices.later, long_delay(probe.late)),
        )
        widths = ((price.high - price.low) / 2 * amount for price, amount in terms if price is not None)
        errors.append(sum(widths) / probe.steps_ratio)
    return max(errors)
