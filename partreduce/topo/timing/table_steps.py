"""Rounds in which tables go their own way: in every step all workers meet, at the lookup and behind the backward pass.

A step of all workers then takes the longest computing of any, and the seconds of the exchanges before and behind it;
faster workers wait. A round begins when the last worker begins it, since no worker has its rows before. What the
strategy averages comes behind the last step of a round, or late, as `topo.timing.rounds` says, where every worker
computes as long as that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.topo.errors import InputError
from partreduce.topo.hardware import Hardware
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.rounds import Moments, Rounds
from partreduce.topo.timing.stages import Stage, of_period
from partreduce.topo.timing.tables import Exchange, RowAccess, exchanges

Floats = npt.NDArray[np.float64]


class StepMoments(NamedTuple):
    """A round's moments, and of every worker the seconds that it waited for others' lookups and gradients."""

    moments: Moments
    waited: Floats


@dataclass(frozen=True, slots=True)
class TableRounds:
    """Takes all workers from round to round, with the exchange of all tables in each step."""

    rounds: Rounds
    exchange: Exchange

    def next(self, stage: Stage, steps: Floats) -> StepMoments:
        """One round, with seconds of computing of each of its steps, shape (steps_per_round, num_workers)."""
        before = self.rounds.now
        self.rounds.now = np.full_like(before, before.max())
        longest = steps.max(axis=1)
        spent = float(longest.sum()) + len(steps) * self.exchange.seconds
        moments = self.rounds.next(stage, np.full_like(before, spent))
        waited = before.max() - before + (longest[:, None] - steps).sum(axis=0)
        return StepMoments(moments._replace(start=before), waited)


def exchange_of(schedule: Schedule, hardware: Hardware, touched: Mapping[str, RowAccess] | None) -> Exchange | None:
    """What the tables of a schedule take in each step; None where it has none that go their own way.

    Nothing where links take no time for bytes and it is not given how much is touched.
    """
    if not schedule.routes.apart:
        check_names(schedule, touched)
        return None
    if touched is None and hardware.is_free_of_bytes():
        return Exchange()
    check_names(schedule, touched)
    return exchanges(schedule.routes, dict(touched or {}), schedule.cluster, hardware)


def check_names(schedule: Schedule, touched: Mapping[str, RowAccess] | None) -> None:
    """Refuse tables that the schedule does not have."""
    for name in touched or {}:
        if schedule.route_of(name) is None:
            known = ", ".join(repr(route.parameter) for route in schedule.routes.tables) or "none"
            raise InputError(f"touched: names {name!r}; tables of schedule {schedule.name!r} are {known}")


def steady_seconds(
    schedule: Schedule,
    hardware: Hardware,
    compute: ComputeTimes,
    exchange: Exchange,
    *,
    model_bytes: int | None = None,
    algorithm: AllReduceAlgorithm | None = None,
) -> float:
    """Exact seconds of a step where every worker computes at a fixed speed. O(n · period).

    All workers begin a round together, so every period takes the same, a pipeline's as soon as it is full.
    """
    stages = of_period(schedule, hardware, model_bytes=model_bytes, algorithm=algorithm)
    sync, steps_per_round = schedule.strategy.sync, schedule.largest_steps_per_round
    rounds = TableRounds(Rounds(sync, (schedule.num_workers,), skip_warm_up=True), exchange)
    steps = np.tile(compute.fixed(schedule.num_workers), (steps_per_round, 1))
    first = len(stages) * 4 * (1 + sync.lag)
    begun = 0.0
    for round_ in range(2 * first):
        if round_ == first:
            begun = float(rounds.rounds.now.max())
        rounds.next(stages[round_ % len(stages)], steps)
    return (float(rounds.rounds.now.max()) - begun) / first / steps_per_round
