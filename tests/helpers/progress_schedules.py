"""Random static schedules with a round of all, whose parameters are averaged with a codec; ranks are threads."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch

from helpers.random_schedules import WIDTH, Case, Quadratic, random_phase
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.topo.cluster import Cluster
from partreduce.topo.phase import Group, Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, GroupPhases, Late, Lockstep, Static
from partreduce.topo.strategies.axes import Codec, How
from partreduce.topo.strategies.base import Averaging


def dyadic_case(seed: int) -> Case:
    """2 or 4 workers that begin equal, groups of 2 and 4, numbers with few bits: float64 makes no rounding error."""
    rng = random.Random(seed)
    n = rng.choice([2, 4])
    pace = rng.choice([2, 2, (*(rng.choice([1, 1, 2]) for _ in range(n - 1)), 2)])  # not all 1: gradients then
    common = {
        "pace": pace,
        "when": rng.choice([Late(), Lockstep()]),
        "averaging": rng.choice([Averaging.MEAN, Averaging.MEAN, Averaging.STEP_NORMALISED]),
        "how": How(codec=rng.choice([Codec.FLOAT16, Codec.INT8])),
    }
    if rng.random() < 0.15:
        strategy: AllReduce | Static = AllReduce(**common)
    else:
        everyone = Phase.from_groups(n, [Group(tuple(range(n)), rng.choice([Fraction(1), Fraction(1, 2)]))])
        phases = [random_phase(rng, n, exact=True) for _ in range(rng.randint(0, 2))]
        phases.insert(rng.randint(0, len(phases)), everyone)
        strategy = Static(phases=GroupPhases(tuple(phases)), prologue=rng.choice([0, 0, 1]), **common)
    schedule = Schedule(f"progress {seed}", Cluster.regular(1, n), strategy)
    rounds = rng.randint(1, 4)
    steps = rounds * int(schedule.paces().max())
    numbers = np.random.default_rng(seed)
    start = np.tile(numbers.integers(-8, 9, WIDTH) / 4.0, (n, 1))
    push = numbers.integers(-8, 9, (n, steps, WIDTH)) / 4.0
    return Case(schedule, rounds, True, torch.float64, start, numbers.choice([0.0, 0.5], n), push)


def train(case: Case, world, *, rounds: int | None = None) -> tuple[Quadratic, DistributedOptimizer]:
    """Take the case's steps as one worker."""
    rank = world.rank
    model = Quadratic(case.start[rank], case.dtype)
    optimizer = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0, foreach=False), model, case.schedule, timeout=60, world=world
    )
    for step in range((case.rounds if rounds is None else rounds) * case.schedule.pace_of(rank)):
        model.set_gradient(float(case.decay[rank]), case.push[rank, step])
        optimizer.step()
    return model, optimizer


def plain(case: Case) -> Case:
    """The same without a codec."""
    strategy = replace(case.schedule.strategy, how=How())
    return replace(case, schedule=replace(case.schedule, strategy=strategy))
