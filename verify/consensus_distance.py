"""Claim `consensus-distance`: at most so much in the steady state, for the noise of the steps that the schedule states.

Certified by a covariance X that one period makes smaller: X ≻ F(X), where F is the period with its noise. The prover
solves X = F(X) + ε·I in floats, with an ε that rounding X to integers does not use up, and costs the bound little.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from partreduce.topo.arithmetic import lyapunov
from partreduce.topo.figures.rate import NEVER
from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, not_proved, proved
from partreduce.verify.steady_state import (
    GUARD,
    MAX_BITS,
    MAX_ENTRIES,
    ClassMotion,
    Motion,
    as_integers,
    bits_for,
    motion_of,
    rounded_up,
    shown,
)

Matrix = npt.NDArray[np.float64]

NAME = "consensus-distance"
NEGLIGIBLE = 1e-18
SMALL = 64
LOOSE, TIGHT = 1e-3, 1e-6
"""By which part of itself the bound may lie above the figure: with more than SMALL places, and with fewer."""
FLOATS = 1e-9
"""By which part a sum of floats may be wrong here."""


def prove_consensus_distance(schedule: Schedule) -> Claim:
    """Prove a bound a little above the figure `consensus_distance`."""
    motion = motion_of(schedule)
    if isinstance(motion, str):
        return not_proved(NAME, motion)
    if len(motion.classes) * motion.size * (motion.size + 1) // 2 > MAX_ENTRIES:
        return not_proved(NAME, "the covariances of all classes are too many numbers for a certificate.")
    states, slacks = [], []
    for part in motion.classes:
        if np.abs(np.linalg.eigvals(part.product)).max() >= NEVER:
            return not_proved(NAME, "it is infinite: workers never agree.")
        noise = _after_period(motion, part, np.zeros((motion.size, motion.size)))
        sources = np.stack([noise, np.eye(motion.size)])
        steady = lyapunov.steady_state(part.product, sources, negligible=NEGLIGIBLE)
        if not np.abs(steady.remainder).max(initial=0.0) <= NEGLIGIBLE:
            return not_proved(NAME, "workers agree too slowly for this check.")
        states.append(steady.covariance[0])
        slacks.append(steady.covariance[1])
    value = _bound(motion, states)
    cost = _bound(motion, [a + b for a, b in zip(states, slacks, strict=True)]) - value
    epsilon = max((TIGHT if motion.size <= SMALL else LOOSE) * value, 2.0**-20) / max(cost, 1.0)
    start = bits_for(epsilon / (8 * motion.size))
    for bits in range(start, min(start + 9, MAX_BITS + 1), 2):
        rounded = [np.rint(np.ldexp(a + epsilon * b, bits)) for a, b in zip(states, slacks, strict=True)]
        if all(_shrinks(motion, part, x, bits) for part, x in zip(motion.classes, rounded, strict=True)):
            break
    else:
        return not_proved(NAME, "workers agree too slowly for a certificate in integers.")
    units = motion.period * (motion.size + 1) * 2.0 ** -(bits + GUARD)
    exact = _bound(motion, [np.ldexp(x, -bits) for x in rounded])
    at_most = rounded_up(exact * (1 + FLOATS) + motion.size * units)
    text = (
        f"consensus distance ≤ {shown(at_most)}: a covariance of the workers is listed that one period with its noise "
        "makes smaller, and what averaging does keeps that order; so no period that starts with equal workers leads "
        "above it, nor does the steady state."
    )
    lower = np.tril_indices(motion.size)
    covariance = [as_integers(x[lower], 0) for x in rounded]
    return proved(NAME, text, at_most=str(at_most), bits=bits, covariance=covariance)


def _after_period(motion: Motion, part: ClassMotion, covariance: Matrix) -> Matrix:
    """F(Σ): what one period with its noise makes of a covariance."""
    for matrix, noise in zip(part.matrices, motion.noise, strict=True):
        covariance = _after_phase(motion, part, matrix, np.diag(noise), covariance)
    return covariance


def _after_phase(motion: Motion, part: ClassMotion, matrix: Matrix, noise: Matrix, covariance: Matrix) -> Matrix:
    if not motion.is_late:
        return np.asarray(matrix @ (covariance + noise) @ matrix.T)
    return np.asarray(matrix @ covariance @ matrix.T + part.off_mean(part.off_mean(noise).T))


def _bound(motion: Motion, starts: Sequence[Matrix]) -> float:
    """The mean over all instants of tr Σ / n that these covariances at the start of a period lead to."""
    made = sum(int(motion.made(s).sum()) for s in range(1, motion.instants))
    total = 0.0
    for part, start in zip(motion.classes, starts, strict=True):
        inside = made * (1.0 if part.digits else 1 - 1 / motion.size)
        covariance = part.off_mean(part.off_mean(start).T)
        for matrix, noise in zip(part.matrices, motion.noise, strict=True):
            total += part.count * ((motion.instants - 1) * float(np.trace(covariance)) + inside)
            covariance = _after_phase(motion, part, matrix, np.diag(noise), covariance)
            total += part.count * float(np.trace(covariance))
    return total / motion.num_instants


def _shrinks(motion: Motion, part: ClassMotion, rounded: Matrix, bits: int) -> bool:
    """Whether rows show X ≻ F(X), with room for what the checker adds in its rounding and floats lose here."""
    start = np.ldexp(rounded, -bits)
    difference = start - _after_period(motion, part, start)
    beside = np.abs(difference).sum(axis=1) - np.abs(np.diag(difference))
    room = 2.0 ** -(bits + GUARD) * motion.period * motion.size * 4
    room += motion.size * 1e-14 * float(np.abs(start).max(initial=0.0))
    return bool((np.diag(difference) - beside > room).all())
