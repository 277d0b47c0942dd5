"""What tests of outer steps and of fragments share: one worker's script, its run, and how far off a reference it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from partreduce.runtime.optimizer import DistributedOptimizer

INNER = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, eps=1e-4),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
}


class Worker:
    """One worker's model, data, inner optimizer and learning-rate scheduler, as a user's script has them.

    `case` has a `schedule`, and says by `inner`, `clip` and `decay` how it trains; who inherits says with what data.
    """

    def __init__(self, case: Any, rank: int, model: torch.nn.Module) -> None:
        self.case, self.rank, self.taken, self.model = case, rank, 0, model
        self.inner = INNER[case.inner](model.parameters())

    def backward(self) -> None:
        """Gradients of the next step, clipped."""
        raise NotImplementedError

    def clip(self) -> None:
        if self.case.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.case.clip)

    def values(self) -> torch.Tensor:
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.model.parameters()])


class Training:
    """One worker's run, that may stop between any two steps."""

    def __init__(self, world, worker: Worker, **options):
        self.worker = worker
        self.optimizer = DistributedOptimizer(
            worker.inner, worker.model, worker.case.schedule, world=world, **{"timeout": 120} | options
        )

    def steps(self, count: int) -> torch.Tensor:
        for _ in range(count):
            self.worker.taken = self.optimizer.steps
            self.optimizer.zero_grad()
            self.worker.backward()
            self.optimizer.step()
        return self.worker.values()

    def to_the_end(self, count: int) -> torch.Tensor:
        """Steps on uneven data: each worker has two fewer than the one before, and all end with the first's round."""
        with self.optimizer.join():
            self.steps(count - 2 * self.worker.rank)
        return self.worker.values()


def trained(worker: Worker, world, steps: int, *, ended: Callable[[DistributedOptimizer], bool]) -> torch.Tensor:
    """Train as one worker, whose data ends after so many steps; the parameters before the run ends."""
    optimizer = DistributedOptimizer(worker.inner, worker.model, worker.case.schedule, timeout=120, world=world)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, worker.case.decay)
    with optimizer.join():
        for _ in range(steps):
            optimizer.zero_grad()
            worker.backward()
            optimizer.step()
            scheduler.step()
    assert ended(optimizer)
    last = worker.values()
    optimizer.finish()
    return last


def difference(case: Any, wanted: Sequence[torch.Tensor], got: dict[int, torch.Tensor]) -> str:
    """How these workers' models differ from the reference by more than the order of sums explains; empty if not."""
    error = max(float((values - wanted[rank]).abs().max()) for rank, values in got.items())
    return "" if error <= 1e-9 else f"{case.schedule.name}: off by {error:g}; {case}"
