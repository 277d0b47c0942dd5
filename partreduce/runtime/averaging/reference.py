"""Keep the reference parameters from which workers measure their change, and the outer optimizer of DiLoCo.

The reference is bitwise equal on all workers. Sending only the change since then keeps a codec's rounding error as
small as the updates. An outer step (DiLoCo) uses the workers' mean change as a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from partreduce.runtime.averaging.bucket import Bucket, replace_where
from partreduce.runtime.transport.streams import Streams
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.payload import OuterStep

WHOLE = slice(None)


class OffloadedArray:
    """An array used only while workers average; on CUDA, with `host`, in pinned host memory between averages."""

    def __init__(self, values: torch.Tensor, host: Streams | None) -> None:
        self.device = values.device
        self.values, self._is_apart = values, host is not None and host.runs_ahead  # True if offloaded
        if self._is_apart:
            assert host is not None, "as just said"
            self.values = host.host_room(values.nbytes).view(values.dtype)
            self.values.copy_(values, non_blocking=True)

    def on_device(self, part: slice = WHOLE) -> torch.Tensor:
        values = self.values[part]
        if not self._is_apart:
            return values
        copy = torch.empty(values.shape, dtype=values.dtype, device=self.device)
        return copy.copy_(values, non_blocking=True)

    def put(self, new: torch.Tensor, ok: torch.Tensor | None = None) -> None:
        if not self._is_apart:
            replace_where(self.values, new, ok)
        else:
            self.values.copy_(new if ok is None else torch.where(ok, new, self.on_device()), non_blocking=True)


@dataclass(slots=True)
class Reference:
    """Parameters that are equal on all workers, one array per bucket; workers send only their change since then.

    They are the first worker's when the run took its `starts`-th reference, at the start or after a load, or, if
    `round` is not −1, the mean over all workers in that round.
    """

    arrays: list[OffloadedArray]
    starts: int
    round: int = -1

    @property
    def version(self) -> str:
        """Text that identifies the reference; members of an operation compare it, as part of the operation's tag."""
        return f"reference {self.starts}/{self.round}"

    def __str__(self) -> str:
        return f"the mean of round {self.round}" if self.round >= 0 else f"the model of start {self.starts}"

    def complete(self, index: int, change: torch.Tensor) -> None:
        """Turn a mean change into mean parameters: add the reference of bucket `index` to `change`, in place."""
        change.add_(self.arrays[index].on_device())

    def take(self, index: int, mean: torch.Tensor, ok: torch.Tensor | None) -> None:
        """Set the reference of bucket `index` to a mean over all workers, unless the device's check `ok` is False."""
        self.arrays[index].put(mean, ok)

    def state(self, name: str) -> dict[str, torch.Tensor]:
        named = {f"{name}/{index}": array.values for index, array in enumerate(self.arrays)}
        return named | {f"{name}/place": torch.tensor([self.starts, self.round])}

    @classmethod
    def of(cls, arrays: Sequence[torch.Tensor], starts: int, host: Streams | None) -> Reference:
        """Create the run's `starts`-th reference, with one array per bucket; with `host` it is in host memory."""
        return cls([OffloadedArray(array, host) for array in arrays], starts)

    @classmethod
    def restored(
        cls, name: str, state: Mapping[str, torch.Tensor], buckets: Sequence[Bucket], host: Streams | None
    ) -> Reference:
        names = [f"{name}/{index}" for index in range(len(buckets))]
        if set(state) != {*names, f"{name}/place"}:
            raise InputError(f"the file holds {', '.join(sorted(state)) or 'nothing'} instead of {name}/…")
        arrays = [
            OffloadedArray(state[one].to(bucket.device, copy=True), host)
            for one, bucket in zip(names, buckets, strict=True)
        ]
        starts, round_ = map(int, state[f"{name}/place"])
        return cls(arrays, starts, round_)


class OuterOptimizer:
    """Outer optimizer of DiLoCo: SGD, with the settings `outer`, on the workers' mean change of the parameters.

    It has one momentum array per bucket, in host memory if `host` is given, unless the momentum factor is 0.
    """

    def __init__(self, outer: OuterStep, buckets: Sequence[Bucket], host: Streams | None) -> None:
        self._outer = outer
        self._momenta = {
            f"momentum/{index}": OffloadedArray(torch.zeros_like(bucket.flat), host)
            for index, bucket in enumerate(buckets if outer.momentum else ())
        }
        """Momentum arrays by their names in a saved state."""
        self.names = self._momenta.keys()

    def step(self, index: int, movement: torch.Tensor, ok: torch.Tensor | None) -> None:
        outer_step(self._outer, movement, self._momenta.get(f"momentum/{index}"), ok)

    def clear(self) -> None:
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
    """Replace `movement`, the workers' mean change d, by the update of the outer parameters, in place.

    b ← momentum · b + d, then d ← lr · (d + momentum · b) with Nesterov momentum, else d ← lr · b. `momentum` holds b,
    or is None if its factor is 0; b is unchanged if the device's check `ok` is False. Source: DiLoCo (Douillard et al.,
    2023).
    """
    if momentum is not None:
        following = torch.add(movement, momentum.on_device(), alpha=float(outer.momentum))
        momentum.put(following, ok)
        if outer.nesterov:
            movement.add_(following, alpha=float(outer.momentum))
        else:
            movement.copy_(following)
    if not outer.is_plain:
        movement.mul_(float(outer.lr))
