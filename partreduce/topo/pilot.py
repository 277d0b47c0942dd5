"""Pilot: what a few dozen steps of the user's own job said about the price of averaging less, or late."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import stdev
from typing import Annotated, Literal

from annotated_types import Ge, Gt, MaxLen, MinLen

from partreduce.topo.fields import Count, JsonObject, Rounds, Title

CONFIDENCE = 0.9
"""Of the intervals of all prices."""

Amount = Annotated[float, Ge(0)]


@dataclass(frozen=True, slots=True)
class Price(JsonObject):
    """How many times All-Reduce's steps one unit of something costs more, with its 90 % confidence interval."""

    value: Amount
    low: Amount
    high: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(JsonObject):
    """One schedule of a pilot: its metrics, and its steps over All-Reduce's as measured, once per seed.

    `late` is its late distance (`topo.metrics.late_distance`), 0 synchronously. `sha256` is there for what ran because
    it may be recommended: of the schedule without its name and however its sums travel.
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
        """Of the steps ratio, over the seeds."""
        return stdev(self.steps_ratios) / sqrt(len(self.steps_ratios))

    @property
    def is_pipeline(self) -> bool:
        """Whether all workers had the same parameters, so that what it cost is the delay of gradients."""
        return self.consensus_distance == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices(JsonObject):
    """steps ratio = 1 + averaging + consensus_distance·(metric) + drift·(metric)^p + late·L + later·L·max(0, L − 1).

    L is the late distance. `drift` is None for shuffled data; `averaging`, what it costs that parameters are averaged
    at all, and `later` where there were too few probes to tell them from the others.
    `error` is the largest relative error of a predicted steps ratio on a schedule that was left out of the fit.
    """

    consensus_distance: Price
    late: Price
    drift: Price | None = None
    error: Amount
    averaging: Price | None = None
    later: Price | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot(JsonObject):
    """A pilot with what it measured and the prices that explain it.

    `data` is how the samples were spread: `shuffled`, `per-worker` or `per-node`; `steps` is the length of every run.
    """

    num_workers: Count
    data: Literal["shuffled", "per-worker", "per-node"]
    steps: Count
    seeds: Annotated[tuple[Rounds, ...], MinLen(2), MaxLen(1000)]
    prices: Prices
    probes: Annotated[tuple[Probe, ...], MinLen(2), MaxLen(1000)]
    unstable: Annotated[tuple[Probe, ...], MaxLen(1000)] = ()
    """Under which the loss did not fall or was no number in one of the runs; without steps ratios."""

    @property
    def cost(self) -> int:
        """Steps that it took of every worker, All-Reduce's among them."""
        return self.steps * len(self.seeds) * (1 + len(self.probes) + len(self.unstable))

    @property
    def max_consensus_distance(self) -> float:
        return max(probe.consensus_distance for probe in self.probes)

    @property
    def max_drift(self) -> float:
        return max(probe.drift for probe in self.probes)
