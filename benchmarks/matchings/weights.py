"""Relaxed pairs: whether given weights make rounds exact, and a proof that no weights do.

A round is a matching; a pair {i, j} of weight a replaces x_i by x_i + a·(x_j − x_i) and x_j likewise (relax t = 2a).
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from partreduce.topo.arithmetic.exact_matrices import ExactMatrix

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from partreduce.schedulers.exact_rounds.known_rounds import WeightedRound

    Ints = npt.NDArray[np.int64]


def is_exact(num_workers: int, rounds: Sequence[WeightedRound]) -> bool:
    """Whether the rounds are matchings whose product is exactly the mean of all workers."""
    for pairs in rounds:
        members = [worker for i, j, _ in pairs for worker in (i, j)]
        if len(set(members)) != len(members) or not all(0 <= worker < num_workers for worker in members):
            return False
    product = ExactMatrix.identity(num_workers)
    for pairs in rounds:
        product = product.averaged(((i, j), 2 * weight, True) for i, j, weight in pairs)
    return product.is_everywhere(Fraction(1, num_workers))


def reaches_all(partners: Ints) -> npt.NDArray[np.bool_]:
    """Which candidates let every worker's value reach every other (necessary), by bit sets; needs n ≤ 63."""
    count, num_rounds, num_workers = partners.shape
    masks = np.broadcast_to(np.int64(1) << np.arange(num_workers, dtype=np.int64), (count, num_workers)).copy()
    for t in range(num_rounds):
        masks |= np.take_along_axis(masks, partners[:, t], axis=1)
    full = np.int64((1 << num_workers) - 1)
    return np.asarray((masks == full).all(axis=1))


def contracts(rounds: Sequence[WeightedRound]) -> bool:
    """Whether every weight lies strictly between 0 and 1 (relax between 0 and 2), as a runnable schedule needs."""
    return all(0 < weight < 1 for pairs in rounds for _, _, weight in pairs)


def has_weights(sequence: Sequence[Sequence[int]]) -> bool:
    """Whether complex weights with product J exist for the three or more rounds, given by every worker's partner.

    The weight is 1/2 in the first and the last round, which loses nothing. The entries of the product minus 1/n are
    polynomials in the other weights; by the Nullstellensatz they have no common root iff their Gröbner basis is {1}.
    False is therefore a proof, as good as sympy's arithmetic over the rationals; True says nothing about real weights
    between 0 and 1. Doubly exponential at worst; instant for the six weights of 7 workers in 4 rounds.
    """
    from sympy import QQ, ring
    from sympy.polys.groebnertools import groebner

    num_workers = len(sequence[0])
    middle = [(t, i) for t in range(1, len(sequence) - 1) for i, j in enumerate(sequence[t]) if i < j]
    polynomials, *symbols = ring([f"a{t}_{i}" for t, i in middle], QQ)
    weight = dict(zip(middle, symbols, strict=True))
    rows = [[polynomials(int(i == j)) for j in range(num_workers)] for i in range(num_workers)]
    for t, partners in enumerate(sequence):
        for i, j in enumerate(partners):
            if i < j:
                moved = [(y - x) * weight.get((t, i), QQ(1, 2)) for x, y in zip(rows[i], rows[j], strict=True)]
                rows[i] = [x + m for x, m in zip(rows[i], moved, strict=True)]
                rows[j] = [y - m for y, m in zip(rows[j], moved, strict=True)]
    equations = {entry - QQ(1, num_workers) for row in rows for entry in row} - {polynomials.zero}
    basis = groebner(sorted(equations, key=len), polynomials) if equations else []
    return not any(element.is_ground for element in basis)
