"""Pilot: the cost in steps of averaging less often or later, measured in short runs of the user's own job."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import stdev
from typing import Annotated, Literal

from annotated_types import Ge, Gt, MaxLen, MinLen

from partreduce.topo.fields import Count, JsonObject, Rounds, Title

CONFIDENCE = 0.9
"""The confidence level of all price intervals."""

Amount = Annotated[float, Ge(0)]


@dataclass(frozen=True, slots=True)
class Price(JsonObject):
    """The steps to a loss that a unit of a metric adds, as a share of All-Reduce's, and a 90 % confidence interval."""

    value: Amount
    low: Amount
    high: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(JsonObject):
    """One schedule that a pilot ran: its metrics, and its steps to a loss divided by All-Reduce's, once per seed.

    `late` is its late distance (defined in `topo.metrics.late_distance`), 0 if averages are synchronous. `sha256`, the
    hash of the schedule without name and transport, identifies it among candidates.
    """

    schedule: Title
    consensus_distance: Amount
    drift: Amount
    late: Amount
    steps_ratios: Annotated[tuple[Annotated[float, Gt(0)], ...], MaxLen(1000)] = ()
    sha256: str = ""

    @property
    def steps_ratio(self) -> float:
        return sum(self.steps_ratios) / len(self.steps_ratios)

    @property
    def standard_error(self) -> float:
        """The standard error of the steps ratio over the seeds."""
        return stdev(self.steps_ratios) / sqrt(len(self.steps_ratios))

    @property
    def is_pipeline(self) -> bool:
        """Whether the probe ran a pipeline, in which all workers have equal parameters and only delay costs steps."""
        return self.consensus_distance == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices(JsonObject):
    """The prices of the steps model, which predicts a schedule's steps to a loss relative to All-Reduce's.

    steps ratio = 1 + averaging + consensus_distance·C + drift·D^p + late·L + later·L·max(0, L − 1), where C, D and L
    are the schedule's consensus distance, drift and late distance (`Probe.late`), and p is a constant. `averaging` is
    the cost of averaging parameters at all. `drift` is None for shuffled data; `averaging` and `later` are None if
    there were too few probes.
    `error` is the largest relative error of a predicted steps ratio in leave-one-out validation.
    """

    consensus_distance: Price
    late: Price
    drift: Price | None = None
    error: Amount
    averaging: Price | None = None
    later: Price | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot(JsonObject):
    """The measurements of a pilot (short training runs of several schedules), and the prices fitted to them.

    `data` is how samples are spread over workers: `shuffled`, `per-worker` or `per-node`; `steps` is the length of a
    run.
    """

    num_workers: Count
    data: Literal["shuffled", "per-worker", "per-node"]
    steps: Count
    seeds: Annotated[tuple[Rounds, ...], MinLen(2), MaxLen(1000)]
    prices: Prices
    probes: Annotated[tuple[Probe, ...], MinLen(2), MaxLen(1000)]
    unstable: Annotated[tuple[Probe, ...], MaxLen(1000)] = ()
    """Probes whose loss did not fall or became NaN in one of the runs; they have no steps ratios."""

    @property
    def cost(self) -> int:
        """The steps that each worker took in all runs of the pilot, including those of All-Reduce."""
        return self.steps * len(self.seeds) * (1 + len(self.probes) + len(self.unstable))

    @property
    def max_consensus_distance(self) -> float:
        return max(probe.consensus_distance for probe in self.probes)

    @property
    def max_drift(self) -> float:
        return max(probe.drift for probe in self.probes)
