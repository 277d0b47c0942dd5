"""ForeignStepCheck: optimizers that step a model beside its DistributedOptimizer, so that the schedule does not see it.

Whoever keeps the plain optimizer and steps that, as `scaler.step(plain)` or SAM's `second_step()` do, trains alone.
Where gradients are averaged, so does whoever steps a part of the model by another optimizer before they are. Torch
calls one hook before every optimizer's step, and that is where both are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from partreduce.runtime.averaging.bucket import Slot
from partreduce.runtime.averaging.foreign import with_inner
from partreduce.runtime.strategies.base import Run
from partreduce.topo.errors import InputError


@dataclass(slots=True)
class _Share:
    """What another optimizer holds of a model, and, once it was seen, the mean gradients that step() left there."""

    slots: list[Slot]
    means: list[tuple[int, int]] | None = None


class ForeignStepCheck:
    """Watches the model of one run from `attach` to `detach`."""

    def __init__(self, run: Run, optimizer: torch.optim.Optimizer, has_local_gradients: Callable[[], bool]) -> None:
        """`has_local_gradients` says whether the gradients of the coming step are still to be averaged."""
        self._run, self._has_local_gradients = run, has_local_gradients
        self._own = {id(one) for one in with_inner(optimizer)}
        self._shares: WeakKeyDictionary[torch.optim.Optimizer, _Share] = WeakKeyDictionary()
        self._has_stepped = False

    def attach(self) -> None:
        if not self._run.alone:
            if not _hooked:
                _hooked.append(register_optimizer_step_pre_hook(_before_step))
            with _lock:
                _watching.add(self)

    def detach(self) -> None:
        with _lock:
            _watching.discard(self)

    def stepped(self) -> None:
        """After each step of the engine: its gradients are means until a backward pass adds to them."""
        self._has_stepped = True
        with _lock:
            shares = list(self._shares.values())
        for share in shares:
            share.means = [_state_of(slot.parameter) for slot in share.slots]

    def look(self, optimizer: torch.optim.Optimizer) -> None:
        """Before a step of some optimizer.

        Raises:
            InputError: it trains this model, and what it does would not be averaged.
        """
        rank = self._run.rank
        if self._run.applier.is_stepping:
            return
        if id(optimizer) in self._own:
            raise InputError(
                f"optimizer: the plain {type(optimizer).__name__} of worker {rank} was stepped by itself, which the "
                "schedule does not see; call step() of the DistributedOptimizer, with a closure if the plain one needs "
                "one, or keep the plain one and call partreduce.attach"
            )
        opens = self._run.traits.measures_from_start and not self._run.progress.step
        if not (self._has_local_gradients() or opens):
            return
        if (share := self._shares.get(optimizer)) is None:
            held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
            share = _Share([slot for slot in self._run.flat.slots() if slot.parameter in held])
            with _lock:
                self._shares[optimizer] = share
        for index, slot in enumerate(share.slots):
            means = share.means
            is_mean = self._has_stepped if means is None else means[index] == _state_of(slot.parameter)
            if slot.parameter.grad is not None and not is_mean:
                does = f"optimizer: {type(optimizer).__name__} steps parameter {slot.names[0]!r} of worker {rank}"
                if opens:
                    raise InputError(
                        f"{does} before the first step() of the DistributedOptimizer, which measures from the model "
                        "with which all begin; step it after that one"
                    )
                raise InputError(
                    f"{does} with this worker's own gradient, which is still to be averaged; call average_gradients() "
                    "of the DistributedOptimizer before it"
                )


def _state_of(parameter: torch.Tensor) -> tuple[int, int]:
    gradient = parameter.grad
    return (0, 0) if gradient is None else (id(gradient), gradient._version)  # noqa: SLF001 - torch has no public way


_watching: WeakSet[ForeignStepCheck] = WeakSet()
_lock = threading.Lock()
"""Optimizers of several threads step, and each step looks at all that watch: none may come while another one lists."""
_hooked: list[object] = []
"""Torch's handle of the hook, which all runs of the process share."""


def _before_step(optimizer: torch.optim.Optimizer, _arguments: object, _named: object) -> None:
    with _lock:
        watching = list(_watching)
    for watch in watching:
        watch.look(optimizer)
