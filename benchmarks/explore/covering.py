"""Covering arrays: few rows of factor levels that contain every possible combination of t levels.

Most faults of a protocol need two or three circumstances together, not all at once (Kuhn, Wallace and Gallo, IEEE
Transactions on Software Engineering 2004).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heapreplace
from itertools import combinations, product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.kit import read_toml
from partreduce.topo.errors import InputError

Row = tuple[int, ...]
"""The number of a level for each factor."""


class Level(NamedTuple):
    """A level of a factor: its value, its words in a configuration's name, and its factor on the number of states.

    Usual levels have no words. `growth` is a rough guess that only tells which rows are expensive.
    """

    value: Any
    words: str = ""
    growth: float = 1.0


def with_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: with_tuples(inner) for key, inner in value.items()}
    return tuple(map(with_tuples, value)) if isinstance(value, list) else value


TABLE: dict[str, Any] = with_tuples(read_toml(Path(__file__).with_name("configurations.toml")))


def levels_of(protocol: str) -> dict[str, list[Level]]:
    """Return the factors of a protocol, read from the table."""
    return {name: [Level(*row) for row in rows] for name, rows in TABLE[protocol]["factors"].items()}


def convert(row: Mapping[str, Any], **kinds: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a row with some values, if present, converted by the functions in `kinds`."""
    return {key: kinds[key](value) if key in kinds and value is not None else value for key, value in row.items()}


@dataclass(frozen=True, eq=False)
class Factors:
    """The factors of a protocol's configurations; `possible` says which values, by name, may be combined.

    `make` turns a row's words, and its values by name, into the configuration.
    """

    levels: Mapping[str, Sequence[Level]]
    make: Callable[[str, dict[str, Any]], Any] = lambda _, values: values
    possible: Callable[[dict[str, Any]], bool] = lambda _: True

    def configuration(self, row: Row) -> Any:
        return self.make(self.words(row), self.values(row))

    def pairs(self) -> tuple[Any, ...]:
        return tuple(map(self.configuration, self.rows(2)))

    def triples(self) -> tuple[Any, ...]:
        return tuple(map(self.configuration, self.rows(3)))

    @cache  # noqa: B019 - a handful of module-level objects
    def rows(self, strength: int) -> tuple[Row, ...]:
        """Return rows that contain every possible combination of `strength` levels."""
        return covering_rows(
            [len(levels) for levels in self.levels.values()],
            strength,
            possible=lambda row: self.possible(self.values(row)),
            cost=self.growth,
        )

    def row(self, **values: Any) -> Row:
        """Return the row with these values, and with the first level of every other factor."""
        return tuple(
            [level.value for level in levels].index(values[name]) if name in values else 0
            for name, levels in self.levels.items()
        )

    def values(self, row: Row) -> dict[str, Any]:
        return {name: levels[number].value for (name, levels), number in zip(self.levels.items(), row, strict=True)}

    def words(self, row: Row) -> str:
        """Return the words of a row's levels, joined."""
        chosen = (levels[number].words for levels, number in zip(self.levels.values(), row, strict=True))
        return ", ".join(filter(None, chosen))

    def growth(self, row: Row) -> float:
        """Return a rough factor of a row on the number of states."""
        return prod(levels[number].growth for levels, number in zip(self.levels.values(), row, strict=True))


def covering_rows(
    levels: Sequence[int],
    strength: int,
    *,
    possible: Callable[[Row], bool] = lambda _: True,
    cost: Callable[[Row], float] = lambda _: 1.0,
) -> tuple[Row, ...]:
    """Return possible rows that contain every combination of `strength` levels that any possible row contains.

    Greedy like AETG (Cohen, Dalal, Fredman and Patton, 1997), but deterministic: the next row has the most new
    combinations for its cost, the first in lexicographic order if several do. Rows that later ones made superfluous are
    dropped, the most expensive first. O(rows × C(factors, strength)) memory.
    """
    if not 1 <= strength <= len(levels):
        raise InputError(f"strength: is {strength}; it lies between 1 and {len(levels)} factors")
    rows = [row for row in product(*map(range, levels)) if possible(row)]
    if not rows:
        raise InputError("covering array: no row is possible")
    tuples, count = _number_combinations(np.array(rows), levels, strength)  # shape (rows, combinations of factors)
    costs = [cost(row) for row in rows]
    missing = np.zeros(count, dtype=bool)
    missing[tuples] = True
    # What a row would add only shrinks, so that one whose old value is below another's new one need not be asked again.
    heap = [(-tuples.shape[1] / costs[row], row) for row in range(len(rows))]
    heapify(heap)
    chosen: list[int] = []
    while missing.any():
        row = heap[0][1]
        now = (-int(missing[tuples[row]].sum()) / costs[row], row)
        if now > heap[0]:
            heapreplace(heap, now)
            continue
        chosen.append(row)
        missing[tuples[row]] = False
    times = np.zeros(count, dtype=np.int64)
    np.add.at(times, tuples[chosen].ravel(), 1)
    for row in sorted(chosen, key=lambda row: (-costs[row], row)):
        if (times[tuples[row]] > 1).all():
            times[tuples[row]] -= 1
            chosen.remove(row)
    return tuple(rows[row] for row in chosen)


def _number_combinations(
    rows: npt.NDArray[np.int64], levels: Sequence[int], strength: int
) -> tuple[npt.NDArray[np.int64], int]:
    """Return the numbers of the combinations in each row, and how many numbers exist."""
    columns, first = [], 0
    for factors in combinations(range(len(levels)), strength):
        number = np.zeros(len(rows), dtype=np.int64)
        for factor in factors:
            number = number * levels[factor] + rows[:, factor]
        columns.append(first + number)
        first += prod(levels[factor] for factor in factors)
    return np.stack(columns, axis=1), first
