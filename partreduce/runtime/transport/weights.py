"""Round the weights of an average to a dtype such that they still sum to exactly 1.

1/3 in float32 is too large by 1e-8, and three of them sum to more than 1: an average with these weights would grow all
parameters by 3e-8 per step, which is 3 % in a million steps. So the neighbors' weights are rounded to multiples of the
spacing of numbers just below 1, for which every sum up to 1 is exact; the worker's own weight is 1 minus their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import torch


def unit_weights(others: Sequence[Fraction | float], dtype: torch.dtype) -> tuple[float, tuple[float, ...]]:
    """Round neighbors' weights, `others`; return the worker's own weight and the rounded ones, which sum to exactly 1.

    `dtype` is that of the averaged array: float64 arrays get float64 weights, all others float32 weights.
    """
    return _unit_weights(tuple(others), 53 if dtype == torch.float64 else 24)


@lru_cache(maxsize=4096)
def _unit_weights(others: tuple[Fraction | float, ...], digits: int) -> tuple[float, tuple[float, ...]]:
    digit = 1 << digits
    counts = [round(Fraction(weight) * digit) for weight in others]
    return (digit - sum(counts)) / digit, tuple(count / digit for count in counts)
