"""Whether a period may enlarge differences between workers so much that floats cannot follow it.

Group means with 0 ≤ relaxation ≤ 2 and rounds without negative weights never enlarge any. Others do, by a factor in
each phase, and what is left at the end may be far smaller than what was rounded in between: a relaxation of 10¹⁵ and an
all-reduce after it are exact consensus, of which floats see a contraction of a hundredth.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import inf, log2

import numpy as np

from partreduce.topo.errors import UndecidedError
from partreduce.topo.mixing import has_negative_entries, mixing_matrix, mixing_sparse
from partreduce.topo.phase import Phase
from partreduce.topo.round import MixingStep
from partreduce.topo.schedule import Schedule

MOST_BITS = 24.0
"""Powers of two by which differences may grow on the way: floats then still have eight digits of what they were."""

LARGEST_NORM = 512
"""Up to so many workers the norm of a round with negative weights is computed; beyond, it is bounded by sums."""


def growth_bits(schedule: Schedule) -> float:
    """By how many powers of two differences may grow on the way through a period, at most. O(size), norms besides."""
    if (rule := schedule.rule()) is not None:
        return sum(_of_groups(block.relaxation for block in phase if block.makes_groups) for phase in rule.phases)
    steps = schedule.steps()
    known = {step: _of_step(step) for step in set(steps)}
    return sum(known[step] for step in steps)


def check_growth(schedule: Schedule) -> None:
    """Refuse a period on whose way differences may grow beyond what floats can follow. O(size), norms besides."""
    if (bits := growth_bits(schedule)) > MOST_BITS:
        raise UndecidedError(
            f"differences may grow by 2^{bits:.0f} in a period (a relaxation outside 0..2, or negative weights), where "
            "floats round away what is left of them; at most 2^24 are followed"
        )


def _of_groups(factors: Iterable[Fraction]) -> float:
    """A group's mean has the eigenvalues 1 and 1 − relaxation, so this is the norm."""
    return max((log2(abs(1 - factor)) for factor in set(factors) if not 0 <= factor <= 2), default=0.0)


def _of_step(step: MixingStep) -> float:
    """Of a graph the lesser of two norms: of distances to the mean, and of the largest difference, as rows bound it."""
    if isinstance(step, Phase):
        return _of_groups(step.relaxation or ())
    if not has_negative_entries(step):
        return 0.0
    largest, norm = float(abs(mixing_sparse(step)).sum(axis=1).max()), inf
    if step.num_workers <= LARGEST_NORM and largest < 2.0**MOST_BITS:
        matrix = mixing_matrix(step)
        norm = float(np.linalg.norm(matrix - matrix.mean(axis=0), 2))
    return log2(max(1.0, min(largest, norm)))
