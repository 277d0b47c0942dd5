"""Claim `outer-consensus`: workers with their own outer parameters agree at zero gradients, by so much a period.

Certified by a P for each class of characters with c²·P − MᵀPM positive semidefinite, M being a period of models and
outer momentum together (`topo.metrics.outer_steps`). The theorem stands in `verify/checker/outer_steps.py`.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2

import numpy as np
import numpy.typing as npt

from partreduce.topo.arithmetic.lyapunov import steady_state
from partreduce.topo.metrics.outer_steps import EDGE, outer_operators, radius_of
from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, fraction_above, not_proved, proved, refuted, upper
from partreduce.verify.conflict_free import prove_conflict_free
from partreduce.verify.consensus import prove_consensus
from partreduce.verify.membership import prove_membership
from partreduce.verify.runs import ages, deadlock_free, memory, sent_bytes
from partreduce.verify.stated import Stated

NAME = "outer-consensus"
MAX_BITS = 48
"""P is listed in whole numbers of up to so many bits: workers that agree more slowly have no certificate."""


def prove_own_outer_params(schedule: Schedule, stated: Stated) -> tuple[Claim, ...]:
    """All claims about groups that make outer steps from outer parameters of their own.

    Those about who meets whom are the same schedule's without outer steps. Its matrices say nothing here: what a
    round makes of models depends on outer parameters and momentum.
    """
    plain = schedule.meetings
    first = prove_conflict_free(plain, stated)
    if not first.holds:
        rest = ("deadlock-free", NAME)
        return (first, *(not_proved(name, "rests on conflict-freedom, which is refuted.") for name in rest))
    claims = (
        first,
        prove_membership(plain),
        _prove_consensus(schedule, plain),
        deadlock_free(plain, stated),
        *ages(plain, stated),
        memory(schedule, stated),
        sent_bytes(schedule, stated),
    )
    return tuple(claim for claim in claims if claim is not None)


def _prove_consensus(schedule: Schedule, plain: Schedule) -> Claim:
    agrees = prove_consensus(plain)
    if not agrees.holds:  # who never meets the others keeps its own outer parameters
        return replace(agrees, claim=NAME)
    parts = outer_operators(schedule)
    if parts is None:
        return not_proved(NAME, "so many workers or classes are too large a matrix; write a smaller rule.")
    radius = radius_of(parts)
    if radius > 1 + EDGE:
        text = f"a period multiplies a difference between outer parameters and momenta by {radius:.9g} in the long run."
        return refuted(NAME, text, {"radius": radius})
    for share in (1 / 8, 1 / 2):  # a bound near the radius needs a P that is far from the identity
        c = radius + share * (1 - radius)
        weights = [_weights(matrix, c) for _, matrix in parts]
        if all(found is not None for found in weights):
            squared = fraction_above(c * c)
            text = (
                "where gradients are zero, outer parameters come to agree, and momenta to rest, by at most "
                f"{upper(squared, power=2)} "
                f"a period in a norm that is listed for each of {len(parts)} classes (radius {radius:.6g})."
            )
            return proved(NAME, text, {"radius": radius}, squared=str(squared), weights=weights)
    return not_proved(NAME, f"workers agree too slowly for a certificate in integers (radius {radius:.9g}).")


def _weights(matrix: npt.NDArray[np.float64], c: float) -> list[int] | None:
    """Σ (Mᵏ/cᵏ)ᵀ(Mᵏ/cᵏ) in whole numbers, the lower triangle by rows; None where it is too long."""
    scaled = matrix.T / c
    found, remainder = steady_state(scaled, np.eye(len(matrix)), negligible=1e-18)
    size = np.abs(found).max()
    # c²·P − MᵀPM is c²·I, from which rounding P by a half takes at most size · (‖M‖² + 1) / 2.
    finer = ceil(log2(16 * len(matrix) * (np.linalg.norm(matrix, 2) ** 2 + 1) / c**2))
    if not (np.isfinite(size) and np.abs(remainder).max() <= 1e-18 and log2(size) + finer <= MAX_BITS):
        return None
    rounded = np.rint(np.ldexp((found + found.T) / 2, finer))
    return [int(entry) for row, entries in enumerate(rounded) for entry in entries[: row + 1]]
