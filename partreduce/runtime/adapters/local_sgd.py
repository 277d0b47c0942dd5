"""ScheduleLocalSGD: accelerate's `LocalSGD` with a schedule for "all workers, every K steps"."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from partreduce.runtime.adapters.averager import ScheduleAverager, tensors_of
from partreduce.runtime.averaging.p_reduce import p_reduce
from partreduce.topo.argument_types import check_arguments
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule

WHOLE = ("NO", "MULTI_CPU", "MULTI_GPU")
"""Where accelerate leaves every process a whole model and the averaging to DDP, which can be silenced."""


class ScheduleLocalSGD:
    """Inside, workers train by themselves and average parameters as a schedule says; at the end all take the mean.

        with ScheduleLocalSGD(accelerator, model, "schedule.json") as local_sgd:
            for batch in loader:
                with accelerator.accumulate(model):
                    ...
                    optimizer.step()
                    local_sgd.step()

    Steps count where accelerate's optimizer takes them, so not while gradients are accumulated.

    Args:
        accelerator: an `accelerate.Accelerator` of processes that each have a whole model.
        model: as `accelerator.prepare` gave it.
        schedule: as `ScheduleAverager` takes it.
        enabled: without it nothing is changed.
        timeout: seconds that an average may wait for its members.

    Raises:
        InputError: a model that is spread over processes, or a schedule that averages otherwise.
    """

    @check_arguments
    def __init__(
        self,
        accelerator: Any,  # noqa: ANN401 - of a library that need not be installed
        model: torch.nn.Module,
        schedule: Schedule | str | Path,
        enabled: bool = True,
        *,
        timeout: float = 300.0,
    ) -> None:
        check_spread_models(accelerator, "ScheduleLocalSGD")
        self.enabled = enabled and accelerator.num_processes > 1
        self.accelerator, self.model = accelerator, model
        self._averager = ScheduleAverager(schedule, timeout=timeout) if self.enabled else None
        self._silence = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self.enabled:
            self._silence.enter_context(self.accelerator.no_sync(self.model))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._silence.close()
        if self._averager is not None and kind is None:
            everyone = range(self._averager.schedule.num_workers)
            p_reduce(tensors_of(self.model.parameters()), everyone, timeout=self._averager.timeout)

    def step(self) -> None:
        """Count a step that the optimizer has taken, and average where a round of the schedule ends.

        Raises:
            PeerFailedError: a member of the group is gone or late.
        """
        if self._averager is not None and self.accelerator.sync_gradients:
            self._averager.average_parameters(self.model.parameters())


def check_spread_models(accelerator: Any, who: str) -> None:  # noqa: ANN401 - of a library that need not be installed
    """Refuse an Accelerator whose processes do not have a whole model each."""
    if not hasattr(accelerator, "distributed_type"):
        raise InputError(f"{who}: accelerator: expected accelerate.Accelerator, got {type(accelerator).__name__}")
    kind = accelerator.distributed_type.value
    if kind not in WHOLE:
        raise InputError(
            f"{who}: accelerate runs as {kind}, where models are not whole or averaged elsewhere; it runs as one of "
            f"{', '.join(WHOLE)}, and sharded models need DistributedOptimizer(..., mesh=...)"
        )
