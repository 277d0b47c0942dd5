"""Gates: layers that hold a step's computing to a timetable, forward and backward, by sleeping until it is due.

Without them 16 workers on a few cores would measure the cores. With them, what a layer of the network really computes
vanishes in its share of the timetable, and gradients become ready one layer after the other, as DDP's overlap needs.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn


class Clock:
    """The timetable of the running step."""

    def __init__(self) -> None:
        self._begun, self._seconds = 0.0, 0.0

    def begin(self, seconds: float) -> float:
        """A step of so many seconds begins now; returns the present time."""
        self._begun, self._seconds = time.monotonic(), seconds
        return self._begun

    def until(self, share: float) -> None:
        """Sleep until this share of the step's time has passed."""
        if self._seconds:
            left = self._begun + share * self._seconds - time.monotonic()
            if left > 0:
                time.sleep(left)


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own kind of object
        tensor: torch.Tensor,
        clock: Clock,
        forward: float,
        backward: float,
    ) -> torch.Tensor:
        ctx.clock, ctx.backward_share = clock, backward
        clock.until(forward)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401 - as above
        gradient: torch.Tensor,
    ) -> tuple[torch.Tensor, None, None, None]:
        ctx.clock.until(ctx.backward_share)
        return gradient, None, None, None


class Gate(nn.Module):
    """Passes values on unchanged, not before a share of the step's time has passed."""

    def __init__(self, clock: Clock, forward_share: float, backward_share: float) -> None:
        super().__init__()
        self.clock, self.forward_share, self.backward_share = clock, forward_share, backward_share

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        if not (self.training and torch.is_grad_enabled()):
            return tensor
        passed: torch.Tensor = _Pass.apply(tensor, self.clock, self.forward_share, self.backward_share)
        return passed
