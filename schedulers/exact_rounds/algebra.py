"""Whether given matchings have any weights at all that make them exact: a proof by computer algebra, not by search."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def has_weights(sequence: Sequence[Sequence[int]]) -> bool:
    """Whether complex weights with product J exist for the three or more rounds, given by every worker's partner.

    The weight is 1/2 in the first and the last round, which loses nothing. The entries of the product minus 1/n are
    polynomials in the other weights; by the Nullstellensatz they have no common root iff their Gröbner basis is {1}.
    False is therefore a proof, as good as sympy's arithmetic over the rationals; True says nothing about real weights
    between 0 and 1. Doubly exponential at worst; instant for the six weights of 7 workers in 4 rounds.
    """
    from sympy import QQ, ring
    from sympy.polys.groebnertools import groebner

    num_workers = len(sequence[0])
    middle = [(t, i) for t in range(1, len(sequence) - 1) for i, j in enumerate(sequence[t]) if i < j]
    polynomials, *symbols = ring([f"a{t}_{i}" for t, i in middle], QQ)
    weight = dict(zip(middle, symbols, strict=True))
    rows = [[polynomials(int(i == j)) for j in range(num_workers)] for i in range(num_workers)]
    for t, partners in enumerate(sequence):
        for i, j in enumerate(partners):
            if i < j:
                moved = [(y - x) * weight.get((t, i), QQ(1, 2)) for x, y in zip(rows[i], rows[j], strict=True)]
                rows[i] = [x + m for x, m in zip(rows[i], moved, strict=True)]
                rows[j] = [y - m for y, m in zip(rows[j], moved, strict=True)]
    equations = {entry - QQ(1, num_workers) for row in rows for entry in row} - {polynomials.zero}
    basis = groebner(sorted(equations, key=len), polynomials) if equations else []
    return not any(element.is_ground for element in basis)
