"""Hold a worker's send buffer, its gradients, and the sums of rounds that wait to be applied, in host memory.

An array of one bucket holds its gradients as the bucket lays them out, then one number for each parameter, which says
whether any worker had a gradient for it. The first array with an exact dtype also has room for the values that a
round's workers exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.gradients import sparse_gradient


@dataclass(slots=True, eq=False)
class GradientSum:
    """Gradients in host memory: what a worker brings to a round, and later the sum of that round."""

    arrays: list[torch.Tensor]  # one for each bucket, and last one of float32 where no bucket's can carry exact numbers
    is_empty: bool = True  # whether nothing was added, so that the arrays hold whatever they held before
    scaled: bool = False
    """Whether a GradScaler was at work on a gradient in it, so that what is not finite must be looked for."""


class GradientSums:
    """The send buffer of one worker and the sums that wait; `room` numbers go along that a round's workers exchange.

    Costs an array of model size for the send buffer, the round that runs, and each result that waits or is being
    applied.
    """

    def __init__(self, buckets: Sequence[Bucket], room: int, *, num_workers: int) -> None:
        self.buckets, self._room, self._num_workers = tuple(buckets), room, num_workers
        self._carrier = next((index for index, bucket in enumerate(buckets) if bucket.exact), len(buckets))
        """The array at whose end the room is."""
        self.made = 0  # sums that were allocated so far; they are used again
        self._spare: list[GradientSum] = []
        self._buffer = self._lend()
        self._kept: dict[int, GradientSum] = {}
        self._in_use: list[GradientSum] = []

    def divisor(self, index: int) -> int:
        """By what a bucket's gradients are divided before they are sent: a sum of halves might leave their range."""
        return 1 if self.buckets[index].exact else self._num_workers

    def _lend(self) -> GradientSum:
        if self._spare:
            lent = self._spare.pop()
            lent.is_empty, lent.scaled = True, False
            return lent
        arrays = []
        for index, bucket in enumerate(self.buckets):
            length = bucket.size + len(bucket.slots) + (self._room if index == self._carrier else 0)
            arrays.append(torch.zeros(length, dtype=bucket.dtype, pin_memory=bucket.device.type == "cuda"))
        if self._carrier == len(self.buckets):
            arrays.append(torch.zeros(self._room))
        self.made += 1
        return GradientSum(arrays)

    def check_sparse(self) -> None:
        for bucket in self.buckets:
            for slot in bucket.slots:
                gradient = slot.parameter.grad
                if gradient is not None and gradient.layout is not torch.strided:
                    raise sparse_gradient(slot.names[0])

    def add(self, *, scaled: bool) -> None:
        """Add the parameters' gradients to the send buffer; `scaled` if a GradScaler was at work on them."""
        buffer = self._buffer
        with torch.no_grad():
            for index, (bucket, array) in enumerate(zip(self.buckets, buffer.arrays, strict=False)):
                self._add(bucket, array, self.divisor(index), first=buffer.is_empty)
        buffer.is_empty = False
        buffer.scaled |= scaled

    @staticmethod
    def _add(bucket: Bucket, array: torch.Tensor, divisor: int, *, first: bool) -> None:
        present, views, gradients = array[bucket.size : bucket.size + len(bucket.slots)], [], []
        flags = torch.zeros(len(bucket.slots), dtype=array.dtype)
        for place, slot in enumerate(bucket.slots):
            gradient = slot.parameter.grad
            if gradient is None:
                if first:
                    slot.view(array).zero_()
                continue
            flags[place] = 1
            views.append(slot.view(array))
            gradients.append(gradient.to("cpu"))
        if divisor != 1:
            gradients = [gradient / divisor for gradient in gradients]
        if views and first:
            torch._foreach_copy_(views, gradients)
        elif views:
            torch._foreach_add_(views, gradients)
        if first:
            present.copy_(flags)
        else:
            present.copy_(torch.maximum(present, flags))

    # What the driver asks for, under its lock.

    def depart(self) -> GradientSum:
        departed, self._buffer = self._buffer, self._lend()
        return departed

    def keep(self, round_: int, arrived: GradientSum) -> None:
        self._kept[round_] = arrived

    def take(self, rounds: Sequence[int]) -> list[GradientSum]:
        taken = [self._kept[round_] for round_ in rounds]
        self._in_use += taken
        return taken

    def retain(self, rounds: Sequence[int]) -> None:
        """Only these rounds' sums are still needed."""
        for round_ in [known for known in self._kept if known not in rounds]:
            self._give_back(self._kept.pop(round_))

    def release(self, sums: Sequence[GradientSum]) -> None:
        for one in sums:
            self._in_use = [other for other in self._in_use if other is not one]
            self._give_back(one)

    def _give_back(self, one: GradientSum) -> None:
        if not any(one is other for other in (*self._in_use, *self._kept.values())):
            self._spare.append(one)

    def clear(self) -> None:
        """A new segment: the send buffer and the queue are empty already, unless their gradients were dropped."""
        self.retain(())
        self._buffer.is_empty, self._buffer.scaled = True, False

    # What the collective thread asks for, without the lock.

    def arrays(self, payload: GradientSum) -> list[torch.Tensor]:
        if payload.is_empty:
            for array in payload.arrays:
                array.zero_()
        return payload.arrays

    def room(self, payload: GradientSum) -> torch.Tensor:
        """Where a round's workers tell one another what they must."""
        return payload.arrays[self._carrier][-self._room :]

    def arrived(self, payload: GradientSum, *, scaled: bool) -> None:
        """Divide a sum here, so that it costs the training nothing; `scaled` where a GradScaler was at work."""
        payload.scaled = scaled
        with torch.no_grad():
            for index, (bucket, array) in enumerate(zip(self.buckets, payload.arrays, strict=False)):
                if self._num_workers != (already := self.divisor(index)):
                    array[: bucket.size].div_(self._num_workers / already)

    # What the training asks for.

    def apply(self, one: GradientSum) -> None:
        """Make a sum the parameters' gradients; who had none on any worker has none now."""
        with torch.no_grad():
            for bucket, array in zip(self.buckets, one.arrays, strict=False):
                presence = array[bucket.size : bucket.size + len(bucket.slots)].tolist()
                gradients, values = [], []
                for slot, is_there in zip(bucket.slots, presence, strict=True):
                    if not is_there:
                        slot.parameter.grad = None
                    elif slot.parameter.grad is None:
                        slot.parameter.grad = slot.view(array).to(bucket.device, copy=True)
                    else:
                        gradients.append(slot.parameter.grad)
                        values.append(slot.view(array))
                if gradients and bucket.device.type == "cpu":
                    torch._foreach_copy_(gradients, values)
                    continue
                for gradient, value in zip(gradients, values, strict=True):
                    gradient.copy_(value)
