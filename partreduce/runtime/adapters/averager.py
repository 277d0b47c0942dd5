"""ScheduleAverager: a drop-in for `torch.distributed.algorithms.model_averaging` averagers that follows a schedule."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from partreduce.runtime.arguments import checked_timeout
from partreduce.runtime.averaging.p_reduce import p_reduce
from partreduce.runtime.schedule_file import read_schedule
from partreduce.runtime.transport.rendezvous import is_alone, log_single_process, place
from partreduce.runtime.transport.worlds import World
from partreduce.topo.argument_types import check_arguments
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule


class ScheduleAverager:
    """Call `average_parameters(model.parameters())` after each optimizer step; it averages when the schedule says so.

    Unlike torch's averagers, groups may be any the schedule names, parameters without gradient take part, and the
    average falls after the last step of a round. `DistributedOptimizer` does the same with checks, overlap and flat
    buffers; prefer it where the training loop may change.

    Args:
        schedule: a schedule whose parameters are averaged over groups, without overlap.
        warmup_steps: steps before the first average; the schedule's rounds start after them.
        timeout: seconds that an average may wait for its members.
        world: how to reach the others; from the process group or the launcher's environment by default.

    Raises:
        InputError: a schedule that averages otherwise, or for another number of workers.
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
        """Count a step; after the last one of a round replace the parameters by their group's mean, in place.

        Args:
            params: parameters, or an optimizer's `param_groups`.

        Raises:
            PeerFailedError: a member of the group is gone or late; the parameters are as they were.
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
    """The data of parameters or of an optimizer's parameter groups, each tensor once."""
    tensors: dict[int, torch.Tensor] = {}
    for entry in params:
        for parameter in [entry] if isinstance(entry, torch.Tensor) else entry["params"]:
            tensors.setdefault(id(parameter), parameter.detach())
    return list(tensors.values())


def check_strategy(schedule: Schedule, who: str) -> None:
    """Refuse what cannot be done by a group mean after a step."""
    overlaps, codec = schedule.strategy.is_delayed, schedule.strategy.transport.codec
    tables = ", with tables of their own route" if schedule.strategy.payload.apart else ""
    payload, takes_turns = schedule.strategy.payload, schedule.strategy.takes_turns
    if not schedule.is_phased or overlaps or codec.rounds or tables or not payload.outer.is_plain or takes_turns:
        kind = schedule.strategy.kind + (", with overlap" if overlaps else "")
        kind += f", with codec {codec.value}" if codec.rounds else ""
        late = schedule.strategy.sync.in_words if takes_turns else ""
        kind += tables + "".join(f", with {w}" for w in (payload.outer.in_words, payload.turns_in_words, late) if w)
        raise InputError(f"{who}: schedule {schedule.name!r} ({kind}) needs DistributedOptimizer")
