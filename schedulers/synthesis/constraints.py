"""The two integer programs given to CP-SAT: their variables, and their constraints, one a class.

A *composition* says how often each segment stands in a period; a *phase* says which candidate groups run at once. The
sentence above a constraint says what it is for. Times and figures are scaled to integers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import ceil, floor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortools.sat.python import cp_model

    from partreduce.schedulers.synthesis.alphabet import Indices

SCALE = 10**9
"""Seconds become nanoseconds; consensus distances become billionths."""


def scaled_up(value: float) -> int:
    """Round up, so that a limit is never broken by rounding; exact values may miss by one unit."""
    return ceil(value * SCALE - 1e-3)


def scaled_down(value: float) -> int:
    """Round down, for right-hand sides."""
    return floor(value * SCALE + 1e-3)


@dataclass(frozen=True, slots=True)
class Segment:
    """Phases from consensus to consensus: their indices, cost in seconds, and sum of consensus distances."""

    indices: Indices
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
            model.new_int_var(0, max_period // len(segment.indices), f"count[{s}]")
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


# The segments chosen fill the period exactly.
@dataclass(frozen=True, slots=True)
class PeriodIs:
    """Σ length · count = period."""

    period: int

    def apply(self, model: cp_model.CpModel, variables: CompositionVariables) -> None:
        model.add(
            sum(len(s.indices) * c for s, c in zip(variables.segments, variables.counts, strict=True)) == self.period
        )


# The period communicates no longer than its budget of seconds.
@dataclass(frozen=True, slots=True)
class CostAtMost:
    """Σ cost · count ≤ seconds (of the whole period)."""

    seconds: float

    def apply(self, model: cp_model.CpModel, variables: CompositionVariables) -> None:
        """Add to the model. Rounding may let in one nanosecond per segment; re-scoring is exact."""
        terms = [round(s.cost * SCALE) * c for s, c in zip(variables.segments, variables.counts, strict=True)]
        model.add(sum(terms) <= scaled_down(self.seconds) + len(terms) // 2)


# The period's consensus distances add up to no more than asked.
@dataclass(frozen=True, slots=True)
class ValueAtMost:
    """Σ value · count ≤ value (of the whole period)."""

    value: float

    def apply(self, model: cp_model.CpModel, variables: CompositionVariables) -> None:
        """Add to the model. Rounding as for CostAtMost."""
        terms = [round(s.value * SCALE) * c for s, c in zip(variables.segments, variables.counts, strict=True)]
        model.add(sum(terms) <= scaled_down(self.value) + len(terms) // 2)


# A run pays for every distinct phase with one communicator split.
@dataclass(frozen=True, slots=True)
class DistinctPhasesAtMost:
    """At most `limit` different phases in use, those in `free` (phases without groups) not counted."""

    limit: int
    free: frozenset[int] = frozenset()

    def apply(self, model: cp_model.CpModel, variables: CompositionVariables) -> None:
        uses: dict[int, list[cp_model.IntVar]] = defaultdict(list)
        for s, (segment, count) in enumerate(zip(variables.segments, variables.counts, strict=True)):
            used = model.new_bool_var(f"used[{s}]")
            model.add(count == 0).only_enforce_if(~used)
            for phase in set(segment.indices) - self.free:
                uses[phase].append(used)
        switched_on = []
        for phase, users in uses.items():
            on = model.new_bool_var(f"phase[{phase}]")
            model.add_max_equality(on, users)
            switched_on.append(on)
        model.add(sum(switched_on) <= self.limit)


# Groups of one phase are disjoint: a worker stands in at most one.
@dataclass(frozen=True, slots=True)
class DisjointGroups:
    """Σ chosen groups that hold worker w ≤ 1."""

    num_workers: int

    def apply(self, model: cp_model.CpModel, variables: PhaseVariables) -> None:
        for worker in range(self.num_workers):
            model.add_at_most_one(
                chosen for group, chosen in zip(variables.groups, variables.chosen, strict=True) if worker in group
            )


# The groups that cross a node share its NIC, so their transfers add up.
@dataclass(frozen=True, slots=True)
class NicCapacity:
    """For every node, Σ seconds on its NIC ≤ seconds; `loads[g]` maps node → seconds for candidate group g."""

    seconds: float
    loads: tuple[dict[int, float], ...]

    def apply(self, model: cp_model.CpModel, variables: PhaseVariables) -> None:
        for node in sorted({node for load in self.loads for node in load}):
            terms = [
                scaled_up(load[node]) * chosen
                for load, chosen in zip(self.loads, variables.chosen, strict=True)
                if node in load
            ]
            model.add(sum(terms) <= scaled_down(self.seconds) + len(terms))


# Communicators beyond a size are refused, or cost too much memory.
@dataclass(frozen=True, slots=True)
class GroupSizeAtMost:
    """No chosen group has more than `limit` workers."""

    limit: int

    def apply(self, model: cp_model.CpModel, variables: PhaseVariables) -> None:
        for group, chosen in zip(variables.groups, variables.chosen, strict=True):
            if len(group) > self.limit:
                model.add(chosen == 0)


# Workers that have not met should: the surrogate for consensus distance is the weight of the pairs that co-occur.
@dataclass(frozen=True, slots=True)
class PreferMeetings:
    """Maximise Σ over chosen groups of `weights[g]` (objective, integers)."""

    weights: tuple[int, ...]

    def apply(self, model: cp_model.CpModel, variables: PhaseVariables) -> None:
        model.maximize(sum(w * chosen for w, chosen in zip(self.weights, variables.chosen, strict=True)))
