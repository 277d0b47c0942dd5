"""Figure: a number together with how sure it is and how it was found."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """How much a figure promises."""

    EXACT = "exact"
    """Found by a direct method: right up to floating-point rounding."""

    ESTIMATE = "estimate"
    """Found by an iteration or by a simulation; `how` says what is known about the error."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. `value` is None where it is not defined or not found, and infinite where it is infinite."""

    value: float | None
    kind: Kind = Kind.EXACT
    how: str = ""

    def json_value(self) -> float | None:
        """The value as JSON can hold it: infinity and absence become null (`how` tells them apart)."""
        return self.value if self.value is not None and math.isfinite(self.value) else None

    def note(self) -> dict[str, Any]:
        """Kind and method, JSON-able."""
        return {"kind": str(self.kind), "how": self.how}

    def __float__(self) -> float:
        """The value; NaN where there is none."""
        return math.nan if self.value is None else self.value


def absent(how: str) -> Figure:
    """A figure that is not defined here, or was not found, and why."""
    return Figure(None, Kind.EXACT, how)


@dataclass(frozen=True, slots=True)
class Drift:
    """Drift for pushes that differ per worker and for pushes shared inside a node."""

    worker: Figure
    node: Figure


@dataclass(frozen=True, slots=True)
class PipelineFigures:
    """What the lateness of gradients costs, for plain SGD on a quadratic loss (`topo.figures.pipeline`)."""

    stability_limit: Figure
    noise_factor: Figure

    def to_json(self) -> dict[str, float | None]:
        return {name: getattr(self, name).json_value() for name in ("stability_limit", "noise_factor")}


@dataclass(frozen=True, slots=True)
class Figures:
    """All figures of one schedule. `radius` is the spectral radius of the period product off the mean.

    `pipeline` is there where gradients are late.
    """

    period: int | None
    num_workers: int
    num_distinct_phases: int | None
    contraction: Figure
    radius: Figure
    consensus_distance: Figure
    drift: Drift
    hop_gap: Figure
    contraction_per_start: tuple[float, ...] = field(default=())
    pipeline: PipelineFigures | None = None

    def to_json(self) -> dict[str, Any]:
        """As `partreduce verify --json` prints them, with the method of each under `how`."""
        named = {
            "contraction": self.contraction,
            "radius": self.radius,
            "consensus_distance": self.consensus_distance,
            "drift.worker": self.drift.worker,
            "drift.node": self.drift.node,
            "hop_gap": self.hop_gap,
        }
        if self.pipeline is not None:
            named["pipeline.stability_limit"] = self.pipeline.stability_limit
            named["pipeline.noise_factor"] = self.pipeline.noise_factor
        result: dict[str, Any] = {
            "period": self.period,
            "num_workers": self.num_workers,
            "num_distinct_phases": self.num_distinct_phases,
        }
        for name, figure in named.items():
            outer, _, inner = name.partition(".")
            if inner:
                result.setdefault(outer, {})[inner] = figure.json_value()
            else:
                result[outer] = figure.json_value()
        if self.contraction_per_start:
            result["contraction_per_start"] = list(self.contraction_per_start)
        result["how"] = {name: figure.note() for name, figure in named.items()}
        return result
