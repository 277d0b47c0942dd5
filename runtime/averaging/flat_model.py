"""Buffers: parameters as views of one flat array per (device, dtype), and what rides along with them.

After `FlatModel(...)` every trainable parameter is a view of a flat array: a group operation moves one array and
commits it with one pass. BatchNorm buffers and optimizer state, where a policy asks for it, ride in the same operation.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import torch

from preduce.runtime.averaging.tags import EXACT_DTYPES, TAG_LENGTH
from preduce.topo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ALIGN_BYTES = 64


class BufferPolicy(StrEnum):
    """What happens to the model's floating-point buffers (BatchNorm statistics) at each group operation."""

    AVERAGE = "average"
    LOCAL = "local"
    BROADCAST = "broadcast"


class StatePolicy(StrEnum):
    """What happens to the optimizer's state (momentum, second moments) at each group operation."""

    LOCAL = "local"
    AVERAGE = "average"


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter's place in a lane."""

    names: tuple[str, ...]
    parameter: torch.nn.Parameter
    owners: tuple[tuple[torch.nn.Module, str], ...]
    start: int
    stride: tuple[int, ...]

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """This parameter's part of an array that is laid out as the lane."""
        return torch.as_strided(flat, self.parameter.shape, self.stride, flat.storage_offset() + self.start)


@dataclass(frozen=True, slots=True)
class Rider:
    """A tensor that rides along: copied into the scratch array, reduced, copied back."""

    name: str
    shape: tuple[int, ...]
    start: int
    broadcast: bool
    fetch: Callable[[], torch.Tensor | None]

    def view(self, scratch: torch.Tensor) -> torch.Tensor:
        """This rider's part of the scratch array."""
        count = torch.Size(self.shape).numel()
        return scratch[self.start : self.start + count].view(self.shape)


@dataclass(slots=True)
class Lane:
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
            slot.parameter.data = slot.view(self.flat)

    def put_aside(self) -> None:
        """Keep the sums of a finished operation for later and free the scratch array for another one."""
        self._aside, self._scratch = self._scratch, None

    def take_back(self) -> None:
        """Make the sums that were put aside the scratch array again."""
        if self._aside is not None:
            self._scratch, self._aside = self._aside, None


class FlatModel:
    """The model's trainable parameters as flat lanes, with checks that they stay where they were put.

    Raises:
        InputError: a model that cannot be laid out flat, or an optimizer with foreign parameters.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, buffers: BufferPolicy, state: StatePolicy
    ) -> None:
        _refuse_wrapped(model)
        self.model = model
        named = _named_parameters(model)
        _refuse_foreign(optimizer, named)
        self.frozen = [p for _, _, p in named if not p.requires_grad]
        trainable = [(names, owners, p) for names, owners, p in named if p.requires_grad]
        if not trainable:
            raise InputError("model: has no trainable parameter; nothing could be averaged")
        self.lanes: list[Lane] = []
        for key in dict.fromkeys((p.device, p.dtype) for _, _, p in trainable):
            self.lanes.append(_flatten([entry for entry in trainable if (entry[2].device, entry[2].dtype) == key]))
        self.buffer_lanes: list[Lane] = []
        """Lanes of buffers alone, for the mean model, when they do not ride along with every operation."""
        local = buffers is BufferPolicy.LOCAL
        self._add_buffers(self.buffer_lanes if local else self.lanes, broadcast=buffers is BufferPolicy.BROADCAST)
        if state is StatePolicy.AVERAGE:
            self._add_state(optimizer)
        for lane in self.lanes + self.buffer_lanes:
            lane.length = _aligned(lane.length, lane.dtype)
        self._known = {slot.parameter: slot for slot in self.slots()}

    def slots(self) -> Iterator[Slot]:
        """All parameters' places."""
        return (slot for lane in self.lanes for slot in lane.slots)

    def holds(self, parameter: torch.Tensor) -> bool:
        """Whether a parameter is a view of a lane."""
        return parameter in self._known

    def buffers(self) -> list[torch.Tensor]:
        """The model's buffers of every dtype, each once."""
        return list(self.model.buffers())

    def check(self) -> None:
        """Notice parameters that were moved or replaced since wrapping. O(number of parameters).

        Raises:
            InputError: naming the parameter.
        """
        for lane in self.lanes:
            base, width = lane.flat.data_ptr(), lane.dtype.itemsize
            for slot in lane.slots:
                for module, attribute in slot.owners:
                    # Walking named_parameters() in each step would cost far more
                    if module._parameters.get(attribute) is not slot.parameter:  # noqa: SLF001 - as said
                        raise InputError(
                            f"model: parameter {slot.names[0]!r} was replaced by another after DistributedOptimizer "
                            "was made, so it would be trained without being averaged; change the model first, then wrap"
                        )
                if slot.parameter.data_ptr() != base + slot.start * width or slot.parameter.dtype != lane.dtype:
                    raise InputError(
                        f"model: the storage of parameter {slot.names[0]!r} was replaced after DistributedOptimizer "
                        "was made (model.to(), .half(), .cuda(), load_state_dict(assign=True) do that); do it before"
                    )

    def layout(self) -> list[str]:
        """One line per parameter and rider, equal on all workers that run the same model."""
        lines = []
        for lane in self.lanes:
            for slot in lane.slots:
                shape = "×".join(map(str, slot.parameter.shape)) or "scalar"
                lines.append(f"{'='.join(slot.names)} {shape} {lane.dtype} {lane.device.type} strides {slot.stride}")
            lines += [f"{rider.name} {'×'.join(map(str, rider.shape))} {lane.dtype}" for rider in lane.riders]
        lines += [f"frozen parameter {'×'.join(map(str, p.shape))} {p.dtype}" for p in self.frozen]
        lines += [f"buffer {name} {'×'.join(map(str, b.shape))} {b.dtype}" for name, b in self.model.named_buffers()]
        return lines

    def _add_buffers(self, lanes: list[Lane], *, broadcast: bool) -> None:
        for prefix, module in self.model.named_modules():
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_floating_point():

                    def fetch(module: torch.nn.Module = module, name: str = name) -> torch.Tensor | None:
                        return module._buffers.get(name)  # noqa: SLF001 - modules may replace the tensor at any time

                    _ride(lanes, f"{prefix}.{name}".lstrip("."), buffer, broadcast=broadcast, fetch=fetch)

    def _add_state(self, optimizer: torch.optim.Optimizer) -> None:
        keys = state_keys(optimizer)
        for slot in list(self.slots()):
            for key in keys:

                def fetch(parameter: torch.nn.Parameter = slot.parameter, key: str = key) -> torch.Tensor | None:
                    value = optimizer.state[parameter].get(key) if parameter in optimizer.state else None
                    return value if isinstance(value, torch.Tensor) else None

                _ride(self.lanes, f"{slot.names[0]}:{key}", slot.parameter, broadcast=False, fetch=fetch)


def _ride(
    lanes: list[Lane],
    name: str,
    like: torch.Tensor,
    *,
    broadcast: bool,
    fetch: Callable[[], torch.Tensor | None],
) -> None:
    """Let a tensor ride in the lane of its device and dtype; a new lane if there is none."""
    lane = next((known for known in lanes if known.device == like.device and known.dtype == like.dtype), None)
    if lane is None:
        lane = Lane(like.device, like.dtype, 0, torch.empty(0, dtype=like.dtype, device=like.device))
        lanes.append(lane)
    lane.riders.append(Rider(name, tuple(like.shape), lane.length, broadcast, fetch))
    lane.length += like.numel()


def state_keys(optimizer: torch.optim.Optimizer) -> list[str]:
    """The per-parameter tensors that an optimizer keeps, found by one step of a copy of it on a parameter of its own.

    Raises:
        InputError: the optimizer cannot be built from its defaults, so its state is unknown before the first step.
    """
    probe = torch.nn.Parameter(torch.zeros(2, 3))
    probe.grad = torch.zeros(2, 3)
    try:
        known = inspect.signature(type(optimizer)).parameters
        copy = type(optimizer)([probe], **{k: v for k, v in optimizer.defaults.items() if k in known})
        copy.step()
    except Exception as error:  # noqa: BLE001 - any constructor's refusal means the same to the user
        raise InputError(
            f"optimizer_state='average': the state of {type(optimizer).__name__} cannot be foreseen ({error}); "
            "use optimizer_state='local'"
        ) from None
    state = copy.state[probe]
    return sorted(k for k, v in state.items() if isinstance(v, torch.Tensor) and v.shape == probe.shape)


def _named_parameters(
    model: torch.nn.Module,
) -> list[tuple[tuple[str, ...], tuple[tuple[torch.nn.Module, str], ...], torch.nn.Parameter]]:
    """Every parameter once, with all its names (tied weights have several) and the modules that hold it."""
    names: dict[torch.nn.Parameter, list[str]] = {}
    owners: dict[torch.nn.Parameter, list[tuple[torch.nn.Module, str]]] = {}
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            full = f"{prefix}.{name}".lstrip(".").replace("_orig_mod.", "")
            names.setdefault(parameter, []).append(full)
            owners.setdefault(parameter, []).append((module, name))
    return [(tuple(names[p]), tuple(owners[p]), p) for p in names]


def _flatten(
    entries: Sequence[tuple[tuple[str, ...], tuple[tuple[torch.nn.Module, str], ...], torch.nn.Parameter]],
) -> Lane:
    first = entries[0][2]
    starts, size = [], 0
    for _, _, parameter in entries:
        starts.append(size)
        size = _aligned(size + parameter.numel(), first.dtype)
    flat = torch.zeros(size, dtype=first.dtype, device=first.device)
    lane = Lane(first.device, first.dtype, size, flat, length=size)
    with torch.no_grad():
        for (names, owners, parameter), start in zip(entries, starts, strict=True):
            # Dense tensors keep their strides (channels_last stays channels_last); others become contiguous.
            stride = torch.empty_like(parameter, memory_format=torch.preserve_format).stride()
            view = torch.as_strided(flat, parameter.shape, stride, start)
            view.copy_(parameter)
            parameter.data = view
            lane.slots.append(Slot(names, parameter, owners, start, tuple(stride)))
    return lane


def _aligned(count: int, dtype: torch.dtype) -> int:
    unit = max(1, ALIGN_BYTES // dtype.itemsize)
    return -(-count // unit) * unit


def _refuse_wrapped(model: torch.nn.Module) -> None:
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise InputError("model: is wrapped in DistributedDataParallel, which averages by itself; pass the bare module")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise InputError(f"model: parameter {name!r} is not initialised yet; run one forward pass, then wrap")
        if parameter.is_complex() or not parameter.is_floating_point():
            raise InputError(f"model: parameter {name!r} is {parameter.dtype}; only real floating point is averaged")
        if hasattr(parameter, "device_mesh"):
            raise InputError(f"model: parameter {name!r} is sharded (DTensor); only whole parameters are averaged")


def _refuse_foreign(
    optimizer: torch.optim.Optimizer,
    named: Sequence[tuple[tuple[str, ...], tuple[tuple[torch.nn.Module, str], ...], torch.nn.Parameter]],
) -> None:
    known = {parameter for _, _, parameter in named}
    for index, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if parameter not in known:
                raise InputError(
                    f"optimizer: parameter {place} of group {index}, shape {list(parameter.shape)}, is not a parameter "
                    "of the model; pass the model that the optimizer trains"
                )
