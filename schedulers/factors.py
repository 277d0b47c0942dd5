"""Whole-number factors that schedules need: smallest primes, factor lists with the fewest factors."""

from __future__ import annotations

from math import isqrt, prod


def prime_factors(number: int) -> tuple[int, ...]:
    """The prime factors, ascending, with repetition; () for 1. O(√number)."""
    found = []
    rest, divisor = number, 2
    while divisor * divisor <= rest:
        while rest % divisor == 0:
            found.append(divisor)
            rest //= divisor
        divisor += 1 if divisor == 2 else 2
    return (*found, rest) if rest > 1 else tuple(found)


def smallest_prime_factor(number: int) -> int:
    """The smallest prime factor; 1 for 1."""
    return next(iter(prime_factors(number)), 1)


def largest_prime_factor(number: int) -> int:
    """The largest prime factor; 1 for 1."""
    return max(prime_factors(number), default=1)


def divisors(number: int) -> list[int]:
    """All divisors, ascending. O(√number)."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def fewest_factors(number: int, largest: int) -> tuple[int, ...] | None:
    """Factors ≤ `largest` whose product is `number`, as few as possible, descending; None if a prime is too large.

    () for 1. Dynamic programming over the divisors; among equally short lists the most even one is taken. The number
    of factors is the least number of rounds in which plain group means of at most `largest` workers reach the exact
    mean, as far as the known lower bounds tell.
    """
    if largest_prime_factor(number) > largest:
        return None
    best: dict[int, tuple[int, ...]] = {1: ()}
    allowed = [d for d in divisors(number) if 2 <= d <= largest]
    for target in divisors(number)[1:]:
        options = [
            tuple(sorted((*best[target // factor], factor), reverse=True))
            for factor in allowed
            if target % factor == 0 and target // factor in best
        ]
        best[target] = min(options, key=lambda factors: (len(factors), sum(factors), factors))
    assert prod(best[number]) == number
    return best[number]


def largest_power(base: int, number: int) -> int:
    """The greatest e with base^e ≤ number."""
    exponent, value = 0, 1
    while value * base <= number:
        value *= base
        exponent += 1
    return exponent


def ceil_log2(number: int) -> int:
    """The least c with 2^c ≥ number."""
    return (number - 1).bit_length()
