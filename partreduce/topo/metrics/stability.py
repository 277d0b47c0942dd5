"""Stable learning rates: with late gradients (and the noise these add), outer steps, or momentum on graphs.

A pipeline of width K applies each gradient K − 1 steps late, the same for all workers, so replicas stay equal and it
suffices to study one model. Along one eigenvector of a quadratic loss of curvature λ, with rate γ and h = γλ, the
distance to the minimum follows

    e[t] = e[t−1] − h·e[t−K] + noise,       whose roots solve  z^(K−1)·(z − 1) = −h.

*Stability.* For small h > 0 one root is near 1 − h and the others are near 0, so all lie inside the unit circle. A root
z = e^(iθ), 0 < θ ≤ π, has |z − 1| = 2·sin(θ/2) = h and arg(z − 1) = (π + θ)/2, so (K − 1)·θ + (π + θ)/2 is an odd
multiple of π: the smallest θ is π/(2K − 1), and the first root reaches the circle at

    h = 2·sin(π/(2·(2K − 1))):   2 synchronously (K = 1), 1 for K = 2, 0.618 for K = 3.

Beyond that it stays outside: d log z / d log h = 1/(K − 1 + z/(z − 1)), and Re z/(z − 1) = 1/2 on the circle, so every
root that crosses it goes outwards. (Known: Levin and May, Theor. Popul. Biol. 9, 1976.)

*Noise.* With independent noise of variance σ² in every step the covariances r_k of e[t] and e[t−k] obey

    r_k = r_(k−1) − h·r_(K−k)   for k = 1 … K,        r_0 = r_1 − h·r_K + σ².

With h = 2·sin φ and ψ = (2K − 1)·φ the first K are solved by r_k = c·cos(2φk − ψ/2 + π/4): their differences are
−2c·sin φ·sin((2k − 1)·φ − ψ/2 + π/4), and that sine is cos(2φ(K − k) − ψ/2 + π/4). The last one fixes c, and

    r_0 = σ²·(1 + sin ψ)/(2h·cos φ·cos ψ),

infinite where ψ = π/2, the limit above. The synchronous value is σ²/(h·(2 − h)); the quotient of the two is the noise
factor, for K = 2 (1 + h)(2 − h)/((1 − h)(2 + h)). It is 1 + (K − 1)·h + O(h²).

*Momentum* μ (heavy ball; PyTorch's `momentum` without dampening, not Nesterov's): e[t] = (1 + μ)·e[t−1] − μ·e[t−2] −
h·e[t−K], so z^(K−2)·(z − 1)·(z − μ) = −h. On the circle the argument of the left side grows with θ, from π/2 to Kπ, and
its modulus too, so the limit is its modulus where the argument is π: 2·(1 + μ) synchronously and 1 − μ for K = 2. In
units of the effective rate γ/(1 − μ), the limit of K = 2 is 1 for every μ.

*Outer steps.* Where gradients are zero a worker's model is its outer parameters a, and a round of its group maps (a,
b), b being its outer momentum: with m the group's mean of a less its own, b <- momentum * b + m, a <- a + lr * b (with
nesterov lr * (m + momentum * b)); a worker without a group keeps both. One period is a linear map M that fixes equal
outer parameters without momentum. On the complement its spectral radius is the rate of decay: below 1 the workers agree
and come to rest, at 1 or above they do not. So rate and momentum that are stable for one worker may be unstable for
groups.

For a rule M splits into a matrix of size 2G for each class of characters (G workers on a node), for any number of
nodes: on a class a block averages over its local ranks, or its mean is zero.

`largest_rate` tests the same for workers with local momentum that average over a graph. Along an eigenvector of W with
eigenvalue λ and a direction of curvature h, with learning rate r and momentum β (heavy ball, m ← β m + h x, u = −r m),
the difference between workers evolves as

    serial order    x ← λ (x − r m)      parallel order    x ← λ x − r m

Both have determinant β λ, and Jury's conditions (E. I. Jury, 1964) give the rates below which it decays: in the serial
order r h < (1 − β)(1 − λ) / −λ for λ < 0 and r h < (1 + β)(1 + λ) / λ for λ > 0, in the parallel order r h < (1 + β)(1
+ λ). The mean of all workers (λ = 1) is stable below 2 (1 + β) in both. So a graph whose matrix has a negative
eigenvalue allows, in the serial order, far less momentum than All-Reduce.

Derived here; the tests compare each with eigenvalues of the recursion and with its Lyapunov equation.
"""

from __future__ import annotations

from math import asin, atan2, cos, hypot, inf, pi, sin

import numpy as np
import numpy.typing as npt

from partreduce.topo.errors import InputError
from partreduce.topo.metrics.base import Metric, PipelineMetrics
from partreduce.topo.mixing import Operators, mixing_matrix
from partreduce.topo.phase import Phase
from partreduce.topo.round import Round
from partreduce.topo.rule import distinct_classes
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.payload import OuterStep

BISECTIONS = 60
"""Number of bisections of an angle below π; the remaining interval is below the angle's rounding."""


def stability_limit(width: int, *, momentum: float = 0.0) -> float:
    """Return the learning rate times curvature from which on SGD in a pipeline of this width diverges. O(1).

    `width` 1 is synchronous; `momentum` is heavy-ball. The largest curvature decides, so the largest stable rate is
    `stability_limit(K) / stability_limit(1)` times that of synchronous steps. Raises InputError for a width below 1 or
    a momentum outside 0 <= momentum < 1.
    """
    if width < 1:
        raise InputError(f"pipeline width {width}: it is a number of steps >= 1")
    if not 0 <= momentum < 1:
        raise InputError(f"momentum: is {momentum}; it lies in 0 <= momentum < 1")
    if momentum == 0:
        return 2 * sin(pi / (2 * (2 * width - 1)))
    if width == 1:
        return 2 * (1 + momentum)
    low, high = 0.0, pi
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        argument = (width - 2) * middle + (pi + middle) / 2 + atan2(sin(middle), cos(middle) - momentum)
        low, high = (middle, high) if argument < pi else (low, middle)
    return 2 * sin(low / 2) * hypot(cos(low) - momentum, sin(low))


def noise_factor(h: float, width: int) -> float:
    """Return the stationary variance under gradient noise in a pipeline, divided by that of synchronous steps. O(1).

    `h`, 0 <= h < 2, is learning rate times curvature, else InputError; gradients are `width` − 1 steps late. The result
    is infinite from the stability limit on.
    """
    if not 0 <= h < 2:
        raise InputError(f"h: is {h}; rate times curvature lies in 0 <= h < 2, where synchronous steps are stable")
    if h >= stability_limit(width):
        return inf
    angle = asin(h / 2)
    delayed = (2 * width - 1) * angle
    return (2 - h) * (1 + sin(delayed)) / (2 * cos(angle) * cos(delayed))


USUAL = 0.1
"""The learning rate times curvature at which `pipeline_metrics` takes the noise factor, as in a typical run."""


def pipeline_metrics(schedule: Schedule) -> PipelineMetrics | None:
    """Return the stability limit and noise factor of a pipeline's width; None for other schedules. O(1)."""
    sync = schedule.strategy.sync
    if not (sync.delays_gradients and sync.takes_all):
        return None
    width = sync.lag + 1
    limit = stability_limit(width)
    where = f"plain SGD on a quadratic loss, gradients {width - 1} step{'s' if width > 2 else ''} late"
    at = min(USUAL, limit / 2)
    return PipelineMetrics(
        stability_limit=Metric(
            limit,
            how=f"rate · curvature from which on it diverges, 2·sin(π/{2 * (2 * width - 1)}); synchronous has 2: "
            f"{where}",
        ),
        noise_factor=Metric(
            noise_factor(at, width),
            how=f"stationary variance divided by synchronous's, at rate · curvature {at:.4g}: {where}",
        ),
    )


Matrix = npt.NDArray[np.float64]
Parts = list[tuple[tuple[int, ...], Matrix]]

MAX_SIZE = 64
"""The most workers of an explicit schedule, or local ranks of a rule, for `outer_operators`."""
MAX_DIGITS = 12
EDGE = 1e-9
"""A spectral radius within this distance of 1 counts as 1: groups that do not connect all workers have exactly 1."""


def outer_radius(schedule: Schedule) -> float | None:
    """Return the spectral radius of a period of outer steps on differences between workers' own outer parameters.

    At 1 or above, workers do not reach agreement. None for schedules that are too large (`outer_operators`).
    """
    parts = outer_operators(schedule)
    return None if parts is None else radius_of(parts)


def radius_of(parts: Parts) -> float:
    """Return the largest spectral radius of the period matrices of `outer_operators`; infinite on overflow."""
    matrices = [part for _, part in parts]
    if not np.isfinite(matrices).all():
        return inf
    return float(np.abs(np.linalg.eigvals(matrices)).max())


def check_unstable(schedule: Schedule) -> None:
    """Raise InputError if workers with separate outer parameters do not reach agreement (`outer_radius` ≥ 1)."""
    radius = outer_radius(schedule)
    if radius is not None and radius >= 1 - EDGE:
        raise InputError(
            f"payload.outer: with their own outer parameters workers of {schedule.name!r} do not come to agree: the "
            f"spectral radius of a period is {radius:.6g}, and only below 1 differences die out; take a smaller rate "
            "or momentum, groups that connect all workers, or shared outer parameters"
        )


def outer_operators(schedule: Schedule) -> Parts | None:
    """Return (digits, matrix of one period of outer steps) for every class; equal parameters are projected out.

    A class holds differences between workers that vary along these digits of a rule's node index; explicit groups have
    a single class without digits. O(2^k · period · G³) for rules with k digits and G workers on a node, O(period · n³)
    for explicit groups. None if either is too large.
    """
    rule, outer = schedule.rule(), schedule.strategy.payload.outer
    if rule is None:
        if schedule.num_workers > MAX_SIZE:
            return None
        classes: list[tuple[int, ...]] = [()]
        operators = Operators(schedule.phased.steps(schedule.cluster))
    else:
        rule = rule.canonical
        if rule.num_digits > MAX_DIGITS or rule.workers_per_node > MAX_SIZE:
            return None
        classes = distinct_classes(rule)
        operators = Operators.of_rule(rule, classes)
    joint = _period(outer, operators, len(classes))
    off = np.eye(joint.shape[-1])
    off[: operators.size, : operators.size] -= 1 / operators.size
    return [(digits, matrix if digits else off @ matrix @ off) for digits, matrix in zip(classes, joint, strict=True)]


def _period(outer: OuterStep, operators: Operators, num_classes: int) -> Matrix:
    """Return the matrix of one period of outer steps for each of C = `num_classes` classes: (C, 2·size, 2·size).

    It acts on a vector of the outer parameters, then the momenta, of `size` = `operators.size` workers or local ranks.
    """
    lr, factor, size = float(outer.lr), float(outer.momentum), operators.size
    units = np.broadcast_to(np.eye(2 * size).reshape(2, size, 1, 2 * size), (2, size, num_classes, 2 * size))
    a, b = units
    for t, phase in enumerate(operators.rounds):
        assert isinstance(phase, Phase), "outer steps are made by groups"
        inside = (phase.labels() >= 0)[:, None, None]
        movement = operators.apply(t, a) - a
        momentum = factor * b + movement
        a = np.where(inside, a + lr * (movement + factor * momentum if outer.nesterov else momentum), a)
        b = np.where(inside, momentum, b)
    return np.concatenate([a, b]).swapaxes(0, 1)


def largest_rate(graph: Round, momentum: float, *, parallel: bool) -> float:
    """Return the learning rate times curvature below which neither mean nor differences of workers grow. O(n³).

    Exact for symmetric weights of `graph`; for others it uses their symmetric part and is no bound. `momentum` is
    heavy-ball, from 0 to below 1; with `parallel` parameters are averaged during computing (x ← Wx + u), else
    afterwards (x ← W(x + u)).
    """
    matrix = mixing_matrix(graph)
    values = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    limits = (1 + momentum) * (1 + values)
    if not parallel:
        sign = np.sign(values)
        with np.errstate(divide="ignore"):
            limits = (1 + sign * momentum) * (1 + sign * values) / np.abs(values)
    return float(min(2 * (1 + momentum), limits.min()))
