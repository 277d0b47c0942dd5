"""Figures of explicit schedules too large for dense matrices: enclosed by Lanczos or sampled, and labelled so.

Golub–Kahan–Lanczos on MᵀM with reorthogonalisation from a random start. The reported value is ‖My‖ for an actual
unit vector y off the mean, so the norm is at least that. From above: for a start uniform on the sphere in d dimensions,
k steps miss a largest eigenvalue λ by more than ελ with probability at most 1.648 √d exp(−√ε (2k − 1)) (Kuczyński and
Woźniakowski, SIAM J. Matrix Anal. Appl. 13, 1992).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from partreduce.topo.figures.base import Figure, Kind, absent
from partreduce.topo.figures.chain import Chain, inner
from partreduce.topo.figures.decomposition import FigureLimits
from partreduce.topo.figures.sampling import Motion, Sampled, sampled_consensus_distance, sampled_drift
from partreduce.topo.figures.sectors import ZERO
from partreduce.topo.mixing import has_negative_entries, is_doubly_stochastic
from partreduce.topo.phase import Phase
from partreduce.topo.round import MixingStep
from partreduce.topo.schedule import Schedule

NEARLY_1 = 0.999
QUICK_PARTS = 200_000
STUDENT_99 = {2: 63.7, 3: 9.93, 4: 5.85, 5: 4.61, 6: 4.04, 7: 3.71, 8: 3.5, 9: 3.36, 10: 3.25}
"""Standard errors that enclose the truth with 99 % by number of probes, if their values are normal; 3.2 for more."""


class Large:
    """A large schedule, prepared once for all of its figures."""

    def __init__(self, schedule: Schedule, limit: FigureLimits) -> None:
        """Keep the schedule; everything else is prepared when first needed."""
        self.schedule = schedule
        self.limit = limit
        self.steps: tuple[MixingStep, ...] = schedule.steps()

    @cached_property
    def distinct(self) -> frozenset[MixingStep]:
        return frozenset(self.steps)

    @cached_property
    def motion(self) -> Motion:
        """The schedule on the workers."""
        return Motion.of(self.schedule)

    @cached_property
    def chain(self) -> Chain:
        """The chain whose norm is the contraction."""
        return Chain.of_norm(self.steps)

    @cached_property
    def parts(self) -> int:
        """Into how many parts the workers fall that no group or edge of a period connects. O(T n)."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        n, sources, targets = self.schedule.num_workers, [], []
        for step in self.distinct:
            if isinstance(step, Phase):
                acts = step.relax_factors() != 0
                sources.append(step.members[np.repeat(acts, step.sizes)])
                targets.append(np.repeat(step.members[step.offsets[:-1]][acts], step.sizes[acts]))
            else:
                acts = step.edge_weights() != 0
                sources.append(step.sources[acts])
                targets.append(step.targets[acts])
        rows, columns = np.concatenate(sources), np.concatenate(targets)
        graph = coo_array((np.ones(len(rows), dtype=np.int8), (rows, columns)), shape=(n, n))
        return int(connected_components(graph, directed=False)[0])

    @property
    def probes(self) -> int:
        """More probes where each is cheap and says little: about a million entries in all."""
        return max(self.limit.probes, min(64, 2**20 // self.schedule.num_workers))

    def contraction(self) -> Figure:
        """‖P − J‖₂ by Lanczos: `lower` is certain up to rounding, `upper` fails with probability 10⁻⁶ at most."""
        if not all(is_doubly_stochastic(step) for step in self.distinct):
            return absent("not defined: a round is not doubly stochastic, so it moves the mean")
        norm = lanczos_norm(self.chain, seed=self.limit.seed, max_steps=self.limit.lanczos_steps)
        upper = norm.upper
        if all(_never_enlarges(step) for step in self.distinct):
            upper = min(upper, 1.0)
            if norm.lower > NEARLY_1 and self.parts > 1:
                return Figure(1.0, Kind.EXACT, f"the period leaves the workers in {self.parts} separate parts")
        value = 0.0 if norm.lower < ZERO else min(norm.lower, upper)
        how = (
            f"Lanczos, {norm.steps} steps, residual {norm.residual:.1e}: a lower bound; the upper bound fails with "
            "probability 1e-6 at most"
        )
        return Figure(value, Kind.ESTIMATE, how, lower=value, upper=upper)

    def consensus_distance(self) -> Figure:
        """Hutchinson's estimate with its standard error."""
        if self._is_split():
            return self._infinite()
        limit = self.limit
        sampled = sampled_consensus_distance(self.motion, probes=self.probes, seed=limit.seed, seconds=limit.seconds)
        return self._figure(sampled, "Hutchinson's estimate")

    def drift(self, push: Literal["worker", "node"]) -> Figure:
        """The mean over random pushes with its standard error."""
        if self._is_split():
            return self._infinite()
        limit = self.limit
        sampled = sampled_drift(self.motion, push, probes=self.probes, seed=limit.seed, seconds=limit.seconds)
        return self._figure(sampled, "mean over random pushes")

    def _is_split(self) -> bool:
        """Whether workers never meet, asked beforehand only where the answer is known or quick."""
        return ("parts" in self.__dict__ or self.schedule.num_workers <= QUICK_PARTS) and self.parts > 1

    def _infinite(self) -> Figure:
        how = f"infinite: the period leaves the workers in {self.parts} separate parts"
        return Figure(math.inf, Kind.EXACT, how)

    def _figure(self, sampled: Sampled, method: str) -> Figure:
        probes = f"{sampled.probes} probe{'s' if sampled.probes > 1 else ''}"
        if not sampled.finished:
            if self.parts > 1:
                return self._infinite()
            return absent(
                f"not found: {method}, {probes}, not settled within the time limit of {self.limit.seconds:g} s, "
                f"because workers agree slowly or never; {sampled.value:.6g} had been summed up by then"
            )
        if not math.isfinite(sampled.spread):
            return Figure(sampled.value, Kind.ESTIMATE, f"{method}, {probes}, no error known")
        part = sampled.spread / sampled.value if sampled.value else 0.0
        how = f"{method}, {probes}, standard error {sampled.spread:.2g} ({part:.1e} of it)"
        margin = sampled.spread * STUDENT_99.get(sampled.probes, 3.2)
        return Figure(
            sampled.value, Kind.ESTIMATE, how, lower=max(0.0, sampled.value - margin), upper=sampled.value + margin
        )


def _never_enlarges(step: MixingStep) -> bool:
    """Whether ‖W‖₂ ≤ 1: eigenvalues 1 − relax in [−1, 1], or ‖W‖₂ ≤ √(‖W‖₁ ‖W‖∞) = 1 for non-negative entries."""
    if isinstance(step, Phase):
        return step.relax is None or all(0 <= factor <= 2 for factor in step.relax)
    return not has_negative_entries(step)


FAILURE = 1e-6
"""The probability with which the upper bound may fail."""


@dataclass(frozen=True, slots=True)
class NormEstimate:
    """`lower` ≤ norm always (up to rounding); norm ≤ `upper` with probability 1 − 10⁻⁶.

    `residual` = ‖MᵀMy − θ²y‖ / θ for the vector that attains `lower` = θ: some singular value lies that near to θ.
    """

    lower: float
    upper: float
    residual: float
    steps: int


def lanczos_norm(chain: Chain, *, seed: int = 0, max_steps: int = 60, tolerance: float = 1e-5) -> NormEstimate:
    """Estimate the norm of the chain off the mean. O(steps · (chain + steps · K)) for vectors of K entries.

    Stops when the value has changed by less than `tolerance` (relative) in each of three steps.
    """
    dimension = len(chain.mean_in)
    if dimension < 2:
        return NormEstimate(0.0, 0.0, 0.0, 0)
    max_steps = min(max_steps, dimension - 1)
    basis = np.empty((max_steps, dimension), dtype=np.float32)
    vector = chain.off_mean(np.random.default_rng(seed).standard_normal(dimension))
    current = np.zeros(dimension)
    diagonal: list[float] = []
    off: list[float] = []
    ritz, weights, calm = 0.0, np.ones(1), 0
    for step in range(max_steps):
        previous, current = current, vector / math.sqrt(inner(vector, vector))
        basis[step] = current
        image = chain.forward(current)
        diagonal.append(inner(image, image))
        vector = chain.off_mean(chain.backward(image)) - diagonal[-1] * current
        if off:
            vector -= off[-1] * previous
        # Single precision halves the memory: orthogonality to √ε is all that the recurrence needs (Simon, 1984).
        known = basis[: step + 1]
        vector -= known.T @ (known @ vector.astype(np.float32))
        length = math.sqrt(inner(vector, vector))
        old = ritz
        ritz, weights = _top(diagonal, off)
        calm = calm + 1 if abs(ritz - old) <= tolerance * ritz else 0
        if calm >= 3 or length <= 1e-13 * max(1.0, ritz):
            break
        off.append(length)
    return _confirmed(chain, basis[: len(diagonal)], weights, exhausted=len(diagonal) >= dimension - 1)


def _top(diagonal: list[float], off: list[float]) -> tuple[float, npt.NDArray[np.float64]]:
    """The largest eigenvalue of the tridiagonal matrix, and its vector."""
    from scipy.linalg import eigh_tridiagonal

    last = len(diagonal) - 1
    values, vectors = eigh_tridiagonal(np.array(diagonal), np.array(off[:last]), select="i", select_range=(last, last))
    return float(values[0]), np.asarray(vectors[:, 0])


def _confirmed(
    chain: Chain, basis: npt.NDArray[np.float32], weights: npt.NDArray[np.float64], *, exhausted: bool
) -> NormEstimate:
    """Evaluate the found vector anew, so that the lower bound rests on nothing but one application."""
    vector = chain.off_mean((basis.T @ weights.astype(np.float32)).astype(np.float64))
    vector /= np.linalg.norm(vector)
    image = chain.forward(vector)
    lower = float(np.linalg.norm(image))
    back = chain.off_mean(chain.backward(image))
    residual = float(np.linalg.norm(back - lower**2 * vector)) / max(lower, np.finfo(np.float64).tiny)
    steps = len(basis)
    if exhausted:
        return NormEstimate(lower, lower, residual, steps)
    root = math.log(1.648 * math.sqrt(len(vector) - 1) / FAILURE) / (2 * steps - 1)
    upper = lower / math.sqrt(1 - root**2) if root < 1 else math.inf
    return NormEstimate(lower, upper, residual, steps)
