"""One period of a schedule as a matrix, exactly, and its distance from the mean.

Write P = W_T … W_1 for the product of one period from phase 0, and J for the matrix of the mean (all entries 1/n).
Contraction, consensus by a power and exact consensus are statements about Pᵏ − J. For explicit groups and weighted
graphs it is computed directly, n × n.

**Rules.** A node's index has digits, and a block (L, D) averages over the local ranks L on all nodes that agree outside
the digits D. Functions on the nodes are spanned by the characters of the group of digits, which are orthogonal. Let c
be the set of digits along which a character varies, its *class*. Averaging over all values of a digit of c sends the
character to 0, and averaging over another digit leaves it alone. So on a character of class c a block acts on the G
local ranks of a node alone: as the mean over L if c ∩ D = ∅, and as 0 on L otherwise. W is therefore one G × G matrix
for each class, the same for every number of nodes (each radix is at least 2, so every class has a character), and ‖W‖₂
is the largest of the norms on the classes. The mean lies in the class of the empty set; in the others J is 0. Two
classes on which the same blocks vanish have the same matrices, so one of each such pattern is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import partial
from itertools import chain, combinations, repeat
from math import ceil, lcm, prod

from .linear_algebra import IntegerMatrix
from .refusal import Work, require
from .schedule import Average, Edge, Schedule

MAX_DIGITS = 12
"""Most digits of a rule, which make 4,096 classes."""

MAX_SIZE = 64
"""Most rows of a matrix whose pivots are computed."""

MAX_MATRIX_BITS = 2**32
MAX_ENTRY_BITS = 2**17

Rational = tuple[IntegerMatrix, int]
"""A matrix: rows of integers, and the common denominator of all of them."""

Step = tuple[int, Callable[[IntegerMatrix], Rational]]
"""A factor W of a product: how many bits longer than those of X the integers of W·X are at most, and X ↦ W·X."""

ClassAverage = tuple["Sequence[int]", bool, Fraction]
"""An average on one class of characters: (members, whether it acts as 0 there, relaxation)."""


def averages_on_class(phase: Sequence[Average], digits: Sequence[int]) -> list[ClassAverage]:
    """Return the averages of a phase on the class of node `digits`: (members, whether the mean is 0, relaxation)."""
    varying = frozenset(digits)
    groups = (average for average in phase if average.is_group)
    return [(members, not varying.isdisjoint(across), relaxation) for members, across, relaxation in groups]


def classes(schedule: Schedule, place: str, among: Sequence[int] | None = None) -> dict[tuple[int, ...], int]:
    """Return one class of characters for each distinct matrix, with the number of characters that it stands for.

    A class is a tuple of digits. Classes on which the same blocks vanish have one matrix: the first of them is listed,
    with the sum over all of them of the product of radix − 1 over their digits. The class of the empty set is listed
    separately, because it alone holds the mean. `among`: only classes that contain one of these digits.
    """
    num_digits = len(schedule.radices)
    require(num_digits <= MAX_DIGITS, place, f"over {MAX_DIGITS} digits")
    order = list({frozenset(block.across) for phase in schedule.phases for block in phase})
    found: dict[tuple[bool, ...], tuple[tuple[int, ...], int]] = {}
    for size in range(num_digits + 1):
        for digits in combinations(range(num_digits), size):
            varying = frozenset(digits)
            if among is None or not varying.isdisjoint(among):
                pattern = (bool(digits), *(not varying.isdisjoint(across) for across in order))
                first, count = found.get(pattern, (digits, 0))
                found[pattern] = first, count + prod(schedule.radices[digit] - 1 for digit in digits)
    return dict(found.values())


def multiply(size: int, steps: Iterable[Step], work: Work) -> Rational:
    """Return the product … W₂·W₁ of square matrices of this size, given as steps: X ↦ W·X with its growth in bits."""
    work.spend(size**3)  # before the first matrix is made: a small file may speak of a billion workers
    rows, scale = [[int(i == j) for j in range(size)] for i in range(size)], 1
    for growth, step in steps:
        bits = max(scale, *map(max, rows), -min(map(min, rows))).bit_length()
        work.require(size * size * (bits + growth) <= MAX_MATRIX_BITS and bits + growth < MAX_ENTRY_BITS)
        work.spend(max(size * size, 16) * (32 + bits // 32))
        rows, factor = step(rows)
        scale *= factor
    return rows, scale


def distance_from_mean(schedule: Schedule, digits: Sequence[int], num_periods: int, work: Work) -> Rational:
    """Return the matrix Pᵏ − J, k periods minus the mean, on the class of characters along these node `digits`."""
    steps = [(growth_bits(schedule, t), partial(after_phase, schedule, t, digits)) for t in range(schedule.period)]
    rows, scale = multiply(schedule.width, chain.from_iterable(repeat(steps, num_periods)), work)
    return (rows, scale) if digits else minus_mean(rows, scale, [1] * schedule.width)


def minus_mean(rows: IntegerMatrix, scale: int, sizes: Sequence[int]) -> Rational:
    """Return P − J for P = rows / scale, where J takes the mean over places, place i standing for sizes[i] workers."""
    total = sum(sizes)
    return [[total * x - scale * size for x, size in zip(row, sizes, strict=True)] for row in rows], scale * total


def growth_bits(schedule: Schedule, t: int) -> int:
    """Return by how many bits at most `after_phase` lengthens integers in phase t."""
    factors = [relaxation for _, _, relaxation in schedule.phases[t]] if schedule.phases else []
    weights = [edge.weight for edge in schedule.rounds[t]] if schedule.rounds else []
    sizes = {len(members) for members, _, _ in schedule.phases[t]} if schedule.phases else set()
    common = lcm(*sizes) * lcm(*{number.denominator for number in (*factors, *weights)})
    largest = 1 + 2 * sum(map(abs, weights)) + 2 * max(map(abs, factors), default=0)
    return (common * ceil(largest)).bit_length()


def after_phase(schedule: Schedule, t: int, digits: Sequence[int], rows: IntegerMatrix) -> Rational:
    """Return W · rows for the mixing matrix W of phase or round t on the class of characters along `digits`."""
    if schedule.form == "graph":
        return _after_edges(rows, schedule.rounds[t])
    return after_averages(rows, averages_on_class(schedule.phases[t], digits))


def factor_of(phase: Sequence[ClassAverage], sizes: Sequence[int] | None = None) -> int:
    """Return a number that makes the entries of W integers; member i stands for sizes[i] workers, or for one."""
    weights = (sum(sizes[member] for member in members) if sizes else len(members) for members, _, _ in phase)
    return lcm(*(average[2].denominator * weight for average, weight in zip(phase, weights, strict=True)))


def after_averages(rows: IntegerMatrix, phase: Sequence[ClassAverage], sizes: Sequence[int] | None = None) -> Rational:
    """Return W · rows for a phase of groups, over the denominator `factor_of`; member i stands for sizes[i] workers."""
    factor = factor_of(phase, sizes)
    result = [[factor * entry for entry in row] for row in rows]
    for members, vanishes, relaxation in phase:
        total = sum(sizes[member] for member in members) if sizes else len(members)
        keep, share = int(factor * (1 - relaxation)), int(factor * relaxation / total)
        weighed = ([sizes[member] * x for x in rows[member]] if sizes else rows[member] for member in members)
        mean = [0 if vanishes else share * sum(column) for column in zip(*weighed, strict=True)]
        for member in members:
            result[member] = [keep * entry + pulled for entry, pulled in zip(rows[member], mean, strict=True)]
    return result, factor


def _after_edges(rows: IntegerMatrix, edges: Sequence[Edge]) -> Rational:
    """Return W · rows for a round of weighted edges."""
    factor = lcm(*(edge.weight.denominator for edge in edges))
    result = [[factor * entry for entry in row] for row in rows]
    for target, source, weight in edges:
        share = int(factor * weight)
        trio = zip(result[target], rows[source], rows[target], strict=True)
        result[target] = [entry + share * (theirs - mine) for entry, theirs, mine in trio]
    return result, factor
