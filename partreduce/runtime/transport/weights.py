"""Round the weights of an average to the dtype of its sum such that they still sum to exactly 1.

1/3 in float32 is too large by 1e-8, and three of them sum to more than 1: an average with these weights would grow all
parameters by 3e-8 per step, which is 3 % in a million steps. So the neighbors' weights are rounded to multiples of the
spacing of numbers just below 1, for which every sum up to 1 is exact, and the own weight is the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import torch


def unit_weights(others: Sequence[Fraction | float], dtype: torch.dtype) -> tuple[float, tuple[float, ...]]:
    """Round weights to the dtype of the sum; return (own weight, the neighbors' weights), whose sum is exactly 1.

    float64 arrays get float64 weights, all others float32 weights. O(number of neighbors).
    """
    return _unit_weights(tuple(others), 53 if dtype == torch.float64 else 24)


@lru_cache(maxsize=4096)
def _unit_weights(others: tuple[Fraction | float, ...], digits: int) -> tuple[float, tuple[float, ...]]:
    digit = 1 << digits
    counts = [round(Fraction(weight) * digit) for weight in others]
    return (digit - sum(counts)) / digit, tuple(count / digit for count in counts)
