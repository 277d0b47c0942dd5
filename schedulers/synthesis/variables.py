"""Variables of the two CP-SAT models: how often each segment stands in a period, which groups make a phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortools.sat.python import cp_model


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of phases from consensus to consensus: its letters, cost in seconds, and sum of disagreements."""

    letters: tuple[int, ...]
    cost: float
    value: float


@dataclass(frozen=True, slots=True)
class CompositionVariables:
    """`counts[s]`: how often segment s stands in the period."""

    segments: tuple[Segment, ...]
    counts: tuple[cp_model.IntVar, ...]

    @classmethod
    def of(cls, model: cp_model.CpModel, segments: Sequence[Segment], max_period: int) -> CompositionVariables:
        """One counter per segment, as large as the period allows."""
        counts = tuple(
            model.new_int_var(0, max_period // len(segment.letters), f"count[{s}]")
            for s, segment in enumerate(segments)
        )
        return cls(tuple(segments), counts)


@dataclass(frozen=True, slots=True)
class PhaseVariables:
    """`chosen[g]`: whether candidate group g is one of the phase's groups."""

    groups: tuple[tuple[int, ...], ...]
    chosen: tuple[cp_model.IntVar, ...]

    @classmethod
    def of(cls, model: cp_model.CpModel, groups: Sequence[tuple[int, ...]]) -> PhaseVariables:
        """One decision per candidate group."""
        return cls(tuple(groups), tuple(model.new_bool_var(f"group[{g}]") for g in range(len(groups))))
