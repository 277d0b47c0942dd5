"""Search for exact consensus by relaxed pairs: random matchings, batched least squares for the weights.

A round is a matching; a pair {i, j} of weight a replaces x_i by x_i + a·(x_j − x_i) and x_j likewise (relax t = 2a).
The product of the rounds is affine in the weights of any one round, so the residual P − J has a cheap exact Jacobian:
the derivative for one pair is the rank-one matrix −u vᵀ with u the difference of two columns of everything after the
round and v the difference of two rows of everything before it. JᵀJ is then the entrywise product of two Gram matrices.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]

Pair = tuple[int, int]
WeightedRound = tuple[tuple[int, int, Fraction], ...]

HALF = Fraction(1, 2)
SOLVED = 1e-20
"""Squared residual under which a numerical solution is worth an exact attempt."""


@dataclass(frozen=True, slots=True)
class PairSearchReport:
    """What a search did: the exact rounds found (None if none), and how much it tried."""

    rounds: tuple[WeightedRound, ...] | None
    tried: int
    reachable: int
    seconds: float


def exact_product(num_workers: int, rounds: Sequence[WeightedRound]) -> list[list[Fraction]]:
    """W_T…W_1 in exact fractions, first round applied first."""
    product = [[Fraction(int(i == j)) for j in range(num_workers)] for i in range(num_workers)]
    for pairs in rounds:
        for i, j, weight in pairs:
            for column in range(num_workers):
                difference = weight * (product[j][column] - product[i][column])
                product[i][column] += difference
                product[j][column] -= difference
    return product


def is_exact(num_workers: int, rounds: Sequence[WeightedRound]) -> bool:
    """Whether the rounds are matchings whose product is exactly the mean of all workers."""
    for pairs in rounds:
        members = [worker for i, j, _ in pairs for worker in (i, j)]
        if len(set(members)) != len(members) or not all(0 <= worker < num_workers for worker in members):
            return False
    share = Fraction(1, num_workers)
    return all(entry == share for row in exact_product(num_workers, rounds) for entry in row)


def random_partners(rng: np.random.Generator, count: int, num_rounds: int, num_workers: int) -> Ints:
    """Random maximum matchings, shape (count, num_rounds, num_workers): each worker's partner (itself if idle)."""
    order = np.argsort(rng.random((count, num_rounds, num_workers)), axis=-1)
    partners = np.empty_like(order)
    even = num_workers - num_workers % 2
    left, right = order[..., 0:even:2], order[..., 1:even:2]
    np.put_along_axis(partners, left, right, axis=-1)
    np.put_along_axis(partners, right, left, axis=-1)
    if num_workers % 2:
        np.put_along_axis(partners, order[..., -1:], order[..., -1:], axis=-1)
    return partners


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


def _linearise(partners: Ints, left: Ints, right: Ints, weights: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Squared residual (count,), the residual (count, n, n), and the factors u, v of every derivative."""
    count, num_rounds, num_workers = partners.shape
    full = _scatter(weights, left, right, num_workers)
    before = [np.broadcast_to(np.eye(num_workers), (count, num_workers, num_workers))]
    for t in range(num_rounds):
        before.append(_mix(before[-1], partners[:, t], full[:, t]))
    # Rounds are symmetric, so the columns of what comes after are the rows of the same rounds applied in reverse.
    after = [np.broadcast_to(np.eye(num_workers), (count, num_workers, num_workers))]
    for t in range(num_rounds - 1, 0, -1):
        after.append(_mix(after[-1], partners[:, t], full[:, t]))
    after.reverse()
    residual = before[-1] - 1.0 / num_workers
    u: list[Floats] = []
    v: list[Floats] = []
    for t in range(num_rounds):
        for values, target in ((after[t], u), (before[t], v)):
            target.append(
                np.take_along_axis(values, left[:, t, :, None], axis=1)
                - np.take_along_axis(values, right[:, t, :, None], axis=1)
            )
    return (residual**2).sum(axis=(1, 2)), residual, np.concatenate(u, axis=1), np.concatenate(v, axis=1)


def fit_weights(partners: Ints, weights: Floats, free: npt.NDArray[np.bool_], *, num_iterations: int = 30) -> Floats:
    """Levenberg–Marquardt for many candidates at once; returns weights, same shape (count, num_rounds, n // 2).

    `free` marks the weights that may move. Candidates are independent; each keeps its own damping.
    """
    left, right = _pairs_of(partners)
    count, num_rounds, half = weights.shape
    flat_free = free.reshape(count, -1).astype(np.float64)
    damping = np.full(count, 1e-2)
    error, residual, u, v = _linearise(partners, left, right, weights)
    identity = np.eye(num_rounds * half)
    for _ in range(num_iterations):
        gram = (u @ u.transpose(0, 2, 1)) * (v @ v.transpose(0, 2, 1))
        gram *= flat_free[:, :, None] * flat_free[:, None, :]
        # The derivative is −u vᵀ (after-columns times before-rows), hence the sign of the step.
        gradient = np.einsum("bki,bij,bkj->bk", u, residual, v) * flat_free
        step = np.linalg.solve(gram + (damping[:, None, None] + 1e-13) * identity, gradient[:, :, None])[:, :, 0]
        trial = weights + step.reshape(weights.shape)
        new_error, new_residual, new_u, new_v = _linearise(partners, left, right, trial)
        better = new_error < error
        damping = np.where(better, damping * 0.2, np.minimum(damping * 5.0, 1e6))
        weights = np.where(better[:, None, None], trial, weights)
        error = np.where(better, new_error, error)
        residual = np.where(better[:, None, None], new_residual, residual)
        u, v = np.where(better[:, None, None], new_u, u), np.where(better[:, None, None], new_v, v)
    return weights


def squared_residual(partners: Ints, weights: Floats) -> Floats:
    """‖W_T…W_1 − J‖² (Frobenius) of every candidate, shape (count,)."""
    left, right = _pairs_of(partners)
    return _linearise(partners, left, right, weights)[0]


def make_exact(partners: Ints, weights: Floats, *, max_denominator: int = 64) -> tuple[WeightedRound, ...] | None:
    """Turn one numerical solution into exact fractions, or None.

    Weights that stand near a simple fraction are fixed to it one by one, the others refitted after each, because
    solutions come in continuous families; the last word is an exact product.
    """
    num_workers = partners.shape[-1]
    left, right = _pairs_of(partners[None])
    free = np.ones((1, *weights.shape), dtype=bool)
    current = weights[None].copy()
    fractions: dict[tuple[int, int], Fraction] = {}
    while free.any():
        best = None
        for t, k in np.argwhere(free[0]).tolist():
            for limit in (1, 2, 3, 5, 8, 13, 21, max_denominator):
                guess = Fraction(float(current[0, t, k])).limit_denominator(limit)
                key = (round(abs(float(guess) - current[0, t, k]), 6 if limit <= 21 else 9), guess.denominator)
                if best is None or key < best[0]:
                    best = (key, t, k, guess)
        assert best is not None
        (miss, _), t, k, guess = best
        fractions[t, k] = guess
        free[0, t, k] = False
        current[0, t, k] = float(guess)
        if miss > 1e-9:
            current = fit_weights(partners[None], current, free, num_iterations=40)
            if squared_residual(partners[None], current)[0] > SOLVED:
                return None
    rounds = tuple(
        tuple(
            (int(left[0, t, k]), int(right[0, t, k]), fractions[t, k])
            for k in range(weights.shape[1])
            if fractions[t, k] != 0
        )
        for t in range(weights.shape[0])
    )
    return rounds if is_exact(num_workers, rounds) else None


def contracts(rounds: Sequence[WeightedRound]) -> bool:
    """Whether every weight lies strictly between 0 and 1 (relax between 0 and 2), as a runnable schedule needs."""
    return all(0 < weight < 1 for pairs in rounds for _, _, weight in pairs)


def search_pairs(
    num_workers: int,
    num_rounds: int,
    *,
    time_limit: float,
    seed: int = 0,
    batch: int = 512,
    progress: Callable[[int], None] | None = None,
) -> PairSearchReport:
    """Look for `num_rounds` relaxed matchings whose product is exactly the mean. Finding none proves nothing.

    The first round is fixed to (0 1)(2 3)… (any maximum matching is that one, after renumbering). In the first and
    the last round the weight is 1/2: with any other the round is invertible on the pair, and the pair was not needed.
    Time limit kept to within one batch.
    """
    start = time.monotonic()
    rng = np.random.default_rng(seed)
    first = np.arange(num_workers)
    first[: num_workers - num_workers % 2] ^= 1
    tried = reachable = 0
    half = num_workers // 2
    kept: list[Ints] = []
    while time.monotonic() - start < time_limit:
        partners = random_partners(rng, batch * 8, num_rounds, num_workers)
        partners[:, 0] = first
        tried += len(partners)
        partners = partners[reaches_all(partners)]
        reachable += len(partners)
        kept.append(partners)
        if sum(map(len, kept)) < batch:
            continue
        partners, kept = np.concatenate(kept), []
        free = np.ones((len(partners), num_rounds, half), dtype=bool)
        free[:, [0, -1]] = False
        weights = np.full(free.shape, 0.5)
        weights[:, 1:-1] += rng.uniform(-0.2, 0.2, (len(partners), max(num_rounds - 2, 0), half))
        weights = fit_weights(partners, weights, free, num_iterations=12)
        near = squared_residual(partners, weights) < 0.02
        partners, weights, free = partners[near], weights[near], free[near]
        if len(partners):
            weights = fit_weights(partners, weights, free, num_iterations=30)
            solved = np.flatnonzero(squared_residual(partners, weights) < SOLVED)
            for index in solved.tolist():
                rounds = make_exact(partners[index], weights[index])
                if rounds is not None and contracts(rounds):
                    return PairSearchReport(rounds, tried, reachable, time.monotonic() - start)
        if progress is not None:
            progress(tried)
    return PairSearchReport(None, tried, reachable, time.monotonic() - start)
