"""Integer arithmetic: primes, divisors, logarithms rounded up, shortest factor lists, numbers of distinct rows."""

from __future__ import annotations

from math import isqrt, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.topo.fields import Whole


def prime_factors(number: int) -> tuple[int, ...]:
    """Return the prime factors, ascending, with repetition; () for 1. O(√number)."""
    factors = []
    rest, divisor = number, 2
    while divisor * divisor <= rest:
        while rest % divisor == 0:
            factors.append(divisor)
            rest //= divisor
        divisor += 1 if divisor == 2 else 2
    return (*factors, rest) if rest > 1 else tuple(factors)


def smallest_prime_factor(number: int) -> int:
    """Return the smallest prime factor; 1 for 1."""
    return next(iter(prime_factors(number)), 1)


def largest_prime_factor(number: int) -> int:
    """Return the largest prime factor; 1 for 1."""
    return max(prime_factors(number), default=1)


def divisors(number: int) -> list[int]:
    """Return all divisors, ascending. O(√number)."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def ceil_log(number: int, base: int = 2) -> int:
    """Return the smallest e ≥ 0 with base^e ≥ number."""
    exponent, power = 0, 1
    while power < number:
        exponent, power = exponent + 1, power * base
    return exponent


def fewest_factors(number: int, largest: int) -> tuple[int, ...] | None:
    """Return the shortest list of factors ≤ `largest` whose product is `number`, in descending order; () for 1.

    None if `number` has a prime factor above `largest`. Among equally short lists the most even one is returned (4·3
    for 12). Its length is the number of rounds in which averages over groups of at most `largest` workers reach the
    exact mean of all `number` workers; no known lower bound is below it. Dynamic programming over the divisors.
    """
    if largest_prime_factor(number) > largest:
        return None
    best: dict[int, tuple[int, ...]] = {1: ()}
    allowed = [d for d in divisors(number) if 2 <= d <= largest]
    for target in divisors(number)[1:]:
        options = [
            tuple(sorted((*best[target // factor], factor), reverse=True)) for factor in allowed if target % factor == 0
        ]
        # A target with a prime above `largest` would have no options, but then so would `number`.
        best[target] = min(options, key=lambda factors: (len(factors), sum(factors), factors))
    assert prod(best[number]) == number
    return best[number]


def number_rows(*columns: npt.NDArray[Any]) -> Whole:
    """Number the distinct rows of a table given by columns, and return the number of every row."""
    found = np.unique(columns[0], return_inverse=True)[1]
    for column in columns[1:]:
        values, place = np.unique(column, return_inverse=True)
        found = np.unique(found * len(values) + place, return_inverse=True)[1]
    return found
