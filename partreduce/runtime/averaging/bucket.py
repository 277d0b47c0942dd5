"""Define the bucket: a flat array of parameters that is all-reduced and written back as a whole, as in DDP.

The `commit_` functions write averages back. Their argument `ok` says whether all members ran the same operation: None
on CPU, where the host has checked before, or a 0-d bool tensor on CUDA, where False leaves all values unchanged. The
device evaluates `ok`, so the host never waits inside a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from partreduce.runtime.averaging.buffer_rules import BufferRule, BufferSpec, check_spec
from partreduce.runtime.transport.tags import EXACT_DTYPES, TAG_LENGTH, Tail

ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class Slot:
    """Position of one parameter in the flat array of a bucket; `start` is the index of its first element.

    `stride` is the parameter's, in elements. Tied weights have several `names` and `owners` (module, attribute).
    """

    names: tuple[str, ...]
    parameter: torch.nn.Parameter
    owners: tuple[tuple[torch.nn.Module, str], ...]
    start: int
    stride: tuple[int, ...]

    @property
    def values(self) -> torch.Tensor:
        """This worker's values of the parameter: the parameter itself, or its local shard if it is sharded."""
        return self.parameter

    @property
    def room(self) -> int:
        """Number of elements that the parameter occupies in the flat array."""
        return self.parameter.numel()

    @property
    def gradient(self) -> torch.Tensor | None:
        return self.parameter.grad

    def put_gradient(self, values: torch.Tensor | None) -> None:
        self.parameter.grad = values

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(flat, self.values.shape, self.stride, flat.storage_offset() + self.start)

    def window(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the parameter's view in a flat array, of which `torch.save` writes only the parameter's elements."""
        own: torch.Tensor = from_dlpack(to_dlpack(flat[self.start : self.start + self.room]))
        return own.as_strided(self.values.shape, self.stride)

    def put(self, window: torch.Tensor) -> None:
        """Make the parameter a view of the flat array; `window` is that view, as `Slot.window` returns it."""
        self.parameter.data = window

    def returns(self, flat: torch.Tensor) -> bool:  # noqa: ARG002 - for shards
        """Return whether the parameter was moved back into `flat`: never here, as only FSDP moves shards away."""
        return False


@dataclass(frozen=True, slots=True)
class Piggybacked:
    """A buffer or optimizer state that is sent with a bucket of parameters, at `start` in the bucket's array.

    `fetch` returns its current value, or None. Under the buffer rule `own` (each worker keeps its own values) the
    tensor is sent as bytes, and only when the model is set to the mean over all workers.
    """

    name: str
    spec: BufferSpec
    start: int
    rule: BufferRule
    fetch: Callable[[], torch.Tensor | None]

    @property
    def is_state(self) -> bool:
        """Whether the tensor is optimizer state rather than a buffer of the model."""
        return ":" in self.name

    @property
    def room(self) -> int:
        count = torch.Size(self.spec.shape).numel()
        return count * self.spec.dtype.itemsize if self.rule is BufferRule.OWN else count

    def view(self, scratch: torch.Tensor) -> torch.Tensor:
        """Return the tensor's view in a bucket's array, in its own dtype even if it is sent as bytes."""
        part = scratch[self.start : self.start + self.room]
        return (part.view(self.spec.dtype) if self.rule is BufferRule.OWN else part).view(self.spec.shape)


@dataclass(slots=True)
class _Parts:
    """Cached views of one scratch array: per parameter (`windows`), and of its end (`tail`, see `Bucket.tail_of`)."""

    array: torch.Tensor
    windows: list[torch.Tensor] | None = None
    tail: Tail | None = None


@dataclass(slots=True)
class Bucket:
    """Flat array of all parameters of one device and dtype, all-reduced as a whole with buffers and optimizer state.

    `size` counts the parameters with padding, `length` also the `piggybacked` buffers and states. Each all-reduce
    borrows an array until its result is written back. That array has `length` elements, one presence flag per parameter
    (whether it has a gradient), and a tag, which shows whether all members ran the same operation. Borrowing is
    thread-safe.
    """

    device: torch.device
    dtype: torch.dtype
    size: int
    flat: torch.Tensor
    slots: list[Slot] = field(default_factory=list)
    piggybacked: list[Piggybacked] = field(default_factory=list)
    length: int = 0
    fragment: int = 0  # index of the model's fragment that the bucket belongs to
    _spare: list[torch.Tensor] = field(default_factory=list)
    _parts: dict[int, _Parts] = field(default_factory=dict)
    _home: torch.Tensor | None = None
    _own_users: int = 0  # tensors that share the parameters' memory because of the bucket itself

    @property
    def exact(self) -> bool:
        """Whether sums of tags are exact in this dtype: arrays then end with the tag; else a float32 tensor has it."""
        return self.dtype in EXACT_DTYPES

    @property
    def num_bytes(self) -> int:
        return self.length * self.flat.element_size()

    @property
    def array_length(self) -> int:
        return self.length + len(self.slots) + (TAG_LENGTH if self.exact else 0)

    def lend(self) -> torch.Tensor:
        """Return a free array of `array_length` elements for one all-reduce; allocate one if none is free."""
        while True:
            try:
                array = self._spare.pop()
            except IndexError:
                return torch.zeros(self.array_length, dtype=self.dtype, device=self.device)
            if array.shape[0] == self.array_length:
                return array
            self.lose(array)

    def windows(self, array: torch.Tensor) -> list[torch.Tensor]:
        parts = self._parts_of(array)
        if parts.windows is None:
            parts.windows = [slot.window(array) for slot in self.slots]
        return parts.windows

    def tail_of(self, array: torch.Tensor) -> Tail:
        """Return a NumPy view of a CPU array from index `length` on: presence flags, then the tag if `exact`."""
        parts = self._parts_of(array)
        if parts.tail is None:
            parts.tail = array[self.length :].numpy()
        return parts.tail

    def _parts_of(self, array: torch.Tensor) -> _Parts:
        parts = self._parts.get(id(array))
        if parts is None:
            parts = self._parts[id(array)] = _Parts(array)
        return parts

    def lose(self, array: torch.Tensor) -> None:
        """Drop a borrowed array for good, because a failed all-reduce may still write to it."""
        self._parts.pop(id(array), None)

    def give_back(self, array: torch.Tensor) -> None:
        """Return a borrowed array to the pool, unless the parameters now live in it."""
        if array is not self._home:
            self._spare.append(array)

    def swap(self, array: torch.Tensor) -> None:
        """Make a scratch array the parameters' memory; if the script holds views of the old memory, copy instead."""
        if any(_users(slot.values) > self._own_users for slot in self.slots):
            self.flat.copy_(array[: self.size])
            return
        old, self._home = self._home, array
        if old is not None:
            self._spare.append(old)
        self.flat = array[: self.size]
        for slot, window in zip(self.slots, self.windows(array), strict=True):
            slot.put(window)
        self.count_own_users()

    def count_own_users(self) -> None:
        """Record how many tensors share the parameters' memory; if more do later, the script holds some of them."""
        self._own_users = max(map(_users, (slot.values for slot in self.slots)), default=0)


def copy_to(arrays: list[torch.Tensor], buckets: Sequence[Bucket]) -> list[torch.Tensor]:
    """Copy each bucket's parameters into the array at its index, or into new ones if `arrays` is empty; return them."""
    arrays = arrays or [torch.empty_like(bucket.flat) for bucket in buckets]
    for array, bucket in zip(arrays, buckets, strict=True):
        array.copy_(bucket.flat)
    return arrays


def _users(tensor: torch.Tensor) -> int:
    """Return how many tensors share the storage of `tensor`, including those that autograd keeps."""
    storage = tensor.untyped_storage()
    users: int = torch._C._storage_Use_Count(storage._cdata)  # noqa: SLF001 - torch has no public way
    return users - 1  # without `storage` itself


def align_count(count: int, dtype: torch.dtype) -> int:
    """Round up `count` elements of `dtype`, so that the next element starts on a 64-byte cache line."""
    unit = max(1, ALIGN_BYTES // dtype.itemsize)
    return -(-count // unit) * unit


def drop_repetitions(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of `tensor` with size 1 in each expanded dimension (stride 0), as of `mask.expand(8, n, n)`."""
    if tensor.layout is not torch.strided or 0 not in tensor.stride():
        return tensor
    once = (slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
    return tensor.detach()[tuple(once)]


def commit_mean(
    bucket: Bucket, sums: torch.Tensor, relaxation: float, ok: torch.Tensor | None, *, swap: bool = False
) -> None:
    """Write an average back in place: x ← x + relaxation · (mean − x), where `sums` has the group's mean.

    `swap` exchanges the arrays instead of copying if `relaxation` is 1 and `ok` is None. If the device's check `ok` is
    not None but False, nothing changes.
    """
    mean, live = sums[: bucket.size], bucket.flat
    if relaxation != 1:
        torch.lerp(live, mean, relaxation, out=mean if ok is not None else live)
        if ok is None:
            return
    elif swap and ok is None:
        bucket.swap(sums)
        return
    replace_where(live, mean, ok)


def commit_delayed(
    bucket: Bucket, sums: torch.Tensor, snapshot: torch.Tensor, relaxation: float, ok: torch.Tensor | None
) -> None:
    """Write back an average of earlier parameters: x ← x + relaxation · (mean of snapshots − own snapshot).

    `sums` has the mean of the members' snapshots. If the device's check `ok` is not None but False, nothing changes.
    """
    change, live = sums[: bucket.size], bucket.flat
    change.sub_(snapshot[: bucket.size])
    if ok is not None:
        only_where(change, ok)
    live.add_(change, alpha=relaxation)


def rescale_progress(bucket: Bucket, start: torch.Tensor, factor: float) -> None:
    """Scale a worker's progress in place, x ← start + factor · (x − start); `start` has the round's first parameters.

    Workers that take different numbers of steps per round thus count as if all took equally many.
    """
    bucket.flat.sub_(start[: bucket.size]).mul_(factor).add_(start[: bucket.size])


def replace_where(live: torch.Tensor, new: torch.Tensor, ok: torch.Tensor | None) -> None:
    """Copy `new` into `live` if `ok` is None or True on the device; leave `live` unchanged otherwise."""
    if ok is None:
        live.copy_(new)
    else:
        torch.where(ok, new, live, out=live)


def only_where(values: torch.Tensor, ok: torch.Tensor) -> None:
    """Set `values` to zero if `ok`, a 0-d bool tensor on the device, is False, even where they are NaN or infinite."""
    torch.where(ok, values, values.new_zeros(()), out=values)


def load_piggybacked(bucket: Bucket, array: torch.Tensor, divisor: int, *, is_first: bool, rank: int) -> None:
    """Copy a bucket's buffers and optimizer state into a scratch array, divided by `divisor` if their rule is the mean.

    The others are zero except in the array of the group's lowest rank (`is_first`), from which all members copy them.
    Raises InputError, which names worker `rank` (this one), if a buffer has changed its shape or dtype.
    """
    for tensor in bucket.piggybacked:
        value = tensor.fetch()
        if not tensor.is_state:
            check_spec(tensor.name, value, tensor.spec, rank)
        part = tensor.view(array)
        is_copied = tensor.rule is not BufferRule.MEAN
        if value is None or (is_copied and not is_first):
            part.zero_()
        elif is_copied:
            part.copy_(value)
        else:
            torch.div(value.detach(), divisor, out=part)


def snapshot_piggybacked(bucket: Bucket) -> list[torch.Tensor | None]:
    """Return copies of a bucket's piggybacked buffers and optimizer state; None for one that does not exist yet."""
    values = (tensor.fetch() for tensor in bucket.piggybacked)
    return [None if value is None else value.detach().clone() for value in values]


def commit_piggybacked(
    bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None, before: Sequence[torch.Tensor | None] | None = None
) -> None:
    """Write a bucket's averaged buffers and optimizer state from `sums` back, unless the device's check `ok` is False.

    With a snapshot `before` from `snapshot_piggybacked`, changes that this worker has made since then are kept.
    """
    for index, tensor in enumerate(bucket.piggybacked):
        value = tensor.fetch()
        if value is None:
            continue
        new = tensor.view(sums)
        if tensor.rule is BufferRule.OWN:
            if ok is not None:  # as bytes, since `torch.where` lacks some dtypes on a device
                own = value.detach().contiguous().reshape(-1).view(torch.uint8)
                new = torch.where(ok, new.reshape(-1).view(torch.uint8), own).view(value.dtype).view(value.shape)
            value.copy_(new)
            continue
        old = before[index] if before is not None else None
        if old is not None and tensor.rule is BufferRule.FIRST:
            # The worker whose values were copied may have changed them since, and keeps the changed tensor as a whole.
            new = torch.where((new == old).all(), value, new)
        elif old is not None:
            # Unchanged elements take the mean itself: an infinite element of a mask would give inf - inf = NaN.
            new = torch.where(value == old, new, new + (value - old))
            if tensor.name.endswith("running_var"):
                new = new.clamp_min(0)  # a variance stays one
        replace_where(value, new, ok)
