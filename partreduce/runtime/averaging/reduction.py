"""Hold one group operation in flight, with the arrays that it borrowed from its buckets."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.compressed_reduce import CodedPart
from partreduce.runtime.averaging.gradients import Snapshot
from partreduce.runtime.averaging.reference import Reference
from partreduce.runtime.codecs import Coding
from partreduce.runtime.liveness.settings import Settings
from partreduce.runtime.recorder import Operation
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.work import Work
from partreduce.topo.phase import Group


class Alone(Communicator):
    """The communicator of the only worker that is left: every sum is its own share."""

    def __init__(self, rank: int) -> None:
        super().__init__((rank,), rank, None)

    def all_reduce(self, tensor: torch.Tensor, coding: Coding | None = None) -> Work:  # noqa: ARG002 - as of groups
        return Work(lambda: True, lambda: None)


class Reduction:
    """One running or finished group operation, with the scratch arrays that it borrowed until it is committed.

    Several may be under way at once, and a finished one may be committed while others run.
    """

    def __init__(
        self,
        communicator: Communicator,
        group: Group,
        operation: Operation,
        tag: tuple[int, ...],
        buckets: Sequence[Bucket] = (),
        *,
        since: Reference | None = None,
        settings: Settings = (),
    ) -> None:
        self.communicator, self.group, self.operation, self.tag = communicator, group, operation, tag
        self.buckets, self.since, self.settings = tuple(buckets), since, settings
        self.arrays = [bucket.lend() for bucket in self.buckets]
        """What is summed, one array for each bucket."""
        self.absent: dict[int, frozenset[int]] = {}
        """Of gradients, by bucket: the slots that had none here."""
        self.works: list[Work] = []
        self.sides: dict[int, torch.Tensor] = {}
        self.coded: dict[int, CodedPart] = {}
        self.ok: torch.Tensor | None = None

    @property
    def num_members(self) -> int:
        """k, the members of the group."""
        return len(self.group.members)

    def release(self) -> None:
        """Give the arrays back: the sums are committed, or will not be."""
        for bucket, array in zip(self.buckets, self.arrays, strict=True):
            bucket.give_back(array)
        self.arrays = []

    def abandon(self) -> None:
        """Abandon the sums. Their arrays are not used again, as the backend may still write to them."""
        self.works.clear()
        for bucket, array in zip(self.buckets, self.arrays, strict=True):
            bucket.lose(array)

    def load(self, index: int, part: slice, kept: Snapshot | None = None) -> None:
        """Put this worker's share of the parameters, or of what they added since the reference, into its array."""
        whole = self.buckets[index].flat if kept is None or kept.array is None else kept.array
        values, share = whole[part], self.arrays[index][part]
        if self.since is None:
            torch.div(values, self.num_members, out=share)
        else:
            torch.sub(values, self.since.arrays[index].here(part), out=share).div_(self.num_members)

    def complaint(self) -> str:
        """What it means that the tags of its members differ, or, where the device finds that out, something else."""
        text = "its members ran different operations at the same time"
        if self.since is not None:
            text += f", or measure their parameters from another reference than this worker's, {self.since}"
        if self.settings:
            text += ", or step with different settings of the optimizer"
        text += " (their tags differ)"
        return f"{text}, or a finite number left the codec's range (use bfloat16)" if self.coded else text
