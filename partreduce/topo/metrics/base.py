"""Metric: a number together with how sure it is and how it was found."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """How much a metric promises."""

    EXACT = "exact"
    """Found by a direct method: right up to floating-point rounding."""

    ESTIMATE = "estimate"
    """Found by an iteration or by a simulation; `transport` says what is known about the error."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `value` is None where it is not defined or not found, and infinite where it is infinite."""

    value: float | None
    kind: Kind = Kind.EXACT
    how: str = ""

    def json_value(self) -> float | None:
        """The value as JSON can hold it: infinity and absence become null (`transport` tells them apart)."""
        return self.value if self.value is not None and math.isfinite(self.value) else None

    def note(self) -> dict[str, Any]:
        """Kind and method, JSON-able."""
        return {"kind": str(self.kind), "how": self.how}

    def __float__(self) -> float:
        """The value; NaN where there is none."""
        return math.nan if self.value is None else self.value


def absent(how: str) -> Metric:
    """A metric that is not defined here, or was not found, and why."""
    return Metric(None, Kind.EXACT, how)


@dataclass(frozen=True, slots=True)
class Drift:
    """Drift for pushes that differ per worker and for pushes shared inside a node."""

    worker: Metric
    node: Metric


@dataclass(frozen=True, slots=True)
class PipelineMetrics:
    """What the delay of gradients costs, for plain SGD on a quadratic loss (`topo.metrics.pipeline`)."""

    stability_limit: Metric
    noise_factor: Metric

    def to_json(self) -> dict[str, float | None]:
        return {field.name: getattr(self, field.name).json_value() for field in fields(self)}


METRICS = ("contraction", "radius", "consensus_distance", "drift", "hop_gap", "pipeline")


@dataclass(frozen=True, slots=True)
class ScheduleMetrics:
    """All metrics of one schedule. `radius` is the spectral radius of the period product off the mean.

    `pipeline` is there where gradients are late.
    """

    period: int | None
    num_workers: int
    num_distinct_phases: int | None
    contraction: Metric
    radius: Metric
    consensus_distance: Metric
    drift: Drift
    hop_gap: Metric
    contraction_per_start: tuple[float, ...] = field(default=())
    pipeline: PipelineMetrics | None = None

    def to_json(self) -> dict[str, Any]:
        """As `partreduce verify --json` prints them, with the method of each under `transport`."""
        result: dict[str, Any] = {}
        how: dict[str, Any] = {}
        for name in ("period", "num_workers", "num_distinct_phases", *METRICS):
            value = getattr(self, name)
            if isinstance(value, Metric):
                result[name], how[name] = value.json_value(), value.note()
            elif isinstance(value, Drift | PipelineMetrics):
                several = {field.name: getattr(value, field.name) for field in fields(value)}
                result[name] = {inner: metric.json_value() for inner, metric in several.items()}
                how |= {f"{name}.{inner}": metric.note() for inner, metric in several.items()}
            elif name not in METRICS:
                result[name] = value
        per_start = {"contraction_per_start": list(self.contraction_per_start)} if self.contraction_per_start else {}
        return {**result, **per_start, "how": how}
