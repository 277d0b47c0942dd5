"""Claims `exact-consensus` and `exact-consensus-probable`: one period leaves the mean at every worker, P = J.

**Method `product`.** P − J is multiplied out in integers (on every class of characters, for rules) and is 0.

**Method `labels`, for explicit groups of any size.** Every worker carries a different label 0 … n−1, written in mixed
radix. *Theorem:* if phase `first` + l averages exactly the workers whose labels agree in all digits but digit l, for
every l, then these phases together are J: after the first l of them a value depends on the remaining digits only, being
the mean over the others. The phases before and behind keep the sum, or a common value, because rows and columns of each
sum to 1: J·W = W·J = J.

**Probable, for explicit groups.** P·x = J·x for two vectors x, each modulo its own prime of 127 bits, vector and prime
drawn from the schedule's own hash. If P ≠ J over the fractions, some entry of P − J is a fraction with a non-zero
numerator; a random prime of 127 bits divides it with negligible chance, and otherwise P·x = J·x holds for at most one
in p vectors x. So an inexact schedule passes a trial with a chance far below 2⁻⁸⁰. An author can choose neither
vectors nor primes: the prime is drawn as well, because factors can be chosen whose error is a multiple of a prime
known beforehand. It is an equality of residues that is shown, which never says anything about a rate, and the claim
has a name of its own.

*The checks are sound because* they use the groups of the schedule itself. *They assume* that groups are disjoint, which
`conflict-free` confirms; the probable one also that SHA-256 and the generator of random numbers are no accomplices.
"""

from __future__ import annotations

import random
from math import prod
from typing import TYPE_CHECKING, Any

from ..period import classes, distance_from_mean
from ..refusal import Work, confirm, require
from ..strict_json import as_integer, as_integers

if TYPE_CHECKING:
    from ..schedule import Schedule

MAX_MODULAR = 5 * 10**7
TRIALS = 2
PRIME_BITS = 127
MILLER_RABIN_BASES = 24


def check_by_product(schedule: Schedule, entry: dict[str, Any], place: str) -> None:  # noqa: ARG001 - as the others
    """Nothing besides: the product is made again."""
    work = Work(place)
    for digits in classes(schedule, place):
        rows, _ = distance_from_mean(schedule, digits, 1, work)
        confirm(not any(map(any, rows)), place, "the product", "exactly the mean")


def check_by_labels(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`first` (a phase), `radices`, `labels` (one for each worker)."""
    n = schedule.num_workers
    labels = as_integers(entry["labels"], f"{place}.labels", 0, n)
    radices = as_integers(entry["radices"], f"{place}.radices", 2, n + 1)
    first = as_integer(entry["first"], f"{place}.first", 0, schedule.period)
    spans = schedule.form == "groups" and len(radices) < 32 and prod(radices) == n
    confirm(spans, place, radices, "product n")
    confirm(first + len(radices) <= schedule.period, f"{place}.first", first, "a window inside the period")
    is_bijection = len(labels) == len(set(labels)) == n
    confirm(is_bijection, f"{place}.labels", "…", "a different label for every worker")
    for digit, radix in enumerate(radices):
        phase = schedule.phases[first + digit]
        at = f"{place}.labels and phase {first + digit}"
        confirm(len(phase) * radix == n, at, len(phase), f"{n // radix} groups")
        weight = prod(radices[digit + 1 :])  # of this digit in a label
        for members, _, relax in phase:
            # Labels that differ in this digit alone are smallest + value · weight, for all values of the digit. That
            # they begin at the value 0 follows, since such groups hold everybody: by induction from label 0 upwards.
            group_labels = sorted(labels[worker] for worker in members)
            smallest = group_labels[0]
            differ_here = group_labels == list(range(smallest, smallest + radix * weight, weight))
            is_mean = differ_here and relax == 1
            confirm(is_mean, at, members, f"labels that differ in digit {digit} alone")


def check_probable(schedule: Schedule, entry: dict[str, Any], place: str) -> None:  # noqa: ARG001 - as the others
    """Nothing besides: two vectors are tried."""
    n = schedule.num_workers
    confirm(schedule.form == "groups", place, "a modular test", "explicit groups")
    parts = {abs(part) for phase in schedule.phases for average in phase for part in average.relax.as_integer_ratio()}
    longest = max(parts, default=1)
    confirm(longest <= 10**6, place, longest, "relax factors of at most 6 digits")  # so the prime divides none of them
    require(n * schedule.period <= MAX_MODULAR, place, f"over {MAX_MODULAR} workers times phases")
    for trial in range(TRIALS):
        draw = random.Random(f"{schedule.sha256}/{trial}")
        p = _draw_prime(draw)
        values = [draw.randrange(p) for _ in range(n)]
        mean = sum(values) * pow(n, -1, p) % p
        for phase in schedule.phases:
            for members, _, relax in phase:
                factor = relax.numerator * pow(relax.denominator, -1, p)
                total = sum(values[worker] for worker in members)
                pulled = factor * total * pow(len(members), -1, p)
                for worker in members:
                    values[worker] = ((1 - factor) * values[worker] + pulled) % p
        confirm(set(values) == {mean}, place, "the product", "the mean, modulo a drawn prime")


def _draw_prime(draw: random.Random) -> int:
    """The first probable prime of 127 bits that `draw` gives."""
    while True:
        candidate = draw.getrandbits(PRIME_BITS) | 1 << (PRIME_BITS - 1) | 1
        bases = (draw.randrange(2, candidate - 1) for _ in range(MILLER_RABIN_BASES))
        if all(_passes_miller_rabin(candidate, base) for base in bases):
            return candidate


def _passes_miller_rabin(candidate: int, base: int) -> bool:
    """Whether one base finds no proof that an odd number is composite (Miller 1976, Rabin 1980)."""
    odd_part, twos = candidate - 1, 0
    while odd_part % 2 == 0:
        odd_part, twos = odd_part // 2, twos + 1
    power = pow(base, odd_part, candidate)
    if power in (1, candidate - 1):
        return True
    return any(pow(power, 2**doublings, candidate) == candidate - 1 for doublings in range(1, twos))
