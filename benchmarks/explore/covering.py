"""Covering arrays: few rows of factor levels in which every possible combination of t levels stands somewhere.

Most faults of a protocol need two or three circumstances together, not all at once (Kuhn, Wallace and Gallo, IEEE
Transactions on Software Engineering 2004); an array of strength t contains every t of them.
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
"""A level of each factor, by number."""


class Level(NamedTuple):
    """A level of a factor: its value, its words in a configuration's name, and by how much it multiplies the states.

    No words for what goes without saying. Growth is rough: it only says which rows are expensive.
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
    """The factors of a protocol in the table."""
    return {name: [Level(*row) for row in rows] for name, rows in TABLE[protocol]["factors"].items()}


def convert(row: Mapping[str, Any], **kinds: Callable[[Any], Any]) -> dict[str, Any]:
    """A row with the kinds that some of its values have in the protocol, where they are there."""
    return {key: kinds[key](value) if key in kinds and value is not None else value for key, value in row.items()}


@dataclass(frozen=True, eq=False)
class Factors:
    """What is varied in a protocol's configurations, and which choices go together (`possible` sees values by name).

    `make` is given a row's words, and its values by name; the configuration that it makes is what the row stands for.
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
        """The rows in which every possible combination of `strength` levels stands."""
        return covering_rows(
            [len(levels) for levels in self.levels.values()],
            strength,
            possible=lambda row: self.possible(self.values(row)),
            cost=self.growth,
        )

    def row(self, **values: Any) -> Row:
        """The row with these values, and with the first level of every factor that is not named."""
        return tuple(
            [level.value for level in levels].index(values[name]) if name in values else 0
            for name, levels in self.levels.items()
        )

    def values(self, row: Row) -> dict[str, Any]:
        return {name: levels[number].value for (name, levels), number in zip(self.levels.items(), row, strict=True)}

    def words(self, row: Row) -> str:
        """What a row says, the words of its levels one after the other."""
        chosen = (levels[number].words for levels, number in zip(self.levels.values(), row, strict=True))
        return ", ".join(filter(None, chosen))

    def growth(self, row: Row) -> float:
        """A guess at the number of states."""
        return prod(levels[number].growth for levels, number in zip(self.levels.values(), row, strict=True))


def covering_rows(
    levels: Sequence[int],
    strength: int,
    *,
    possible: Callable[[Row], bool] = lambda _: True,
    cost: Callable[[Row], float] = lambda _: 1.0,
) -> tuple[Row, ...]:
    """Rows in which every combination of `strength` levels stands that stands in any possible row.

    Greedy, in the way of AETG (Cohen, Dalal, Fredman and Patton, 1997), and without chance: the next row is the one
    with the most new combinations for its cost, the first of them in lexicographic order; rows that later ones made
    superfluous are dropped, the most expensive first. O(rows × C(factors, strength)) memory.
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
    """The number of each combination that a row contains, and how many numbers there are."""
    columns, first = [], 0
    for factors in combinations(range(len(levels)), strength):
        number = np.zeros(len(rows), dtype=np.int64)
        for factor in factors:
            number = number * levels[factor] + rows[:, factor]
        columns.append(first + number)
        first += prod(levels[factor] for factor in factors)
    return np.stack(columns, axis=1), first
