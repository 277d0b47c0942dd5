"""Hold the state of one all-reduce in flight: its scratch arrays, and for a codec the parts that are sent uncoded.

With a codec the parameters are sent encoded. The rest of the array (buffers, optimizer state, flags of missing
gradients, tag) is sent unchanged, with the number of members that contributed infinite or NaN values. If that number is
0 but the sum is not finite, a value exceeded the codec's range, which all members detect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from partreduce.runtime.averaging.bucket import Bucket, Slot
from partreduce.runtime.averaging.gradients import Snapshot
from partreduce.runtime.averaging.reference import Reference
from partreduce.runtime.codecs import Coding
from partreduce.runtime.liveness.settings import Settings
from partreduce.runtime.recorder import Operation
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.streams import Streams
from partreduce.runtime.transport.tags import TAG_LENGTH
from partreduce.runtime.transport.work import Work
from partreduce.topo.codec_numbers import LARGEST
from partreduce.topo.phase import Group


@dataclass(slots=True)
class CodedPart:
    """One bucket's array in an all-reduce with a codec (compression of the values sent).

    The first `bucket.size` elements, the parameters, are sent encoded. The rest is sent unchanged, in the separate
    tensor `extra`: buffers, optimizer state, presence flags (which parameters have gradients), the tag (it shows
    whether all members ran the same operation), and the number of members with infinite or NaN values.
    """

    bucket: Bucket
    array: torch.Tensor
    coding: Coding
    extra: torch.Tensor  # sent uncoded; its last element counts the members with non-finite values
    with_rest: bool  # whether `extra` also has the rest of the array, tag last; otherwise tag first
    worst: tuple[str, float] | None
    """Parameter name and value of this worker's largest contribution, if it exceeds the codec's range."""

    @classmethod
    def made(
        cls, bucket: Bucket, array: torch.Tensor, tag: tuple[int, ...], given: CodecInput, streams: Streams
    ) -> CodedPart:
        """Create the state of an array whose parameters (described by `given`) are being sent already, encoded."""
        with_rest = bucket.exact and not streams.runs_ahead
        rest = array[bucket.size :] if with_rest else streams.upload(tag, torch.float32)
        extra = torch.cat((rest, given.not_finite.to(rest.dtype)))
        return cls(bucket, array, given.coding, extra, with_rest, given.worst)

    def sent(self) -> list[torch.Tensor]:
        """Return the tensors that are sent uncoded."""
        rest = self.array[self.bucket.size :]
        return [self.extra] if self.with_rest or not len(rest) else [rest, self.extra]

    def take_back(self) -> torch.Tensor:
        """Copy the sums in `extra` back into the end of the array; return the sums of the members' tags."""
        if not self.with_rest:
            return self.extra[:TAG_LENGTH]
        self.array[self.bucket.size :].copy_(self.extra[:-1])
        return self.array[-TAG_LENGTH:]

    def stays_in_range(self) -> torch.Tensor:
        """Return, as a 0-d bool tensor on the device, whether no sum exceeded the codec's range; zero the padding."""
        whole = torch.isfinite(self.array[: self.bucket.size]).all() | (self.extra[-1] > 0)
        if self.coding.in_blocks:
            self._clear_padding()
        return whole

    def beyond_range(self) -> str:
        """Return a message on the parameter whose sum exceeded the codec's range, or ""; zero the padding."""
        values = self.array[: self.bucket.size]
        if _peak(values) < math.inf:
            return ""
        given = bool(self.extra[-1] > 0)
        bad = ~torch.isfinite(values)
        names = [slot.names[0] for slot in self.bucket.slots if bool(slot.view(bad).any())]
        self._clear_padding()
        if given:
            return ""
        name, share = self.worst or (names[0] if names else "?", None)
        largest, codec = LARGEST[self.coding.transport.codec], self.coding.transport.codec
        given_here = "another worker's, or the sum" if share is None else f"this worker's, {share:g}"
        others = " or ".join(other for other in ("bfloat16", "int8") if other != codec)
        return (
            f"{name!r}: a share of its mean is beyond {codec}'s largest number {largest:g} ({given_here}); "
            f"use the codec {others}, or scale the loss down"
        )

    def _clear_padding(self) -> None:
        """Zero the padding between parameters: a codec that works in blocks may have made it NaN."""
        end = 0
        for slot in self.bucket.slots:
            self.array[end : max(end, slot.start)].zero_()
            end = slot.start + slot.values.numel()
        self.array[end : max(end, self.bucket.size)].zero_()


class CodecInput(NamedTuple):
    """A worker's coding, whether its values were finite, and the largest one (parameter, value) beyond the range."""

    coding: Coding
    not_finite: torch.Tensor  # one element on the values' device: 1 if any value is infinite or NaN, else 0
    worst: tuple[str, float] | None = None  # parameter and its largest value, if beyond the codec's range

    @classmethod
    def of(
        cls, slots: Sequence[Slot], array: torch.Tensor, values: torch.Tensor, coding: Coding, streams: Streams
    ) -> CodecInput:
        """Check whether `values`, the parameters `slots` in a bucket's `array`, are finite and in the codec's range."""
        if streams.runs_ahead:
            return cls(coding, (~torch.isfinite(values).all()).float().view(1))
        peak = _peak(values)
        beyond = LARGEST[coding.transport.codec] < peak < math.inf
        peaks = ((one.names[0], float(one.view(array).abs().max())) for one in slots if beyond and one.values.numel())
        worst = max(peaks, key=lambda found: found[1], default=None)
        return cls(coding, torch.tensor([0.0 if peak < math.inf else 1.0]), worst)

    def together(self, other: CodecInput) -> CodecInput:
        both = [one for one in (self.worst, other.worst) if one is not None]
        worst = max(both, key=lambda one: one[1], default=None)
        return CodecInput(self.coding, torch.maximum(self.not_finite, other.not_finite), worst)


def _peak(values: torch.Tensor) -> float:
    return float(torch.maximum(values.amax(), values.amin().neg())) if len(values) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a worker sends in an all-reduce: parameters, their change since reference parameters, or gradients.

    `since` is that reference, equal on all workers. Copies in `kept` are sent in place of current values. `codings` and
    `kept` have an entry per bucket, `lag` is the delay in rounds, and `settings` must be equal on all members.
    """

    gradients: bool = False
    divisor: int | None = None  # of gradients; by default the number of members
    kept: Sequence[Snapshot] = ()  # per bucket, a copy to send instead of the current values
    codings: Sequence[Coding] | None = None  # per bucket, its coding
    lag: int = 0  # 1 if started at the beginning of a round and waited for at its end
    since: Reference | None = None  # if set, changes since this reference are summed; equal on all members
    settings: Settings = ()  # optimizer settings that must be equal on all members (see `settings_of`)

    def kept_of(self, index: int) -> Snapshot | None:
        return self.kept[index] if self.kept else None


PARAMETERS = Content()


class Alone(Communicator):
    """Stand-in for a group's communicator if this worker is the only member left: an all-reduce returns its input."""

    def __init__(self, rank: int) -> None:
        super().__init__((rank,), rank, None)

    def all_reduce(self, tensor: torch.Tensor, coding: Coding | None = None) -> Work:  # noqa: ARG002 - as of groups
        return Work(lambda: True, lambda: None)


class Reduction:
    """State of one all-reduce: its group, its tag and the scratch arrays that it borrows from the buckets.

    The arrays are returned after the result is committed, that is, written to the model. The tag shows whether all
    members ran the same operation.
    """

    def __init__(
        self,
        communicator: Communicator,
        group: Group,
        operation: Operation,
        tag: tuple[int, ...],
        buckets: Sequence[Bucket] = (),
        *,
        content: Content = PARAMETERS,
    ) -> None:
        self.communicator, self.group, self.operation, self.tag = communicator, group, operation, tag
        self.buckets, self.content = tuple(buckets), content
        self.arrays = [bucket.lend() for bucket in self.buckets]  # inputs, then sums; one array per bucket
        self.absent: dict[int, frozenset[int]] = {}  # per bucket, the slots without a gradient here
        self.works: list[Work] = []
        self.sides: dict[int, torch.Tensor] = {}
        self.coded: dict[int, CodedPart] = {}
        self.ok: torch.Tensor | None = None
        self.apart = "ran different operations"

    @property
    def num_members(self) -> int:
        return len(self.group.members)

    def release(self) -> None:
        """Return the scratch arrays to their buckets, after the sums are written to the model or dropped."""
        for bucket, array in zip(self.buckets, self.arrays, strict=True):
            bucket.give_back(array)
        self.arrays = []

    def abandon(self) -> None:
        """Drop the sums and never reuse the scratch arrays, since the backend may still write to them."""
        self.works.clear()
        for bucket, array in zip(self.buckets, self.arrays, strict=True):
            bucket.lose(array)

    def load(self, index: int, part: slice, kept: Snapshot | None = None) -> None:
        """Fill the range `part` of bucket `index`'s scratch array with this worker's share of the mean.

        The share is the parameters (or the copy `kept` of them), or their change since `content.since`, divided by the
        group size.
        """
        whole = self.buckets[index].flat if kept is None or kept.array is None else kept.array
        values, share = whole[part], self.arrays[index][part]
        if (since := self.content.since) is None:
            torch.div(values, self.num_members, out=share)
        else:
            torch.sub(values, since.arrays[index].on_device(part), out=share).div_(self.num_members)

    def complaint(self) -> str:
        """Return the error message for tags that differ between members, or for sums beyond a codec's range."""
        text = f"its members {self.apart} at the same time"
        if self.content.since is not None:
            text += f", or measure their parameters from another reference than this worker's, {self.content.since}"
        if self.content.settings:
            text += ", or step with different settings of the optimizer"
        text += " (their tags differ)"
        return f"{text}, or a finite number left the codec's range (use bfloat16)" if self.coded else text
