"""Store a model's parameters as views of flat arrays, one per (device, dtype), as in DDP's buckets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from hashlib import blake2b
from operator import itemgetter
from typing import Any
from weakref import ref

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from partreduce.runtime.averaging.bucket import ALIGN_BYTES, Bucket, Piggybacked, Slot, align_count, drop_repetitions
from partreduce.runtime.averaging.buffer_rules import KINDS, BufferRule, BufferSpec, Values, buffer_kind, values_of
from partreduce.runtime.averaging.dtensor_shards import Sharders, local
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.payload import Fragments, assign

SAMPLED_FROZEN = 1 << 12  # elements of each frozen parameter that are compared to detect a change


_newest: Any = WeakTensorKeyDictionary()  # parameter -> weak reference to the FlatModel that flattened it last


def newest_of(parameter: torch.Tensor) -> FlatModel | None:
    """Return the FlatModel that flattened a parameter last; None if that object no longer exists."""
    newest: FlatModel | None = _newest[parameter]()
    return newest


class BufferPolicy(StrEnum):
    """Option `buffers`: apply the buffers' rules, keep buffers local, or copy the lowest rank's in place of means."""

    AVERAGE = "average"
    LOCAL = "local"
    BROADCAST = "broadcast"


class StatePolicy(StrEnum):
    """Option `optimizer_state`: averages leave momentum and second moments local, or average them."""

    LOCAL = "local"
    AVERAGE = "average"


class FlatModel:
    """A model whose trainable parameters are views of flat buckets, so that one all-reduce averages a whole bucket.

    `buffers` and `state` choose how buffers and optimizer state are averaged. `apart` maps parameters that are
    exchanged separately (embedding tables) to descriptions for the handshake. `fragments` divides the other parameters
    into parts that are averaged in turn; each part has its own buckets.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        buffers: BufferPolicy,
        state: StatePolicy,
        apart: Mapping[torch.nn.Parameter, str] | None = None,
        *,
        fragments: Fragments = 1,
    ) -> None:
        self.apart = dict(apart or {})
        self.model = model
        self.sharders = Sharders(model)
        named = [entry for entry in _named_parameters(model) if entry[2] not in self.apart]
        self.frozen_names = {p: names[0] for names, _, p in named if not p.requires_grad}  # not trainable at wrapping
        trainable = [(names, owners, p) for names, owners, p in named if p.requires_grad]
        numbers = assign(fragments, [(names, p.numel()) for names, _, p in trainable])
        keys = [(number, p.device, p.dtype) for number, (_, _, p) in zip(numbers, trainable, strict=True)]
        self.buckets: list[Bucket] = []
        for key in dict.fromkeys(sorted(keys, key=itemgetter(0))):
            same = [entry for entry, its in zip(trainable, keys, strict=True) if its == key]
            self.buckets.append(_flatten(same, self.sharders, fragment=key[0]))
        self.buffer_policy = buffers
        self.buffer_buckets: list[Bucket] = []  # for buffers that are sent only for the mean model
        self.rules: dict[str, BufferRule] = {}  # rule of each buffer
        self._undecided: list[str] = []  # buffers that are averaged unless their values are those of a mask
        self.keeps_buffers = False  # whether floating-point buffers stay different between workers
        self._add_buffers()
        self.riding: dict[torch.nn.Parameter, list[str]] = {}  # names of optimizer states averaged with each parameter
        if state is StatePolicy.AVERAGE:
            self._add_state(optimizer)
        for bucket in self.buckets + self.buffer_buckets:
            bucket.length = align_count(bucket.length, bucket.dtype)
        _newest.update({slot.parameter: ref(self) for bucket in self.buckets for slot in bucket.slots})
        self._slots = [slot for bucket in self.buckets for slot in bucket.slots]
        self._known = {slot.parameter: slot for slot in self._slots}

    def fragment(self, number: int) -> list[Bucket]:
        """Return the buckets of fragment `number`; a buffer is in the first fragment with its device and dtype."""
        return [bucket for bucket in self.buckets if bucket.fragment == number]

    def arrays(self) -> list[torch.Tensor]:
        return [bucket.flat.detach() for bucket in self.buckets]

    @property
    def frozen(self) -> list[torch.Tensor]:
        """Parameters that were not trainable at wrapping; they are equal on all workers and never averaged."""
        return [drop_repetitions(local(parameter)) for parameter in self.frozen_names]

    def named_frozen(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each frozen parameter's name and a sample of its elements, by which a change is detected."""
        for name, values in zip(self.frozen_names.values(), self.frozen, strict=True):
            yield name, values.detach().reshape(-1)[:: max(1, values.numel() // SAMPLED_FROZEN)]

    def slots(self) -> list[Slot]:
        return self._slots

    def holds(self, parameter: torch.Tensor) -> bool:
        """Return whether a parameter is averaged in a bucket, or exchanged separately (an embedding table)."""
        return parameter in self._known or parameter in self.apart

    def named_buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Return the dense buffers with their names, each once; sparse ones, which are never averaged, are left out."""
        return [
            (strip_compiled(name), drop_repetitions(one))
            for name, one in self.model.named_buffers()
            if one.layout is torch.strided
        ]

    def buffers(self) -> list[torch.Tensor]:
        return [buffer for _, buffer in self.named_buffers()]

    def layout(self) -> list[str]:
        """Describe each parameter and buffer (name, shape, dtype) in a line; the lines must be equal on all workers."""
        lines = []
        for bucket in self.buckets:
            for slot in bucket.slots:
                shape = "×".join(map(str, slot.values.shape)) or "scalar"
                lines.append(
                    f"{'='.join(slot.names)} {shape} {bucket.dtype} {bucket.device.type} strides {slot.stride}"
                )
            lines += [
                f"{tensor.name} {'×'.join(map(str, tensor.spec.shape))} {bucket.dtype}" for tensor in bucket.piggybacked
            ]
        lines += self.apart.values()
        lines += [f"frozen parameter {'×'.join(map(str, p.shape))} {p.dtype}" for p in self.frozen]
        lines += [
            f"buffer {strip_compiled(name)} {'×'.join(map(str, b.shape))} {b.dtype}{_digest_if_sparse(b)}"
            for name, b in self.model.named_buffers()
        ]
        return lines

    def details(self) -> dict[str, list[str]]:
        rules = [f"buffer {name} {rule.value}" for name, rule in self.rules.items()]
        return {"model": self.layout(), "buffer rules": rules}

    def undecided_values(self) -> dict[str, str]:
        """Return, by name, the class of values (`Values`) of each buffer that is averaged unless it is a mask.

        A mask holds zeros and ones (see `masks_among`). Waits for a CUDA device.
        """
        named = dict(self.named_buffers())
        return {name: values_of(named[name]).value for name in self._undecided if name in named}

    def masks_among(self, seen: Sequence[Mapping[str, str]]) -> list[str]:
        """Return the names of masks, by all workers' values `seen`: `mask` on some worker and `other` on none."""
        looks = {name: {one.get(name) for one in seen} for name in self._undecided}
        return [name for name, found in looks.items() if Values.MASK in found and Values.OTHER not in found]

    def copy_masks(self, masks: Sequence[str]) -> None:
        """Let later averages copy the buffers named `masks` from the lowest rank; called on all workers."""
        for bucket in self.buckets + self.buffer_buckets:
            bucket.piggybacked = [
                replace(tensor, rule=BufferRule.FIRST) if tensor.name in masks else tensor
                for tensor in bucket.piggybacked
            ]
        self.rules |= dict.fromkeys(masks, BufferRule.FIRST)
        self._undecided = []

    def _add_buffers(self) -> None:
        is_local = self.buffer_policy is BufferPolicy.LOCAL
        self.keeps_buffers = is_local
        for prefix, module in self.model.named_modules():
            for attribute, buffer in module.named_buffers(recurse=False):
                name, kind = strip_compiled(f"{prefix}.{attribute}"), buffer_kind(attribute, buffer, module)
                rule = self.rules[name] = kind.rule
                if rule is BufferRule.CONSTANT:
                    continue

                def fetch(module: torch.nn.Module = module, attribute: str = attribute) -> torch.Tensor | None:
                    now = module._buffers.get(attribute)  # noqa: SLF001 - modules may replace the tensor at any time
                    return None if now is None else drop_repetitions(now)

                if rule is BufferRule.OWN:
                    self.keeps_buffers |= buffer.is_floating_point()
                    _ride(self.buffer_buckets, name, drop_repetitions(buffer), rule, fetch)
                    continue
                if kind is KINDS[-1]:
                    self._undecided.append(name)
                if rule is BufferRule.MEAN and self.buffer_policy is BufferPolicy.BROADCAST:
                    rule = BufferRule.FIRST
                _ride(self.buffer_buckets if is_local else self.buckets, name, drop_repetitions(buffer), rule, fetch)

    def _add_state(self, optimizer: torch.optim.Optimizer) -> None:
        others = state_keys(optimizer)
        kept = {
            p: keys
            for group in optimizer.param_groups
            for keys in [state_keys(optimizer, group)]
            for p in group["params"]
        }
        for bucket, slot in [(one, slot) for one in self.buckets for slot in one.slots]:
            self.riding[slot.parameter] = kept.get(slot.parameter, others)
            for key in self.riding[slot.parameter]:

                def fetch(parameter: torch.nn.Parameter = slot.parameter, key: str = key) -> torch.Tensor | None:
                    value = optimizer.state[parameter].get(key) if parameter in optimizer.state else None
                    return local(value) if isinstance(value, torch.Tensor) else None

                _ride([bucket], f"{slot.names[0]}:{key}", slot.values, BufferRule.MEAN, fetch)


def _ride(
    buckets: list[Bucket], name: str, like: torch.Tensor, rule: BufferRule, fetch: Callable[[], torch.Tensor | None]
) -> None:
    """Add a buffer or optimizer state to the bucket of its device and dtype, or to a new bucket, to be sent along.

    Under the rule `own` (each worker keeps its values) it is added as bytes. `like` is a tensor of the same shape,
    dtype and device; `fetch` returns the current value.
    """
    dtype = torch.uint8 if rule is BufferRule.OWN else like.dtype
    bucket = next((known for known in buckets if known.device == like.device and known.dtype == dtype), None)
    if bucket is None:
        bucket = Bucket(like.device, dtype, 0, torch.empty(0, dtype=dtype, device=like.device))
        buckets.append(bucket)
    if rule is BufferRule.OWN:  # aligned, since its bytes are viewed in the tensor's dtype
        bucket.length = -(-bucket.length // ALIGN_BYTES) * ALIGN_BYTES
    bucket.piggybacked.append(Piggybacked(name, BufferSpec.of(like), bucket.length, rule, fetch))
    bucket.length += bucket.piggybacked[-1].room


def strip_compiled(name: str) -> str:
    """Return the name of a parameter or buffer as it is without `torch.compile`, which renames those of its module."""
    return name.lstrip(".").replace("_orig_mod.", "")


def _named_parameters(
    model: torch.nn.Module,
) -> list[tuple[tuple[str, ...], tuple[tuple[torch.nn.Module, str], ...], torch.nn.Parameter]]:
    """Return (names, owners, parameter) of every parameter once; tied weights have several names and owners."""
    names: dict[torch.nn.Parameter, list[str]] = {}
    owners: dict[torch.nn.Parameter, list[tuple[torch.nn.Module, str]]] = {}
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            names.setdefault(parameter, []).append(strip_compiled(f"{prefix}.{name}"))
            owners.setdefault(parameter, []).append((module, name))
    return [(tuple(names[p]), tuple(owners[p]), p) for p in names]


def _flatten(
    entries: Sequence[tuple[tuple[str, ...], tuple[tuple[torch.nn.Module, str], ...], torch.nn.Parameter]],
    sharders: Sharders,
    *,
    fragment: int,
) -> Bucket:
    slots, size = [], 0
    for names, owners, parameter in entries:
        # Dense tensors keep their strides (channels_last stays channels_last); others become contiguous.
        stride = torch.empty_like(local(parameter), memory_format=torch.preserve_format).stride()
        slots.append(sharders.slot(Slot(names, parameter, owners, size, tuple(stride))))
        size += slots[-1].room
        size = align_count(size, parameter.dtype)
    device, dtype = entries[0][2].device, entries[0][2].dtype
    flat = torch.zeros(size, dtype=dtype, device=device)
    bucket = Bucket(device, dtype, size, flat, slots, length=size, fragment=fragment)
    with torch.no_grad():
        for slot in slots:
            slot.put(slot.window(flat).copy_(slot.values))
    bucket.count_own_users()
    return bucket


def _digest_if_sparse(buffer: torch.Tensor) -> str:
    """Return a hash of a sparse buffer's content, which must be equal on all workers; empty for a dense buffer."""
    if buffer.layout is torch.strided:
        return ""
    whole: torch.Tensor = buffer.detach().to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
    return f" sparse {digest_of([whole.indices(), whole.values()])}"


def digest_of(arrays: Iterable[torch.Tensor]) -> str:
    """Return a hash of the bits of all `arrays`; waits for a device."""
    digest = blake2b(digest_size=16)
    for array in arrays:
        digest.update(array.cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def state_keys(optimizer: torch.optim.Optimizer, group: Mapping[str, Any] | None = None) -> list[str]:
    """Return the names of an optimizer's per-parameter state tensors, found by a step of a new optimizer.

    The new one has the settings of `group`, by default the optimizer's defaults. Raises InputError if it cannot be
    created or has state, other than single numbers, of another shape than the parameter's.
    """
    device = optimizer.param_groups[0]["params"][0].device  # some settings, such as `capturable`, need a GPU
    probe = torch.nn.Parameter(torch.zeros(2, 3, device=device))
    probe.grad = torch.zeros_like(probe)
    settings = dict(optimizer.defaults) if group is None else {**optimizer.defaults, **group}
    try:
        known = inspect.signature(type(optimizer)).parameters
        copy = type(optimizer)([probe], **{k: v for k, v in settings.items() if k in known and k != "params"})
        copy.step()
    except Exception as error:  # noqa: BLE001 - any constructor's refusal means the same to the user
        raise InputError(
            f"optimizer_state='average': the state of {type(optimizer).__name__} cannot be foreseen ({error}); "
            "use optimizer_state='local'"
        ) from None
    tensors = {key: value for key, value in copy.state[probe].items() if isinstance(value, torch.Tensor)}
    shapeless = sorted(key for key, value in tensors.items() if value.numel() > 1 and value.shape != probe.shape)
    if shapeless:
        raise InputError(
            f"optimizer_state='average': {type(optimizer).__name__} keeps {', '.join(shapeless)} in other shapes than "
            "its parameters', so it cannot be averaged with them; use optimizer_state='local'"
        )
    return sorted(key for key, value in tensors.items() if value.shape == probe.shape)
