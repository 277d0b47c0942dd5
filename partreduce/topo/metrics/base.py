"""The types of metrics: numbers about a schedule, each with its accuracy and the method that computed it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """The accuracy of a metric."""

    EXACT = "exact"
    """Computed by a direct method: exact up to floating-point rounding."""
    ESTIMATE = "estimate"
    """Computed by an iteration or a simulation; `how` states the known error."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A number about a schedule, with its accuracy and method.

    `value` is None if it is undefined or was not computed, and may be infinite; `how` names the method or the reason.
    """

    value: float | None
    kind: Kind = Kind.EXACT
    how: str = ""

    def json_value(self) -> float | None:
        """Return the value for JSON; None if it is infinite or missing, which `how` distinguishes."""
        return self.value if self.value is not None and math.isfinite(self.value) else None

    def note(self) -> dict[str, Any]:
        return {"kind": str(self.kind), "how": self.how}

    def __float__(self) -> float:
        """Return the value; NaN if there is none."""
        return math.nan if self.value is None else self.value


def absent(how: str) -> Metric:
    """Return a metric with value None; `how` says why it is undefined or was not computed."""
    return Metric(None, Kind.EXACT, how)


@dataclass(frozen=True, slots=True)
class Drift:
    """The drift if the constant bias is independent for each worker, and if the workers of a node share theirs."""

    worker: Metric
    node: Metric


@dataclass(frozen=True, slots=True)
class PipelineMetrics:
    """The cost of a pipeline's late gradients for plain SGD on a quadratic loss (defined in `metrics.stability`)."""

    stability_limit: Metric
    noise_factor: Metric

    def to_json(self) -> dict[str, float | None]:
        return {field.name: getattr(self, field.name).json_value() for field in fields(self)}


METRICS = ("contraction", "radius", "consensus_distance", "drift", "hop_gap", "pipeline")


@dataclass(frozen=True, slots=True)
class ScheduleMetrics:
    """All metrics of one schedule; without fixed rounds `period` and `num_distinct_phases` are None.

    `radius` is the spectral radius of the product of a period's mixing matrices, with the mean projected out.
    `pipeline` is None for other schedules than pipelines; `contraction_per_start` is () if it takes too long.
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
        """Return all metrics as `partreduce verify --json` prints them; `how` has the accuracy and method of each."""
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
