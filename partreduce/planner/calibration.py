"""Calibrate the prices of consensus distance, drift and delay, with intervals, from the loss curves of a pilot.

There are three steps, which docs/pilot.md describes:

1. A run's *steps ratio* is the factor σ by which All-Reduce's curve of the same seed must be stretched in steps to lie
   on the run's: it minimizes Σ (loss(t) − reference(t/σ))², in logarithms where all losses are positive.
2. steps ratio = 1 + averaging + a·consensus distance + c·drift^p + late·L + later·L·max(0, L − 1), where L is the late
   distance, is linear in the prices (p is the shipped model's); they are fitted to the mean steps ratios by least
   squares of relative errors, none below 0. All-Reduce's run of a seed is as noisy as the others and enters every steps
   ratio of that seed. It is therefore one more run, with steps ratio 1, and all runs of a seed share a free common
   factor (generalized least squares for the covariance I + 11ᵀ of such ratios).
3. Each seed is a complete pilot, so separate fits give independent estimates, whose Student's t interval is that of the
   prices. The error on schedules left out of the fit measures the misfit of the model itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

import numpy as np
import numpy.typing as npt

from partreduce.planner.steps_model import FITTED, NEVER, StepsModel, long_delay
from partreduce.planner.steps_model import Prices as TaskPrices
from partreduce.runtime.pilot.job import Curve
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.errors import InputError
from partreduce.topo.metrics import consensus_distance, drift, late_distance
from partreduce.topo.pilot import CONFIDENCE, Pilot, Price, Prices, Probe
from partreduce.topo.schedule import Schedule

LEAST_STEPS_RATIO, MOST_STEPS_RATIO = 0.5, 20.0
GRID = np.geomspace(LEAST_STEPS_RATIO, MOST_STEPS_RATIO, 400)
"""Stretch factors to try, each 0.9 % above the one before; a parabola interpolates the minimum."""


def calibrated(curves: Sequence[Curve], *, data: str, steps: int, finalists: Collection[str] = ()) -> Pilot:
    """Return the pilot of these curves, compared with the curves of All-Reduce in every step.

    Runs of `finalists` (hashes by `trained_sha256`) count for the schedules themselves and for the prices.

    Raises:
        InputError: All-Reduce did not learn, a schedule learned nothing compared with it, or there are too few seeds.
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
    stable: list[Probe] = []
    unstable: list[Probe] = []
    for sha256, runs in by_schedule.items():
        found = _probe(runs, references, data)
        found = replace(found, sha256=sha256 if sha256 in finalists else "")
        (stable if found.steps_ratios else unstable).append(found)
    probes = tuple(stable)
    return Pilot(
        num_workers=curves[0].schedule.num_workers,
        data=data,  # type: ignore[arg-type]  # one of the three words
        steps=steps,
        seeds=tuple(references),
        prices=fit_prices(
            [probe for probe in probes if not probe.is_pipeline],
            data=data,
            bears_delay=any(probe.late for probe in probes) or not unstable,
        ),
        probes=probes,
        unstable=tuple(unstable),
    )


def _probe(runs: Sequence[Curve], references: dict[int, Curve], data: str) -> Probe:
    """Return the probe of a schedule's runs; without steps ratios if a loss did not fall or was not finite."""
    schedule = runs[0].schedule
    steps_ratios: tuple[float, ...] = ()
    if len(runs) == len(references) and all(run.is_stable for run in runs):
        steps_ratios = tuple(_rounded(steps_ratio_between(run.losses, references[run.seed].losses)) for run in runs)
    if max(steps_ratios, default=0.0) > 0.99 * MOST_STEPS_RATIO:
        steps_ratios = ()
    return Probe(
        schedule=schedule.name,
        consensus_distance=_rounded(float(consensus_distance(schedule))),
        drift=_rounded(drift_that_counts(schedule, data)),
        late=_rounded(late_distance(schedule)),
        steps_ratios=steps_ratios,
    )


def trained_sha256(schedule: Schedule) -> str:
    """Return the SHA-256 of the fields that determine the training steps of a schedule."""
    return schedule_sha256(as_trained(schedule, name=""))


def as_trained(schedule: Schedule, *, name: str) -> Schedule:
    """Return the fields that determine the training steps, under another name: no links and no transport."""
    plain = replace(schedule.strategy, transport=type(schedule.strategy.transport)())
    return Schedule(name, schedule.cluster.shape(), plain)


def _rounded(value: float) -> float:
    """Round to six digits: more than any pilot resolves, and short in its file."""
    return float(f"{value:.6g}")


def drift_that_counts(schedule: Schedule, data: str) -> float:
    """Return the drift that lengthens training on data placed like this; 0 for shuffled data."""
    if data == "shuffled":
        return 0.0
    return float(drift(schedule, "node" if data == "per-node" else "worker"))


def steps_ratio_between(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Return the least-squares factor by which the reference curve must be stretched in steps to match this one.

    The reference is first made nonincreasing (isotonic regression), so that its noise does not count as progress.
    Points beyond its end, which a factor below 1 needs, are ignored.
    """
    from scipy.optimize import isotonic_regression

    both = np.array([losses, reference])  # (2, points)
    curve, known = np.log(both) if (both > 0).all() else both
    falling = isotonic_regression(known, increasing=False).x
    steps = np.arange(len(curve), dtype=float)
    where = steps / GRID[:, None]  # (factors, points)
    misses = (np.interp(where, steps, falling) - curve) ** 2
    inside = where <= steps[-1]
    costs = (misses * inside).sum(axis=1) / inside.sum(axis=1)
    best = int(np.argmin(costs))
    if best in (0, len(GRID) - 1):
        return float(GRID[best])
    before, least, after = costs[best - 1 : best + 2]
    bend = before - 2 * least + after
    shift = (before - after) / (2 * bend) if bend > 0 else 0.0
    return float(GRID[best] * (GRID[1] / GRID[0]) ** shift)


def fit_prices(probes: Sequence[Probe], *, data: str, bears_delay: bool = True) -> Prices:
    """Fit the prices to the probes, with 90 % intervals over the seeds and the error on left-out probes.

    If `bears_delay` is false, every late probe was unstable and the shipped price of delay is kept.

    Raises:
        InputError: fewer probes than prices, or probes that do not separate one price from the others.
    """
    columns = _features(probes, data, bears_delay=bears_delay)
    features = np.array([*columns.values()]).T  # (probes, prices)
    measured = np.array([probe.steps_ratios for probe in probes])  # (probes, seeds)
    if np.linalg.matrix_rank(features) < features.shape[1]:
        raise InputError(
            "schedules: do not tell the prices apart; take some synchronous and some late ones, with different "
            "consensus distances"
        )
    runs = _Runs.of(features, measured)
    values = runs.prices()
    low, high = runs.intervals()
    prices = {
        name: Price(_rounded(value), _rounded(min(value, bottom)), _rounded(max(value, top)))
        for name, value, bottom, top in zip(columns, values, np.maximum(low, 0), np.maximum(high, 0), strict=True)
    }
    return Prices(
        consensus_distance=prices["consensus_distance"],
        late=prices.get("late") or Price(FITTED.late, 0.0, max(task.late for task in FITTED.tasks)),
        drift=prices.get("drift"),
        error=_rounded(runs.error_left_out()),
        averaging=prices.get("averaging"),
        later=prices.get("later"),
    )


def _features(probes: Sequence[Probe], data: str, *, bears_delay: bool) -> dict[str, list[float]]:
    """Return the regressor of each price, per probe; the last two only where enough probes separate them."""
    columns = {"consensus_distance": [probe.consensus_distance for probe in probes]}
    if bears_delay:
        columns["late"] = [probe.late for probe in probes]
    if data != "shuffled":
        columns["drift"] = [probe.drift**FITTED.p for probe in probes]
    wider = {"averaging": [1.0] * len(probes)}
    if bears_delay:
        wider["later"] = [long_delay(probe.late) for probe in probes]
    for name, column in wider.items():
        if _are_told_apart_without_any(np.array([*columns.values(), column]).T):
            columns[name] = column
    return columns


def _are_told_apart_without_any(features: npt.NDArray[np.float64]) -> bool:
    """Return whether the prices stay identifiable if any one probe is left out; features (probes, prices)."""
    ranks = [np.linalg.matrix_rank(np.delete(features, index, axis=0)) for index in range(len(features))]
    return bool(min(ranks) == features.shape[1])


@dataclass(frozen=True, slots=True)
class _Runs:
    """All-Reduce (first) and the probes: relative features (runs, prices), and relative excess over 1 (runs, seeds)."""

    features: npt.NDArray[np.float64]
    excess: npt.NDArray[np.float64]

    @classmethod
    def of(cls, features: npt.NDArray[np.float64], steps_ratios: npt.NDArray[np.float64]) -> _Runs:
        weights = 1 / steps_ratios.mean(axis=1, keepdims=True)
        known = np.vstack([np.zeros((1, features.shape[1])), features * weights])
        return cls(known, np.vstack([np.zeros((1, steps_ratios.shape[1])), (steps_ratios - 1) * weights]))

    def leveled(self) -> _Runs:
        """Remove the common factor of the runs of a seed, which carries no information on prices."""
        return _Runs(self.features - self.features.mean(axis=0), self.excess - self.excess.mean(axis=0))

    def without(self, index: int) -> _Runs:
        return _Runs(np.delete(self.features, index, axis=0), np.delete(self.excess, index, axis=0))

    def prices(self) -> npt.NDArray[np.float64]:
        """Return the nonnegative least-squares prices for the mean over seeds."""
        from scipy.optimize import nnls

        level = self.leveled()
        return np.asarray(nnls(level.features, level.excess.mean(axis=1))[0], dtype=float)

    def intervals(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return Student's t interval of each price over the estimates of single seeds; it may extend below 0."""
        from scipy.stats import t

        level = self.leveled()
        by_seed = np.linalg.lstsq(level.features, level.excess, rcond=None)[0]
        seeds = by_seed.shape[1]
        half = t.ppf((1 + CONFIDENCE) / 2, seeds - 1) * by_seed.std(axis=1, ddof=1) / np.sqrt(seeds)
        middle = by_seed.mean(axis=1)
        return middle - half, middle + half

    def error_left_out(self) -> float:
        """Return the largest relative error on a left-out probe; 1 if the fit needs every probe."""
        errors = []
        for index in range(1, len(self.features)):
            others = self.without(index)
            if np.linalg.matrix_rank(others.features) < others.features.shape[1]:
                return 1.0
            prices = others.prices()
            common = (others.excess.mean(axis=1) - others.features @ prices).mean()
            errors.append(abs(self.features[index] @ prices + common - self.excess[index].mean()))
        return float(max(errors))


@lru_cache(maxsize=8)  # called for every candidate of a plan
def steps_model(pilot: Pilot) -> StepsModel:
    """Return the steps model with a pilot's prices; for shuffled data the shipped price of drift is kept.

    Beyond the largest metrics of the probes, a unit costs the upper end of the interval and at least the shipped price,
    so that a price of 0 is no reason to average almost never. If a synchronous probe was unstable, nothing beyond the
    stable probes is recommended; if a late probe was, no late schedule is recommended unless the job asks for one.
    """
    prices, nothing = pilot.prices, Price(0.0, 0.0, 0.0)
    averaging, later = prices.averaging or nothing, prices.later or nothing
    is_borne = all(not probe.late for probe in pilot.unstable)
    bears_pipelines = is_borne and not any(probe.is_pipeline for probe in pilot.unstable)
    synchronous = [probe for probe in pilot.unstable if not probe.late and not probe.is_pipeline]
    least_unstable = min((probe.consensus_distance for probe in synchronous), default=inf)
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
            for late in {prices.late.low, prices.late.high if is_borne else inf}
            for own in {averaging.low, averaging.high}
            for more in {later.low, later.high}
        ),
        errors=((pilot.data, _error(pilot)),),
        late_errors=(),
        # A pilot measures the delay of parameters; that of gradients may cost more, and costs at least the shipped
        # price.
        delay=max(prices.late.value, FITTED.delay),
        delay_noise=None,
        delay_error=_error(pilot),
        lost=NEVER,
        delay_more=max(prices.late.high - prices.late.value, FITTED.delay_more) if bears_pipelines else inf,
        max_consensus_distance=pilot.max_consensus_distance,
        max_drift=pilot.max_drift,
        a_beyond=max(prices.consensus_distance.high, FITTED.a) if least_unstable == inf else inf,
        c_beyond=FITTED.c if prices.drift is None else max(prices.drift.high, FITTED.c),
        basis=f"schedules left out of the fit of your pilot ({pilot.num_workers} workers, {pilot.steps} steps)",
    )


def _error(pilot: Pilot) -> float:
    """Return the left-out error, or the interval's uncertainty of a probe's steps ratio if that is larger."""
    prices = pilot.prices
    widths = []
    for probe in pilot.probes:
        halves = (prices.consensus_distance.high - prices.consensus_distance.low) / 2 * probe.consensus_distance
        halves += (prices.late.high - prices.late.low) / 2 * probe.late
        if prices.drift is not None:
            halves += (prices.drift.high - prices.drift.low) / 2 * probe.drift**FITTED.p
        if prices.averaging is not None:
            halves += (prices.averaging.high - prices.averaging.low) / 2
        if prices.later is not None:
            halves += (prices.later.high - prices.later.low) / 2 * long_delay(probe.late)
        widths.append(halves / probe.steps_ratio)
    return max(prices.error, *widths)
