"""Claims `spectral-gap-hop`, `-slem`, `-sigma`: the gap of one round of a weighted graph lies between two numbers.

Each gap is 1 − the second largest of the numbers λ with S·x = λ·M·x, for a symmetric S and a positive diagonal M (the
`measure`):

* `hop`: S is the adjacency matrix without self-loops, M the degrees; eigenvalues in real order.
* `slem`: S = M·W for a W that is reversible with respect to M, so that S is symmetric; eigenvalues by modulus, so both
  ends are counted: S and −S.
* `sigma`: S = WᵀW and M = I; the eigenvalues are the squares of the singular values, so the bounds are squared.

*Theorem (Sylvester's law of inertia).* S·x = λ·M·x has as many eigenvalues above r as r·M − S has negative pivots. With
r = 1 − `at_least` there is at most one (the eigenvalue 1 of the common value), so the second is at most r. With
r = 1 − `less_than` there are two or more, so the second is above r. A number r < 0 lies below every modulus.

*The check is sound because* S and M are computed from the schedule, S is seen to be symmetric and M to be positive; the
entry gives the measure of `slem`, which must make S symmetric, and no other choice is left to it.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from operator import mul
from typing import TYPE_CHECKING, Any

from ..linear_algebra import Matrix, pivots
from ..refusal import Work, confirm, confirm_equal, require
from ..strict_json import as_fraction, as_list, as_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..schedule import Edge, Schedule

MAX_WORKERS = 64
MAX_BITS = 2**30


def check(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`at_least`, `less_than` (at_least ≤ gap < less_than), `measure` (the diagonal of M)."""
    kind = entry["claim"].removeprefix("spectral-gap-")
    n = schedule.num_workers
    fits = len(schedule.rounds) == 1 and n <= MAX_WORKERS
    confirm(fits, place, kind, f"a graph of one round, n <= {MAX_WORKERS}")
    edges = schedule.rounds[0]
    bits = lcm(*(edge.weight.denominator for edge in edges)).bit_length()
    require(n**3 * bits <= MAX_BITS, place, "too large a gap")
    given = [
        as_text(text, f"{place}.measure[{i}]") for i, text in enumerate(as_list(entry["measure"], f"{place}.measure"))
    ]
    measure = [as_fraction(text, f"{place}.measure[{i}]") for i, text in enumerate(given)]
    is_positive = len(measure) == n and min(measure) > 0
    confirm(is_positive, f"{place}.measure", "…", "a positive number for each worker")
    symmetric, needed_measure = _symmetric_matrix(kind, _mixing_matrix(n, edges), measure)
    confirm_equal(f"{place}.measure", given, list(map(str, needed_measure)))
    is_symmetric = symmetric == list(map(list, zip(*symmetric, strict=True)))
    confirm(is_symmetric, f"{place}.measure", "…", "a reversible or undirected graph")
    work = Work(place)
    for name, fewest, most in (("at_least", 0, 1), ("less_than", 2, n)):
        beyond = 1 - as_fraction(entry[name], f"{place}.{name}")
        count = n
        if kind == "hop" or beyond >= 0:
            matrices = _shifted_matrices(kind, symmetric, measure, beyond)
            count = sum(pivot < 0 for matrix in matrices for pivot in pivots(matrix, f"{place}.{name}", work))
        expected = f"{fewest} to {most} eigenvalues beyond, not {count}"
        confirm(fewest <= count <= most, f"{place}.{name}", entry[name], expected)


def _mixing_matrix(n: int, edges: Sequence[Edge]) -> Matrix:
    """W of one round: a worker keeps what its incoming edges leave."""
    w = [[Fraction(int(i == j)) for j in range(n)] for i in range(n)]
    for target, source, weight in edges:
        w[target][source] += weight
        w[target][target] -= weight
    return w


def _symmetric_matrix(kind: str, w: Matrix, measure: Sequence[Fraction]) -> tuple[Matrix, Sequence[Fraction]]:
    """S, and the measure that belongs to it; for `slem` the given one, which must make S symmetric."""
    if kind == "hop":
        adjacency = [[Fraction(int(i != j and x != 0)) for j, x in enumerate(row)] for i, row in enumerate(w)]
        return adjacency, [sum(row, Fraction(0)) for row in adjacency]
    if kind == "sigma":
        columns = list(zip(*w, strict=True))
        gram = [[sum(map(mul, one, other), Fraction(0)) for other in columns] for one in columns]
        return gram, [Fraction(1)] * len(w)
    return [[m * x for x in row] for m, row in zip(measure, w, strict=True)], measure


def _shifted_matrices(kind: str, symmetric: Matrix, measure: Sequence[Fraction], beyond: Fraction) -> list[Matrix]:
    """r·M − S, and for `slem` also r·M + S: together as many negative pivots as eigenvalues beyond the bound."""
    shift = beyond * beyond if kind == "sigma" else beyond
    signs = (1, -1) if kind == "slem" else (1,)
    matrices = [[[-sign * x for x in row] for row in symmetric] for sign in signs]
    for matrix in matrices:
        for i, row in enumerate(matrix):
            row[i] += shift * measure[i]
    return matrices
