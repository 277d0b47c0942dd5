"""Run a schedule as a strategy of Lightning's Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn

from partreduce.runtime.adapters.framework import FrameworkRun
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule

WHO = "ScheduleStrategy"


class ScheduleStrategy(DDPStrategy):  # type: ignore[misc]
    """Lightning strategy that starts processes as `ddp` does and averages parameters or gradients by a schedule.

        trainer = Trainer(strategy=ScheduleStrategy("schedule.json"), devices=4)

    Validation and checkpoints during `fit`, and the model after it, use the mean over all workers. A checkpoint also
    holds worker 0's optimizer state, from which all workers resume.

    Args:
        schedule: a Schedule or the path of a schedule file, in which all workers take equally many steps.
        options: further arguments of `DistributedOptimizer`.
    """

    optimizers: Any  # of the base class, whose types are not known where Lightning is not installed

    def __init__(self, schedule: Schedule | str | Path, **options: Any) -> None:  # noqa: ANN401 - of DistributedOptimizer
        super().__init__()
        self.schedule, self.options = schedule, options
        self.run: FrameworkRun | None = None

    def configure_ddp(self) -> None:
        """Leave the model unwrapped: the schedule averages in place of DDP."""

    def setup_optimizers(self, trainer: Any) -> None:  # noqa: ANN401 - of the library
        """Wrap the module's optimizer in a DistributedOptimizer.

        Raises:
            InputError: several optimizers, fp16, or a schedule that does not fit Lightning's loop.
        """
        super().setup_optimizers(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        if len(self.optimizers) != 1:
            raise InputError(
                f"{WHO}: configure_optimizers() gives {len(self.optimizers)} optimizers, and a schedule belongs to "
                "one; write the loop with a DistributedOptimizer for each"
            )
        if getattr(self.precision_plugin, "scaler", None) is not None:
            raise InputError(
                f"{WHO}: precision='16-mixed' skips steps on single workers; take 'bf16-mixed', which needs no scaler"
            )
        clips = trainer.gradient_clip_val
        self.run = FrameworkRun(
            self.optimizers[0],
            self.lightning_module,
            self.schedule,
            who=WHO,
            clipping=f"gradient_clip_val={clips}" if clips else "",
            **self.options,
        )
        self.optimizers = [self.run.optimizer]

    def on_validation_start(self) -> None:
        if self.run is not None:
            self.run.take_mean()

    def on_validation_end(self) -> None:
        if self.run is not None:
            self.run.give_back()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the state dict of the mean model over all workers, for a checkpoint; all workers must call it."""
        if self.run is None or self.run.holds_mean or self.run.optimizer.ending.is_finished:
            return dict(super().lightning_module_state_dict())
        self.run.take_mean()
        try:
            return {name: value.clone() for name, value in super().lightning_module_state_dict().items()}
        finally:
            self.run.give_back()

    def on_train_end(self) -> None:
        """End the run and set the model to the mean over all workers.

        Raises:
            PeerFailedError: a worker ended elsewhere, or is gone.
        """
        if self.run is not None:
            self.run.finish()
            self.run = None
