"""PilotJob: what the user's function hands to a pilot, and what its runs bring back. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from partreduce.runtime.optimizer import DistributedOptimizer
    from partreduce.topo.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotJob:
    """One worker's training job, freshly made: a pilot runs it for a few dozen steps under one schedule after another.

    The function that makes it takes a seed and draws everything from it: two calls with one seed start from the same
    parameters and bring the same batches in the same order. Batches may (and usually do) differ between workers.

    Args:
        model: the module to train; start it from a checkpoint to learn the prices of a later phase of training.
        optimizer: the plain optimizer of its parameters, not wrapped.
        batches: this worker's batches, such as a DataLoader; begun again when they end. The first few are kept for
            evaluation.
        loss: the loss of one batch.
        step: one training step with the wrapped optimizer, where it is more than `zero_grad`, `backward` and `step`.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    batches: Iterable[Any]
    loss: Callable[[Any], torch.Tensor]
    step: Callable[[DistributedOptimizer, Any], object] | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """The mean model's loss on the same evaluation batches at steps 0, every, 2·every, … of one run."""

    schedule: Schedule
    seed: int
    every: int
    losses: tuple[float, ...]

    @property
    def is_reference(self) -> bool:
        """Whether it is the synchronous All-Reduce of each step, which all are compared with."""
        return self.schedule.strategy.averages_gradients and not self.schedule.strategy.sync.lag

    @property
    def is_stable(self) -> bool:
        """Whether every loss is a number."""
        return all(map(isfinite, self.losses))
