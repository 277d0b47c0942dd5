"""Score thousands of candidate schedules at once: consensus distance from small matrices.

All phases of one search act on the same few invariant subspaces ("classes"; one for explicit groups, 2^k for a rule of
k digits). What some consecutive phases do is summed up by how they map the covariance Σ of the workers' distance to
the mean,

    Σ ← P Σ Pᵀ + Q,   and how much they add to the metric,   ⟨U, Σ⟩ + u,

a `CovarianceMap`, and such maps compose associatively. So the rest of a period is composed once, and every replacement
of one phase costs one more composition and one periodic Lyapunov equation. `topo.metrics` computes the same metrics
schedule by schedule; a test compares the two.

Shapes: C classes of size G; `...` are leading axes (candidates, phases), which broadcast. ⟨·, ·⟩ and tr are taken on
the space of all n workers: each class counts `multiplicity` times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis.clock import Clock
from partreduce.topo.arithmetic.lyapunov import steady_state

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NEGLIGIBLE = 1e-9
"""Entries of a power of the period below this add nothing to a covariance any more."""
MAX_DOUBLINGS = 12
"""4096 periods: what has not forgotten its start by then is too slow for any search to want."""
UNSETTLED = 1e-3
"""Where this much is left of a period's power after that, the workers do not converge."""
PER_CALL, PER_MATRIX, PER_PRODUCT = 3e-5, 2.5e-7, 4e-10
"""Nominal seconds of one call, of each small matrix in it, and of each of its G³ products, measured on one core."""


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """The classes in which phases act.

    `multiplicity` (C,), how often each class stands in the space of all n workers; `fresh` (C, G, G), the covariance
    that one round of steps adds off the mean; `inner`, the sum over the instants inside a round of its trace;
    `instants`, the most steps per round. `clock`, if given, is charged for all work below.
    """

    num_workers: int
    multiplicity: Floats
    fresh: Floats
    inner: float = 0.0
    instants: int = 1
    clock: Clock | None = None

    def charge(self, matrices: Floats, times: float = 1.0) -> None:
        """Count the work of composing stacks of matrices (..., G, G), or of something `times` as long."""
        if self.clock is not None:
            size = matrices.shape[-1]
            each = PER_MATRIX + PER_PRODUCT * size**3
            self.clock.charge(times * (PER_CALL + matrices.size // size**2 * each))

    @property
    def floor(self) -> float:
        """The part of the consensus distance that comes from inside the rounds and that no averaging can remove."""
        return self.inner / (self.num_workers * self.instants)


@dataclass(frozen=True, slots=True, eq=False)
class CovarianceMap:
    """What consecutive phases do: P `product`, Q `noise`, U `weight`, each (..., C, G, G), and u `constant` (...).

    `length` is the number of phases, the same for all entries along the leading axes.
    """

    product: Floats
    noise: Floats
    weight: Floats
    constant: Floats
    length: int

    def __getitem__(self, index: int | Ints) -> CovarianceMap:
        """Pick along the leading axes."""
        return CovarianceMap(
            self.product[index],
            self.noise[index],
            self.weight[index],
            self.constant[index],
            self.length,
        )


def of_phases(space: Space, matrices: Floats) -> CovarianceMap:
    """One map for each mixing matrix, shape (..., C, G, G), mean projected out."""
    transposed = matrices.swapaxes(-1, -2)
    # The round's steps come first: Σ ← W(Σ + D)Wᵀ, so Q = W D Wᵀ, and the metric gains tr of that: ⟨WᵀW, Σ⟩ + tr Q.
    noise = matrices @ space.fresh @ transposed
    space.charge(matrices)
    return CovarianceMap(matrices, noise, transposed @ matrices, _trace(space, noise), 1)


def nothing(space: Space) -> CovarianceMap:
    """The map of no phases at all."""
    eye = np.broadcast_to(np.eye(space.fresh.shape[-1]), space.fresh.shape)
    return CovarianceMap(eye, np.zeros_like(space.fresh), np.zeros_like(space.fresh), np.zeros(()), 0)


def compose(space: Space, first: CovarianceMap, second: CovarianceMap) -> CovarianceMap:
    """`first`, then `second`; leading axes broadcast."""
    transposed = second.product.swapaxes(-1, -2)
    first_transposed = first.product.swapaxes(-1, -2)
    product = second.product @ first.product
    space.charge(product)
    return CovarianceMap(
        product,
        second.product @ first.noise @ transposed + second.noise,
        first.weight + first_transposed @ second.weight @ first.product,
        first.constant + second.constant + _inner_product(space, second.weight, first.noise),
        first.length + second.length,
    )


def compose_all(space: Space, maps: Sequence[CovarianceMap]) -> CovarianceMap:
    """All maps one after the other, the first first."""
    result = nothing(space)
    for one in maps:
        result = compose(space, result, one)
    return result


def consensus_distance(space: Space, period: CovarianceMap) -> Floats:
    """Consensus distance of repeating each period for ever, shape (...); infinite where workers do not converge."""
    space.charge(period.product, 4.0)
    covariance, remainder = steady_state(
        period.product, period.noise, negligible=NEGLIGIBLE, max_doublings=MAX_DOUBLINGS
    )
    total = period.constant + _inner_product(space, period.weight, covariance)
    value = np.asarray(space.floor + total / (space.num_workers * period.length))
    return np.where(np.abs(remainder).max(axis=(-3, -2, -1)) < UNSETTLED, value, np.inf)


def weighed(space: Space, covariances: Floats, weights: Floats) -> Floats:
    """⟨weight, covariance⟩ / n for all pairs: covariances (N, C, G, G), weights (M, C, G, G) → (N, M), one product.

    With weight WᵀW it is what a phase leaves of a covariance, long before W is applied to each.
    """
    scale = np.repeat(space.multiplicity, space.fresh[0].size) / space.num_workers  # (C·G²,)
    space.charge(covariances)
    if space.clock is not None:
        space.clock.charge(PER_PRODUCT * covariances.size * len(weights))
    return np.asarray((covariances.reshape(len(covariances), -1) * scale) @ weights.reshape(len(weights), -1).T)


def steady(period: CovarianceMap) -> tuple[Floats, Floats]:
    """(covariance before the first phase, weight of it on all that follows) when the period repeats for ever."""
    transposed = period.product.swapaxes(-1, -2)
    covariance = steady_state(period.product, period.noise, negligible=NEGLIGIBLE, max_doublings=MAX_DOUBLINGS)
    # Weights run backwards through the periods: U ← Pᵀ U P + U of one period, the same equation for Pᵀ.
    weight = steady_state(transposed, period.weight, negligible=NEGLIGIBLE, max_doublings=MAX_DOUBLINGS)
    return covariance.covariance, weight.covariance


def _trace(space: Space, stack: Floats) -> Floats:
    return np.asarray(np.trace(stack, axis1=-2, axis2=-1) @ space.multiplicity)


def _inner_product(space: Space, left: Floats, right: Floats) -> Floats:
    return np.asarray((left * right).sum(axis=(-2, -1)) @ space.multiplicity)
