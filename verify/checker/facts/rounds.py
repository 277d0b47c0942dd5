"""Fact `rounds`: no schedule with groups of at most g workers reaches the exact mean of n in fewer rounds than stated.

`at_least` is a number of rounds, or "never"; g is the largest group of this schedule. The bounds, each a theorem:

* `log`: after T rounds a worker has heard of at most gᵀ workers, and it must hear of all n.
* `gossip-parity`, g = 2 and n odd: one more than `log`. In the last round some worker sits idle, so it has heard of all
  n after T − 1 rounds, and 2^(T−1) ≥ n (Knödel, New gossips and telephones, 1975).

For plain means (relax 1 throughout) also, with p a prime that divides n:

* `prime-factor`: entries of a product of plain means have denominators that divide products of group sizes. An entry
  of J is 1/n, so p divides a group size. If p > g the mean is out of reach: "never".
* `p-adic`: p^v is the power of p in n. Along some path of groups the sizes multiply to a multiple of p^v, for otherwise
  no entry could have that denominator; a size with the factor p^a is at most the largest multiple of p^a up to g, and
  the last worker of the path has heard of at most the product of the sizes. The fewest rounds in which the product can
  be a multiple of p^v and reach n is a bound.
* `two-round`: two rounds of plain means are J iff their partitions are orthogonal, which needs n = a·b with a, b ≤ g.
  Without such a product at least 3.

The largest bound is stated, `prime` being 0 where it needs none; of equal ones the first of this list, and of equal
`p-adic` ones that of the smallest prime. It says what is possible, not that this schedule reaches the mean.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..refusal import Work
    from ..schedule import Schedule
    from . import Numbers

NEVER = "never"


def numbers(schedule: Schedule, _: Work) -> Numbers | None:
    """`group` (g), `bound` (its name), `at_least`, `prime`."""
    sizes = set().union(*schedule.group_sizes())
    if not sizes:
        return None
    largest = max(size for size, _ in sizes)
    plain_means = all(relax == 1 for _, relax in sizes)
    return {"group": largest, **least_rounds(schedule.num_workers, largest, plain_means=plain_means)}


def least_rounds(n: int, largest: int, *, plain_means: bool) -> Numbers:
    """`bound`, `at_least`, `prime` of n workers in groups of at most `largest`."""
    log = next(rounds for rounds in range(32) if largest**rounds >= n)
    bounds: list[tuple[int, str, int]] = [(log, "log", 0)]
    if largest == 2 and n % 2 == 1:
        bounds.append((log + 1, "gossip-parity", 0))
    if plain_means:
        primes = prime_factors(n)
        if primes[-1] > largest:
            return {"bound": "prime-factor", "at_least": NEVER, "prime": primes[-1]}
        if not _is_product_of_two(n, largest):
            bounds.append((3, "two-round", 0))
        bounds += [(_p_adic_bound(n, largest, prime), "p-adic", prime) for prime in primes]
    at_least, bound, prime = max(bounds, key=lambda one: one[0])
    return {"bound": bound, "at_least": at_least, "prime": prime}


def prime_factors(n: int) -> list[int]:
    """The primes that divide a number of at least 2, ascending."""
    found, candidate = [], 2
    while candidate <= isqrt(n):
        if n % candidate == 0:
            found.append(candidate)
            while n % candidate == 0:
                n //= candidate
        candidate += 1
    return [*found, n] if n > 1 else found


def _is_product_of_two(n: int, largest: int) -> bool:
    """Whether n = a·b with a, b ≤ largest."""
    smallest_factor = -(-n // largest)
    return any(n % a == 0 for a in range(smallest_factor, isqrt(n) + 1))


def _p_adic_bound(n: int, largest: int, prime: int) -> int:
    """The fewest rounds after which a product of sizes up to `largest` is a multiple of p^v and at least n."""
    power_in_n = 1  # or more: it divides n
    while n % prime ** (power_in_n + 1) == 0:
        power_in_n += 1
    # largest_size[a] is the largest group size that is a multiple of p^a.
    largest_size: list[int] = []
    while prime ** len(largest_size) <= largest:
        factor = prime ** len(largest_size)
        largest_size.append(largest // factor * factor)
    # heard[v] is the largest product of sizes, one a round so far, with v factors p (or more, for v = power_in_n).
    heard = [1] + [0] * power_in_n
    rounds = 0
    while heard[power_in_n] < n:
        heard = [max(heard[max(v - a, 0)] * size for a, size in enumerate(largest_size)) for v in range(power_in_n + 1)]
        rounds += 1
    return rounds
