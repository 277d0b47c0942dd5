"""What late gradients cost: limits against eigenvalues, noise factors against Lyapunov equations and a simulation."""

import math

import numpy as np
import pytest

from partreduce import Cluster, Schedule, metrics
from partreduce.errors import InputError
from partreduce.strategies import AllReduce, DelayedAveraging, Pipeline, Transport
from partreduce.topo.arithmetic import lyapunov
from partreduce.topo.metrics import decay, noise_factor, stability_limit

WIDTHS = range(1, 9)
MOMENTA = (0.0, 0.3, 0.9)


def delayed(h, width, momentum):
    """The recursion e[t] = (1+μ)e[t−1] − μ·e[t−2] − h·e[t−K] as a matrix, written down on its own."""
    size = width + 2
    matrix = np.zeros((size, size))
    matrix[0, 0] += 1 + momentum
    matrix[0, 1] -= momentum
    matrix[0, width - 1] -= h
    for i in range(1, size):
        matrix[i, i - 1] = 1.0
    return matrix


def radius(h, width, momentum):
    return float(np.abs(np.linalg.eigvals(delayed(h, width, momentum))).max())


def variance(h, width, momentum):
    size = width + 2
    noise = np.zeros((size, size))
    noise[0, 0] = 1.0
    steady = lyapunov.steady_state(delayed(h, width, momentum), noise, negligible=1e-18)
    assert np.abs(steady.remainder).max() <= 1e-18
    return float(steady.covariance[0, 0])


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_stability_limit_is_where_the_spectral_radius_passes_1(width, momentum):
    limit = stability_limit(width, momentum=momentum)
    for part in np.linspace(0.02, 0.999, 40):
        assert radius(part * limit, width, momentum) < 1 - 1e-9
    for part in np.linspace(1.001, 4.0, 40):
        assert radius(part * limit, width, momentum) > 1 + 1e-9, "who has left never comes back"
    assert radius(limit, width, momentum) == pytest.approx(1, abs=1e-9)


def test_the_limits_that_have_a_short_form():
    assert [stability_limit(width) for width in (1, 2)] == pytest.approx([2, 1], abs=1e-15)
    assert stability_limit(3) == pytest.approx((math.sqrt(5) - 1) / 2)
    for momentum in MOMENTA:
        assert stability_limit(1, momentum=momentum) == pytest.approx(2 * (1 + momentum))
        assert stability_limit(2, momentum=momentum) == pytest.approx(1 - momentum)


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_noise_factor_is_the_quotient_of_the_solutions_of_the_lyapunov_equations(width, momentum):
    limit = stability_limit(width, momentum=momentum)
    for h in limit * np.linspace(0.05, 0.95, 10):
        quotient = variance(h, width, momentum) / variance(h, 1, momentum)
        assert noise_factor(h, width, momentum=momentum) == pytest.approx(quotient, rel=1e-9)


@pytest.mark.parametrize("h", [0.0, 0.1, 0.5, 0.9])
def test_the_noise_factor_of_a_pipeline_of_two_is_the_published_quotient(h):
    assert noise_factor(h, 2) == pytest.approx((1 + h) * (2 - h) / ((1 - h) * (2 + h)))
    assert noise_factor(h, 1) == pytest.approx(1)
    assert noise_factor(h, 1, momentum=0.9) == pytest.approx(1)


def test_the_noise_factor_is_what_a_long_run_shows():
    rng, h, runs, steps = np.random.default_rng(0), 0.4, 400, 4000
    seen = []
    for width in (1, 2):
        history = [np.zeros(runs)] * width
        squares = 0.0
        for t in range(steps):
            history = [*history[1:], history[-1] - h * history[0] + rng.normal(size=runs)]
            squares += float(history[-1] @ history[-1]) if t >= 100 else 0.0
        seen.append(squares)
    assert seen[1] / seen[0] == pytest.approx(noise_factor(h, 2), rel=0.02)


def test_beyond_the_limit_noise_is_infinite_and_what_no_width_can_do_is_refused():
    assert noise_factor(1.0, 2) == math.inf
    assert noise_factor(0.1, 2, momentum=0.9) == math.inf
    with pytest.raises(InputError, match="0 <= h < 2, where synchronous steps are stable"):
        noise_factor(2.0, 2)
    with pytest.raises(InputError, match="0 <= h < 2"):
        noise_factor(-0.1, 2)
    with pytest.raises(InputError, match="width 0"):
        stability_limit(0)
    with pytest.raises(InputError, match="0 <= momentum < 1"):
        stability_limit(2, momentum=1.0)


@pytest.mark.parametrize("width", WIDTHS)
def test_decay_is_the_largest_root(width):
    for h in stability_limit(width) * np.linspace(0, 1.2, 13):
        assert decay(h, width) == pytest.approx(radius(h, width, 0.0), abs=1e-6)
    assert decay(0.25, 2) == pytest.approx(0.5, abs=1e-6)
    assert decay(0.64, 2) == pytest.approx(0.8)


def test_the_metrics_of_a_pipeline_are_those_of_synchronous_all_reduce_and_two_more():
    cluster = Cluster.regular(4, 2)
    synchronous = metrics(Schedule("a", cluster, AllReduce()))
    pipeline = Schedule("a", cluster, AllReduce(sync=Pipeline(), transport=Transport(codec="bfloat16")))
    seen = metrics(pipeline)
    assert (seen.contraction, seen.consensus_distance, seen.drift) == (
        synchronous.contraction,
        synchronous.consensus_distance,
        synchronous.drift,
    )
    assert seen.consensus_distance.value == seen.drift.worker.value == seen.contraction.value == 0
    assert synchronous.pipeline is None
    assert seen.pipeline.stability_limit.value == pytest.approx(1)
    assert seen.to_json()["pipeline"] == pytest.approx({"stability_limit": 1.0, "noise_factor": noise_factor(0.1, 2)})
    late = metrics(Schedule("a", cluster, AllReduce(sync=DelayedAveraging())))
    assert late.pipeline is None
    assert late.consensus_distance.value == pytest.approx(7 / 8), "late parameters, not gradients"
