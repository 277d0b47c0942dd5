"""Covering arrays contain every possible combination, by exhaustive enumeration."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from benchmarks.explore import generator, hop, pairing, partial
from benchmarks.explore.covering import Factors, Level, covering_rows
from partreduce.topo.errors import InputError


def combinations_of(rows, strength):
    """Return every (factors, levels) of `strength` factors that occurs in a row."""
    columns = list(zip(*rows, strict=True))
    return {
        (factors, levels)
        for factors in combinations(range(len(columns)), strength)
        for levels in set(zip(*(columns[f] for f in factors), strict=True))
    }


@pytest.mark.parametrize(
    ("factors", "strength"),
    [
        (generator.FACTORS, 2),
        (generator.FACTORS, 3),
        (hop.FACTORS, 2),
        (hop.FACTORS, 3),
        (pairing.FACTORS, 3),
        (partial.FACTORS, 2),
    ],
    ids=["generator 2", "generator 3", "Hop 2", "Hop 3", "pairing 3", "partial 2"],
)
def test_rows_cover_every_possible_combination(factors, strength):
    chosen = factors.rows(strength)
    every = product(*(range(len(levels)) for levels in factors.levels.values()))
    possible = [row for row in every if factors.possible(factors.values(row))]
    assert set(chosen) <= set(possible)
    assert len(set(chosen)) == len(chosen)
    assert combinations_of(chosen, strength) == combinations_of(possible, strength)


@pytest.mark.parametrize("strength", [1, 2, 3])
@pytest.mark.parametrize("levels", [(2, 2, 2), (3, 2, 4, 2), (3, 3, 3, 3)])
def test_small_arrays_cover_all_combinations_without_spare_rows(levels, strength):
    rows = covering_rows(levels, strength)
    every = list(product(*map(range, levels)))
    assert combinations_of(rows, strength) == combinations_of(every, strength)
    assert len(rows) <= len(every)
    assert covering_rows(levels, strength) == rows
    without = [combinations_of([r for r in rows if r != row], strength) for row in rows]
    assert all(fewer != combinations_of(every, strength) for fewer in without)  # no row is redundant


def test_impossible_rows_are_excluded_and_expensive_ones_rare():
    def cost(row):
        return 10.0 ** sum(row)

    rows = covering_rows((2, 2, 2, 2), 2, possible=lambda row: sum(row) < 3, cost=cost)
    assert all(sum(row) < 3 for row in rows)
    cheap, plain = sum(map(cost, rows)), sum(map(cost, covering_rows((2, 2, 2, 2), 2)))
    assert cheap < plain


def test_impossible_arrays_are_rejected():
    with pytest.raises(InputError, match="strength: is 3"):
        covering_rows((2, 2), 3)
    with pytest.raises(InputError, match="no row is possible"):
        covering_rows((2, 2), 1, possible=lambda _: False)


def test_row_of_values_has_their_labels():
    factors = Factors({"size": [Level(1, "one"), Level(2, "two", 3)], "wire": [Level(""), Level("late", "late", 2)]})
    row = factors.row(size=2, wire="late")
    assert factors.words(row) == "two, late"
    assert factors.words(factors.row()) == "one"
    assert factors.growth(row) == 6
    assert factors.values(row) == {"size": 2, "wire": "late"}
