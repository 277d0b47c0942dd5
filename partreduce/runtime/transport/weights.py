"""Round the weights of an average to the dtype of its sum, so that they still sum to 1.

A third in 32 bits is too large by 1e-8, and three of them are more than 1: averaged with those, all parameters grow, by
3e-8 in each step, which makes 3 % in a million steps. So the others' weights are rounded to multiples of the last digit
below 1, of which every sum up to 1 is a number again, and one's own is what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import torch


def unit_weights(others: Sequence[Fraction | float], dtype: torch.dtype) -> tuple[float, tuple[float, ...]]:
    """Round weights to the dtype of the sum; returns (own weight, the others' weights), whose sum is exactly 1.

    Arrays of 64 bits have weights of 64 bits, all others of 32 bits. O(others).
    """
    return _unit_weights(tuple(others), 53 if dtype == torch.float64 else 24)


@lru_cache(maxsize=4096)
def _unit_weights(others: tuple[Fraction | float, ...], digits: int) -> tuple[float, tuple[float, ...]]:
    digit = 1 << digits
    counts = [round(Fraction(weight) * digit) for weight in others]
    return (digit - sum(counts)) / digit, tuple(count / digit for count in counts)
