"""Claim `consensus-distance`: at most so much in the steady state, for the noise of the steps that the schedule states.

Certified by a covariance X that one period makes smaller: X ≻ F(X), where F is the period with its noise. The prover
solves X = F(X) + ε·I in floats, with an ε that rounding X to integers does not use up, and costs the bound little.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from partreduce.topo.arithmetic import lyapunov
from partreduce.topo.metrics.sectors import NEVER, Sectors
from partreduce.topo.metrics.steady_state import after_period, noise_traces
from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, not_proved, proved, upper
from partreduce.verify.steady_state import (
    GUARD,
    MAX_BITS,
    MAX_ENTRIES,
    as_integers,
    bits_for,
    motion_of,
    rounded_up,
)

Stack = npt.NDArray[np.float64]
"""(classes, size, size)."""

NAME = "consensus-distance"
NEGLIGIBLE = 1e-18
SMALL = 64
LOOSE, TIGHT = 1e-3, 1e-6
"""By which part of itself the bound may lie above the metric: with more than SMALL places, and with fewer."""
FLOATS = 1e-9
"""By which part a sum of floats may be wrong here."""


def prove_consensus_distance(schedule: Schedule) -> Claim:
    """Prove a bound a little above the metric `consensus_distance`."""
    motion = motion_of(schedule)
    if isinstance(motion, str):
        return not_proved(NAME, motion)
    (batch,) = motion.batches
    size = batch.size
    if len(batch.multiplicity) * size * (size + 1) // 2 > MAX_ENTRIES:
        return not_proved(NAME, "the covariances of all classes are too many numbers for a certificate.")
    if motion.radius >= NEVER:
        return not_proved(NAME, "it is infinite: workers never agree.")
    noise = after_period(batch, np.zeros_like(batch.matrices[0]), is_delayed=motion.is_delayed)
    sources = np.stack([noise, np.broadcast_to(np.eye(size), noise.shape)])  # (2, classes, size, size)
    steady = lyapunov.steady_state(batch.product(), sources, negligible=NEGLIGIBLE)
    if not np.abs(steady.remainder).max(initial=0.0) <= NEGLIGIBLE:
        return not_proved(NAME, "workers agree too slowly for this check.")
    state, slack = steady.covariance
    value = _bound(motion, state)
    cost = _bound(motion, state + slack) - value
    epsilon = max((TIGHT if size <= SMALL else LOOSE) * value, 2.0**-20) / max(cost, 1.0)
    start = bits_for(epsilon / (8 * size))
    for bits in range(start, min(start + 9, MAX_BITS + 1), 2):
        rounded = np.rint(np.ldexp(state + epsilon * slack, bits))
        if _shrinks(motion, rounded, bits):
            break
    else:
        return not_proved(NAME, "workers agree too slowly for a certificate in integers.")
    units = batch.period * (size + 1) * 2.0 ** -(bits + GUARD)
    exact = _bound(motion, np.ldexp(rounded, -bits))
    at_most = rounded_up(exact * (1 + FLOATS) + size * units)
    text = (
        f"consensus distance ≤ {upper(at_most, 8)}: a covariance of the workers is listed that one period with its "
        "noise makes smaller, and what averaging does keeps that order; so no period that starts with equal workers "
        "leads above it, nor does the steady state."
    )
    lower = np.tril_indices(size)
    covariance = [as_integers(x[lower], 0) for x in rounded]
    return proved(NAME, text, at_most=str(at_most), bits=bits, covariance=covariance)


def _bound(motion: Sectors, start: Stack) -> float:
    """The mean over all instants of tr Σ / n that these covariances at the start of a period lead to."""
    (batch,) = motion.batches
    return noise_traces(batch, start, is_delayed=motion.is_delayed) / motion.num_workers


def _shrinks(motion: Sectors, rounded: Stack, bits: int) -> bool:
    """Whether rows show X ≻ F(X), with room for what the checker adds in its rounding and floats lose here."""
    (batch,) = motion.batches
    start = np.ldexp(rounded, -bits)
    difference = start - after_period(batch, start, is_delayed=motion.is_delayed)
    diagonal = np.diagonal(difference, axis1=-2, axis2=-1)  # (classes, size)
    beside = np.abs(difference).sum(axis=-1) - np.abs(diagonal)
    room = 2.0 ** -(bits + GUARD) * batch.period * batch.size * 4
    room = room + batch.size * 1e-14 * np.abs(start).max(axis=(-2, -1), initial=0.0)[:, None]
    return bool((diagonal - beside > room).all())
