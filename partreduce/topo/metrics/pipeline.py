"""Compute the cost of late gradients: the stability limit of a pipeline, its noise, and its rate of decay.

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

Derived here; the tests compare each with eigenvalues of the recursion and with its Lyapunov equation.
"""

from __future__ import annotations

from math import asin, atan2, cos, hypot, inf, pi, sin

import numpy as np
import numpy.typing as npt

from partreduce.topo.errors import InputError
from partreduce.topo.metrics.base import Metric, PipelineMetrics
from partreduce.topo.schedule import Schedule

BISECTIONS = 60
"""Halvings of an angle below π: the remaining interval is below its rounding."""


def stability_limit(width: int, *, momentum: float = 0.0) -> float:
    """Return h = rate · curvature from which a pipeline of that width diverges; a width of 1 is synchronous. O(1).

    The largest curvature decides, so a rate that was just stable in synchronous steps has to shrink by the factor
    `stability_limit(K) / stability_limit(1)`.
    """
    _check(width, momentum)
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


def noise_factor(h: float, width: int, *, momentum: float = 0.0) -> float:
    """Return the stationary variance under gradient noise, divided by that of synchronous steps with the same h. O(1).

    Infinite from the stability limit on. With momentum from the linear equations of the covariances, O(width³).
    """
    bound = stability_limit(1, momentum=momentum)
    if not 0 <= h < bound:
        raise InputError(
            f"h: is {h}; rate times curvature lies in 0 <= h < {bound:g}, where synchronous steps are stable"
        )
    if h >= stability_limit(width, momentum=momentum):
        return inf
    if momentum == 0 or h == 0:
        angle = asin(h / 2)
        delayed = (2 * width - 1) * angle
        return (2 - h) * (1 + sin(delayed)) / (2 * cos(angle) * cos(delayed))
    return _variance(h, width, momentum) / _variance(h, 1, momentum)


def decay(h: float, width: int, *, momentum: float = 0.0) -> float:
    """Return the asymptotic factor of a step on the distance to the minimum: the largest root. O(width³).

    Synchronous steps have |1 − h|. A pipeline of width 2 has √h from h = 1/4 on, and less than synchronous steps up to
    h = (3 − √5)/2, as a late gradient of a shrinking distance is a larger one.
    """
    _check(width, momentum)
    if not h >= 0:
        raise InputError(f"h: is {h}; rate times curvature is >= 0")
    return float(np.abs(np.linalg.eigvals(companion(h, width, momentum=momentum))).max())


def companion(h: float, width: int, *, momentum: float = 0.0) -> npt.NDArray[np.float64]:
    """Return the matrix from (e[t−1], e[t−2], …) to (e[t], e[t−1], …), of max(width, 2) rows (1 if synchronous)."""
    size = max(width, 2 if momentum else 1)
    matrix = np.eye(size, k=-1)
    matrix[0, 0] += 1 + momentum
    if momentum:
        matrix[0, 1] -= momentum
    matrix[0, width - 1] -= h
    return matrix


def _variance(h: float, width: int, momentum: float) -> float:
    """Return r_0 for noise of variance 1: r_k = Σ_j a_j r_|k−j| for k = 1 … size, and the same plus 1 for k = 0."""
    coefficients = companion(h, width, momentum=momentum)[0]
    size = len(coefficients)
    equations = np.eye(size + 1)
    for k in range(size + 1):
        for j, coefficient in enumerate(coefficients, 1):
            equations[k, abs(k - j)] -= coefficient
    noise = np.eye(size + 1)[0]
    return float(np.linalg.solve(equations, noise)[0])


def _check(width: int, momentum: float) -> None:
    if width < 1:
        raise InputError(f"pipeline width {width}: it is a number of steps >= 1")
    if not 0 <= momentum < 1:
        raise InputError(f"momentum: is {momentum}; it lies in 0 <= momentum < 1")


USUAL = 0.1
"""Rate times curvature of a run that is neither near its limit nor without noise."""


def pipeline_metrics(schedule: Schedule) -> PipelineMetrics | None:
    """Return the metrics of a schedule whose gradients are all equally late, None for other schedules. O(1)."""
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
