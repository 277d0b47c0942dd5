"""Claim `exact-consensus`: one period brings every worker to exactly the mean, W_T … W_1 = J.

Rules: every character class is exactly zero, for every number of nodes. Explicit phases, any size: mixed-radix labels
for a window of phases, one digit a phase; the other phases keep the mean and change nothing. Up to MAX_PRODUCT workers:
the product itself.
"""

from __future__ import annotations

from fractions import Fraction
from math import prod

import numpy as np
import numpy.typing as npt

from partreduce.topo.mixing import exact_product
from partreduce.topo.phase import Phase
from partreduce.topo.rule import RuleView
from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, proved
from partreduce.verify.classes import MAX_DIGITS, MAX_SIZE, class_products
from partreduce.verify.view import explicit_view, rule_view

NAME = "exact-consensus"
MAX_PRODUCT = 128


def prove_exact(schedule: Schedule) -> Claim | None:
    """Prove that one period is exactly the mean; None where it is not (that is no fault) or not shown."""
    rule = rule_view(schedule)
    if rule is not None:
        return _by_classes(rule)
    if schedule.strategy.graphs:
        return _by_product(schedule)
    phases = explicit_view(schedule) or ()
    if not _may_be_exact(phases):
        return None
    return _by_labels(phases) or _by_product(schedule)


def _may_be_exact(phases: tuple[Phase, ...]) -> bool:
    """Whether a random vector comes out constant in floats: cheap, and saves the exact tests on most schedules."""
    values = np.random.default_rng(0).standard_normal(phases[0].num_workers)
    mean = values.mean()
    with np.errstate(over="ignore", invalid="ignore"):  # factors beyond floats: not seen to be exact
        for phase in phases:
            values = phase.apply(values)
    return bool(np.abs(values - mean).max() < 1e-6)


def _by_classes(rule: RuleView) -> Claim | None:
    if rule.num_digits > MAX_DIGITS or rule.workers_per_node > MAX_SIZE:
        return None
    products = class_products(rule)
    if not all(product.is_zero() for _, product in products):
        return None
    text = (
        f"On each of the {len(products)} different character classes the period's matrix less J is exactly zero, for "
        f"every number of nodes with {rule.num_digits} digits."
    )
    return proved(NAME, text, method="product")


def _by_product(schedule: Schedule) -> Claim | None:
    n = schedule.num_workers
    if n > MAX_PRODUCT:
        return None
    if not exact_product(schedule.steps()).is_everywhere(Fraction(1, n)):
        return None
    return proved(NAME, f"The exact product of the period is 1/{n} in all entries.", method="product")


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
                return proved(NAME, text, method="labels", first=first, radices=window, labels=labels.tolist())
    return None


def _uniform_size(phase: Phase) -> int:
    """The common size of plain groups that hold every worker, 0 for any other phase."""
    sizes = phase.sizes
    if phase.relaxation is not None or not len(phase) or len(phase.members) != phase.num_workers:
        return 0
    return int(sizes[0]) if sizes.min() == sizes.max() else 0


def mixed_radix_labels(phases: tuple[Phase, ...], radices: list[int]) -> npt.NDArray[np.int64] | None:
    """Labels in which phase l varies digit l alone, None if there are none. O(len(phases) · n).

    Digit l must be the same throughout every group of the other phases, so it is the component of their union.
    """
    n, count = phases[0].num_workers, len(phases)
    before = [np.arange(n)]
    after = [np.arange(n)]
    for d in range(count - 1):
        before.append(_joined(before[-1], phases[d]))
        after.append(_joined(after[-1], phases[count - 1 - d]))
    labels = np.zeros(n, dtype=np.int64)
    for d, radix in enumerate(radices):
        digit = _merge(before[d], after[count - 1 - d])
        if digit.max() + 1 != radix:
            return None
        labels = labels * radix + digit
    return labels if len(np.unique(labels)) == n else None


def _joined(component: npt.NDArray[np.int64], phase: Phase) -> npt.NDArray[np.int64]:
    return _merge(component, phase.labels().astype(np.int64))


def _merge(one: npt.NDArray[np.int64], two: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Components of workers that share a value of either array, numbered by their first worker."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    width = int(one.max()) + 1
    size = width + int(two.max()) + 1
    links = coo_array((np.ones(len(one), dtype=np.int8), (one, two + width)), shape=(size, size))
    _, labels = connected_components(links, directed=False)
    _, first, inverse = np.unique(labels[one], return_index=True, return_inverse=True)
    rank: npt.NDArray[np.int64] = np.argsort(np.argsort(first))
    return rank[inverse]
