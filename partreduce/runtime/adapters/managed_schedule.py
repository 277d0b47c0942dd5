"""Run a schedule on torchft, whose Manager performs the all-reduces among the replicas of its current quorum."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch.utils.hooks import RemovableHandle

from partreduce.runtime.arguments import read_schedule
from partreduce.runtime.averaging.dtensor_shards import is_sharded
from partreduce.runtime.averaging.reference import OffloadedArray, outer_step
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import Codec, Synchronous
from partreduce.topo.strategies.payload import OuterStep, assign, number_of, round_ends

WHO = "TorchftSchedule"
State = dict[str, Any]


class TorchftSchedule:
    """Context manager, like torchft's LocalSGD: replicas take local steps and average by a schedule.

        manager = Manager(pg, load_state_dict, state_dict, min_replica_size=2, use_async_quorum=False)
        with TorchftSchedule(manager, model, optimizer, "schedule.json"):
            for batch in loader:
                ...
                optimizer.step()

    Steps per round, fragments and the outer optimizer come from the schedule. On entry all replicas copy one replica's
    model; a replica that joins later waits for the next average and copies another replica's state. A failed average
    leaves the models unchanged; the next average includes all progress since the last successful one. Buffers are not
    averaged.

    Args:
        manager: a torchft Manager with `use_async_quorum=False` that transfers the state of model and optimizer.
        model: this replica's model.
        optimizer: the optimizer of the local steps.
        schedule: a Schedule or the path of a schedule file, in which all workers average parameters together.

    Raises:
        InputError: a schedule or manager that does not fit, or a sharded model.
    """

    def __init__(
        self,
        manager: Any,  # noqa: ANN401 - of a library that need not be installed
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule | str | Path,
    ) -> None:
        schedule = read_schedule(schedule)
        strategy = _check_others(schedule)
        if manager._use_async_quorum:  # noqa: SLF001 - as torchft's DiLoCo does
            raise InputError(f"{WHO}: the Manager heals replicas while they train; give it use_async_quorum=False")
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if any(is_sharded(parameter) for _, parameter in named):
            raise InputError(f"{WHO}: the model is sharded; take whole models, or DistributedOptimizer(..., mesh=...)")
        numbers = assign(strategy.payload.fragments, [((name,), p.numel()) for name, p in named])
        self.manager, self.optimizer = manager, optimizer
        self.steps = 0  # taken by this replica, or by the one whose state it took over
        count = number_of(strategy.payload.fragments)
        self._parts = [
            _Part([p for (_, p), number in zip(named, numbers, strict=True) if number == part], strategy.payload.outer)
            for part in range(count)
        ]
        self._steps_per_round = schedule.steps_per_round_of(0)
        self._meets_after = set(round_ends(count, self._steps_per_round))
        self._hooks: list[RemovableHandle] = []
        manager.register_state_dict_fn("partreduce", self.load_state_dict, self.state_dict)

    def __enter__(self) -> Self:
        self._meet()
        self._hooks = [
            self.optimizer.register_step_pre_hook(lambda *_: self.manager.disallow_state_dict_read()),
            self.optimizer.register_step_post_hook(lambda *_: self._stepped()),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()

    def state_dict(self) -> State:
        """Return what a recovering replica needs in addition to model and optimizer, such as outer parameters."""
        return {"steps": self.steps, "parts": [part.state() for part in self._parts]}

    def load_state_dict(self, state: State) -> None:
        self.steps = int(state["steps"])
        for part, its in zip(self._parts, state["parts"], strict=True):
            part.load_state(its)

    def _stepped(self) -> None:
        self.manager.allow_state_dict_read()
        self.steps += 1
        if (self.steps - 1) % self._steps_per_round + 1 in self._meets_after:
            self._meet()

    def _meet(self) -> None:
        """Average over the replicas the part (fragment, or whole model) that the Manager's step count selects."""
        self.manager.start_quorum()
        part = self._parts[(self.manager.current_step() - 1) % len(self._parts)]  # the first quorum is in `__enter__`
        sums = part.moved()
        for work in [self.manager.allreduce(one) for one in sums]:
            work.wait()
        if self.manager.should_commit():
            part.take(sums)


class _Part:
    """A fragment of the model, or the whole; each array of one device and dtype is averaged by one all-reduce."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], outer: OuterStep) -> None:
        self._outer = outer
        self._by_device_and_dtype = [
            [p for p in parameters if (p.device, p.dtype) == key]
            for key in dict.fromkeys((p.device, p.dtype) for p in parameters)
        ]
        self._outer_params = [] if outer.is_plain else self._values()
        self._momenta = (
            [OffloadedArray(torch.zeros_like(one), None) for one in self._outer_params] if outer.momentum else []
        )

    def _values(self) -> list[torch.Tensor]:
        return [torch.cat([p.detach().reshape(-1) for p in same]) for same in self._by_device_and_dtype]

    def moved(self) -> list[torch.Tensor]:
        """Return flat tensors to all-reduce: parameters or, for outer steps, their change since the last one."""
        values = self._values()
        for value, outer_params in zip(values, self._outer_params, strict=False):
            value.sub_(outer_params)
        return values

    def take(self, means: list[torch.Tensor]) -> None:
        """Set the parameters to `means`, or to the result of an outer step by the mean changes `means`."""
        for index, (mean, same) in enumerate(zip(means, self._by_device_and_dtype, strict=True)):
            if self._outer_params:
                outer_step(self._outer, mean, self._momenta[index] if self._momenta else None, None)
                mean.copy_(self._outer_params[index].add_(mean))
            values = torch.split(mean, [p.numel() for p in same])
            for parameter, value in zip(same, values, strict=True):
                parameter.detach().copy_(value.view_as(parameter))

    def state(self) -> State:
        return {"outer_params": self._outer_params, "momenta": [momentum.values for momentum in self._momenta]}

    def load_state(self, state: State) -> None:
        mine = self.state()
        for name in ("outer_params", "momenta"):
            for own, its in zip(mine[name], state[name], strict=True):
                own.copy_(its)


def _check_others(schedule: Schedule) -> AllReduce:
    """Return the schedule's strategy if one all-reduce per round can run it; raise InputError otherwise."""
    strategy = schedule.strategy
    if not isinstance(strategy, AllReduce):
        raise InputError(
            f"{WHO}: schedule {schedule.name!r} is of kind {strategy.kind!r}, and a Manager sums over all replicas of "
            "its quorum; take `allreduce`, or DistributedOptimizer"
        )
    if strategy.averages_gradients:
        raise InputError(
            f"{WHO}: schedule {schedule.name!r} averages gradients in each step, which is torchft's own "
            "DistributedDataParallel with its Optimizer; take steps_per_round above 1"
        )
    needs = [
        ("workers with different steps per round", not schedule.has_one_steps_per_round),
        ("late merges", not isinstance(strategy.sync, Synchronous)),
        (f"codec {strategy.transport.codec}", strategy.transport.codec is not Codec.NONE),
        ("tables", bool(strategy.payload.apart)),
    ]
    if found := [what for what, is_so in needs if is_so]:
        raise InputError(f"{WHO}: schedule {schedule.name!r} has {found[0]}, which needs DistributedOptimizer")
    return strategy
