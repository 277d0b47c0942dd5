"""One random schedule run by a worker and by a NumPy reference; used by threads and by real processes."""

import random
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce import strategies as st

WIDTH = 3
MAX_WORKERS = 6
DYADIC_RELAXATION = [Fraction(1), Fraction(1), Fraction(1, 2), Fraction(3, 2)]
ANY_RELAXATION = [*DYADIC_RELAXATION, Fraction(4, 3), Fraction(2, 3), Fraction(1, 10), Fraction(7, 4)]


@dataclass(frozen=True)
class Case:
    schedule: Schedule
    rounds: int
    exact: bool
    dtype: torch.dtype
    start: np.ndarray  # (workers, WIDTH)
    decay: np.ndarray  # (workers,) share of x that a step takes away
    push: np.ndarray  # (workers, steps, WIDTH) what a step adds


def make_case(seed):
    """A schedule with random groups, skips, relaxation, steps per round, prologue, delay and normalization, and data.

    Exact cases use dyadic numbers with few bits, so that float64 makes no rounding error in any order of operations.
    """
    rng = random.Random(seed)
    n = rng.randint(2, MAX_WORKERS)
    exact = seed % 2 == 0
    averaging = rng.choice([st.Averaging.MEAN, st.Averaging.MEAN, st.Averaging.STEP_NORMALIZED])
    worker_steps = tuple(rng.choice([1, 1, 2] if exact else [1, 1, 2, 3]) for _ in range(n))
    steps_per_round = worker_steps if rng.random() < 0.4 else rng.choice([1, 1, 2])
    is_delayed = rng.random() < 0.4
    if rng.random() < 0.12:
        n = rng.choice([2, 4]) if exact else n
        steps_per_round = (
            steps_per_round
            if isinstance(steps_per_round, int)
            else steps_per_round[:n] + steps_per_round[: max(0, n - len(steps_per_round))]
        )
        strategy: st.AllReduce | st.StaticGroups = st.AllReduce(
            steps_per_round=steps_per_round,
            sync=st.DelayedAveraging() if is_delayed else st.Synchronous(),
            averaging=averaging,
        )
    else:
        prologue = rng.choice([0, 0, 1]) if not exact or n in (2, 4) else 0
        phases = tuple(random_phase(rng, n, exact=exact) for _ in range(rng.randint(1, 3)))
        strategy = st.StaticGroups(
            phases=st.GroupPhases(phases),
            steps_per_round=steps_per_round,
            prologue=prologue,
            sync=st.DelayedAveraging() if is_delayed else st.Synchronous(),
            averaging=averaging,
        )
    schedule = Schedule(f"random {seed}", Cluster.regular(1, n), strategy)
    rounds = rng.randint(1, 4 if exact else 6)
    steps = rounds * int(schedule.worker_steps().max())
    numbers = np.random.default_rng(seed)
    draw = (lambda *shape: numbers.integers(-8, 9, shape) / 4.0) if exact else (lambda *s: numbers.normal(size=s))
    decay = numbers.choice([0.0, 0.5], n) if exact else numbers.uniform(0, 0.5, n)
    dtype = torch.float64 if exact else rng.choice([torch.float64, torch.float32])
    start = draw(n, WIDTH)
    if strategy.averages_gradients:
        start[:] = start[0]
    return Case(schedule, rounds, exact, dtype, start, decay, draw(n, steps, WIDTH))


def random_phase(rng, n, *, exact):
    workers = rng.sample(range(n), n)
    groups = []
    while len(workers) >= 2 and rng.random() < 0.9:
        sizes = [size for size in ([2, 4] if exact else range(2, n + 1)) if size <= len(workers)]
        size = rng.choice(sizes)
        members, workers = workers[:size], workers[size:]
        groups.append(st.Group(tuple(sorted(members)), rng.choice(DYADIC_RELAXATION if exact else ANY_RELAXATION)))
    return st.Phase.from_groups(n, groups)


def reference(case):
    """Final parameters (workers, WIDTH) by dense matrices in float64, and the largest number met on the way."""
    schedule, strategy = case.schedule, case.schedule.strategy
    n = schedule.num_workers
    worker_steps = schedule.worker_steps()
    gradients = isinstance(strategy, st.AllReduce) and strategy.averages_gradients
    x, largest = case.start.copy(), float(np.abs(case.start).max())
    done = np.zeros(n, dtype=int)
    for round_ in range(case.rounds):
        if gradients:
            gradient = (case.decay[:, None] * x - case.push[:, round_]).mean(axis=0)
            x = x - gradient
            largest = max(largest, float(np.abs(x).max()))
            continue
        begin = x.copy()
        for worker in range(n):
            for _ in range(worker_steps[worker]):
                x[worker] = x[worker] - (case.decay[worker] * x[worker] - case.push[worker, done[worker]])
                largest = max(largest, float(np.abs(x[worker]).max()))
                done[worker] += 1
        w, scaled = mixing_of_round(schedule, round_)
        for members, steps_per_round in scaled if strategy.averaging is st.Averaging.STEP_NORMALIZED else ():
            factor = steps_per_round / worker_steps[members]
            x[members] = begin[members] + factor[:, None] * (x[members] - begin[members])
            largest = max(largest, float(np.abs(x).max()))
        x = w @ begin + (x - begin) if strategy.is_delayed else w @ x
        largest = max(largest, float(np.abs(x).max()))
    return x, largest


def mixing_of_round(schedule, round_):
    """W, and to which steps_per_round who scales what it moved where averaging is step-normalized."""
    worker_steps, scaled, w = schedule.worker_steps(), [], np.eye(schedule.num_workers)
    if isinstance(schedule.strategy, st.NeighborAveraging):
        edges = list(schedule.strategy.rounds[round_ % len(schedule.strategy.rounds)].edges())
        for source, target, weight in edges:
            w[target, source] = float(weight)
            w[target, target] -= float(weight)
        return w, [(sorted({worker for edge in edges for worker in edge[:2]}), float(worker_steps.mean()))]
    for group in groups_of_round(schedule, round_):
        members, relaxation = list(group.members), float(group.relaxation)
        scaled.append((members, float(worker_steps[members].mean())))
        for i in members:
            w[i, members] = relaxation / len(members)
            w[i, i] += 1 - relaxation
    return w, scaled


def groups_of_round(schedule, round_):
    strategy = schedule.strategy
    if isinstance(strategy, st.AllReduce) or round_ < strategy.prologue:
        return [st.Group(tuple(range(schedule.num_workers)))]
    return list(strategy.phases.phases[(round_ - strategy.prologue) % len(strategy.phases)])


class Quadratic(torch.nn.Module):
    """Parameters whose gradient is decay · x − push."""

    def __init__(self, start, dtype):
        super().__init__()
        self.first = torch.nn.Parameter(torch.tensor(start[:1], dtype=dtype))
        self.rest = torch.nn.Parameter(torch.tensor(start[1:], dtype=dtype))

    def values(self):
        return torch.cat([self.first, self.rest]).detach()

    def set_gradient(self, decay, push):
        gradient = decay * self.values() - torch.tensor(push, dtype=self.first.dtype)
        self.first.grad, self.rest.grad = gradient[:1].clone(), gradient[1:].clone()


def run_case(case, world):
    """Run the case as one worker; a sentence if the result is not the reference's, None if it is."""
    rank = world.rank
    model = Quadratic(case.start[rank], case.dtype)
    optimizer = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0, foreach=False),
        model,
        case.schedule,
        timeout=60,
        initial="keep",
        world=world,
    )
    steps = case.rounds * case.schedule.steps_per_round_of(rank)
    for step in range(steps):
        model.set_gradient(float(case.decay[rank]), case.push[rank, step])
        optimizer.step()
    optimizer.runner.drain()
    wanted, largest = reference(case)
    got = model.values().double().numpy()
    error = float(np.abs(got - wanted[rank]).max())
    allowed = 0.0 if case.exact else 16 * max(1, steps) * torch.finfo(case.dtype).eps * max(1.0, largest)
    if error <= allowed:
        return None
    return f"{case.schedule.name}, worker {rank}: {got} instead of {wanted[rank]}; error {error:g} > {allowed:g}"
