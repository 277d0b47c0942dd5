"""Prove how much of a difference one period leaves: `contraction`, ‖P − J‖₂ ≤ c, and `exact-consensus`, where c is 0.

P = W_T … W_1 is the matrix of the period, J that of the mean. The theorems stand in `verify/checker/consensus.py` and,
for a rule's classes of characters, `period.py`. Rules at any number of nodes, and explicit schedules up to MAX_EXACT
workers, are certified by exact pivots. Up to MAX_FACTOR workers the checker factors the matrix in integers, which adds
at most n·2⁻³⁰ of c² to c²; an exact 0 is proved by ‖M‖₂² ≤ ‖M‖₁·‖M‖∞. Exact consensus of explicit phases is certified
at any size by labels (`mixed_radix_labels`), else by the product of the period up to MAX_PRODUCT workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from math import ceil, lcm, log2, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.topo.arithmetic.exact_matrices import ExactMatrix, gram, semidefinite_pivots
from partreduce.topo.metrics.evaluate import MOST_BITS, growth_bits
from partreduce.topo.mixing import Operators, exact_product, period_product
from partreduce.topo.phase import Phase
from partreduce.topo.round import MixingStep, Round
from partreduce.topo.rule import RuleView, distinct_classes
from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, fraction_above, not_proved, proved, upper
from partreduce.verify.checker.period import MAX_DIGITS, MAX_SIZE

NAME, EXACT = "contraction", "exact-consensus"
MAX_EXACT = 48
"""Most workers of an explicit schedule for which exact pivots are computed; their fractions grow with n."""
MAX_FACTOR = 512
"""Most workers of an explicit schedule whose matrix the checker factors."""
MAX_WORK, MAX_BITS = 10**10, 2**31
"""The checker's limits on work for the exact product of a period, and on the total bits of its entries."""
MARGIN = 2.0**-30
"""The margin of the certified bound over the computed one, as a fraction of c² per worker.

Rounding to n·n integers and to a factor of 31 bits costs the checker at most 1.4 · 2⁻³¹ of c² per worker.
"""
FOLLOWED_BITS = 16.0
"""Most bits by which differences may grow inside a period whose norm is about 1. Float rounding of the intermediate
values is 2⁻⁵² of their size per worker, which must stay far below the margin."""
ZERO = 1e-7
"""Norms below this are computed exactly: they may be 0, which a float cannot show."""
MAX_PRODUCT = 128
"""Most workers for which a period is multiplied out to test whether it is exactly the mean."""


def rule_view(schedule: Schedule) -> RuleView | None:
    """Return the schedule's rule in canonical order, so that a certificate holds for every file of the same hash.

    A rule gives groups by node digits, for any number of nodes (`topo.rule`). None for explicit groups and graphs.
    """
    rule = schedule.rule()
    return None if rule is None else rule.canonical


def off_mean(schedule: Schedule, periods: int = 1) -> list[ExactMatrix] | None:
    """Return P^periods − J exactly, with P the matrix of a period and J that of the mean of all workers.

    An explicit schedule gives one n×n matrix. A rule (groups given by node digits) gives one small matrix for each
    class of digits, without repetitions; None if the rule has too many digits or local ranks.
    """
    rule = rule_view(schedule)
    return [product_minus_mean(schedule, periods)] if rule is None else _off_mean_of_classes(rule, periods)


@lru_cache(maxsize=1)
def _off_mean_of_classes(rule: RuleView, periods: int) -> list[ExactMatrix] | None:
    """Return P^periods − J of a rule, as `off_mean` does, one matrix for each distinct class of node digits.

    A class holds the differences that vary along a set of digits; only that of the empty set has a mean to subtract.
    None with more than MAX_DIGITS digits or MAX_SIZE workers on a node.
    """
    if rule.num_digits > MAX_DIGITS or rule.workers_per_node > MAX_SIZE:
        return None
    classes = distinct_classes(rule)
    operators, share = Operators.of_rule(rule, classes), -Fraction(1, rule.workers_per_node)
    products = (operators.exact_period(which, periods) for which in range(len(classes)))
    return [product if digits else product.plus(share) for digits, product in zip(classes, products, strict=True)]


def product_minus_mean(schedule: Schedule, periods: int = 1) -> ExactMatrix:
    """Return P^periods − J exactly, shape (n, n), with P the matrix of a period and J that of the mean."""
    return exact_product(schedule.steps() * periods).plus(-Fraction(1, schedule.num_workers))


def prove_contraction(schedule: Schedule) -> Claim:
    """Prove `contraction`, ‖P − J‖₂² ≤ c², with P the matrix of a period and J that of the mean of all workers.

    The bound is close to the true value, unless it is a product of norms. Large explicit schedules are not proved.
    steps_per_round and delay have no effect on P.
    """
    rule, num_workers = rule_view(schedule), schedule.num_workers
    if rule is not None or num_workers <= MAX_EXACT:
        return _by_pivots(schedule, rule)
    if num_workers > MAX_FACTOR:
        text = f"bounds for explicit schedules are certified up to {MAX_FACTOR} workers; write a rule."
        return not_proved(NAME, text)
    if _is_too_long(schedule):
        return not_proved(NAME, "the exact product of so many phases is too large for the checker; write a rule.")
    bits = growth_bits(schedule)
    norm = float(np.linalg.norm(period_product(schedule) - 1 / num_workers, 2)) if bits < MOST_BITS else 0.0
    if norm <= ZERO or bits > max(0.0, FOLLOWED_BITS + log2(norm)):
        return _by_norms(schedule)
    squared = fraction_above(norm**2 * (1 + num_workers * MARGIN))
    text = f"{_bound(squared)}: c²·I − (P − J)ᵀ(P − J) is L·Lᵀ with integers in L, up to a rest that is bounded."
    return proved(NAME, text, squared=str(squared), method="factor")


def prove_power(schedule: Schedule, name: str, max_periods: int) -> Claim | None:
    """Prove consensus, as claim `name`, by k ≤ `max_periods` periods with ‖Pᵏ − J‖₂ < 1; None if no k is enough."""
    if rule_view(schedule) is None and schedule.num_workers > MAX_EXACT:
        return None
    for periods in range(1, max_periods + 1):
        products = off_mean(schedule, periods)
        if products is None:
            return None
        squared = least_square(products)
        if squared < 1:
            factor = upper(squared, power=2)
            text = f"Over {periods} periods every difference shrinks by a factor of at most {factor} < 1."
            return proved(name, text, method="power", periods=periods, squared=str(squared))
    return None


def _by_pivots(schedule: Schedule, rule: RuleView | None) -> Claim:
    products = off_mean(schedule)
    if products is None:
        assert rule is not None, "explicit schedules of this size have a product"
        return not_proved(
            NAME,
            f"character classes are enumerated up to {MAX_DIGITS} digits and {MAX_SIZE} workers on a node; this rule "
            f"has {rule.num_digits} and {rule.workers_per_node}.",
        )
    squared = least_square(products)
    text = f"{_bound(squared)}: the {schedule.num_workers} pivots of c²·I − (P − J)ᵀ(P − J)"
    if rule is not None:
        text = (
            f"{_bound(squared)} for every number of nodes with {rule.num_digits} digits: on each of the "
            f"{len(products)} different character classes the {rule.workers_per_node} pivots of c²·I − MᵀM"
        )
    return proved(NAME, f"{text} are exact and none is negative.", method="pivots", squared=str(squared))


def _is_too_long(schedule: Schedule) -> bool:
    """Return whether the exact product of a period is too much for the checker: over MAX_WORK or MAX_BITS."""
    bits, n = 0, schedule.num_workers
    work = 2 * n**3
    for step in schedule.steps():
        work += n * n * (32 + bits // 32)
        bits += common_factor(step).bit_length()
    return work > MAX_WORK or n * n * bits > MAX_BITS


def common_factor(step: MixingStep) -> int:
    """Return an integer that makes all entries of a step's mixing matrix integers. O(groups or edges)."""
    if isinstance(step, Round):
        return lcm(*(weight.denominator for weight in step.weights))
    return lcm(*(len(group.members) * group.relaxation.denominator for group in step))


def _by_norms(schedule: Schedule) -> Claim:
    off = product_minus_mean(schedule)
    sizes = np.abs(off.numerators)
    one, infinity = (Fraction(int(sizes.sum(axis=axis).max()), off.denominator) for axis in (0, 1))
    squared = one * infinity
    text = f"{_bound(squared)}: the largest absolute column sum of P − J is {_short(one)}, the largest row sum "
    text += f"{_short(infinity)}, and ‖M‖₂² is at most their product."
    return proved(NAME, text, squared=str(squared), method="norms")


def _bound(squared: Fraction) -> str:
    if squared.numerator.bit_length() - squared.denominator.bit_length() > 1000:
        return f"c² ≤ {_short(squared)}"
    return f"contraction ≤ {upper(squared, 9, power=2)}, c² = {squared}"


def _short(number: Fraction) -> str:
    """Format a number, rounded up; one beyond the range of floats as a power of 2."""
    bits = number.numerator.bit_length() - number.denominator.bit_length()
    return upper(number) if bits < 1000 else f"2^{bits + 1}"


def candidates(value: float) -> Iterable[Fraction]:
    """Yield fractions to try as the bound c²: simple ones near the float `value`, then multiples of 2⁻ᵏ above it.

    The last is above it by a fraction of it, since the error of a float grows with its value.
    """
    seen = set()
    for limit in (1, 16, 64, 256, 1024, 4096, 2**14, 2**17):
        guess = Fraction(value).limit_denominator(limit)
        if abs(float(guess) - value) <= 1e-10 and guess not in seen:
            seen.add(guess)
            yield guess
    for bits in (40, 30, 20):
        yield Fraction(ceil((value + 2.0 ** (2 - bits)) * 2**bits), 2**bits)
    yield Fraction(ceil(Fraction(value) * (2**20 + 1)), 2**20)


def least_square(matrices: Sequence[ExactMatrix]) -> Fraction:
    """Return a bound c² ≥ ‖M‖₂² of all matrices M: the first of `candidates` with c²·I − MᵀM ⪰ 0, by exact pivots."""
    grams = [gram(matrix) for matrix in matrices]
    try:
        norms = [float(np.linalg.norm(matrix.floats(), 2)) for matrix in matrices if matrix.size]
        guesses = list(candidates(max(norms, default=0.0) ** 2))
    except (OverflowError, np.linalg.LinAlgError):
        guesses = []  # entries beyond the range of floats, as with a relaxation of 60 digits
    guesses.append(max((square.trace() for square in grams if square.size), default=Fraction(0)))  # always a bound
    for squared in guesses:
        scaled = (ExactMatrix.identity(square.size).scaled(squared) - square for square in grams)
        if all(semidefinite_pivots(rest) is not None for rest in scaled):
            return squared
    raise AssertionError("no eigenvalue of a Gram matrix is above its trace")


def prove_exact(schedule: Schedule) -> Claim | None:
    """Prove `exact-consensus`: one period gives every worker the exact mean; None if this is false or was not shown."""
    rule, n = rule_view(schedule), schedule.num_workers
    if rule is None and schedule.is_phased:
        phases = schedule.phased.steps(schedule.cluster)
        if not _may_be_exact(phases):
            return None
        if (by_labels := _by_labels(phases)) is not None:
            return by_labels
    products = off_mean(schedule) if rule is not None or n <= MAX_PRODUCT else None
    if products is None or not all(product.is_zero() for product in products):
        return None
    text = f"The exact product of the period is 1/{n} in all entries."
    if rule is not None:
        text = (
            f"On each of the {len(products)} different character classes the period's matrix less J is exactly zero, "
            f"for every number of nodes with {rule.num_digits} digits."
        )
    return proved(EXACT, text, method="product")


def _may_be_exact(phases: tuple[Phase, ...]) -> bool:
    """Return whether a period makes a random vector constant in floats; if not, its exact product is not the mean."""
    values = np.random.default_rng(0).standard_normal(phases[0].num_workers)
    mean = values.mean()
    with np.errstate(over="ignore", invalid="ignore"):  # factors beyond the range of floats: not detected as exact
        for phase in phases:
            values = phase.apply(values)
    return bool(np.abs(values - mean).max() < 1e-6)


def _by_labels(phases: tuple[Phase, ...]) -> Claim | None:
    num_workers = phases[0].num_workers
    sizes = [_uniform_size(phase) for phase in phases]
    for first in range(len(phases)):
        for stop in range(first + 1, len(phases) + 1):
            window = sizes[first:stop]
            if 0 in window or prod(window) > num_workers:
                break
            labels = mixed_radix_labels(phases[first:stop], window) if prod(window) == num_workers else None
            if labels is not None:
                text = (
                    f"Every worker has a different label with digits of the radices {window}; phase {first} + l "
                    "averages over exactly the workers whose labels agree but in digit l, so these phases together "
                    "give the mean of all, and every other phase keeps it."
                )
                return proved(EXACT, text, method="labels", first=first, radices=window, labels=labels.tolist())
    return None


def _uniform_size(phase: Phase) -> int:
    """Return the common group size of a phase of plain averages that include every worker; 0 for any other phase."""
    sizes = phase.sizes
    if phase.relaxation is not None or not len(phase) or len(phase.members) != phase.num_workers:
        return 0
    return int(sizes[0]) if sizes.min() == sizes.max() else 0


def mixed_radix_labels(phases: tuple[Phase, ...], radices: list[int]) -> npt.NDArray[np.int64] | None:
    """Label the workers so that only digit l differs inside the groups of phase l; None if no such labels exist.

    Digit l is constant inside every group of all other phases, so it numbers the connected components of these groups.
    Radix l is the group size of phase l. The labels have shape (n,). O(len(phases) · n).
    """
    n, count = phases[0].num_workers, len(phases)
    before, after = [np.arange(n)], [np.arange(n)]
    for first, last in zip(phases[:-1], phases[:0:-1], strict=True):
        before.append(_merge(before[-1], first.labels()))
        after.append(_merge(after[-1], last.labels()))
    labels = np.zeros(n, dtype=np.int64)
    for d, radix in enumerate(radices):
        digit = _merge(before[d], after[count - 1 - d])
        if digit.max() + 1 != radix:
            return None
        labels = labels * radix + digit
    return labels if len(np.unique(labels)) == n else None


def _merge(one: npt.NDArray[Any], two: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return each worker's component, (n,), if workers with equal numbers in either array (n,) are connected."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    width = int(one.max()) + 1
    size = width + int(two.max()) + 1
    links = coo_array((np.ones(len(one), dtype=np.int8), (one, two + width)), shape=(size, size))
    return np.asarray(connected_components(links, directed=False)[1][one])
