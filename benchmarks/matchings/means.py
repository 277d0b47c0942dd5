"""Exact consensus by plain means of groups, in the fewest rounds, with the bounds that prove it."""

from __future__ import annotations

from functools import cache
from itertools import product

from partreduce.schedulers.exact_rounds.fewest import ExactAnswer, check_size, phases_of_factors
from partreduce.schedulers.exact_rounds.lower_bounds import RoundsBound, refuse_senseless
from partreduce.schedulers.synthesis.problem import Status
from partreduce.topo.arithmetic.whole_numbers import (
    ceil_log,
    fewest_factors,
    largest_prime_factor,
    prime_powers,
    valuation,
)

MAX_PRICE = 4
"""Prices of a prime tried in the bound of several primes."""


def fewest_means(num_workers: int, max_group: int) -> ExactAnswer:
    """Plain means of groups ≤ g: exact iff every prime of n is ≤ g; least factors, with the bound that proves it."""
    check_size(num_workers, max_group)
    bound = mean_bound(num_workers, max_group)
    if bound.rounds is None:
        worst = largest_prime_factor(num_workers)
        reason = (
            f"{num_workers} has the prime factor {worst}, so plain means need groups of {worst}; relaxed ones do not"
        )
        return ExactAnswer(num_workers, max_group, None, Status.INFEASIBLE, bound, reason)
    factors = fewest_factors(num_workers, max_group, even=False)
    assert factors is not None
    status = Status.OPTIMAL if len(factors) == bound.rounds else Status.FEASIBLE
    return ExactAnswer(
        num_workers,
        max_group,
        phases_of_factors(factors),
        status,
        bound,
        "mixed radix " + " x ".join(map(str, factors)),
    )


def mean_bound(num_workers: int, max_group: int) -> RoundsBound:
    """The best of the bounds for plain means of groups of at most `max_group`.

    prime: every entry of the product is a sum of 1/(s₁…s_T), so each prime of n divides some group size ≤ g.
    log: as above. two-round: W₂W₁ = J needs orthogonal partitions, which exist iff n = a·b with a, b ≤ g.
    p-adic: every worker is reached by a path whose product of sizes has at least n's power of p.
    several primes: it is so for each prime; where no path can serve two of them there are too few paths for all.
    """
    refuse_senseless(num_workers, max_group)
    factors = prime_powers(num_workers)
    if any(p > max_group for p in factors):
        return RoundsBound(None, "prime")
    best = RoundsBound(ceil_log(num_workers, max_group), "log")
    for p, power in factors.items():
        rounds = best.rounds or 0
        while _greatest_product(rounds, p, power, max_group) < num_workers:
            rounds += 1
        if rounds > (best.rounds or 0):
            best = RoundsBound(rounds, "p-adic")
    if best.rounds == 2 and not any(
        num_workers % a == 0 and num_workers // a <= max_group for a in range(2, max_group + 1)
    ):
        best = RoundsBound(3, "two-round")
    known = len(fewest_factors(num_workers, max_group) or ())
    rounds = best.rounds or 0
    while rounds < known and _too_few_paths(rounds, num_workers, max_group):
        rounds += 1
        best = RoundsBound(rounds, "several primes")
    return best


def _too_few_paths(rounds: int, num_workers: int, max_group: int) -> bool:
    """Whether some prices for the primes show that the paths from a worker cannot serve each prime at each worker.

    A path earns the price of every prime whose power its sizes hold. All n targets need each prime, so the paths must
    earn n times the sum of the prices; a block of s continues in s ways, each of which at best earns the most it can.
    """
    factors = prime_powers(num_workers)
    primes = tuple(factors)

    @cache
    def earns(left: int, missing: tuple[int, ...], prices: tuple[int, ...]) -> int:
        if left == 0:
            return sum(price for price, power in zip(prices, missing, strict=True) if power == 0)
        return max(
            size
            * earns(
                left - 1,
                tuple(max(0, m - valuation(size, p)) for m, p in zip(missing, primes, strict=True)),
                prices,
            )
            for size in range(2, max_group + 1)
        )

    return any(
        earns(rounds, tuple(factors.values()), prices) < num_workers * sum(prices)
        for prices in product(range(1, MAX_PRICE + 1), repeat=len(primes))
    )


@cache
def _greatest_product(rounds: int, prime: int, power: int, max_group: int) -> int:
    """The greatest product of `rounds` sizes ≤ g whose valuations at `prime` sum to at least `power`; 0 if none."""
    if rounds == 0:
        return 1 if power == 0 else 0
    best, exponent = 0, 0
    while prime**exponent <= max_group:
        size = max_group - max_group % prime**exponent
        rest = _greatest_product(rounds - 1, prime, max(0, power - exponent), max_group)
        best = max(best, size * rest)
        exponent += 1
    return best
