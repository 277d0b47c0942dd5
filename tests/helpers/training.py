"""Small training jobs: strategies of listed groups, and models under a strategy on one worker of a world."""

import threading

import torch

from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce import strategies as st

one_at_a_time = threading.Lock()
"""Held by a worker, which is a thread, while it uses what belongs to the whole process."""


def build_seeded(make, seed=1):
    """Return `make()` under a seed; workers are threads that share torch's random generator."""
    with one_at_a_time:
        torch.default_generator.manual_seed(seed)  # the CPU's alone; for all devices it takes longer than the rest
        return make()


def group_phases(num_workers, *phases):
    return st.GroupPhases(tuple(st.Phase.from_groups(num_workers, groups) for groups in phases))


def static_groups(num_workers, *phases, **axes):
    return st.StaticGroups(phases=group_phases(num_workers, *phases), **axes)


def wrap(world, model, strategy, inner=None, *, lr=0.1, timeout=60, **options):
    """Return the wrapped optimizer of a model, SGD by default; a strategy is for all workers on one node."""
    inner = torch.optim.SGD(model.parameters(), lr=lr) if inner is None else inner
    is_schedule = isinstance(strategy, Schedule)
    schedule = strategy if is_schedule else Schedule("trained", Cluster.regular(1, world.size), strategy)
    return DistributedOptimizer(inner, model, schedule, world=world, timeout=timeout, **options)


class Quadratic(torch.nn.Module):
    """A model whose gradient is decay · x − push."""

    def __init__(self, start, dtype):
        super().__init__()
        self.first = torch.nn.Parameter(torch.tensor(start[:1], dtype=dtype))
        self.rest = torch.nn.Parameter(torch.tensor(start[1:], dtype=dtype))

    def values(self):
        return torch.cat([self.first, self.rest]).detach()

    def set_gradient(self, decay, push):
        gradient = decay * self.values() - torch.tensor(push, dtype=self.first.dtype)
        self.first.grad, self.rest.grad = gradient[:1].clone(), gradient[1:].clone()


def wrap_quadratic(world, strategy, start, **options):
    """Return a model that starts with a worker's own float64 numbers, and its wrapped SGD at rate 1."""
    model = Quadratic(start, torch.float64)
    inner = torch.optim.SGD(model.parameters(), lr=1.0, foreach=False)
    return model, wrap(world, model, strategy, inner, initial="keep", **options)


def push_ones(model, optimizer, steps=1):
    """Steps that add 1 to each number of such a model."""
    for _ in range(steps):
        model.set_gradient(0.0, [1.0] * len(model.values()))
        optimizer.step()


SIZES = [(3, 4), (4, 4), (4, 2), (2, 1)]


class Training:
    """A model of four layers, its optimizer, and the worker's own data; each step accumulates two batches.

    The optimizer is SGD with momentum if gradients are averaged, else AdamW with clipping.
    """

    def __init__(self, world, strategy, *, batch_norm=False, **options):
        self.rank = world.rank
        generator = torch.Generator().manual_seed(3)  # workers are threads, which share torch's own
        layers = [torch.nn.Linear(*size) for size in SIZES]
        self.model = torch.nn.Sequential(*layers, *([torch.nn.BatchNorm1d(1)] if batch_norm else [])).double()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)
        self.sums_gradients = getattr(strategy, "strategy", strategy).averages_gradients
        if self.sums_gradients:
            inner = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        else:
            inner = torch.optim.AdamW(self.model.parameters(), lr=0.02, eps=1e-4)
        self.optimizer = wrap(world, self.model, strategy, inner, **{"timeout": 120} | options)

    def backward(self):
        for part in range(2):
            seed = 3000 + 20 * self.optimizer.steps + 2 * self.rank + part
            inputs = outputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            for layer in self.model:
                outputs = torch.tanh(layer(outputs))
            (0.5 * (outputs[:, 0] - (inputs.sum(1) + self.rank).sin()).square().mean()).backward()
        if not self.sums_gradients:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)

    def values(self):
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.model.parameters()])

    def steps(self, count):
        for _ in range(count):
            self.optimizer.zero_grad()
            self.backward()
            self.optimizer.step()
        return self.values()

    def to_the_end(self, count):
        """Train on uneven data, two steps fewer on each next worker, until the first worker has ended."""
        with self.optimizer.join():
            self.steps(count - 2 * self.rank)
        return self.values()


def note_end_of_script(optimizer):
    """Note that this rank's script stopped, as its end does for a process, so that others need not wait for it."""
    optimizer.run.reducer.heartbeat.note("left", "stopped")
