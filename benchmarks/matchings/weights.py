"""Relaxed pairs: weights for given matchings, by least squares made exact fractions, or a proof that there are none.

A round is a matching; a pair {i, j} of weight a replaces x_i by x_i + a·(x_j − x_i) and x_j likewise (relax t = 2a).
The product of the rounds is affine in the weights of any one round, so the residual P − J has a cheap exact Jacobian:
the derivative for one pair is the rank-one matrix −u vᵀ with u the difference of two columns of everything after the
round and v the difference of two rows of everything before it. JᵀJ is then the entrywise product of two Gram matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.matchings.fit import SOLVED, Linearised, as_fractions, fit
from partreduce.topo.arithmetic.exact_matrices import ExactMatrix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from partreduce.schedulers.exact_rounds.known_rounds import WeightedRound

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]


HALF = Fraction(1, 2)
NEAR = 0.02
"""Squared residual after twelve steps under which a candidate is worth more of them."""


@dataclass(frozen=True, slots=True)
class PairSearchReport:
    """What a search did: the exact rounds found (None if none), and how much it tried."""

    rounds: tuple[WeightedRound, ...] | None
    tried: int
    reachable: int
    seconds: float


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


def _mix(values: Floats, partner: Ints, weight: Floats) -> Floats:
    """Apply one round to the rows of `values`, shape (count, n, n)."""
    other = np.take_along_axis(values, partner[:, :, None], axis=1)
    return np.asarray(values + weight[:, :, None] * (other - values))


def _pairs_of(partners: Ints) -> tuple[Ints, Ints]:
    """Left and right members of every pair, shape (count, num_rounds, n // 2), ordered by the left member."""
    count, num_rounds, num_workers = partners.shape
    is_left = partners > np.arange(num_workers)
    left = np.nonzero(is_left)[2].reshape(count, num_rounds, num_workers // 2)
    return left, np.take_along_axis(partners, left, axis=2)


def _scatter(weights: Floats, left: Ints, right: Ints, num_workers: int) -> Floats:
    full = np.zeros((*weights.shape[:-1], num_workers))
    np.put_along_axis(full, left, weights, axis=-1)
    np.put_along_axis(full, right, weights, axis=-1)
    return full


def linearise_pairs(partners: Ints) -> Callable[[Floats], Linearised]:
    """The residual of the product as a function of the weights (count, rounds · (n // 2)), a round's by left member."""
    count, num_rounds, num_workers = partners.shape
    left, right = _pairs_of(partners)

    def linearise(weights: Floats) -> Linearised:
        full = _scatter(
            weights.reshape(left.shape), left, right, num_workers
        )  # (count, rounds, n): each worker's weight
        before = [np.broadcast_to(np.eye(num_workers), (count, num_workers, num_workers))]
        for t in range(num_rounds):
            before.append(_mix(before[-1], partners[:, t], full[:, t]))
        # Rounds are symmetric, so the columns of what comes after are the rows of the same rounds applied in reverse.
        after = [np.broadcast_to(np.eye(num_workers), (count, num_workers, num_workers))]
        for t in range(num_rounds - 1, 0, -1):
            after.append(_mix(after[-1], partners[:, t], full[:, t]))
        # (count, rounds · (n // 2), n): the two sides of the rank-one derivative for each pair.
        u = np.concatenate([_differences(after[-1 - t], left[:, t], right[:, t]) for t in range(num_rounds)], axis=1)
        v = np.concatenate([_differences(before[t], left[:, t], right[:, t]) for t in range(num_rounds)], axis=1)
        residual = before[-1] - 1.0 / num_workers
        gram = (u @ u.transpose(0, 2, 1)) * (v @ v.transpose(0, 2, 1))
        return Linearised((residual**2).sum(axis=(1, 2)), -((u @ residual) * v).sum(axis=2), gram)

    return linearise


def _differences(values: Floats, left: Ints, right: Ints) -> Floats:
    """Row of the left member minus row of the right member, for each pair."""
    return np.asarray(
        np.take_along_axis(values, left[:, :, None], axis=1) - np.take_along_axis(values, right[:, :, None], axis=1)
    )


def solve_pairs(partners: Ints, rng: np.random.Generator) -> tuple[WeightedRound, ...] | None:
    """Exact rounds that contract, from the first of the candidates (count, rounds, n) for which weights are found.

    In the first and the last round the weight is 1/2: with any other the round is invertible on the pair, and the pair
    was not needed. The others start at random.
    """
    left, right = _pairs_of(partners)
    inner = np.ones(left.shape, dtype=bool)
    inner[:, [0, -1]] = False
    free = inner.reshape(len(left), -1)
    weights = np.where(inner, rng.uniform(0.3, 0.7, left.shape), 0.5).reshape(free.shape)
    weights, error = fit(linearise_pairs(partners), weights, free, num_iterations=12)
    near = np.flatnonzero(error < NEAR)
    if not len(near):
        return None
    weights, error = fit(linearise_pairs(partners[near]), weights[near], free[near], num_iterations=30)
    for index in np.flatnonzero(error < SOLVED).tolist():
        place = near[index]
        fractions = as_fractions(linearise_pairs(partners[place][None]), weights[index])
        if fractions is None:
            continue
        half = left.shape[2]
        rounds = tuple(
            tuple(
                (i, j, weight)
                for i, j, weight in zip(
                    left[place, t].tolist(), right[place, t].tolist(), fractions[t * half :][:half], strict=True
                )
                if weight
            )
            for t in range(left.shape[1])
        )
        if is_exact(partners.shape[2], rounds) and contracts(rounds):
            return rounds
    return None


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
