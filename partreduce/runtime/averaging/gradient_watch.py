"""Gradient watches: what a script does to gradients around their averaging.

`GradientWatch` says once when gradients are clipped before they are averaged, which DDP never does.
Where gradients are averaged in `step()`, a script that clips between `backward()` and `step()` clips this worker's own
gradient; DDP has averaged by then. Nothing can repair that afterwards, and a script may mean it (dividing by a number
of parts commutes with the mean), so it is a warning. Only the first steps are watched: a loop that clips does so from
the start, and afterwards nothing is paid.

`MeansWatch` refuses a backward pass between `average_gradients()` and `step()`: it would add this worker's own gradient
to the mean of all, and models would part unnoticed.
"""

from __future__ import annotations

import torch
from torch.utils.hooks import RemovableHandle

from partreduce.runtime.averaging.flat_model import FlatModel
from partreduce.runtime.transport.torch_api import torch_compile_disable
from partreduce.runtime.user_warning import warn_user
from partreduce.topo.errors import InputError

WATCHED_STEPS = 8


class GradientWatch:
    """Compares each gradient's version at the end of the backward pass with the one at `step()`."""

    def __init__(self, flat: FlatModel) -> None:
        self._versions: dict[torch.Tensor, tuple[int, int]] = {}
        self._steps = 0
        self._hooks: list[RemovableHandle] = [
            slot.parameter.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]
            for slot in flat.slots()
        ]

    def look(self, *, unscaled: bool) -> bool:
        """Before the gradients are averaged; with `unscaled` a GradScaler may have changed each of them once.

        Whether to look again in the next step.
        """
        allowed = 1 if unscaled else 0
        for parameter, (tensor, version) in self._versions.items():
            gradient = parameter.grad
            if gradient is not None and id(gradient) == tensor and gradient._version > version + allowed:  # noqa: SLF001 - no public way
                warn_user(
                    "partreduce: gradients were changed between backward() and step(), where this schedule averages "
                    "them: clipping there acts on this worker's own gradient and differs from DDP; "
                    "call optimizer.average_gradients() before it"
                )
                self._steps = WATCHED_STEPS
                break
        self._versions.clear()
        self._steps += 1
        if self._steps >= WATCHED_STEPS:
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()
        return bool(self._hooks)

    @torch_compile_disable
    def _note(self, parameter: torch.Tensor) -> None:
        """After a backward pass has added to a gradient."""
        if parameter.grad is not None:
            self._versions[parameter] = id(parameter.grad), parameter.grad._version  # noqa: SLF001 - as above


class MeansWatch:
    """Notes what becomes of means between average_gradients() and step(); scripts that never average early pay nothing.

    A backward pass adds this worker's own gradient to them. Whatever else the script does to them, such as clipping,
    every worker has to do, or their models part.
    """

    def __init__(self, flat: FlatModel) -> None:
        self._flat = flat
        self._hooks: list[RemovableHandle] = []
        self._added = ""
        self._versions: list[tuple[int, int]] = []

    def begin(self) -> None:
        if not self._hooks:
            self._hooks = [
                slot.parameter.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]
                for slot in self._flat.slots()
            ]
        self._added = ""
        self._versions = self._now()

    def changed(self) -> bool:
        """Whether the script has changed or replaced a mean since `begin`. O(parameters)."""
        return self._now() != self._versions

    def _now(self) -> list[tuple[int, int]]:
        grads = (slot.parameter.grad for slot in self._flat.slots())
        return [(0, 0) if grad is None else (id(grad), grad._version) for grad in grads]  # noqa: SLF001 - as above

    def refuse(self) -> None:
        """Before a step with the means.

        Raises:
            InputError: a backward pass has added to them.
        """
        if self._added:
            raise InputError(
                f"step: parameter {self._added!r} got a gradient between average_gradients() and step(), which would "
                "add this worker's own to the mean of all; call backward() first, then average_gradients()"
            )

    @torch_compile_disable
    def _note(self, parameter: torch.Tensor) -> None:
        """After a backward pass has made a gradient; may run in a thread of autograd's, so it raises nothing."""
        if not self._added:
            self._added = next(slot.names[0] for slot in self._flat.slots() if slot.parameter is parameter)
