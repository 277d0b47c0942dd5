"""FrameworkRun: a DistributedOptimizer inside a framework that owns the training loop."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch

from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.runtime.schedule_file import read_schedule
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.iteration_gap import IterationGap


class FrameworkRun:
    """What a script does around `step()`, on the events of a framework, which come on all workers.

    Args:
        optimizer, model, schedule, options: as `DistributedOptimizer` takes them.
        who: the adapter, for messages.
        clipping: the framework's setting that clips gradients before `step()`, if it is in use.

    Raises:
        InputError: a schedule that a loop of equally many steps on all workers cannot follow, or clipping where the
            schedule averages gradients: it would act on each worker's own.
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
        if len(set(schedule.worker_steps())) > 1 or (isinstance(sync, IterationGap) and sync.skip is not None):
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
        """From here to `give_back` the model holds the mean over all workers: evaluate or save it."""
        if not self.holds_mean and not self.optimizer.ending.is_finished:
            self._mean.enter_context(self.optimizer.mean_model())
            self.holds_mean = True

    def give_back(self) -> None:
        """Each worker has its own parameters again."""
        self._mean.close()
        self.holds_mean = False

    def finish(self) -> None:
        """End the run with the mean over all workers in the model."""
        self.give_back()
        self.optimizer.finish()
