"""Scoring thousands of candidate schedules at once: disagreement and drift from small matrices.

All phases of one search act on the same few invariant subspaces ("classes"; one for explicit groups, 2^k for a rule of
k digits). A stretch of phases is summed up by how it maps the covariance Σ of the workers' distance to the mean,

    Σ ← P Σ Pᵀ + Q,   and how much it adds to the figure,   ⟨U, Σ⟩ + u,

and stretches compose associatively. So the rest of a period is composed once, and every replacement of one phase costs
one more composition and one periodic Lyapunov equation, solved by doubling. `topo.figures` computes the same figures
schedule by schedule; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]

CONVERGED = 1e-9
MAX_DOUBLINGS = 12


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """The classes in which phases act.

    `multiplicity` (C,), how often each class stands in the space of all n workers; `fresh` (C, G, G), the covariance
    that one round of steps adds off the mean; `inner`, the sum over the instants inside a round of its trace;
    `push` (C, G, K), the columns of a constant push in one round, `inside` (instants − 1, C, G, K) what of them is done
    at each instant inside a round; `instants`, the largest pace.
    """

    num_workers: int
    multiplicity: Floats
    fresh: Floats
    push: Floats
    inner: float = 0.0
    instants: int = 1
    inside: Floats | None = None

    @property
    def floor(self) -> float:
        """The part of the disagreement that comes from inside the rounds and that no averaging can remove."""
        return self.inner / (self.num_workers * self.instants)


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Stretches of phases: `product`, `noise`, `weight` (..., C, G, G), `constant` (...) and `length`, phases."""

    product: Floats
    noise: Floats
    weight: Floats
    constant: Floats
    length: int

    def __getitem__(self, index: int | Ints) -> Stretch:
        """Pick along the leading axes."""
        return Stretch(
            self.product[index],
            self.noise[index],
            self.weight[index],
            self.constant[index],
            self.length,
        )


def of_phases(space: Space, matrices: Floats) -> Stretch:
    """One stretch for each mixing matrix, shape (..., C, G, G), mean projected out."""
    transposed = matrices.swapaxes(-1, -2)
    noise = matrices @ space.fresh @ transposed
    return Stretch(matrices, noise, transposed @ matrices, _trace(space, noise), 1)


def nothing(space: Space) -> Stretch:
    """The empty stretch."""
    eye = np.broadcast_to(np.eye(space.fresh.shape[-1]), space.fresh.shape)
    return Stretch(eye, np.zeros_like(space.fresh), np.zeros_like(space.fresh), np.zeros(()), 0)


def compose(space: Space, first: Stretch, second: Stretch) -> Stretch:
    """`first`, then `second`; leading axes broadcast."""
    transposed = second.product.swapaxes(-1, -2)
    first_transposed = first.product.swapaxes(-1, -2)
    return Stretch(
        second.product @ first.product,
        second.product @ first.noise @ transposed + second.noise,
        first.weight + first_transposed @ second.weight @ first.product,
        first.constant + second.constant + _inner_product(space, second.weight, first.noise),
        first.length + second.length,
    )


def chain(space: Space, stretches: Sequence[Stretch]) -> Stretch:
    """All stretches one after the other."""
    result = nothing(space)
    for stretch in stretches:
        result = compose(space, result, stretch)
    return result


def disagreement(space: Space, period: Stretch) -> Floats:
    """The disagreement of repeating each stretch for ever, shape (...); infinite where the workers do not converge.

    Doubling: after k squarings the noise of 2^k periods has been summed.
    """
    power, covariance = period.product, period.noise
    for _ in range(MAX_DOUBLINGS):
        size = np.abs(power).max(initial=0.0)
        if size < CONVERGED:
            break
        covariance = covariance + power @ covariance @ power.swapaxes(-1, -2)
        power = power @ power
    total = period.constant + _inner_product(space, period.weight, covariance)
    value = np.asarray(space.floor + total / (space.num_workers * period.length))
    return np.where(np.abs(power).max(axis=(-3, -2, -1)) < 1e-3, value, np.inf)


def weighed(space: Space, covariances: Floats, weights: Floats) -> Floats:
    """⟨weight, covariance⟩ / n for all pairs: covariances (N, C, G, G), weights (M, C, G, G) → (N, M), one product.

    With weight WᵀW it is what a phase leaves of a covariance, long before W is applied to each.
    """
    scale = np.repeat(space.multiplicity, space.fresh[0].size) / space.num_workers
    return np.asarray((covariances.reshape(len(covariances), -1) * scale) @ weights.reshape(len(weights), -1).T)


def steady(period: Stretch) -> tuple[Floats, Floats]:
    """(covariance before the first phase, weight of it on all that follows) when the period repeats for ever."""
    power, covariance, weight = period.product, period.noise, period.weight
    for _ in range(MAX_DOUBLINGS):
        if np.abs(power).max(initial=0.0) < CONVERGED:
            break
        transposed = power.swapaxes(-1, -2)
        covariance = covariance + power @ covariance @ transposed
        weight = weight + transposed @ weight @ power
        power = power @ power
    return covariance, weight


def drift(space: Space, matrices: Floats) -> Floats:
    """The drift of whole schedules over all instants: matrices (..., T, C, G, G) → (...). O(T·P·C·G³) each."""
    num_phases = matrices.shape[-4]
    state = np.zeros_like(space.push)
    product = np.broadcast_to(np.eye(matrices.shape[-1]), matrices.shape[-3:])
    for t in range(num_phases):
        matrix = matrices[..., t, :, :, :]
        state, product = matrix @ (state + space.push), matrix @ product
    rest = np.eye(matrices.shape[-1]) - product
    converges = np.abs(np.linalg.det(rest)).min(axis=-1) > 1e-12
    rest = np.where(converges[..., None, None, None], rest, np.eye(matrices.shape[-1]))
    state = np.asarray(np.linalg.solve(rest, state), dtype=np.float64)
    total = np.zeros(matrices.shape[:-4])
    for t in range(num_phases):
        for done in () if space.inside is None else space.inside:
            total += ((state + done) ** 2).sum(axis=(-2, -1)) @ space.multiplicity
        state = matrices[..., t, :, :, :] @ (state + space.push)
        total += (state**2).sum(axis=(-2, -1)) @ space.multiplicity
    return np.where(converges, total / (space.num_workers * num_phases * space.instants), np.inf)


def _trace(space: Space, stack: Floats) -> Floats:
    return np.asarray(np.trace(stack, axis1=-2, axis2=-1) @ space.multiplicity)


def _inner_product(space: Space, left: Floats, right: Floats) -> Floats:
    return np.asarray((left * right).sum(axis=(-2, -1)) @ space.multiplicity)
