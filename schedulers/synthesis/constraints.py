"""The integer program given to CP-SAT: how often each segment stands in a period, and what the period must keep.

Times and figures are scaled to integers, which may let in half a unit per segment; re-scoring is exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING

from partreduce.schedulers.synthesis.alphabet import Indices

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

SCALE = 10**9
"""Seconds become nanoseconds; consensus distances become billionths."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Phases from consensus to consensus: their indices, cost in seconds, and sum of consensus distances."""

    indices: Indices
    cost: float
    value: float


def cost_of(segment: Segment) -> int:
    """Nanoseconds."""
    return round(segment.cost * SCALE)


def value_of(segment: Segment) -> int:
    """Billionths of the sum of consensus distances."""
    return round(segment.value * SCALE)


@dataclass(frozen=True, slots=True)
class Composition:
    """A model in which segment s stands `counts[s]` times in a period of exactly `period` phases."""

    model: cp_model.CpModel
    segments: tuple[Segment, ...]
    counts: tuple[cp_model.IntVar, ...]

    @classmethod
    def of(cls, model: cp_model.CpModel, segments: Sequence[Segment], period: int) -> Composition:
        """One counter per segment, as large as the period allows; together they fill it exactly."""
        counts = tuple(
            model.new_int_var(0, period // len(segment.indices), f"count[{s}]") for s, segment in enumerate(segments)
        )
        model.add(sum(len(s.indices) * count for s, count in zip(segments, counts, strict=True)) == period)
        return cls(model, tuple(segments), counts)

    def total(self, measure: Callable[[Segment], int]) -> cp_model.LinearExprT:
        """What `cost_of` or `value_of` comes to over the period."""
        return sum(measure(segment) * count for segment, count in zip(self.segments, self.counts, strict=True))

    def at_most(self, measure: Callable[[Segment], int], limit: float) -> None:
        """Σ measure · count ≤ limit over the whole period."""
        self.model.add(self.total(measure) <= floor(limit * SCALE + 1e-3) + len(self.segments) // 2)

    def distinct_phases_at_most(self, limit: int, free: frozenset[int] = frozenset()) -> None:
        """At most `limit` different phases in use, those in `free` (phases without groups) not counted.

        A run pays for every distinct phase with one communicator split.
        """
        uses: dict[int, list[cp_model.IntVar]] = defaultdict(list)
        for s, (segment, count) in enumerate(zip(self.segments, self.counts, strict=True)):
            used = self.model.new_bool_var(f"used[{s}]")
            self.model.add(count == 0).only_enforce_if(~used)
            for phase in set(segment.indices) - free:
                uses[phase].append(used)
        switched_on = []
        for phase, users in uses.items():
            on = self.model.new_bool_var(f"phase[{phase}]")
            self.model.add_max_equality(on, users)
            switched_on.append(on)
        self.model.add(sum(switched_on) <= limit)
