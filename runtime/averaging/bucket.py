"""Bucket: one flat array that a group operation moves and commits as a whole, and where everything in it lies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from preduce.runtime.transport.tags import EXACT_DTYPES, TAG_LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable

ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter's place in a bucket."""

    names: tuple[str, ...]
    parameter: torch.nn.Parameter
    owners: tuple[tuple[torch.nn.Module, str], ...]
    start: int
    stride: tuple[int, ...]

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """This parameter's part of an array that is laid out as the bucket."""
        return torch.as_strided(flat, self.parameter.shape, self.stride, flat.storage_offset() + self.start)

    def window(self, flat: torch.Tensor) -> torch.Tensor:
        """As `view`, with a storage that ends where the parameter does.

        What writes storages (`torch.save`, safetensors) then writes this parameter and not the whole array.
        """
        count = self.parameter.numel()
        part = from_dlpack(to_dlpack(flat[self.start : self.start + count]))
        window: torch.Tensor = torch.as_strided(part, self.parameter.shape, self.stride)
        return window


@dataclass(frozen=True, slots=True)
class Rider:
    """A tensor that rides along: copied into the scratch array, reduced, copied back."""

    name: str
    shape: tuple[int, ...]
    start: int
    broadcast: bool
    fetch: Callable[[], torch.Tensor | None]

    @property
    def is_state(self) -> bool:
        """Whether it is optimizer state, which the model does not hold."""
        return ":" in self.name

    def view(self, scratch: torch.Tensor) -> torch.Tensor:
        """This rider's part of the scratch array."""
        count = torch.Size(self.shape).numel()
        return scratch[self.start : self.start + count].view(self.shape)


@dataclass(slots=True)
class Bucket:
    """What is reduced as one array: the flat parameters of one (device, dtype), then the riders, then the tag.

    `size` counts parameters with padding, `length` riders too; the scratch array is `length` + presence + tag long,
    where presence holds one number per parameter that has a gradient somewhere, and makes room for a longer note.
    """

    device: torch.device
    dtype: torch.dtype
    size: int
    flat: torch.Tensor
    slots: list[Slot] = field(default_factory=list)
    riders: list[Rider] = field(default_factory=list)
    length: int = 0
    note: torch.Tensor | None = None
    """Numbers that averages of parameters carry along, from the place of presence on, and average (see `carry`)."""
    _scratch: torch.Tensor | None = None
    _home: torch.Tensor | None = None
    _aside: torch.Tensor | None = None

    @property
    def tail(self) -> int:
        """Where presence and tag begin in the scratch array."""
        return self.length

    @property
    def exact(self) -> bool:
        """Whether the tag is exact in this dtype and so stands in the tail of the scratch array."""
        return self.dtype in EXACT_DTYPES

    @property
    def num_bytes(self) -> int:
        """The payload of one operation."""
        return self.length * self.flat.element_size()

    def scratch(self) -> torch.Tensor:
        """The array that is reduced; allocated once."""
        if self._scratch is None:
            spare = max(len(self.slots), 0 if self.note is None else len(self.note))
            count = self.length + spare + (TAG_LENGTH if self.exact else 0)
            self._scratch = torch.zeros(count, dtype=self.dtype, device=self.device)
        return self._scratch

    def carry(self, note: torch.Tensor) -> None:
        """Let averages of parameters carry `note` along: one number per parameter, or a few more than that."""
        assert self._home is None, "the array that holds the live parameters keeps its length"
        self.note, self._scratch = note, None

    def let_go(self) -> None:
        """Leave the scratch array to an operation that may still write into it; the next one gets a new array."""
        self._scratch = None

    def swap(self) -> None:
        """Make the scratch array's parameters the live ones, without copying; the old live array is scratch next."""
        if self._home is None:
            # The first array holds parameters only; the one that takes its place as scratch has room for the tail.
            self.flat.copy_(self.scratch()[: self.size])
            fresh = torch.empty_like(self.scratch())
            fresh[: self.size] = self.flat
            self._home = fresh
        else:
            self._home, self._scratch = self.scratch(), self._home
        self.flat = self._home[: self.size]
        for slot in self.slots:
            slot.parameter.data = slot.window(self.flat)

    def put_aside(self) -> None:
        """Keep the sums of a finished operation for later and free the scratch array for another one."""
        self._aside, self._scratch = self._scratch, None

    def take_back(self) -> None:
        """Make the sums that were put aside the scratch array again."""
        if self._aside is not None:
            self._scratch, self._aside = self._aside, None


def aligned(count: int, dtype: torch.dtype) -> int:
    """The next length at which an array of this dtype may end, so that the next one begins on a cache line."""
    unit = max(1, ALIGN_BYTES // dtype.itemsize)
    return -(-count // unit) * unit
