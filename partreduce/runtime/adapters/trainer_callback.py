"""Run a schedule as a callback of the Hugging Face Trainer."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback

from partreduce.runtime.adapters.averager import check_spread_models
from partreduce.runtime.adapters.framework import FrameworkRun
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule

WHO = "ScheduleCallback"


class ScheduleCallback(TrainerCallback):  # type: ignore[misc]
    """Callback of the Hugging Face Trainer that averages by a schedule, in place of DDP's gradient average.

        trainer = Trainer(model, args, train_dataset=data)
        trainer.add_callback(ScheduleCallback(trainer, "schedule.json"))
        trainer.train()

    Add it as the last callback. Evaluation and checkpoints use the mean over all workers, as does the final model. A
    checkpoint also holds worker 0's optimizer state, from which all workers resume: a resumed run does not continue bit
    for bit, and starts the schedule at its first round.

    Args:
        trainer: a Trainer that runs DDP, or a single process.
        schedule: a Schedule or the path of a schedule file, in which all workers take equally many steps.
        options: further arguments of `DistributedOptimizer`.
    """

    def __init__(self, trainer: Trainer, schedule: Schedule | str | Path, **options: Any) -> None:  # noqa: ANN401 - of DistributedOptimizer
        self.trainer, self.schedule, self.options = trainer, schedule, options
        self.run: FrameworkRun | None = None
        self._silence = contextlib.ExitStack()

    def on_train_begin(self, args: Any, *_: object, **__: object) -> None:  # noqa: ANN401 - of the library
        """Wrap the Trainer's optimizer in a DistributedOptimizer, and turn off DDP's gradient average.

        Raises:
            InputError: a model sharded over processes, fp16, or a schedule that does not fit the Trainer's loop.
        """
        trainer = self.trainer
        check_spread_models(trainer.accelerator, WHO)
        if trainer.accelerator.scaler is not None:
            raise InputError(f"{WHO}: fp16=True skips steps on single workers; take bf16=True, which needs no scaler")
        if not trainer.accelerator._models:  # noqa: SLF001 - a second train(), whose evaluation would move the model
            trainer.accelerator.prepare_model(trainer.model, evaluation_mode=True)
        prepared = trainer.optimizer
        self.run = FrameworkRun(
            prepared.optimizer,
            trainer.model,
            self.schedule,
            who=WHO,
            clipping=f"max_grad_norm={args.max_grad_norm}" if args.max_grad_norm else "",
            **self.options,
        )
        prepared.optimizer = self.run.optimizer
        if isinstance(trainer.model_wrapped, DistributedDataParallel):
            self._silence.enter_context(trainer.model_wrapped.no_sync())

    def on_step_end(self, _args: object, _state: object, control: Any, **_: object) -> None:  # noqa: ANN401 - of the library
        """Replace the model's parameters by the mean over all workers if the Trainer will evaluate or save."""
        if self.run is not None and (control.should_evaluate or control.should_save):
            self.run.take_mean()

    def on_step_begin(self, *_: object, **__: object) -> None:
        if self.run is not None:
            self.run.give_back()

    on_epoch_end, on_epoch_begin = on_step_end, on_step_begin

    def on_train_end(self, *_: object, **__: object) -> None:
        """End the run: set the model to the mean over all workers, and return the original optimizer to the Trainer.

        Raises:
            PeerFailedError: a worker ended elsewhere, or is gone.
        """
        if self.run is not None:
            self.run.finish()
            self.trainer.optimizer.optimizer = self.run.optimizer.optimizer
            self.run = None
        self._silence.close()
