"""A DDP communication hook that follows a schedule: `register_comm_hook(ScheduleHookState(...), schedule_hook)`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import torch

from partreduce.runtime.adapters.averager import check_strategy
from partreduce.runtime.arguments import checked_timeout
from partreduce.runtime.averaging.p_reduce import queue_p_reduce
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.schedule_file import read_schedule
from partreduce.runtime.transport.rendezvous import place
from partreduce.runtime.transport.torch_api import GradBucket
from partreduce.runtime.transport.worlds import World
from partreduce.topo.argument_types import check_arguments
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Group
from partreduce.topo.schedule import Schedule


class HookGradients(StrEnum):
    """What DDP's hook does with gradients."""

    LOCAL = "local"
    """Nothing is sent: a ScheduleAverager averages parameters instead, as in post-local SGD."""

    GROUP = "group"
    """The mean over the group of the round; workers without a group keep their own."""


class ScheduleHookState:
    """The state of `schedule_hook`; counts backward passes.

    Args:
        schedule: whom to average with. A schedule that averages gradients (all-reduce in each step) does so always.
        gradients: `local` (default) or `group`.
        all_reduce_steps: first steps in which gradients are averaged over all workers, whatever the schedule.
        timeout: seconds that an average may wait.
        world: how to reach the others; from the process group by default.

    Raises:
        InputError: a schedule that cannot be followed this way.
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
        try:
            self.gradients = HookGradients(gradients)
        except ValueError:
            raise InputError(f"gradients: {gradients!r} is not one of local, group") from None
        self.all_reduce_steps, self.timeout, self.world = all_reduce_steps, checked_timeout(timeout), world
        self.rank = world.rank if world is not None else place()[0]
        self.step = 0
        self.queued: Reducer | None = None

    def finish(self) -> None:
        """Wait for the device after the last step: there a failed average is reported by one of the next two.

        Raises:
            PeerFailedError: an average failed.
        """
        if self.queued is not None:
            self.queued.flush()

    def group(self) -> Group | None:
        """Whose gradients are averaged in this backward pass."""
        everyone = Group(tuple(range(self.schedule.num_workers)))
        if self.step < self.all_reduce_steps or self.schedule.strategy.averages_gradients:
            return everyone
        if self.gradients is HookGradients.LOCAL:
            return None
        return self.schedule.group_of(self.rank, self.step // self.schedule.steps_per_round_of(self.rank))


@check_arguments
def schedule_hook(state: ScheduleHookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average one bucket of gradients over the group that the schedule names, or leave it as it is.

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
