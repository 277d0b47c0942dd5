"""Claims `spectral-gap-hop`, `-slem`, `-sigma`: the gap of one round's graph, enclosed between two fractions.

By Sylvester's law of inertia S − r·M has as many positive eigenvalues as the pencil S x = λ M x (M ≻ 0 diagonal, S
symmetric) has λ > r, and exact pivots of L·D·Lᵀ count them. Kinds:

* hop: S = adjacency of the undirected graph without self-loops, M = degrees, real order;
* slem: a reversible W, S = diag(m)·W, M = diag(m) (m = 1 for symmetric W); both ends of the spectrum are counted;
* sigma: S = WᵀW, M = I, shifts squared.

"At least a" is that at most one eigenvalue lies beyond 1 − a; "less than b" is that at least two lie beyond 1 − b.
"""

from __future__ import annotations

from collections import deque
from fractions import Fraction
from math import floor

import numpy as np

from partreduce.topo.arithmetic.exact_matrices import ExactMatrix, gram, pivots
from partreduce.topo.errors import ScheduleError
from partreduce.topo.mixing import exact_product
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import Round
from partreduce.verify.base import Claim, not_proved, proved, refuted

KINDS = ("hop", "slem", "sigma")
MAX_WORKERS = 48
DIGITS = 9
"""Decimal digits of the enclosures."""


def prove_gaps(schedule: Schedule) -> list[Claim]:
    """Enclosures of all kinds that are defined for a `neighbor` schedule of one round; none for others."""
    graphs = schedule.strategy.graphs
    if len(graphs) != 1 or schedule.num_workers > MAX_WORKERS:
        return []
    return [c for c in (enclose(graphs[0], kind) for kind in KINDS) if c is not None]


def prove_gap(schedule: Schedule, kind: str, at_least: Fraction) -> Claim:
    """Whether the gap of that kind is at least the given fraction: proved or refuted, both exactly.

    Raises:
        ScheduleError: not one round of a `neighbor` strategy, too many workers, or a kind that the graph does not have.
    """
    graphs = schedule.strategy.graphs
    if len(graphs) != 1:
        raise ScheduleError("spectral gap: needs a neighbor schedule of 1 round")
    if kind not in KINDS:
        raise ScheduleError(f"spectral gap {kind!r}: the kinds are {', '.join(KINDS)}")
    if schedule.num_workers > MAX_WORKERS:
        raise ScheduleError(f"spectral gap: exact pivots are found up to {MAX_WORKERS} workers")
    pencil = _pencil(graphs[0], kind)
    name = f"spectral-gap-{kind}"
    if pencil is None:
        raise ScheduleError(
            f"{name}: is not defined for this graph; hop needs an undirected one, slem a reversible one"
        )
    count = beyond(pencil, kind, 1 - at_least)
    if count is None:
        return not_proved(name, f"a pivot is zero at exactly {at_least}; ask for a slightly smaller bound.")
    if count > 1:
        text = f"{count} eigenvalues lie beyond 1 − {at_least}, so the gap is smaller."
        return refuted(name, text, {"at_least": str(at_least), "eigenvalues_beyond": count})
    return enclose(graphs[0], kind, at_least) or not_proved(name, "no enclosure was found.")


def enclose(listed: Round, kind: str, at_least: Fraction | None = None) -> Claim | None:
    """The gap between two decimal fractions, or from `at_least` up; None where the kind is not defined."""
    pencil = _pencil(listed, kind)
    if pencil is None:
        return None
    value = _float_gap(pencil, kind)
    unit = Fraction(1, 10**DIGITS)
    low = at_least if at_least is not None else (floor(value / unit) - 1) * unit
    high = (floor(value / unit) + 3) * unit
    below, above = beyond(pencil, kind, 1 - low), beyond(pencil, kind, 1 - high)
    if below is None or above is None or below > 1 or above < 2:
        return None
    text = (
        f"The pivots of an exact L·D·Lᵀ count {below} eigenvalue beyond 1 − {low} and {above} beyond 1 − {high}: the "
        f"gap lies between {float(low):.9g} and {float(high):.9g}."
    )
    return proved(
        f"spectral-gap-{kind}", text, at_least=str(low), less_than=str(high), measure=[str(m) for m in pencil[1]]
    )


Pencil = tuple[ExactMatrix, list[Fraction]]
"""S (symmetric, exact) and the diagonal of M (positive)."""


def beyond(pencil: Pencil, kind: str, threshold: Fraction) -> int | None:
    """How many eigenvalues lie beyond the threshold (for slem on both sides); None if a pivot is zero.

    For sigma the threshold is that of the singular values; a negative one is exceeded by all.
    """
    if kind != "hop" and threshold < 0:
        return pencil[0].size
    shift = threshold * threshold if kind == "sigma" else threshold
    counts = [_negative(pencil, shift, 1)] + ([_negative(pencil, shift, -1)] if kind == "slem" else [])
    return None if None in counts else sum(c for c in counts if c is not None)


def _negative(pencil: Pencil, shift: Fraction, sign: int) -> int | None:
    """Negative eigenvalues of shift·M − sign·S."""
    matrix, measure = pencil
    diagonal = pivots(ExactMatrix.diagonal([shift * weight for weight in measure]) - matrix.scaled(Fraction(sign)))
    return None if diagonal is None else sum(1 for pivot in diagonal if pivot < 0)


def _pencil(listed: Round, kind: str) -> Pencil | None:
    n = listed.num_workers
    if kind == "sigma":
        return gram(exact_product([listed])), [Fraction(1)] * n
    if kind == "hop":
        edges = {(s, t) for s, t, weight in listed.edges() if weight}
        if any((t, s) not in edges for s, t in edges):
            return None
        rows = [[Fraction(int((i, j) in edges)) for j in range(n)] for i in range(n)]
        degrees = [sum(row, Fraction(0)) for row in rows]
        return (ExactMatrix.of_rows(rows), degrees) if all(degrees) else None
    matrix = exact_product([listed])
    measure = _reversible_measure(matrix.rows())
    return None if measure is None else (ExactMatrix.diagonal(measure) @ matrix, measure)


def _reversible_measure(matrix: list[list[Fraction]]) -> list[Fraction] | None:
    """The measure m > 0 with m_i·W_ij = m_j·W_ji for all pairs, found by a search and checked on all."""
    n = len(matrix)
    measure: list[Fraction] = [Fraction(0)] * n
    for root in range(n):
        if measure[root]:
            continue
        measure[root], queue = Fraction(1), deque([root])
        while queue:
            i = queue.popleft()
            for j in range(n):
                if i != j and matrix[i][j] and not measure[j]:
                    if not matrix[j][i]:
                        return None
                    measure[j] = measure[i] * matrix[i][j] / matrix[j][i]
                    queue.append(j)
    fits = all(measure[i] * matrix[i][j] == measure[j] * matrix[j][i] for i in range(n) for j in range(i))
    return measure if fits and min(measure) > 0 else None


def _float_gap(pencil: Pencil, kind: str) -> float:
    rows, measure = pencil[0].floats(), np.array([float(m) for m in pencil[1]])
    values = np.linalg.eigvalsh(rows / np.sqrt(measure[:, None] * measure[None, :]))
    if kind == "hop":
        return float(1 - values[-2])
    if kind == "slem":
        return float(1 - np.sort(np.abs(values))[-2])
    return float(1 - np.sqrt(max(values[-2], 0.0)))
