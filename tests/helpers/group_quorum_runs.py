"""Random runs of groups under a quorum, and what NumPy makes of the pushes by the schedule and the log of the rounds.

Pushes are small whole numbers and groups have 2 or 4 members, so that no mean of so few rounds is rounded.
"""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import dataclass, field

import numpy as np
import torch

from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.topo.cluster import Cluster
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, Quorum, Static
from partreduce.topo.strategies.quorum import QuorumStart

WIDTH = 3
PERIODS = (
    [[[0, 1], [2, 3]], [[0, 1, 2, 3]]],
    [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 1, 2, 3]]],
    [[[0, 1, 2, 3]], [[1, 2]]],
    [[[0, 1]], [], [[0, 1, 2, 3]], [[2, 3]]],
)


@dataclass(frozen=True)
class GroupCase:
    schedule: Schedule
    calls: tuple[int, ...]
    """Of each worker in each segment."""
    extra: tuple[int, ...]
    """Steps of each worker behind its last whole round of a segment."""
    meets: int
    joins: bool
    seconds: np.ndarray = field(repr=False)
    """(workers, steps): for which each computes."""
    push: np.ndarray = field(repr=False)
    """(workers, steps, WIDTH)"""


def make_group_case(seed):
    """Delays, pauses, uneven paces, and in half of all cases a worker 10 times slower than the others."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    quorum = rng.choice([QuorumStart.SOLO, QuorumStart.SOLO, QuorumStart.MAJORITY, 2, 3])
    when = Quorum(
        quorum=quorum, staleness=rng.choice([1, 2, 4]), grace=rng.choice([0, 0, 1000]),
        seed=rng.randrange(9) if quorum is QuorumStart.MAJORITY else 0,
    )  # fmt: skip
    phases = tuple(Phase.from_groups(4, groups) for groups in rng.choice(PERIODS))
    pace = rng.choice([1, 1, 2, tuple(rng.choices([1, 2, 3], k=4))])
    strategy = Static(phases=GroupPhases(phases), when=when, pace=pace, prologue=rng.choice([0, 0, 1]))
    schedule = Schedule("groups", Cluster.regular(2, 2), strategy)
    meets = rng.choice([0, 0, 1])
    calls = tuple(rng.randint(0, 4) for _ in range(4)) if rng.random() < 0.5 else (3,) * 4
    calls = tuple((count + meets) // (meets + 1) for count in calls)
    extra = tuple(rng.randrange(int(schedule.pace_of(w))) for w in range(4))
    total = (max(calls) + 1) * 3 * (meets + 1)
    seconds = numbers.exponential(0.0005, (4, total))
    if rng.random() < 0.5:
        seconds[rng.randrange(4)] += 0.004
    seconds[rng.randrange(4), rng.randrange(total)] += 0.02
    push = numbers.integers(-16, 17, (4, total, WIDTH)).astype(float)
    return GroupCase(schedule, calls, extra, meets, rng.random() < 0.3, seconds, push)


class Wide(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64))


def run_group_case(case, world, *, device="cpu"):
    """What one worker did: its model where all meet and at the end, its rounds there, its log, steps of each call."""
    model = Wide().to(device)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = DistributedOptimizer(inner, model, case.schedule, world=world, timeout=60)
    optimizer.runner.log.is_on = True
    rank, pace, step = world.rank, case.schedule.pace_of(world.rank), 0
    own, means, rounds, steps, history = [], [], [], [], []
    for segment in range(case.meets + 1):
        with optimizer.join() if case.joins else contextlib.nullcontext():
            count = case.calls[rank] * pace + case.extra[rank]
            steps.append((step, count))
            for _ in range(count):
                time.sleep(case.seconds[rank, step])
                model.values.grad = torch.tensor(-case.push[rank, step], device=device)
                optimizer.step()
                history.append(model.values.detach().cpu().numpy().copy())
                step += 1
        if segment < case.meets:
            with optimizer.mean_model():
                means.append(model.values.detach().cpu().numpy().copy())
            own.append(model.values.detach().cpu().numpy().copy())
            rounds.append(optimizer.round)
    optimizer.engine.gather()
    own.append(model.values.detach().cpu().numpy().copy())
    optimizer.finish()
    rounds.append(optimizer.round)
    final = model.values.detach().cpu().numpy().copy()
    return {
        "own": own, "means": means, "final": final, "rounds": rounds, "steps": steps, "log": optimizer.runner.log,
        "history": history,
    }  # fmt: skip


def progress_of(case, results, segment, rank):
    """By call: what it published. The first and the last one of a segment may be of fewer steps than the others."""
    first, count = results[rank]["steps"][segment]
    pace, found = case.schedule.pace_of(rank), []
    for step in range(first, first + count):
        if step == first or step % pace == 0:
            found.append(np.zeros(WIDTH))
        found[-1] += case.push[rank, step]
    return found


def events_of(case, result, segment):
    """What a worker's log has of the part between two meetings: the end of a join is one more place to meet."""
    there = segment * (1 + case.joins)
    return [event for event in result["log"].events if event.segment == there]


def replayed_groups(case, results):
    """Models where all meet, by the schedule's groups from who brought what to which round alone: s <- W (s + u)."""
    models, base, found = np.zeros((4, WIDTH)), 0, []
    for segment in range(case.meets + 1):
        events = [events_of(case, result, segment) for result in results]
        brought = {
            (event.round, rank): event.numbers
            for rank, own in enumerate(events) for event in own if event.kind == "begun"
        }  # fmt: skip
        published = [progress_of(case, results, segment, rank) for rank in range(4)]
        rounds = {max((r for r, rank in brought if rank == w), default=-1) + 1 for w in range(4)}
        assert len(rounds) == 1, "all end at the same round"
        for round_ in range(rounds.pop()):
            for rank in range(4):
                models[rank] += sum((published[rank][n] for n in brought[round_, rank]), np.zeros(WIDTH))
            after = models.copy()
            for rank in range(4):
                group = case.schedule.group_of(rank, base + round_)
                if group is not None:
                    after[rank] += float(group.relax) * (models[list(group.members)].mean(0) - models[rank])
            models = after
        for rank in range(4):
            numbers = [n for (_, w), some in sorted(brought.items()) if w == rank for n in some]
            assert numbers == list(range(len(published[rank]))), "each call in one round, in order"
        base = results[0]["rounds"][segment]
        found.append(models.copy())
    return found


def group_quorum_problems(case, results):
    """Quorums that are too small, progress that is too old, and what members have read of one another."""
    when, found = case.schedule.strategy.when, []
    for segment in range(case.meets + 1):
        base = results[0]["rounds"][segment - 1] if segment else 0
        calls, begun, finished = {}, {}, {}
        for rank, result in enumerate(results):
            for event in events_of(case, result, segment):
                if event.kind == "called":
                    calls[rank, event.numbers[0]] = event.round
                if event.kind == "begun":
                    begun[event.round, rank] = event.numbers
                if event.kind == "finished":
                    finished[event.round, rank] = event.numbers
        last = {rank: max((r for (r, w), some in begun.items() if w == rank and some), default=-1) for rank in range(4)}
        for (round_, rank), numbers in begun.items():
            ages = [round_ - calls[rank, number] for number in numbers]
            if max(ages, default=0) > when.staleness:
                found.append(f"segment {segment}: worker {rank} brings progress {max(ages)} rounds old")
            group = case.schedule.group_of(rank, base + round_)
            members = (rank,) if group is None else group.members
            come = sum(bool(begun[round_, w]) for w in members)
            if finished[round_, rank] != tuple(len(begun[round_, w]) for w in members):
                found.append(f"segment {segment}: worker {rank} read {finished[round_, rank]} in round {round_}")
            if all(last[w] >= round_ for w in members) and come < when.needed(len(members)):
                found.append(f"segment {segment}: round {round_} of {members} has {come}")
    return found
