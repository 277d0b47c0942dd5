"""Define a bucket: one flat array that a group operation sends and commits as a whole, with the layout of its parts.

The functions that commit take `ok`: None on CPU, where the tags were checked before, or a 0-d bool tensor on CUDA; with
False nothing changes. The check is made on the device, so the host never waits inside a step.
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
    """One parameter's place in the flat array of a bucket: `start` is the index of its first number."""

    names: tuple[str, ...]
    parameter: torch.nn.Parameter
    owners: tuple[tuple[torch.nn.Module, str], ...]
    start: int
    stride: tuple[int, ...]

    @property
    def values(self) -> torch.Tensor:
        """This worker's values of the parameter; of a sharded parameter the local shard."""
        return self.parameter

    @property
    def room(self) -> int:
        """How many numbers the parameter takes in the flat array."""
        return self.parameter.numel()

    @property
    def gradient(self) -> torch.Tensor | None:
        return self.parameter.grad

    def put_gradient(self, values: torch.Tensor | None) -> None:
        self.parameter.grad = values

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(flat, self.values.shape, self.stride, flat.storage_offset() + self.start)

    def window(self, flat: torch.Tensor) -> torch.Tensor:
        """View of the parameter in a flat array whose storage ends with it, so `torch.save` writes no more."""
        own: torch.Tensor = from_dlpack(to_dlpack(flat[self.start : self.start + self.room]))
        return own.as_strided(self.values.shape, self.stride)

    def put(self, window: torch.Tensor) -> None:
        """Make the parameter a view of the flat array, given by `window`."""
        self.parameter.data = window

    def returns(self, flat: torch.Tensor) -> bool:  # noqa: ARG002 - for shards
        """Move a parameter back into the flat array if torch has moved it; returns whether it did. Here False."""
        return False


@dataclass(frozen=True, slots=True)
class Piggybacked:
    """A buffer or optimizer state sent with a bucket; with the rule `own` as bytes, for the mean model only."""

    name: str
    spec: BufferSpec
    start: int
    rule: BufferRule
    fetch: Callable[[], torch.Tensor | None]

    @property
    def is_state(self) -> bool:
        """Whether it is optimizer state, not a buffer of the model."""
        return ":" in self.name

    @property
    def room(self) -> int:
        count = torch.Size(self.spec.shape).numel()
        return count * self.spec.dtype.itemsize if self.rule is BufferRule.OWN else count

    def view(self, scratch: torch.Tensor) -> torch.Tensor:
        """View of this tensor in a bucket's array; with the rule `own` the bytes are viewed in the tensor's dtype."""
        part = scratch[self.start : self.start + self.room]
        return (part.view(self.spec.dtype) if self.rule is BufferRule.OWN else part).view(self.spec.shape)


@dataclass(slots=True)
class _Parts:
    """Parts of a lent array, made once; holding the array keeps its id from another's."""

    array: torch.Tensor
    windows: list[torch.Tensor] | None = None
    tail: Tail | None = None


@dataclass(slots=True)
class Bucket:
    """One flat array per (device, dtype) that is all-reduced as a whole: parameters, piggybacked tensors and the tag.

    `size` counts parameters with padding, `length` piggybacked tensors too. An operation's array has `length` numbers,
    one number per parameter that says whether it has a gradient (presence), and the tag. Each operation borrows an
    array until its sums are committed. Any thread may borrow and give back.
    """

    device: torch.device
    dtype: torch.dtype
    size: int
    flat: torch.Tensor
    slots: list[Slot] = field(default_factory=list)
    piggybacked: list[Piggybacked] = field(default_factory=list)
    length: int = 0
    fragment: int = 0  # of the model's fragments the one that it belongs to
    _spare: list[torch.Tensor] = field(default_factory=list)
    _parts: dict[int, _Parts] = field(default_factory=dict)
    _home: torch.Tensor | None = None
    _own_users: int = 0  # how many tensors lie in a live parameter's memory by this bucket's own doing

    @property
    def exact(self) -> bool:
        """Whether sums of tags are exact in this dtype; the tag is then part of the array, else a separate tensor."""
        return self.dtype in EXACT_DTYPES

    @property
    def num_bytes(self) -> int:
        return self.length * self.flat.element_size()

    @property
    def array_length(self) -> int:
        return self.length + len(self.slots) + (TAG_LENGTH if self.exact else 0)

    def lend(self) -> torch.Tensor:
        """Return a free array of `array_length` numbers for one operation; allocate one if there is none."""
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
        """Return a NumPy view of the end of a borrowed host array: a presence per parameter, then the tag if exact."""
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
        """Forget a borrowed array that may still receive data of a failed operation."""
        self._parts.pop(id(array), None)

    def give_back(self, array: torch.Tensor) -> None:
        """Return a borrowed array for reuse, unless it has become the memory of the parameters."""
        if array is not self._home:
            self._spare.append(array)

    def swap(self, array: torch.Tensor) -> None:
        """Make an array the memory of the parameters; copy it instead if the script holds tensors in their memory."""
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
        """Record how many tensors share the parameters' memory, right after the parameters have moved."""
        self._own_users = max(map(_users, (slot.values for slot in self.slots)), default=0)


def copy_to(arrays: list[torch.Tensor], buckets: Sequence[Bucket]) -> list[torch.Tensor]:
    """Copy the parameters of each bucket into the array of its place, or into new arrays if `arrays` is empty."""
    arrays = arrays or [torch.empty_like(bucket.flat) for bucket in buckets]
    for array, bucket in zip(arrays, buckets, strict=True):
        array.copy_(bucket.flat)
    return arrays


def _users(tensor: torch.Tensor) -> int:
    """How many tensors lie in the storage of this one, autograd's among them."""
    storage = tensor.untyped_storage()
    users: int = torch._C._storage_Use_Count(storage._cdata)  # noqa: SLF001 - torch has no public way
    return users - 1  # the handle that is asked is one, too


def align_count(count: int, dtype: torch.dtype) -> int:
    """Round a count of numbers up, so that the next number of this dtype begins on a cache line of 64 bytes."""
    unit = max(1, ALIGN_BYTES // dtype.itemsize)
    return -(-count // unit) * unit


def drop_repetitions(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view without the repeated dimensions of an expanded tensor, such as `mask.expand(8, n, n)`."""
    if tensor.layout is not torch.strided or 0 not in tensor.stride():
        return tensor
    once = (slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
    return tensor.detach()[tuple(once)]


def commit_mean(
    bucket: Bucket, sums: torch.Tensor, relaxation: float, ok: torch.Tensor | None, *, swap: bool = False
) -> None:
    """Commit x ← x + relaxation · (mean − x), in place; `swap` exchanges arrays if relaxation is 1 and `ok` None."""
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
    """Commit x ← x + relaxation · (mean of snapshots − own snapshot), in place: progress since the snapshot stays."""
    change, live = sums[: bucket.size], bucket.flat
    change.sub_(snapshot[: bucket.size])
    if ok is not None:
        only_where(change, ok)
    live.add_(change, alpha=relaxation)


def rescale_progress(bucket: Bucket, start: torch.Tensor, factor: float) -> None:
    """Commit x ← start + factor · (x − start), in place: progress scaled to a common number of steps per round."""
    bucket.flat.sub_(start[: bucket.size]).mul_(factor).add_(start[: bucket.size])


def replace_where(live: torch.Tensor, new: torch.Tensor, ok: torch.Tensor | None) -> None:
    """Copy `new` into `live`, unless the device's check `ok` is False; None means that the host has checked."""
    if ok is None:
        live.copy_(new)
    else:
        torch.where(ok, new, live, out=live)


def only_where(values: torch.Tensor, ok: torch.Tensor) -> None:
    """Set `values` to zero if `ok` is False, also where they are NaN or infinite."""
    torch.where(ok, values, values.new_zeros(()), out=values)


def load_piggybacked(bucket: Bucket, array: torch.Tensor, divisor: int, *, is_first: bool, rank: int) -> None:
    """Copy piggybacked tensors, divided by `divisor`, into an array; those to copy from the lowest rank only there."""
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
    """Return copies of the piggybacked tensors; None for a tensor that does not exist yet."""
    values = (tensor.fetch() for tensor in bucket.piggybacked)
    return [None if value is None else value.detach().clone() for value in values]


def commit_piggybacked(
    bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None, before: Sequence[torch.Tensor | None] | None = None
) -> None:
    """Write averaged buffers and optimizer state back; with `before`, a snapshot, changes since then are kept."""
    for index, tensor in enumerate(bucket.piggybacked):
        value = tensor.fetch()
        if value is None:
            continue
        new = tensor.view(sums)
        if tensor.rule is BufferRule.OWN:
            if ok is not None:  # of some dtypes a device may not choose between two tensors
                own = value.detach().contiguous().reshape(-1).view(torch.uint8)
                new = torch.where(ok, new.reshape(-1).view(torch.uint8), own).view(value.dtype).view(value.shape)
            value.copy_(new)
            continue
        old = before[index] if before is not None else None
        if old is not None and tensor.rule is BufferRule.FIRST:
            # Whose values these are may have others by now, and keeps them. All of it, since vectors belong together.
            new = torch.where((new == old).all(), value, new)
        elif old is not None:
            # What stood still takes the mean as it is: the infinities of a mask would make a difference of no number.
            new = torch.where(value == old, new, new + (value - old))
            if tensor.name.endswith("running_var"):
                new = new.clamp_min(0)  # a variance stays one
        replace_where(value, new, ok)
