"""Claim `rounds`: no schedule with groups of at most g workers reaches the exact mean of n in fewer rounds than stated.

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

*The check is sound because* it computes n, g and the bound itself. It is a statement about what is possible, and does
not say that this schedule reaches the mean.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, Any

from ..refusal import confirm, confirm_equal

if TYPE_CHECKING:
    from ..schedule import Schedule

Bound = tuple[int | str, int]
"""(at least so many rounds, or "never"; the prime that it speaks about, or 0)."""


def check(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`group` (g), `bound` (its name), `at_least`, `prime` (0 where the bound needs none)."""
    confirm(schedule.form != "graph", place, "rounds", "a schedule of groups")
    sizes = set().union(*schedule.group_sizes())
    confirm(sizes, place, "rounds", "a schedule with a group")
    largest = max(size for size, _ in sizes)
    all_plain = all(relax == 1 for _, relax in sizes)
    bounds = _bounds(schedule.num_workers, largest, entry["prime"], all_plain=all_plain)
    name = entry["bound"]
    applies = isinstance(name, str) and name in bounds
    confirm(applies, f"{place}.bound", name, f"one of {sorted(bounds)}")
    at_least, prime = bounds[name]
    confirm_equal(f"{place}.group", entry["group"], largest)
    confirm_equal(f"{place}.prime", entry["prime"], prime)
    confirm_equal(f"{place}.at_least", entry["at_least"], at_least)


def _bounds(n: int, largest: int, prime: object, *, all_plain: bool) -> dict[str, Bound]:
    """Every bound that applies, by name."""
    log = next(rounds for rounds in range(32) if largest**rounds >= n)
    bounds: dict[str, Bound] = {"log": (log, 0)}
    if largest == 2 and n % 2 == 1:
        bounds["gossip-parity"] = (log + 1, 0)
    if not all_plain:
        return bounds
    if not _is_product_of_two(n, largest):
        bounds["two-round"] = (3, 0)
    if type(prime) is int and _is_prime_divisor(prime, n):
        if prime > largest:
            bounds["prime-factor"] = ("never", prime)
        else:
            bounds["p-adic"] = (_p_adic_bound(n, largest, prime), prime)
    return bounds


def _is_product_of_two(n: int, largest: int) -> bool:
    """Whether n = a·b with a, b ≤ largest."""
    smallest_factor = -(-n // largest)
    return n <= largest or any(n % a == 0 for a in range(smallest_factor, isqrt(n) + 1))


def _is_prime_divisor(number: int, n: int) -> bool:
    return 1 < number <= n and n % number == 0 and all(number % q for q in range(2, isqrt(number) + 1))


def _p_adic_bound(n: int, largest: int, prime: int) -> int:
    """The fewest rounds after which a product of sizes up to `largest` is a multiple of p^v and at least n."""
    power_in_n = 0
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
