"""Apply the outer optimizer (DiLoCo), whose gradient is the workers' mean change."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.reference import OffloadedArray
from partreduce.runtime.transport.streams import Streams
from partreduce.topo.strategies.payload import OuterStep


class OuterOptimizer:
    """Makes of a movement what is added to the outer parameters; keeps a momentum for each bucket, unless it is 0."""

    def __init__(self, outer: OuterStep, buckets: Sequence[Bucket], host: Streams | None) -> None:
        self._outer = outer
        self._momenta = {
            f"momentum/{index}": OffloadedArray(torch.zeros_like(bucket.flat), host)
            for index, bucket in enumerate(buckets if outer.momentum else ())
        }
        """By the names that they have in a saved state."""
        self.names = self._momenta.keys()

    def step(self, index: int, movement: torch.Tensor, ok: torch.Tensor | None) -> None:
        """Make a movement of bucket `index` the step of the outer parameters, in place; and the next momentum."""
        outer_step(self._outer, movement, self._momenta.get(f"momentum/{index}"), ok)

    def clear(self) -> None:
        """Begin without momentum."""
        for momentum in self._momenta.values():
            momentum.put(torch.zeros(len(momentum.values), dtype=momentum.values.dtype, device=momentum.device))

    def state(self) -> dict[str, torch.Tensor]:
        return {name: momentum.values for name, momentum in self._momenta.items()}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        for name, momentum in self._momenta.items():
            momentum.put(state[name].to(momentum.device))


def outer_step(
    outer: OuterStep, movement: torch.Tensor, momentum: OffloadedArray | None, ok: torch.Tensor | None
) -> None:
    """Make of a movement what the outer optimizer adds to the outer parameters, in place; and the next momentum."""
    if momentum is not None:
        following = torch.add(movement, momentum.here(), alpha=float(outer.momentum))
        momentum.put(following, ok)
        if outer.nesterov:
            movement.add_(following, alpha=float(outer.momentum))
        else:
            movement.copy_(following)
    if not outer.is_plain:
        movement.mul_(float(outer.lr))
