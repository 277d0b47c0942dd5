"""A random run of a pipeline by a worker, and a replay of Algorithm 1 of Pipe-SGD in NumPy (NeurIPS 2018).

Gradients are functions of the parameters, the worker and the step, written once for torch and once for NumPy. Exact
cases use dyadic numbers with few bits, so that float64 rounds nothing in any order of additions.
"""

import contextlib
import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch

from partreduce import Cluster, DistributedOptimizer, Schedule, load_checkpoint, save_checkpoint
from partreduce.strategies import AllReduce, DrainPolicy, GradientReduction, Pipeline

SIZES = (3, 2)
"""Numbers in the two parameters; of the second one not every worker has a gradient in each step."""
MAX_WORKERS = 4


@dataclass(frozen=True)
class Case:
    seed: int
    num_workers: int
    sync: Pipeline
    optimizer: str
    exact: bool
    lengths: tuple[int, ...]
    """Steps of each worker; unequal ones under join()."""
    clip: str
    """`local`: each worker's own gradient before step(); `late`: the mean, after average_gradients()."""
    skips: frozenset[tuple[int, int]]
    absent: frozenset[tuple[int, int]]
    """(worker, step) at which the second parameter has no gradient."""
    save_after: int | None
    start: tuple[tuple[float, ...], ...] = field(repr=False)
    slopes: np.ndarray = field(repr=False)
    pushes: np.ndarray = field(repr=False)
    """(workers, steps, numbers): the gradient is slope · round(8 x) / 8 + push."""

    @property
    def schedule(self):
        return Schedule(f"pipeline {self.seed}", Cluster.regular(1, self.num_workers), AllReduce(sync=self.sync))

    @property
    def steps(self):
        return max(self.lengths)

    @property
    def joins(self):
        return len(set(self.lengths)) > 1


SGDS = {
    "sgd": {"lr": 0.25},
    "momentum": {"lr": 0.125, "momentum": 0.5},
    "nesterov": {"lr": 0.125, "momentum": 0.5, "nesterov": True},
    "decay": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05},
}
ADAM = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.02}
BOUND = 0.25


def make_case(seed):
    rng = random.Random(f"pipeline {seed}")
    exact = seed % 2 == 0
    n = rng.choice([2, 4]) if exact else rng.randint(2, MAX_WORKERS)
    width = rng.choice([2, 2, 3])
    sync = Pipeline(
        width=width,
        warm_up=rng.choice([0, 0, 1, 2, 3]),
        drain=rng.choice(list(DrainPolicy)),
        total=rng.choice(list(GradientReduction)),
    )
    optimizer = rng.choice(["sgd", "momentum", "nesterov"] if exact else ["decay", "adam", "adam"])
    steps = rng.randint(2, 10)
    clip = rng.choice(["", "", "local", "late"])
    joins = clip != "late" and rng.random() < 0.25
    lengths = tuple(rng.randint(0, steps) if joins else steps for _ in range(n))
    lengths = lengths if max(lengths) else (steps,) * n
    cells = [(worker, step) for worker in range(n) for step in range(lengths[worker])]
    skips = [cell for cell in cells if clip != "late" and rng.random() < 0.08]
    absent = [cell for cell in cells if rng.random() < 0.4]
    draws = np.random.default_rng(seed)
    slopes = draws.choice([-1.0, 0.0, 0.5, 1.0], (n, steps, sum(SIZES)))
    pushes = draws.integers(-8, 9, (n, steps, sum(SIZES))) / 8
    return Case(
        seed=seed,
        num_workers=n,
        sync=sync,
        optimizer=optimizer,
        exact=exact,
        lengths=lengths,
        clip=clip,
        skips=frozenset(skips),
        absent=frozenset(absent),
        save_after=rng.randint(1, steps - 1) if not joins and rng.random() < 0.2 else None,
        start=tuple(tuple(rng.randint(-16, 16) / 8 for _ in range(size)) for size in SIZES),
        slopes=slopes,
        pushes=pushes,
    )


# One worker of the run-time


class Model(torch.nn.Module):
    def __init__(self, start):
        super().__init__()
        first, second = (torch.tensor(values, dtype=torch.float64) for values in start)
        self.first, self.second = torch.nn.Parameter(first), torch.nn.Parameter(second)


def _wrapped(case, world):
    model = Model(case.start)
    if case.optimizer == "adam":
        inner: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    else:
        inner = torch.optim.SGD(model.parameters(), **SGDS[case.optimizer])
    return model, DistributedOptimizer(inner, model, case.schedule, timeout=60, world=world)


def run_case(case, world, folder):
    """What the model holds after each step of this worker, and after finish()."""
    rank = world.rank
    model, optimizer = _wrapped(case, world)
    seen = []

    def numbers():
        return torch.cat([model.first.detach(), model.second.detach()]).numpy().copy()

    def take(step):
        optimizer.zero_grad()
        x = torch.from_numpy(numbers())
        gradient = torch.tensor(case.slopes[rank, step]) * torch.round(8 * x) / 8 + torch.tensor(
            case.pushes[rank, step]
        )
        model.first.grad, second = (part.clone() for part in gradient.split(SIZES))
        model.second.grad = None if (rank, step) in case.absent else second
        if (rank, step) in case.skips:
            optimizer.skip()
            return
        if case.clip == "late":
            optimizer.average_gradients()
        if case.clip:
            torch.nn.utils.clip_grad_value_(model.parameters(), BOUND)
        optimizer.step()

    with optimizer.join() if case.joins else contextlib.nullcontext():
        for step in range(case.lengths[rank]):
            take(step)
            seen.append(numbers())
            if step + 1 == case.save_after:
                save_checkpoint(optimizer, folder)
                take(step + 1)  # what comes after the checkpoint is forgotten
                optimizer.finish()
                model, optimizer = _wrapped(case, world)
                assert load_checkpoint(optimizer, folder) is not None
    optimizer.finish()
    return seen, numbers()


# The replay


class _Rule:
    """U: what SGD and Adam do with a gradient, by their papers, one parameter at a time."""

    def __init__(self, name):
        self.name, self.state = name, [{} for _ in SIZES]

    def __call__(self, x, gradients):
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                (self._adam if self.name == "adam" else self._sgd)(x[index], gradient, self.state[index])

    def _sgd(self, x, gradient, state):
        options = SGDS[self.name]
        direction = gradient + options.get("weight_decay", 0.0) * x
        if "momentum" in options:
            velocity = options["momentum"] * state["v"] + direction if "v" in state else direction.copy()
            state["v"] = velocity
            direction = direction + options["momentum"] * velocity if options.get("nesterov") else velocity
        x -= options["lr"] * direction

    def _adam(self, x, gradient, state):
        (b1, b2), t = ADAM["betas"], state.get("t", 0) + 1
        gradient = gradient + ADAM["weight_decay"] * x
        m = b1 * state.get("m", 0.0) + (1 - b1) * gradient
        v = b2 * state.get("v", 0.0) + (1 - b2) * gradient**2
        state |= {"t": t, "m": m, "v": v}
        x -= ADAM["lr"] * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + ADAM["eps"])


def replay(case):
    """(steps, numbers) after each step, and the numbers at the end."""
    x = [np.array(values) for values in case.start]
    update, on_their_way, seen = _Rule(case.optimizer), deque(), []
    lag = case.sync.width - 1
    holds = [False] * case.num_workers
    for step in range(case.steps):
        for worker in range(case.num_workers):
            if step < case.lengths[worker]:
                holds[worker] = (worker, step) not in case.absent
        total = _total(case, step, x, somebody=any(holds))
        if step < case.sync.warm_up:
            late = total
        else:
            late = on_their_way.popleft() if len(on_their_way) == lag else [np.zeros(size) for size in SIZES]
            on_their_way.append(total)
        if case.clip == "late":
            late = [None if part is None else part.clip(-BOUND, BOUND) for part in late]
        update(x, late)
        holds = [late[1] is not None] * case.num_workers  # who has no data zeroes, and sends, what the step left
        seen.append(np.concatenate(x))
    if case.sync.drain is DrainPolicy.APPLY:
        for late in on_their_way:
            update(x, late)
    return seen, np.concatenate(x)


def _total(case, step, x, *, somebody):
    """The mean, or the sum, of all workers' gradients; None for a second parameter of which nobody has one."""
    count = case.num_workers if case.sync.total is GradientReduction.MEAN else 1
    first, second = np.zeros(SIZES[0]), np.zeros(SIZES[1])
    for worker in range(case.num_workers):
        if step >= case.lengths[worker] or (worker, step) in case.skips:
            continue
        own = case.slopes[worker, step] * np.round(8 * np.concatenate(x)) / 8 + case.pushes[worker, step]
        if case.clip == "local":
            own = own.clip(-BOUND, BOUND)
        first += own[: SIZES[0]] / count
        if (worker, step) not in case.absent:
            second += own[SIZES[0] :] / count
    return [first, second if somebody else None]
