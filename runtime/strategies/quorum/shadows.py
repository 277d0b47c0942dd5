"""Shadows: one worker's shadow model, what rounds changed in it, and what it brings to a round; in host memory.

The derivation, and why the mean of all shadows moves by what trainings publish alone, is in docs/theory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.strategies.quorum.driver import Payload
from partreduce.topo.phase import Group


@dataclass(slots=True, eq=False)
class Snapshot:
    """What a worker brings to a round, and later the sum of that round."""

    arrays: list[torch.Tensor]
    """Of each bucket its parameters; the first that carries exact numbers has room behind them, or one more array."""
    own: list[torch.Tensor]
    """The same, as they were brought."""


class Shadows(Payload[Snapshot]):
    """The shadow s of one worker, and c, by how much rounds changed it since the training last took it.

    What is asked for under the driver's lock copies the model once or a few times. Costs four arrays of model size,
    however many results wait.

    Args:
        buckets: of the model.
        room: numbers that a round needs besides.
        group_of: the group of a round, None where this worker rests.
    """

    def __init__(self, buckets: Sequence[Bucket], room: int, group_of: Callable[[int], Group | None]) -> None:
        super().__init__(buckets, room)
        self._group_of = group_of
        self._shadow = [_zeros(bucket) for bucket in buckets]
        self._changes = [_zeros(bucket) for bucket in buckets]
        arrays = [_zeros(bucket, room if index == self.carrier else 0) for index, bucket in enumerate(buckets)]
        if self.carrier == len(arrays):
            arrays.append(torch.zeros(room))
        self._snapshot = Snapshot(arrays, [_zeros(bucket) for bucket in buckets])
        self.keeps_model = False
        """Whether the model stays as it is when results are taken: another one is about to be loaded."""

    def publish(self) -> None:
        """What the training did becomes part of the shadow: s = x + c."""
        with torch.no_grad():
            for bucket, shadow, changes in zip(self.buckets, self._shadow, self._changes, strict=True):
                shadow.copy_(bucket.flat)
                shadow.add_(changes)

    def clear(self) -> None:
        """A new segment: the shadow is the model."""
        self.keeps_model = False
        for changes in self._changes:
            changes.zero_()
        self.publish()

    def depart(self) -> Snapshot:
        """Take the shadow along as it is. There is one round at a time, so one snapshot."""
        for shadow, array, own in zip(self._shadow, self._snapshot.arrays, self._snapshot.own, strict=False):
            array[: len(shadow)].copy_(shadow)
            own.copy_(shadow)
        return self._snapshot

    def keep(self, round_: int, arrived: Snapshot) -> None:
        """The sum of a round is there: s + t(m - b), exactly m where t is 1 and nothing was published meanwhile."""
        group = self._group_of(round_)
        if group is None:
            return
        for shadow, changes, array, own in zip(self._shadow, self._changes, arrived.arrays, arrived.own, strict=False):
            after = array[: len(shadow)].div_(len(group.members))
            if group.relax != 1:
                torch.lerp(own, after, float(group.relax), out=after)
            shadow.sub_(own).add_(after)
            changes.add_(after).sub_(own)

    def take(self, rounds: Sequence[int]) -> list[Snapshot]:  # noqa: ARG002 - as all that is summed
        """The training goes on with the shadow: x = s, c = 0. It has published before."""
        if not self.keeps_model:
            with torch.no_grad():
                for bucket, shadow, changes in zip(self.buckets, self._shadow, self._changes, strict=True):
                    bucket.flat.copy_(shadow)
                    changes.zero_()
        return []


def _zeros(bucket: Bucket, room: int = 0) -> torch.Tensor:
    return torch.zeros(bucket.size + room, dtype=bucket.dtype)
