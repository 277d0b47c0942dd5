"""Claim `rounds`: no schedule of groups of at most g workers reaches the exact mean of n in fewer than k rounds.

Five bounds, each named in the claim. The first two count who can have heard of whom and hold for any weights; the
others need plain means (relax 1).

* log: after T rounds a worker has heard of at most g^T workers.
* gossip-parity: with pairs and odd n someone idles in every round, and ceil(log2 n) + 1 rounds are needed (gossiping
  in a complete graph).
* prime-factor: every entry of the product is a sum of 1/(s_1 … s_T); so each prime of n must divide some s_t ≤ g, and
  a prime factor above g makes the mean unreachable in any number of rounds.
* two-round: two rounds are exact iff the two partitions are orthogonal, which needs n = a·b with a, b ≤ g.
* p-adic: some path of groups has a product whose power of p is at least that of n, and no worker hears of more
  workers than the largest such product.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from partreduce.topo.arithmetic.whole_numbers import ceil_log, prime_powers
from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, fact
from partreduce.verify.stochastic import explicit_pairs, rule_pairs
from partreduce.verify.view import rule_view

NAME = "rounds"
NEVER = "never"


def prove_rounds(schedule: Schedule, *, exact: bool) -> Claim | None:
    """The best named lower bound for this n and this largest group; None without groups."""
    if not schedule.is_phased:
        return None
    rule = rule_view(schedule)
    pairs = rule_pairs(rule) if rule is not None else explicit_pairs(schedule)
    if not pairs:
        return None
    largest, plain = max(size for size, _ in pairs), all(relax == 1 for _, relax in pairs)
    n = schedule.num_workers
    found = best_bound(n, largest, plain_means=plain)
    least = found["at_least"]
    if least == NEVER:
        text = f"{n} has the prime factor {found['prime']} > {largest}: plain means of groups of at most {largest} "
        text += "workers never reach the exact mean, they only approach it; a relax factor can."
    else:
        text = f"Groups of at most {largest} workers need at least {least} rounds to the exact mean of {n} workers"
        text += f" (bound: {found['bound']})"
        text += f"; this schedule takes {schedule.period}" if exact else ""
        text += ", the least possible." if exact and schedule.period == least else "."
    return fact(NAME, text, {"optimal": True} if exact and schedule.period == least else None, group=largest, **found)


def best_bound(n: int, g: int, *, plain_means: bool = True) -> dict[str, Any]:
    """The largest bound, as `{"bound": name, "at_least": rounds, "prime": p or 0}`; ties go to the earlier name."""
    log = ceil_log(n, g)
    found: list[tuple[int, str, int]] = [(log, "log", 0)]
    if g == 2 and n % 2 and n > 1:
        found.append((log + 1, "gossip-parity", 0))
    if plain_means:
        factors = prime_powers(n)
        if max(factors) > g:
            return {"bound": "prime-factor", "at_least": NEVER, "prime": max(factors)}
        if n > g and not any(n % a == 0 for a in range(-(-n // g), isqrt(n) + 1)):
            found.append((3, "two-round", 0))
        found.extend((p_adic_bound(n, g, p, power), "p-adic", p) for p, power in sorted(factors.items()))
    least, bound, prime = max(found, key=lambda item: item[0])
    return {"bound": bound, "at_least": least, "prime": prime}


def p_adic_bound(n: int, g: int, p: int, power: int) -> int:
    """The least T for which sizes s_1 … s_T ≤ g with p^power | s_1 … s_T can multiply to at least n.

    reach[v] is the largest product so far whose power of p is at least v; the best size that brings a powers of p is
    the largest multiple of p^a up to g.
    """
    best: list[int] = []
    while p ** len(best) <= g:
        best.append(g // p ** len(best) * p ** len(best))
    reach = [1] + [0] * power
    rounds = 0
    while reach[power] < n:
        reach = [max(reach[max(v - a, 0)] * size for a, size in enumerate(best)) for v in range(power + 1)]
        rounds += 1
    return rounds
