"""Run a schedule through torch's model averagers, DDP's communication hook, or accelerate's LocalSGD.

Register the DDP hook with `model.register_comm_hook(ScheduleHookState(...), schedule_hook)`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from partreduce.runtime.arguments import checked_choice, checked_timeout, read_schedule
from partreduce.runtime.averaging.p_reduce import p_reduce, queue_p_reduce
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.transport.rendezvous import is_alone, log_single_process, place
from partreduce.runtime.transport.torch_api import GradBucket
from partreduce.runtime.transport.worlds import World
from partreduce.topo.argument_types import check_arguments
from partreduce.topo.describe import describe
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Group
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.base import Averaging

WHOLE = ("NO", "MULTI_CPU", "MULTI_GPU")  # distributed types with a full model per process and DDP's `no_sync`


class ScheduleAverager:
    """Model averager for PyTorch: call `average_parameters` after each step, and it averages when the schedule says so.

    Unlike torch's averagers it averages over any groups of the schedule, averages parameters without gradient too, and
    averages after the last step of a round. `DistributedOptimizer` does the same with checks, overlap and flat buffers;
    prefer it if the training loop may change.

    Args:
        schedule: a Schedule or the path of a schedule file, which averages parameters over groups, without overlap.
        warmup_steps: steps before the first round of the schedule, without averages.
        timeout: seconds that an average may wait for its members.
        world: connection to the other workers; by default from the process group or the launcher's environment.

    Raises:
        InputError: a schedule that averages otherwise, or for another number of workers; or negative `warmup_steps`.
    """

    @check_arguments
    def __init__(
        self,
        schedule: Schedule | str | Path,
        *,
        warmup_steps: int = 0,
        timeout: float = 300.0,
        world: World | None = None,
    ) -> None:
        self.schedule = read_schedule(schedule)
        check_strategy(self.schedule, "ScheduleAverager")
        if self.schedule.strategy.averages_gradients:
            raise InputError(
                f"ScheduleAverager: schedule {self.schedule.name!r} averages gradients in each step; it needs "
                "DistributedOptimizer or schedule_hook, or steps_per_round above 1"
            )
        self.rank, size = (world.rank, world.size) if world is not None else place()
        self._alone = is_alone(world)
        if self._alone:
            log_single_process(self.schedule)
        elif size != self.schedule.num_workers:
            raise InputError(
                f"schedule {self.schedule.name!r}: is for {self.schedule.num_workers} workers and this run has {size}"
            )
        if warmup_steps < 0:
            raise InputError(f"warmup_steps: is {warmup_steps}; it is a number of steps >= 0")
        self.warmup_steps, self.timeout, self.world = warmup_steps, checked_timeout(timeout), world
        self.step = 0

    def average_parameters(self, params: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]]) -> None:
        """Count a step; after a round's last step replace the parameters by the group's mean, in place.

        Args:
            params: parameters, or an optimizer's `param_groups`.

        Raises:
            PeerFailedError: a member of the group is gone or late; the parameters are unchanged.
        """
        done = self.step - self.warmup_steps + 1
        self.step += 1
        steps_per_round = self.schedule.steps_per_round_of(self.rank)
        if self._alone or done < 1 or done % steps_per_round:
            return
        group = self.schedule.group_of(self.rank, done // steps_per_round - 1)
        if group is not None:
            p_reduce(tensors_of(params), group, timeout=self.timeout, world=self.world)


def tensors_of(params: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]]) -> list[torch.Tensor]:
    """Return the data of parameters, or of an optimizer's parameter groups, each tensor once."""
    tensors: dict[int, torch.Tensor] = {}
    for entry in params:
        for parameter in [entry] if isinstance(entry, torch.Tensor) else entry["params"]:
            tensors.setdefault(id(parameter), parameter.detach())
    return list(tensors.values())


def check_strategy(schedule: Schedule, who: str) -> None:
    """Raise InputError unless a schedule takes plain means over groups, without delay, codec, tables or outer steps.

    `who` begins the message.
    """
    strategy, payload = schedule.strategy, schedule.strategy.payload
    by_steps = not schedule.has_one_steps_per_round and strategy.averaging is not Averaging.MEAN
    has_other_rounds = not schedule.is_phased or strategy.is_delayed or by_steps or strategy.takes_turns
    if has_other_rounds or strategy.transport.codec.rounds or payload.apart or not payload.outer.is_plain:
        raise InputError(f"{who}: schedule {schedule.name!r} ({describe(schedule)}) needs DistributedOptimizer")


class HookGradients(StrEnum):
    """Use of gradients by `schedule_hook`: leave them local, or average them over the schedule's group."""

    LOCAL = "local"  # nothing is sent: a ScheduleAverager averages parameters instead, as in post-local SGD

    GROUP = "group"  # the mean over the group of the round; workers without a group keep their own


class ScheduleHookState:
    """State of `schedule_hook` for one DDP model; counts its backward passes.

    Args:
        schedule: the schedule whose groups average. If it averages gradients (all-reduce in each step), the hook always
            does.
        gradients: `local` (default) to leave gradients unaveraged, or `group` to average them over the round's group.
        all_reduce_steps: number of first steps in which gradients are averaged over all workers.
        timeout: seconds that an average may wait for its members.
        world: connection to the other workers; by default from the process group.

    Raises:
        InputError: a schedule that averages neither gradients nor over groups, or with delay, codec, tables, outer
            steps, or step-normalized averaging of unequal steps per round.
    """

    @check_arguments
    def __init__(
        self,
        schedule: Schedule | str | Path,
        *,
        gradients: HookGradients | str = HookGradients.LOCAL,
        all_reduce_steps: int = 0,
        timeout: float = 300.0,
        world: World | None = None,
    ) -> None:
        self.schedule = read_schedule(schedule)
        check_strategy(self.schedule, "schedule_hook")
        self.gradients = HookGradients(checked_choice("gradients", gradients, HookGradients))
        self.all_reduce_steps, self.timeout, self.world = all_reduce_steps, checked_timeout(timeout), world
        self.rank = world.rank if world is not None else place()[0]
        self.step = 0
        self.queued: Reducer | None = None

    def finish(self) -> None:
        """Wait for a CUDA device after the last step, so that a failure of the last average is reported.

        Raises:
            PeerFailedError: an average failed.
        """
        if self.queued is not None:
            self.queued.flush()

    def group(self) -> Group | None:
        """Return the group over which the gradients of this backward pass are averaged; None for no average."""
        everyone = Group(tuple(range(self.schedule.num_workers)))
        if self.step < self.all_reduce_steps or self.schedule.strategy.averages_gradients:
            return everyone
        if self.gradients is HookGradients.LOCAL:
            return None
        return self.schedule.group_of(self.rank, self.step // self.schedule.steps_per_round_of(self.rank))


@check_arguments
def schedule_hook(state: ScheduleHookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of DDP gradients over the schedule's group, or leave it local; a DDP communication hook.

    Args:
        state: the state of this model's hook, for all its buckets.
        bucket: a bucket of DDP, with gradients of one dtype on one device.

    Returns:
        A future of the bucket's flat gradients, averaged in place.

    Raises:
        PeerFailedError: a member of the group is gone or late.
    """
    group = state.group()
    buffer = bucket.buffer()
    if group is not None:
        state.queued = queue_p_reduce(buffer, group, timeout=state.timeout, world=state.world)
    if bucket.is_last():
        state.step += 1
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(buffer)
    return future


# DDP compares a hook's annotations with the classes themselves, which deferred annotations are not.
schedule_hook.__annotations__.update({"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]})


class ScheduleLocalSGD:
    """Context manager like accelerate's LocalSGD: averages parameters by a schedule, and over all workers at the end.

        with ScheduleLocalSGD(accelerator, model, "schedule.json") as local_sgd:
            for batch in loader:
                with accelerator.accumulate(model):
                    ...
                    optimizer.step()
                    local_sgd.step()

    Only steps that accelerate's optimizer takes count, not the batches whose gradients are accumulated.

    Args:
        accelerator: an `accelerate.Accelerator` whose processes each have a whole model.
        model: the result of `accelerator.prepare`.
        schedule: as for `ScheduleAverager`.
        enabled: if False, nothing is averaged.
        timeout: seconds that an average may wait for its members.

    Raises:
        InputError: a model that is sharded over processes, or a schedule that averages otherwise.
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
        """Count a step of the optimizer, and average the parameters if it ends a round of the schedule.

        Raises:
            PeerFailedError: a member of the group is gone or late.
        """
        if self._averager is not None and self.accelerator.sync_gradients:
            self._averager.average_parameters(self.model.parameters())


def check_spread_models(accelerator: Any, who: str) -> None:  # noqa: ANN401 - of a library that need not be installed
    """Raise InputError, which begins with `who`, if an Accelerator shards models over processes (FSDP, DeepSpeed)."""
    if not hasattr(accelerator, "distributed_type"):
        raise InputError(f"{who}: accelerator: expected accelerate.Accelerator, got {type(accelerator).__name__}")
    kind = accelerator.distributed_type.value
    if kind not in WHOLE:
        raise InputError(
            f"{who}: accelerate runs as {kind}, where models are not whole or averaged elsewhere; it runs as one of "
            f"{', '.join(WHOLE)}, and sharded models need DistributedOptimizer(..., mesh=...)"
        )
