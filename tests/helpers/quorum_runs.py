"""Random runs under a quorum: what each worker does, and the results that NumPy computes from the log of the rounds.

Gradients are dyadic multiples of the number of workers with few bits, so that no sum, quotient or step rounds.
"""

import contextlib
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import torch

from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce.errors import ScheduleError
from partreduce.runtime.strategies.protocol_driver import EventLog
from partreduce.runtime.strategies.quorum import gradients
from partreduce.strategies import AllReduce, LateGradientPolicy, MissedResultPolicy, PartialAllReduce, QuorumStart

gradients.EventLog = lambda event, *, is_on: EventLog(event, is_on=True)
SIZES = (3, 2)
WIDTH = sum(SIZES)


class TwoBuckets(torch.nn.Module):
    """A model with parameters of two dtypes, so that a sum has two arrays; the second sometimes has no gradient."""

    def __init__(self, values):
        super().__init__()
        self.wide = torch.nn.Parameter(torch.tensor(values[: SIZES[0]], dtype=torch.float64))
        self.narrow = torch.nn.Parameter(torch.tensor(values[SIZES[0] :], dtype=torch.float32))

    def values(self):
        return np.concatenate([self.wide.detach().numpy(), self.narrow.detach().numpy().astype(float)])

    def set_gradient(self, push, *, narrow=True):
        self.wide.grad = torch.tensor(push[: SIZES[0]], dtype=torch.float64)
        self.narrow.grad = torch.tensor(push[SIZES[0] :], dtype=torch.float32) if narrow else None


@dataclass(frozen=True)
class QuorumCase:
    num_workers: int
    sync: PartialAllReduce
    calls: tuple[int, ...]
    """Each worker's number of steps in each segment."""
    meets: int
    """How often the workers evaluate the mean model; a run has one more segment than that."""
    joins: bool
    seconds: np.ndarray = field(repr=False)
    """Compute seconds of each step, shape (workers, steps in all)."""
    push: np.ndarray = field(repr=False)
    """Gradients, shape (workers, steps in all, WIDTH)."""
    absent: frozenset = field(repr=False, default=frozenset())
    """(worker, step) in which the second parameter has no gradient."""

    @property
    def schedule(self):
        return Schedule("quorum", Cluster.regular(1, self.num_workers), AllReduce(sync=self.sync))

    def made(self):
        found = []
        for rank in range(self.num_workers):
            for call in range(self.calls[rank] * (self.meets + 1)):
                push = self.push[rank, call].copy()
                if (rank, call) in self.absent:
                    push[SIZES[0] :] = 0
                found.append(push)
        return found


def random_quorum(rng, n):
    while True:
        quorum = rng.choice([QuorumStart.SOLO, QuorumStart.MAJORITY, *(range(2, n) if n > 2 else [QuorumStart.SOLO])])
        missed = rng.choice(
            [MissedResultPolicy.EACH, MissedResultPolicy.EACH, MissedResultPolicy.EACH, MissedResultPolicy.LATEST]
        )
        options = {"quorum": quorum, "missed": missed, "count": rng.choice(list(LateGradientPolicy))}
        options["grace"] = rng.choice([0, 0, 1000])
        if missed is MissedResultPolicy.LATEST:
            options["synchronize_every"] = rng.choice([0, 1, 3])
        else:
            options["staleness"] = rng.choice([1, 2, 4])
        if quorum is QuorumStart.MAJORITY:
            options["seed"] = rng.randrange(100)
        sync = PartialAllReduce(**options)
        with contextlib.suppress(ScheduleError):
            sync.check()
            return sync


def make_quorum_case(seed):
    """Return a case with random delays and pauses; in half of all cases one worker is much slower than the others."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    n = rng.choice([2, 3, 4, 4, 5, 8])
    meets = rng.choice([0, 0, 1, 2])
    per_segment = rng.randint(3, 6)
    calls = [per_segment] * n if rng.random() < 0.5 else [rng.randint(0, per_segment) for _ in range(n)]
    total = per_segment * (meets + 1)
    seconds = numbers.exponential(0.0005, (n, total))
    if rng.random() < 0.5:
        seconds[rng.randrange(n)] += 0.0045
    for _ in range(rng.randint(0, 2)):
        seconds[rng.randrange(n), rng.randrange(total)] += 0.02
    push = numbers.integers(-16, 17, (n, total, WIDTH)) * n / 8
    absent = frozenset((rng.randrange(n), rng.randrange(total)) for _ in range(rng.randint(0, 4)))
    return QuorumCase(n, random_quorum(rng, n), tuple(calls), meets, rng.random() < 0.3, seconds, push, absent)


def run_quorum_case(case, world):
    """Run one worker; return its parameters after each step and at each mean model, its log, and more, by name."""
    model = TwoBuckets([0.0] * WIDTH)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = DistributedOptimizer(inner, model, case.schedule, world=world, timeout=60)
    log = optimizer.runner.log
    history, means, rounds, call = [], [], [], 0
    inner.register_step_post_hook(lambda *_: history.append(model.values().copy()))
    calls, rank = case.calls[world.rank], world.rank
    for segment in range(case.meets + 1):
        with optimizer.join() if case.joins else contextlib.nullcontext():
            for _ in range(calls):
                time.sleep(case.seconds[rank, call])
                model.set_gradient(case.push[rank, call], narrow=(rank, call) not in case.absent)
                optimizer.step()
                call += 1
        if segment < case.meets:
            with optimizer.mean_model():
                means.append(model.values().copy())
            rounds.append(optimizer.round)
    last = model.values().copy() if not case.joins else None
    optimizer.finish()
    rounds.append(optimizer.round)
    return {
        "made": optimizer.runner.sums.made,
        "history": history,
        "means": means,
        "last": last,
        "final": model.values().copy(),
        "rounds": rounds,
        "log": log,
    }


def segments_of(results):
    """Return (rounds, events) by segment: each round's {worker: numbers of its gradients}, and each worker's events."""
    rounds, events = defaultdict(lambda: defaultdict(dict)), defaultdict(lambda: defaultdict(list))
    for rank, result in enumerate(results):
        for event in result["log"].events:
            events[event.segment][rank].append(event)
            if event.kind == "begun":
                rounds[event.segment][event.round][rank] = event.numbers
    return rounds, events


def quorum_problems(case, results):
    """Return sentences on lost, repeated or too old gradients, and on rounds with too few workers."""
    found, sync = [], case.sync
    rounds, events = segments_of(results)
    for segment, by_round in rounds.items():
        if sorted(by_round) != list(range(len(by_round))):
            found.append(f"segment {segment}: rounds {sorted(by_round)}")
        weights = {}
        for rank, own in events[segment].items():
            begun = [number for event in own if event.kind == "begun" for number in event.numbers]
            called = [event.numbers[0] for event in own if event.kind == "called"]
            if begun != called or called != list(range(len(called))):
                found.append(f"segment {segment}: worker {rank} called {called} and summed {begun}")
            weights |= {(rank, event.numbers[0]): event.round for event in own if event.kind == "called"}
            for event in own:
                if event.kind != "finished":
                    continue
                counts = tuple(len(by_round[event.round][w]) for w in range(case.num_workers))
                if event.numbers != counts:
                    found.append(f"segment {segment}: worker {rank} has {event.numbers} in round {event.round}")
        for round_, passed in by_round.items():
            for rank, numbers in passed.items():
                ages = [round_ - weights[rank, number] for number in numbers]
                if sync.bound is not None and max(ages, default=0) > sync.bound:
                    found.append(f"segment {segment}: round {round_} has a gradient {max(ages)} rounds old")
            on = all(any(later[w] for r, later in by_round.items() if r > round_) for w in range(case.num_workers))
            come = sum(bool(numbers) for numbers in passed.values())
            if on and come < sync.needed(case.num_workers):
                found.append(f"segment {segment}: round {round_} has {come} workers")
    return found


def delivered_in(case, passed, begins):
    """Return the mean gradient of a round, shape (WIDTH,).

    `passed` maps workers to the numbers of their gradients, which count from each worker's step `begins[worker]`.
    """
    total = np.zeros(WIDTH)
    for rank, numbers in passed.items():
        for number in numbers:
            push = case.push[rank, begins[rank] + number].copy()
            if (rank, begins[rank] + number) in case.absent:
                push[SIZES[0] :] = 0
            total += push
    return total / case.num_workers


def replay_steps(case, results):
    """Return the parameters after each step, by worker, from the log and the gradients alone. O(rounds · workers)."""
    rounds, events = segments_of(results)
    n = case.num_workers
    values, histories, begins = np.zeros((n, WIDTH)), [[] for _ in range(n)], [0] * n
    for segment in sorted(rounds):
        delivered = {round_: delivered_in(case, passed, begins) for round_, passed in rounds[segment].items()}
        parts = [[[]] for _ in range(n)]  # of each worker, what it takes between two synchronizations
        for rank in range(n):
            for event in events[segment][rank]:
                if event.kind == "synchronized":
                    parts[rank].append([])
                elif event.kind == "taken":
                    parts[rank][-1].append([delivered[round_] for round_ in event.numbers])
            begins[rank] += sum(event.kind == "called" for event in events[segment][rank])
        assert len({len(own) for own in parts}) == 1
        for number in range(len(parts[0])):
            if number:
                values[:] = values.mean(0)
            for rank in range(n):
                for some in parts[rank][number]:
                    _take(case.sync, some, values, rank, histories)
    return histories


def _take(sync, some, values, rank, histories):
    for change in some:
        values[rank] -= change
        histories[rank].append(values[rank].copy())
