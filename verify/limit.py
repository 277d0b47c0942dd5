"""Claim `limit`: where averaging on a weighted graph leads (the left Perron vector), and how fast.

Needed where columns do not sum to 1: the mean then moves, to a weighted mean with weights π. Certified by a quadratic
form H in which differences shrink by the rate every period; the theorem stands in `verify/checker/claims/limit.py`. H
comes from floats, is rounded to integers, and then decided exactly, here as there.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

import numpy as np
import numpy.typing as npt

from partreduce.topo.arithmetic.exact_matrices import ExactMatrix
from partreduce.topo.figures.growth import MOST_BITS, growth_bits
from partreduce.topo.mixing import exact_product
from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, not_proved, proved

Integers = npt.NDArray[np.object_]

NAME = "limit"
MAX_WORKERS = 64
SLACKS = (1e-4, 1e-3, 1e-2, 0.05, 0.2, 0.5)
"""By which part of what is left below 1 the rate lies above the spectral radius; the first that can be certified."""

SMALLEST_RATE = 1e-3
FORM_BITS = 30
DOUBLINGS, LARGEST_FORM, SMALLEST_CHANGE = 40, 2.0**40, 1e-12
"""When the sum for H is given up, and when it is good enough."""

WEIGHT_BITS = 60
SHIFT_BITS, FACTOR_BITS = 45, 60
"""As in the checker: by how much a matrix has to stay clear of the edge, and how fine its factor is."""


def prove_limit(schedule: Schedule) -> Claim:
    """Enclose the weights of the common value and bound the rate; up to `MAX_WORKERS` workers."""
    n = schedule.num_workers
    if n > MAX_WORKERS:
        return not_proved(NAME, f"the weights of the common value are enclosed up to {MAX_WORKERS} workers.")
    if growth_bits(schedule) > MOST_BITS:
        return not_proved(NAME, "differences may grow on the way so much that floats find no quadratic form.")
    product = exact_product(schedule.steps())
    step = _differences(product)
    radius = float(np.abs(np.linalg.eigvals(step.floats())).max())
    if not radius < 1:
        return not_proved(NAME, "differences do not vanish, as far as floats say.")
    weights = _weights(product)
    for slack in SLACKS:
        rate = Fraction(f"{max(radius + slack * (1 - radius), SMALLEST_RATE):.7f}") + Fraction(1, 10**7)
        form = _form(step.floats(), float(rate))
        if form is None or rate >= 1:
            continue
        floor = _floor(form)
        if floor < 1 or not _shrinks(step, form, rate) or not _is_semidefinite(form - floor * _identity(n - 1)):
            continue
        error = _error(product, weights, form, floor, rate)
        lower = [row[: i + 1] for i, row in enumerate(form.tolist())]
        entry = {"rate": str(rate), "error": str(error), "floor": floor, "form": lower}
        return proved(NAME, _text(weights, error, rate), weights=[str(w) for w in weights], **entry)
    return not_proved(NAME, "no quadratic form was found in which every period shrinks all differences.")


def _text(weights: list[Fraction], error: Fraction, rate: Fraction) -> str:
    n, most = len(weights), max(range(len(weights)), key=weights.__getitem__)
    text = f"All workers come to one value; over k periods differences vanish as fast as {float(rate):.7g}ᵏ or faster. "
    if error == 0 and set(weights) == {Fraction(1, n)}:
        return text + "It is the mean of where they started."
    least = min(range(n), key=weights.__getitem__)
    exact = "exactly" if error == 0 else f"up to {float(error):.2g}"
    text += (
        f"It is a weighted mean of where they started: worker {most} weighs {float(weights[most]):.6g} and worker "
        f"{least} {float(weights[least]):.6g}, {exact}, where a fair share is {1 / n:.6g}."
    )
    return text + " All weights stand in the certificate."


def _differences(product: ExactMatrix) -> ExactMatrix:
    """What a period does to the differences to the last worker, shape (n − 1, n − 1)."""
    rows = product.numerators
    return ExactMatrix(rows[:-1, :-1] - rows[-1:, :-1], product.denominator)


def _weights(product: ExactMatrix) -> list[Fraction]:
    """π, exactly if small whole numbers are in its proportion, else rounded; sums to 1."""
    n = product.size
    system = np.vstack([product.floats().T - np.eye(n), np.ones(n)])
    value = np.linalg.lstsq(system, np.append(np.zeros(n), 1.0), rcond=None)[0]
    smallest = float(np.abs(value[np.abs(value) > 1e-9]).min())
    simple = [Fraction(float(x) / smallest).limit_denominator(1000) for x in value]
    if (total := sum(simple)) != 0:
        exact = [x / total for x in simple]
        if not any(_change(product, exact)):
            return exact
    rounded = [Fraction(round(Fraction(float(x)) * 2**WEIGHT_BITS), 2**WEIGHT_BITS) for x in value]
    rounded[-1] += 1 - sum(rounded)
    return rounded


def _change(product: ExactMatrix, weights: list[Fraction]) -> list[Fraction]:
    """wᵀP − wᵀ without its last entry, shape (n − 1,)."""
    rows = product.numerators[:, :-1].tolist()
    after = [sum(w * row[j] for w, row in zip(weights, rows, strict=True)) for j in range(len(weights) - 1)]
    return [part / product.denominator - w for part, w in zip(after, weights, strict=False)]


def _form(step: npt.NDArray[np.float64], rate: float) -> Integers | None:
    """H ≈ Σ_k (N/r)ᵏᵀ(N/r)ᵏ in integers: then r²·H − NᵀHN is about r²·I. None where floats fail."""
    size = len(step)
    form, power = np.eye(size), step / rate
    for _ in range(DOUBLINGS):
        grown = power.T @ form @ power
        if not np.abs(grown).max() < LARGEST_FORM:
            return None
        form += grown
        if np.abs(grown).max() < SMALLEST_CHANGE:
            break
        power = power @ power
    else:
        return None
    scale = 2 ** max(FORM_BITS, int(np.ceil(np.log2(100 * size * (1 + np.linalg.norm(step, 2) ** 2) / rate**2))))
    rounded = np.empty((size, size), dtype=object)
    for i in range(size):
        for j in range(i + 1):
            rounded[i, j] = rounded[j, i] = int(Fraction(float(form[i, j] + form[j, i])) * scale) // 2
    return rounded


def _floor(form: Integers) -> int:
    """An integer below the smallest eigenvalue of H, as far as floats say."""
    return int(np.linalg.eigvalsh(form.astype(np.float64))[0] * 0.9)


def _identity(size: int) -> Integers:
    return ExactMatrix.identity(size).numerators


def _shrinks(step: ExactMatrix, form: Integers, rate: Fraction) -> bool:
    """Whether r²·H − NᵀHN is positive semidefinite, as far as a rounded factor shows."""
    shrunk = step.numerators.T @ (form @ step.numerators)
    return _is_semidefinite((rate.numerator * step.denominator) ** 2 * form - rate.denominator**2 * shrunk)


def _is_semidefinite(matrix: Integers) -> bool:
    """A = L·Lᵀ + e·I + R with R from the remainders of L's rounding, dominated by e: see the checker's definite.py."""
    largest = max(matrix.diagonal())
    if largest <= 0:
        return False
    finer = max(0, FACTOR_BITS - int(largest).bit_length() // 2)
    shift = (int(largest) << 2 * finer) >> SHIFT_BITS
    rest = matrix * 4**finer - shift * _identity(len(matrix))
    left_over = np.zeros(len(matrix), dtype=object)
    for k in range(len(matrix)):
        # Right-looking: column k is final, what is behind it loses its products. Shapes (size − k − 1,).
        if rest[k, k] <= 0:
            return False
        pivot = isqrt(rest[k, k])
        left_over[k] -= rest[k, k] - pivot * pivot
        column, remainders = rest[k + 1 :, k] // pivot, rest[k + 1 :, k] % pivot
        left_over[k + 1 :] += remainders
        left_over[k] += remainders.sum() if len(remainders) else 0
        rest[k + 1 :, k + 1 :] -= np.outer(column, column)
    return bool(max(left_over) <= shift)


def _error(product: ExactMatrix, weights: list[Fraction], form: Integers, floor: int, rate: Fraction) -> Fraction:
    """The smallest fraction of two digits that the checker's inequality allows; 0 where the weights are exact."""
    squared = sum((part * part for part in _change(product, weights)), Fraction(0))
    if squared == 0:
        return Fraction(0)
    largest = max(*form.diagonal(), form.sum())
    needed = squared * largest / ((1 - rate) ** 2 * floor)
    error = Fraction(f"{float(needed) ** 0.5:.1e}")
    while error * error < needed:
        error *= Fraction(101, 100)
    return error.limit_denominator(10**24) if error.limit_denominator(10**24) ** 2 >= needed else error
