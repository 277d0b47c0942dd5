"""Drift correction: does a schedule stay stable with it, and which strength α settles fastest?

Every worker keeps a correction h_i, steps with gradient − h_i, and at each mean of its group adds
α · (mean − x_i) / s̄, s̄ being the group's mean of the sum of rates since each member's last mean. In units of the rate,
and for gradients that are constant, a period maps (x, h) linearly; its spectral radius off the mean says how fast the
corrections find the gradients' differences: below 1 they do, at 1 or above they run away. The same operator says how
much of the gradients' noise the corrections follow. These are the control variates of ProxSkip/Scaffnew (Mishchenko et
al., ICML 2022), applied to groups. Curvature is left out here; runtime.strategies.drift_correction guards against it.

For a rule the operator splits into one of size 2G per class of characters (G workers on a node), for any number of
nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.topo.arithmetic.lyapunov import steady_state
from partreduce.topo.errors import InputError
from partreduce.topo.figures.class_means import Means, means_of_class, means_of_groups
from partreduce.topo.figures.classes import merged_classes
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.base import Averaging

MAX_DENSE_WORKERS = 400
STRONGEST = 1.0
STRONGEST_LOCAL = 0.1
"""`auto` where workers take several steps between means: along such paths corrections pick up curvature, too."""
MAX_NOISE = 1.25
"""`auto` lets the noise that corrections follow add at most a quarter to what noise spreads workers by."""
_GRID = 40
NEGLIGIBLE = 1e-15
"""Entries of a power of the period below this add nothing to a covariance any more."""
_DOUBLINGS = 40


class _Part(NamedTuple):
    """An invariant part of the operator: how often it occurs, its means, its paces, and whether it holds the mean."""

    multiplicity: int
    phases: Means
    paces: npt.NDArray[np.float64]
    off_mean: bool


def correction_radius(schedule: Schedule, alpha: float) -> float:
    """Spectral radius of the joint (x, h) operator of one period; < 1 is stable, smaller settles faster.

    O(2^k · period · G³) for rules with k digits and G workers on a node, O(period · n³) for explicit schedules.

    Raises:
        InputError: a schedule whose parameters are not averaged over groups, or too large an explicit one.
    """
    refuse_schedule(schedule)
    return max(_radius(part, alpha) for part in _classes(schedule))


def best_alpha(schedule: Schedule) -> tuple[float, float]:
    """(α, radius): the strength in (0, 1] that settles fastest without following noise, to about 1 %.

    Strengths whose noise_factor is above MAX_NOISE are left out, unless all stable ones are: what a correction learns
    from noisy gradients pushes workers apart. With paces above 1 the strongest is STRONGEST_LOCAL.

    Raises:
        InputError: as correction_radius, or no strength is stable.
    """
    refuse_schedule(schedule)
    classes = _classes(schedule)
    quiet = _spread(classes, 0.0)

    def judged(alpha: float) -> tuple[bool, float, float]:
        """Sorts first what is quiet enough, then what settles fastest."""
        radius = max(_radius(part, alpha) for part in classes)
        return radius >= 1 or not _spread(classes, alpha) <= MAX_NOISE * quiet, radius, alpha

    strongest = STRONGEST if schedule.largest_pace == 1 else STRONGEST_LOCAL
    grid = [float(alpha) for alpha in np.geomspace(0.002, strongest, _GRID)]
    best = min(judged(alpha) for alpha in grid)[2]
    place = grid.index(best)
    low, high = grid[max(place - 1, 0)], grid[min(place + 1, _GRID - 1)]
    _, radius, alpha = min(judged(float(alpha)) for alpha in np.linspace(low, high, 21))
    if radius >= 1:
        raise InputError(
            f"schedule {schedule.name!r}: no strength of drift correction is stable (radius {radius:.6g} at best); "
            "its groups do not connect all workers"
        )
    return alpha, radius


def noise_factor(schedule: Schedule, alpha: float) -> float:
    """What gradient noise spreads workers by right before their means, over what it does without correction.

    Mean squares, summed over workers and averaged over rounds, of the steady state that unit noise in each step keeps
    up: the periodic Lyapunov equation of the joint (x, h) operator. The cost is a few times correction_radius's.

    Raises:
        InputError: as correction_radius, or the strength is not stable.
    """
    if not (radius := correction_radius(schedule, alpha)) < 1:
        raise InputError(f"schedule {schedule.name!r}: drift correction {alpha:g} is not stable (radius {radius:.6g})")
    classes = _classes(schedule)
    return _spread(classes, alpha) / _spread(classes, 0.0)


def is_correctable(schedule: Schedule) -> bool:
    """Whether the correction is defined for a schedule."""
    try:
        refuse_schedule(schedule)
    except InputError:
        return False
    return True


def refuse_schedule(schedule: Schedule) -> None:
    """Refuse schedules for which the correction is not defined."""
    strategy = schedule.strategy
    way_out = "use a static schedule, or allreduce with pace > 1, without overlap"
    if not schedule.is_phased or strategy.averages_gradients:
        raise InputError(
            f"drift correction: schedule {schedule.name!r} does not average parameters in groups; {way_out}"
        )
    if strategy.mixes_late:
        raise InputError(
            f"drift correction: schedule {schedule.name!r} overlaps, for which it is not derived; {way_out}"
        )
    if not strategy.when.takes_all:
        raise InputError(
            f"drift correction: in schedule {schedule.name!r} a quorum decides which progress a round has, for which "
            f"it is not derived; {way_out}"
        )
    if not strategy.what.outer.is_plain:
        raise InputError(
            f"drift correction: schedule {schedule.name!r} has outer steps, for which it is not derived; "
            "leave one of the two out"
        )
    if strategy.takes_turns:
        raise InputError(
            f"drift correction: schedule {schedule.name!r} has rounds of fragments, or merges late, for which it is "
            "not derived; leave one of the two out"
        )
    if strategy.averaging is not Averaging.MEAN:
        raise InputError(f"drift correction: schedule {schedule.name!r} normalises steps; use plain means with it")
    if strategy.how.codec.rounds:
        raise InputError(
            f"drift correction: schedule {schedule.name!r} has codec {strategy.how.codec.value!r}, and corrections "
            "that are learned from rounded means no longer sum to zero; leave one of the two out"
        )


def _classes(schedule: Schedule) -> list[_Part]:
    """The parts that together are the operator on all workers."""
    paces, rule = schedule.paces().astype(np.float64), schedule.rule()
    if rule is not None and isinstance(schedule.strategy.pace, int):
        paces = paces[: rule.workers_per_node]
        return [
            _Part(merged.multiplicity, means_of_class(rule, merged.digits), paces, merged.holds_mean)
            for merged in merged_classes(rule)
        ]
    if schedule.num_workers > MAX_DENSE_WORKERS:
        raise InputError(
            f"drift correction: explicit schedule {schedule.name!r} has {schedule.num_workers} workers; its joint "
            f"operator is computed up to {MAX_DENSE_WORKERS}; write it as a rule"
        )
    return [_Part(1, means_of_groups(schedule.phased.steps(schedule.cluster)), paces, True)]


def _radius(part: _Part, alpha: float) -> float:
    operator = np.eye(2 * len(part.paces))
    for step, mean in _operators(part, alpha):
        operator = mean @ step @ operator
    return float(np.abs(np.linalg.eigvals(operator)).max())


def _spread(classes: Sequence[_Part], alpha: float) -> float:
    """Σ over workers and rounds of E x² right before the means, divided by the number of rounds; α is stable."""
    total = 0.0
    for part in classes:
        n = len(part.paces)
        noise = np.zeros((2 * n, 2 * n))
        noise[:n, :n] = np.diag(part.paces)
        project = _projection(n, part.off_mean)
        noise = project @ noise @ project
        operators = _operators(part, alpha)
        if alpha == 0:  # x alone: corrections that are never learned would stay for ever
            noise = noise[:n, :n]
            operators = [(step[:n, :n], mean[:n, :n]) for step, mean in operators]
        start, period = np.zeros_like(noise), np.eye(len(noise))
        for step, mean in operators:
            start = mean @ (step @ start @ step.T + noise) @ mean.T
            period = mean @ step @ period
        covariance, remainder = steady_state(period, start, negligible=NEGLIGIBLE, max_doublings=_DOUBLINGS)
        if not np.abs(remainder).max() <= NEGLIGIBLE:
            return float("inf")  # it grows without end
        for step, mean in operators:
            before = step @ covariance @ step.T + noise
            total += part.multiplicity * float(np.trace(before[:n, :n])) / len(operators)
            covariance = mean @ before @ mean.T
    return total


def _projection(n: int, off_mean: bool) -> npt.NDArray[np.float64]:
    """Off the mean of x and of h; without effect on classes that have no mean."""
    one = np.eye(n)
    if off_mean:
        one -= 1 / n
    project = np.zeros((2 * n, 2 * n))
    project[:n, :n] = project[n:, n:] = one
    return project


def _operators(part: _Part, alpha: float) -> list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    """For every round (x ← x + pace · h, then its means) as matrices of the joint (x, h)."""
    phases, paces, n = part.phases, part.paces, len(part.paces)
    since, project = np.zeros(n), _projection(n, part.off_mean)
    found = []
    for index, phase in enumerate([*phases, *phases]):  # one period to find the steps since each worker's last mean
        since += paces
        step, after = np.eye(2 * n), np.eye(2 * n)
        step[:n, n:] = np.diag(paces)
        for mean in phase:
            members = mean.members
            change = -after[members]
            if mean.survives:
                change += after[members].mean(axis=0)
            after[[n + i for i in members]] += alpha / since[members].mean() * change
            after[members] += mean.relax * change
            since[members] = 0.0
        if index >= len(phases):
            found.append((project @ step @ project, project @ after @ project))
    return found
