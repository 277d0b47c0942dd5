"""A replay in NumPy of parameters that are averaged with a codec: random runs, and what each of their rounds must give.

Rounds are followed one after the other from what the run really had, since 16-bit numbers may be added in any order of
a ring: each number must be one of those that some order gives, the same on all members. Eight bits have one result.
"""

import random
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

from helpers import coded_sums
from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce import strategies as st
from partreduce.topo.codec_numbers import LEVELS

PARTS = {"first": (5, np.float32), "second": (37, np.float32), "third": (19, np.float64)}
"""Parameters of two dtypes, hence two buckets; blocks of eight numbers run across parameters."""


@dataclass(frozen=True)
class RandomRun:
    """A schedule with a round of all, and its training: x ← x − (decay · x − push)."""

    schedule: Schedule
    rounds: int
    start: dict[str, np.ndarray]
    decay: np.ndarray  # (workers,)
    push: dict[str, np.ndarray]  # (workers, steps, numbers)


def random_run(seed):
    """Groups, relaxation, steps per round, prologue, delay, normalization and codec at random."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    n = rng.randint(2, 6)
    late = rng.random() < 0.5
    factors = [Fraction(1), Fraction(1), Fraction(1, 2)] + ([] if late else [Fraction(3, 2)])
    codec = rng.choice([st.Codec.INT8, st.Codec.INT4, st.Codec.FLOAT16, st.Codec.BFLOAT16])
    eight = {"block": rng.choice([8, 16, 256])} if codec.has_blocks else {}
    common = {
        "steps_per_round": rng.choice(
            [2, 3, (*(rng.randint(1, 3) for _ in range(n - 1)), 2)]
        ),  # not all 1: gradients then
        "sync": st.DelayedAveraging() if late else st.Synchronous(),
        "averaging": rng.choice([st.Averaging.MEAN, st.Averaging.MEAN, st.Averaging.STEP_NORMALIZED]),
        "transport": st.Transport(codec=codec, **eight),
    }
    if rng.random() < 0.15:
        strategy: st.AllReduce | st.StaticGroups = st.AllReduce(**common)
    else:
        phases = [_phase(rng, n, factors) for _ in range(rng.randint(0, 2))]
        everyone = st.Phase.from_groups(n, [st.Group(tuple(range(n)), rng.choice(factors))])
        phases.insert(rng.randint(0, len(phases)), everyone)
        strategy = st.StaticGroups(phases=st.GroupPhases(tuple(phases)), prologue=rng.choice([0, 0, 1]), **common)
    schedule = Schedule(f"run {seed}", Cluster.regular(1, n), strategy)
    rounds = rng.randint(2, 6)
    steps = rounds * int(schedule.worker_steps().max())
    start = {name: numbers.normal(size=size).astype(dtype) for name, (size, dtype) in PARTS.items()}
    push = {
        name: (numbers.normal(size=(n, steps, size)) * rng.choice([1.0, 1e-3])).astype(dtype)
        for name, (size, dtype) in PARTS.items()
    }
    return RandomRun(schedule, rounds, start, numbers.choice([0.0, 0.25, 0.5], n), push)


def _phase(rng, n, factors):
    workers, groups = rng.sample(range(n), n), []
    while len(workers) >= 2 and rng.random() < 0.9:
        size = rng.randint(2, len(workers))
        groups.append(st.Group(tuple(sorted(workers[:size])), rng.choice(factors)))
        workers = workers[size:]
    return st.Phase.from_groups(n, groups)


class Model(torch.nn.Module):
    """The parameters."""

    def __init__(self, start):
        super().__init__()
        for name, values in start.items():
            setattr(self, name, torch.nn.Parameter(torch.from_numpy(values.copy())))


@dataclass
class History:
    """What one worker had: for each bucket where its parameters lie; after each round the arrays and the references."""

    places: list[dict[str, slice]]
    arrays: list[list[np.ndarray]]
    references: list[list[np.ndarray]]


def run(case, world):
    """The run as one worker."""
    rank = world.rank
    model = Model(case.start)
    inner = torch.optim.SGD(model.parameters(), lr=1.0, foreach=False)
    optimizer = DistributedOptimizer(inner, model, case.schedule, timeout=60, world=world)
    buckets = optimizer.run.flat.buckets
    places = [
        {slot.names[0]: slice(slot.start, slot.start + slot.parameter.numel()) for slot in bucket.slots}
        for bucket in buckets
    ]
    history = History(places, [[bucket.flat.numpy().copy() for bucket in buckets]], [])
    for step in range(case.rounds * optimizer.run.steps_per_round):
        for name, parameter in model.named_parameters():
            push = torch.from_numpy(case.push[name][rank, step])
            parameter.grad = float(case.decay[rank]) * parameter.detach() - push
        optimizer.step()
        if optimizer.steps % optimizer.run.steps_per_round == 0:
            history.arrays.append([bucket.flat.numpy().copy() for bucket in buckets])
            history.references.append(
                [array.values.numpy().copy() for array in optimizer.runner.parts[0].reference.arrays]
            )
    optimizer.runner.drain()
    return history


def complaint(case, histories):
    """The first number that is not what the scheme gives, as a sentence; None if all are."""
    for bucket in range(len(histories[0].places)):
        reference = histories[0].arrays[0][bucket]
        for round_ in range(case.rounds):
            reference, problem = _round(case, histories, bucket, round_, reference)
            if problem is not None:
                return f"{case.schedule.name}, bucket {bucket}, round {round_}: {problem}"
    return None


def _round(case, histories, bucket, round_, reference):
    """(the reference after a round, what is wrong with the round)."""
    plan, strategy = case.schedule, case.schedule.strategy
    n, dtype = plan.num_workers, reference.dtype.type
    begun = np.stack([history.arrays[round_][bucket] for history in histories])
    own = np.stack([_steps(case, histories[i], bucket, i, round_) for i in range(n)])
    after = np.stack([history.arrays[round_ + 1][bucket] for history in histories])
    alone = set(range(n))
    for group in {g.members: g for i in range(n) if (g := plan.group_of(i, round_)) is not None}.values():
        members = list(group.members)
        alone -= set(members)
        if strategy.averaging is st.Averaging.STEP_NORMALIZED:
            worker_steps = plan.worker_steps()[members]
            for i, steps_per_round in zip(members, worker_steps, strict=True):
                if (factor := float(worker_steps.mean()) / int(steps_per_round)) != 1.0:
                    own[i] = (own[i] - begun[i]) * dtype(factor) + begun[i]
        given = (begun if strategy.is_delayed else own)[members]
        sums = _sums((given - reference) / dtype(len(members)), strategy.transport)
        means = reference + sums.astype(dtype)  # [candidates, numbers]
        relaxation = float(group.relaxation)
        if strategy.is_delayed:
            made = own[members] + dtype(relaxation) * (means[:, None] - begun[members])
        elif relaxation == 1:
            made = np.repeat(means[:, None], len(members), axis=1)
        else:
            made = means[:, None] - (means[:, None] - own[members]) * dtype(1 - relaxation)
        right = (made == after[members]).all(1)  # [candidates, numbers]
        if not right.any(0).all():
            return reference, f"group {group}: some numbers are no mean of it"
        if len(members) == n:
            taken = np.stack([history.references[round_][bucket] for history in histories])
            if not (taken == taken[0]).all():
                return reference, "references differ"
            if not ((means == taken[0]) & right).any(0).all():
                return reference, "the reference is not the mean"
            reference = taken[0]
    for i in alone:
        if not (own[i] == after[i]).all():
            return reference, f"worker {i} skips and is changed"
    return reference, None


def _steps(case, history, bucket, worker, round_):
    """The parameters after the local steps of a round."""
    values = history.arrays[round_][bucket].copy()
    decay, steps_per_round = values.dtype.type(case.decay[worker]), case.schedule.steps_per_round_of(worker)
    for step in range(round_ * steps_per_round, (round_ + 1) * steps_per_round):
        for name, place in history.places[bucket].items():
            values[place] = values[place] - (decay * values[place] - case.push[name][worker, step])
    return values


def _sums(shares, transport):
    """What the coded sum of shares [members, numbers] may be: [candidates, numbers], float32."""
    given = shares.astype(np.float32)
    if not transport.codec.has_blocks:
        return coded_sums.short_sums(given, transport.codec.value)
    return coded_sums.flat_sum(given, transport.block, LEVELS[transport.codec])[None]
