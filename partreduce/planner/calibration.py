"""Calibration: from the loss curves of a pilot to the prices of consensus distance, drift and delay, with intervals.

Three steps, each stated in docs/pilot.md:

1. A run's *steps ratio* is the factor σ by which All-Reduce's curve of the same seed must be stretched in steps to lie
   on the run's: it minimizes Σ (loss(t) − reference(t/σ))², in logarithms where all losses are positive.
2. steps ratio = 1 + averaging + a·consensus distance + c·drift^p + late·L + later·L·max(0, L − 1), where L is the late
   distance, is linear in the prices (p is the shipped model's); they are fitted to the mean steps ratios by least
   squares of relative errors, none below 0. All-Reduce's run of a seed is as noisy as the others and stands in every
   steps ratio of that seed: as one more run, whose steps ratio is 1, it shares a free common factor with them (which is
   generalized least squares for the covariance I + 11ᵀ of such ratios).
3. Each seed is a whole pilot of its own, so fitting each alone gives independent estimates, whose Student's t interval
   is the prices'. What the model itself misses shows in the error on schedules that are left out of the fit.
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
"""Factors that are tried, each 0.9 % above the one before; a parabola finds the least between them."""


def calibrated(curves: Sequence[Curve], *, data: str, steps: int, finalists: Collection[str] = ()) -> Pilot:
    """The pilot that these curves are of; those of All-Reduce in each step are what the others are compared with.

    The runs of `finalists`, by `trained_sha256`, count for these schedules themselves, and for prices.

    Raises:
        InputError: All-Reduce did not learn, a schedule learned nothing next to it, or there are too few seeds.
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
    """A schedule as its runs were; without steps ratios where in one of them the loss did not fall or was no number."""
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
    """The SHA-256 of what decides the steps of a schedule."""
    return schedule_sha256(as_trained(schedule, name=""))


def as_trained(schedule: Schedule, *, name: str) -> Schedule:
    """What decides the steps of a schedule, under another name: without its links, and how its sums travel."""
    plain = replace(schedule.strategy, transport=type(schedule.strategy.transport)())
    return Schedule(name, schedule.cluster.shape(), plain)


def _rounded(value: float) -> float:
    """Six digits: more than any pilot knows, and short in its file."""
    return float(f"{value:.6g}")


def drift_that_counts(schedule: Schedule, data: str) -> float:
    """The drift that lengthens the training on data placed like this; none where they are shuffled."""
    if data == "shuffled":
        return 0.0
    return float(drift(schedule, "node" if data == "per-node" else "worker"))


def steps_ratio_between(losses: Sequence[float], reference: Sequence[float]) -> float:
    """The factor by which the reference's curve must be stretched in steps to lie on this one, by least squares.

    The reference is made falling first (isotonic regression), so that its noise is not taken for progress. Points
    beyond its end, which a factor below 1 asks for, do not count.
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
    """The prices that explain the probes best, their 90 % intervals over the seeds, and the error on what is left out.

    Where the job `bears_delay` not at all, that of delay is the shipped one: every late probe was unstable.

    Raises:
        InputError: fewer probes than prices, or none that tells a price from the others.
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
    """What each price is multiplied with, probe by probe; the last two only where enough probes tell them apart."""
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
    """Whether the prices are told apart whichever probe is left out; features (probes, prices)."""
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
        """Without the factor that the runs of a seed have in common, which says nothing about prices."""
        return _Runs(self.features - self.features.mean(axis=0), self.excess - self.excess.mean(axis=0))

    def without(self, index: int) -> _Runs:
        return _Runs(np.delete(self.features, index, axis=0), np.delete(self.excess, index, axis=0))

    def prices(self) -> npt.NDArray[np.float64]:
        """Those ≥ 0 with the least squares, over the mean of the seeds."""
        from scipy.optimize import nnls

        level = self.leveled()
        return np.asarray(nnls(level.features, level.excess.mean(axis=1))[0], dtype=float)

    def intervals(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Student's t interval of each price over the estimates of the single seeds, which may lie below 0."""
        from scipy.stats import t

        level = self.leveled()
        by_seed = np.linalg.lstsq(level.features, level.excess, rcond=None)[0]
        seeds = by_seed.shape[1]
        half = t.ppf((1 + CONFIDENCE) / 2, seeds - 1) * by_seed.std(axis=1, ddof=1) / np.sqrt(seeds)
        middle = by_seed.mean(axis=1)
        return middle - half, middle + half

    def error_left_out(self) -> float:
        """The largest relative error of a probe that the other runs predict; all of a fit that needs every one."""
        errors = []
        for index in range(1, len(self.features)):
            others = self.without(index)
            if np.linalg.matrix_rank(others.features) < others.features.shape[1]:
                return 1.0
            prices = others.prices()
            common = (others.excess.mean(axis=1) - others.features @ prices).mean()
            errors.append(abs(self.features[index] @ prices + common - self.excess[index].mean()))
        return float(max(errors))


@lru_cache(maxsize=8)  # asked for every candidate of a plan
def steps_model(pilot: Pilot) -> StepsModel:
    """The steps model with a pilot's prices; where its data were shuffled, that of drift stays the shipped one.

    Beyond the largest metrics of its probes nothing was learned: there a unit costs what the interval allows at most,
    and no less than shipped, so that a price of nothing is no reason to average hardly ever. Where a synchronous probe
    was unstable nothing beyond the stable ones is recommended, and where a late one was nothing that is late, unless it
    is asked for.
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
        # A pilot knows the delay of parameters; that of gradients may cost more, and is no less than shipped.
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
    """The error on schedules left out, or what the intervals leave open of a probe's steps ratio if that is more."""
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
