"""Equality of workers that apply the same sums: whether the rates were the same.

All workers apply the same results in the same order, each in a call of its own. What a script changes from call to
call, such as a learning rate, differs then between two workers that apply the same result.
"""

from __future__ import annotations

import zlib

import torch

PARTED = (
    "partreduce: workers have applied the same sums with different settings of the optimizer (say a learning rate), so "
    "their models differ: a scheduler that is stepped once a call goes on by calls, and calls take different numbers "
    "of results; with missed: each, step it between average_gradients() and step() and in join(after_averaging=...)"
)


class Settings:
    """A number that tells with which settings a worker has applied its results so far, in order."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.number = 0

    def applied(self) -> None:
        """A result was applied with the settings as they are. O(parameter groups)."""
        text = repr([self._numbers(group) for group in self._optimizer.param_groups])
        self.number = zlib.crc32(text.encode(), self.number)

    @staticmethod
    def _numbers(group: dict[str, object]) -> list[tuple[str, object]]:
        values = ((name, value) for name, value in group.items() if name != "params" and not name.startswith("initial"))
        return sorted(
            (name, float(value) if isinstance(value, torch.Tensor) else value)
            for name, value in values
            if isinstance(value, int | float | tuple | torch.Tensor)
        )
