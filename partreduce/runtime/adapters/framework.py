"""Use a DistributedOptimizer inside a framework that owns the training loop or keeps its own optimizer."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from partreduce.runtime.arguments import read_schedule
from partreduce.runtime.guard.wrapping import FOLLOWS
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.iteration_gap import IterationGap

VERDICTS = ("found_inf", "grad_scale")  # attributes that a GradScaler sets on an optimizer before its `step()`


class FrameworkRun:
    """A DistributedOptimizer driven by a framework's callbacks: start of training, evaluation, end of training.

    Every worker calls the same methods in the same order.

    Args:
        optimizer: the framework's optimizer.
        model: the model that it trains.
        schedule: a Schedule or the path of a schedule file.
        who: name of the adapter, for error messages.
        clipping: the framework's setting that clips gradients before `step()`, for error messages; empty if unused.
        options: further arguments of `DistributedOptimizer`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        schedule: Schedule | str | Path,
        *,
        who: str,
        clipping: str = "",
        **options: Any,  # noqa: ANN401 - of DistributedOptimizer
    ) -> None:
        schedule = read_schedule(schedule)
        strategy, sync = schedule.strategy, schedule.strategy.sync
        if not schedule.has_one_steps_per_round or (isinstance(sync, IterationGap) and sync.skip is not None):
            raise InputError(
                f"{who}: schedule {schedule.name!r} has workers take different numbers of steps, and the framework's "
                "loop gives all of them equally many; write the loop with DistributedOptimizer and optimizer.batches()"
            )
        if clipping and strategy.averages_gradients:
            raise InputError(
                f"{who}: {clipping} clips each worker's own gradient, and schedule {schedule.name!r} averages "
                "gradients after that; switch it off, or average parameters, as `allreduce` does with "
                "steps_per_round above 1"
            )
        self.optimizer = DistributedOptimizer(optimizer, model, schedule, **options)
        self._mean = contextlib.ExitStack()
        self.holds_mean = False

    def take_mean(self) -> None:
        """Replace the model's parameters by the mean over all workers, to evaluate or save it, until `give_back`."""
        if not self.holds_mean and not self.optimizer.ending.is_finished:
            self._mean.enter_context(self.optimizer.mean_model())
            self.holds_mean = True

    def give_back(self) -> None:
        self._mean.close()
        self.holds_mean = False

    def finish(self) -> None:
        self.give_back()
        self.optimizer.finish()


def attach(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    schedule: Schedule | str | Path,
    **options: Any,  # noqa: ANN401 - of DistributedOptimizer
) -> DistributedOptimizer:
    """Make an optimizer's own `step()` follow a schedule, for frameworks that keep the optimizer and the training loop.

        attached = partreduce.attach(optimizer, model, "schedule.json")
        trainer = SomebodysTrainer(model, optimizer)   # calls optimizer.step(), with a closure or a GradScaler or not
        trainer.train()
        attached.finish()

    Learning-rate schedulers and step hooks stay with the optimizer; a hook runs once per step. `optimizer.state_dict()`
    is unchanged. Save and load `attached.state_dict()` instead, which adds the step count and the gradients that are
    not applied yet.

    Args:
        optimizer: the optimizer of `model`; its `step` is replaced.
        model: see `DistributedOptimizer`.
        schedule: see `DistributedOptimizer`.
        options: further arguments of `DistributedOptimizer`.

    Returns:
        The DistributedOptimizer, for `mean_model()`, `finish()` and so on. Its `step()` is the optimizer's.

    Raises:
        InputError: the optimizer follows a schedule already; for others see `DistributedOptimizer`.
    """
    attached = DistributedOptimizer(optimizer, model, schedule, **options)
    applier, plain = attached.run.applier, optimizer.step

    @functools.wraps(plain)
    def step(owner: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - torch's
        if applier.is_stepping:
            return plain() if closure is None else plain(closure)
        verdict = {name: vars(owner).pop(name) for name in VERDICTS if name in vars(owner)}
        vars(attached).update(verdict)
        try:
            return attached.step(closure)
        finally:
            for name in verdict:
                vars(attached).pop(name, None)
            vars(owner).update(verdict)  # the GradScaler deletes them itself

    setattr(step, FOLLOWS, True)
    # A step hook can neither skip a step nor add one, so `step` itself is replaced, as learning-rate schedulers do.
    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]  # noqa: SLF001 - as DistributedOptimizer says
    return attached
