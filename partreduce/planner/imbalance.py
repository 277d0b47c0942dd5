"""Which quorum pays for which imbalance: a job's quorums where its workers are less, or more, unlike than they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from partreduce.planner.job import Job
from partreduce.planner.option import Option
from partreduce.planner.trials.quorum_runs import (
    by,
    costs_of,
    measured,
    rounds_of,
    run,
    setting_of,
    words_of,
    work_of_run,
)
from partreduce.planner.trials.quorums import all_reduce, settings
from partreduce.topo.strategies.quorum import Quorum, QuorumStart
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.quorum import balance, in_step, sampled

FACTORS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)
"""How much of what sets workers apart is left; 1 is the job as it is."""
LEAST = 0.05
"""Of a usual step: what a step takes at least when what sets it apart is made larger."""
MOST_WORK = 4.0
"""Nominal seconds for the runs of one quorum; dearer ones are left out."""


@dataclass(frozen=True, slots=True)
class Imbalances:
    """Speeds to a loss over All-Reduce's in lockstep, predicted with the price of late gradients.

    `waits` (factors,) is All-Reduce's step without its sum over a usual one, which is how an imbalance is told; `own`
    is the job's. `speeds` has a row (factors,) for each quorum that was run, of those of groups for the best. For every
    number of workers, from solo on, `free` and `steps` are gradients a second over All-Reduce's where workers come
    independently, and where they begin rounds together (`topo.timing.quorum`). `lockstep` is the seconds of
    All-Reduce's step at the job's own imbalance.
    """

    waits: npt.NDArray[np.float64]
    own: float
    speeds: dict[str, npt.NDArray[np.float64]]
    free: npt.NDArray[np.float64]
    steps: npt.NDArray[np.float64]
    lockstep: float


def imbalances(job: Job, options: Sequence[Option] = ()) -> Imbalances:
    """Run a job's quorums under more and less of its imbalance. O(factors · quorums) runs in virtual time.

    Of the `options` of a plan the best quorum of groups is run, too.
    """
    of_groups = min(
        (option for option in options if option.quorum and option.quorum.of),
        key=lambda option: (option.time, option.name),
        default=None,
    )
    count, base = job.cluster.num_workers, all_reduce(job)
    costs = costs_of(base, job)
    as_is = sampled(job.compute_times(), count, seed=job.seed)
    waits, rows = [], []
    for factor in FACTORS:
        seconds = _apart(as_is, factor)
        lockstep = float(seconds.max(axis=1).mean()) + costs.sum_seconds
        waits.append(_waits(seconds))
        listed = [(base, setting) for setting in settings(base, job, seconds)]
        if of_groups is not None:
            when = of_groups.schedule.strategy.when
            assert isinstance(when, Quorum), "asked before"
            listed.append((of_groups, setting_of(of_groups, when.quorum, job, seconds)))
        row = {}
        for one, setting in listed:
            rounds = rounds_of(one, setting, job, seconds)
            if work_of_run(one.schedule, setting, rounds) * len(FACTORS) > MOST_WORK:
                continue
            found = run(by(one, setting), job, ComputeTimes(trace=seconds), rounds)
            time = measured(one, setting, job, found).time
            words = one.quorum.words if one.quorum else words_of(setting, one)
            row[words] = lockstep / time if time else 1.0
        rows.append(row)
    speeds = {words: np.array([row[words] for row in rows]) for words in rows[0] if all(words in row for row in rows)}
    usual = count / (float(as_is.max(axis=1).mean()) + costs.sum_seconds)
    numbers: list[QuorumStart | int] = [QuorumStart.SOLO, *range(2, count)]
    both = [
        [
            many(as_is, Quorum(quorum=number), word=costs.word, sum_seconds=costs.sum_seconds).gradients_per_second
            for number in numbers
        ]
        for many in (balance, in_step)
    ]
    free, steps = np.array(both) / usual
    return Imbalances(np.array(waits), _waits(as_is), speeds, free, steps, base.step_seconds)


def _apart(seconds: npt.NDArray[np.float64], factor: float) -> npt.NDArray[np.float64]:
    """Seconds (steps, num_workers) with so much of what sets them apart from a usual step."""
    usual = float(np.median(seconds))
    return np.maximum(usual + factor * (seconds - usual), LEAST * usual)


def _waits(seconds: npt.NDArray[np.float64]) -> float:
    """The longest of all workers' steps, on average, over a usual one."""
    usual = float(np.median(seconds))
    return float(seconds.max(axis=1).mean()) / usual if usual else 1.0
