"""Equality of workers that apply the same sums: with which optimizers it holds, and whether the rates were the same.

All workers apply the same results in the same order, each in a call of its own. What a script changes from call to
call, such as a learning rate, differs then between two workers that apply the same result.
"""

from __future__ import annotations

import zlib

import torch

from partreduce.topo.errors import InputError

PARTED = (
    "partreduce: workers have applied the same sums with different settings of the optimizer (say a learning rate), so "
    "their models differ: a scheduler that is stepped once a call goes on by calls, and calls take different numbers "
    "of results; with missed: each, step it between average_gradients() and step() and in join(after_averaging=...)"
)


def refuse_unless_plain(optimizer: torch.optim.Optimizer) -> None:
    """Refuse optimizers for which a step with a sum is not the sum of steps."""
    name = type(optimizer).__name__
    if type(optimizer) is torch.optim.SGD:
        kept = next((key for group in optimizer.param_groups for key in ("momentum", "weight_decay") if group[key]), "")
        if not kept:
            return
        name = f"SGD with {kept}"
    raise InputError(
        f"when.quorum.missed: is sum, and the optimizer is {name}; workers add up different results, so their models "
        "stay equal under plain SGD at a constant rate only; use missed: each"
    )


class Settings:
    """A number that tells with which settings a worker has applied its results so far, in order.

    Where results are added up there is no common order, and settings must not change between two places where all meet.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, adds_up: bool) -> None:
        self._optimizer, self._adds_up = optimizer, adds_up
        self._known = ""
        self.number = 0
        self.has_changed = False
        """Whether settings have changed where they must not."""

    def begin(self) -> None:
        self._known = ""

    def applied(self) -> None:
        """A result was applied with the settings as they are. O(parameter groups)."""
        text = repr([self._numbers(group) for group in self._optimizer.param_groups])
        if self._adds_up:
            self.has_changed |= self._known not in ("", text)
        else:
            self.number = zlib.crc32(text.encode(), self.number)
        self._known = text

    @staticmethod
    def _numbers(group: dict[str, object]) -> list[tuple[str, object]]:
        values = ((name, value) for name, value in group.items() if name != "params" and not name.startswith("initial"))
        return sorted(
            (name, float(value) if isinstance(value, torch.Tensor) else value)
            for name, value in values
            if isinstance(value, int | float | tuple | torch.Tensor)
        )
