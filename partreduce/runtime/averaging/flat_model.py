"""Flat model: a model's parameters as views of one flat array per (device, dtype), and what rides along with them.

After `FlatModel(...)` every trainable parameter is a view of a flat array: a group operation moves one array and
commits it with one pass. Buffers (by their rules) and optimizer state, where a policy asks for it, ride in the same
operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from operator import itemgetter
from typing import Any
from weakref import ref

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from partreduce.runtime.averaging.bucket import ALIGN_BYTES, Bucket, Piggybacked, Slot, aligned
from partreduce.runtime.averaging.buffer_rules import (
    AVERAGED,
    BufferRule,
    BufferSpec,
    Values,
    buffer_kind,
    check_spec,
    may_be_mask,
    values_of,
)
from partreduce.runtime.averaging.digest import digest_of
from partreduce.runtime.averaging.foreign import wrapped_by
from partreduce.runtime.averaging.load_watch import count_loads
from partreduce.runtime.averaging.memory import check_shared_memory, stored
from partreduce.runtime.averaging.optimizer_state import state_keys
from partreduce.runtime.averaging.shards import Sharders, is_sharded, local
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.fragments import Fragments, assign

SAMPLED_FROZEN = 1 << 12
"""Numbers of each frozen parameter by which a change is noticed."""


_newest: Any = WeakTensorKeyDictionary()
"""For each parameter the flat model that it was put into last, weakly."""


class BufferPolicy(StrEnum):
    """What happens to the model's buffers at each group operation.

    Each by its rule (see `buffer_rules`), which is the mean for BatchNorm's statistics; none of them; or those of rule
    `mean`, too, are copied from the group's lowest rank.
    """

    AVERAGE = "average"
    LOCAL = "local"
    BROADCAST = "broadcast"


class StatePolicy(StrEnum):
    """What happens to the optimizer's state (momentum, second moments) at each group operation."""

    LOCAL = "local"
    AVERAGE = "average"


class FlatModel:
    """The model's trainable parameters as flat buckets, with checks that they stay where they were put.

    Args:
        model: the module.
        optimizer: trains its parameters.
        buffers: what happens to buffers.
        state: what happens to the optimizer's state.
        apart: parameters that are exchanged another way, with a line for each that says what they are.
        fragments: into which parts it is cut, of which each has buckets of its own.

    Raises:
        InputError: a model that cannot be laid out flat, or an optimizer with foreign parameters.
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
        self._apart = dict(apart or {})
        _check_wrapped(model, self._apart)
        self.model = model
        self.sharders = Sharders(model)
        _check_several_devices(model, self._apart)
        check_shared_memory(model)
        named = _named_parameters(model)
        _check_foreign(optimizer, named)
        named = [entry for entry in named if entry[2] not in self._apart]
        self._frozen = {p: names[0] for names, _, p in named if not p.requires_grad}
        trainable = [(names, owners, p) for names, owners, p in named if p.requires_grad]
        if not trainable:
            besides = " besides its tables" if self._apart else ""
            raise InputError(f"model: has no trainable parameter{besides}; nothing could be averaged")
        numbers = assign(fragments, [(names, p.numel()) for names, _, p in trainable])
        keys = [(number, p.device, p.dtype) for number, (_, _, p) in zip(numbers, trainable, strict=True)]
        self.buckets: list[Bucket] = []
        for key in dict.fromkeys(sorted(keys, key=itemgetter(0))):
            same = [entry for entry, its in zip(trainable, keys, strict=True) if its == key]
            self.buckets.append(_flatten(same, self.sharders, fragment=key[0]))
        self.buffer_policy = buffers
        self.buffer_buckets: list[Bucket] = []
        """Buckets of buffers alone, for the mean model: of those that do not ride along with every operation."""
        self.rules: dict[str, BufferRule] = {}
        """What an average does with each buffer."""
        self._undecided: list[str] = []
        """Buffers that are averaged unless their values are those of a mask."""
        self.keeps_buffers = False
        """Whether averages of groups leave workers with different buffers, counters aside."""
        self._specs: list[tuple[dict[str, torch.Tensor | None], str, str, BufferSpec]] = []
        """Of each buffer where its module holds it, its name there and in the model, and its form."""
        self._add_buffers()
        self._riding: dict[torch.nn.Parameter, list[str]] = {}
        if state is StatePolicy.AVERAGE:
            self._add_state(optimizer)
        for bucket in self.buckets + self.buffer_buckets:
            bucket.length = aligned(bucket.length, bucket.dtype)
        _newest.update({slot.parameter: ref(self) for bucket in self.buckets for slot in bucket.slots})
        self._slots = [slot for bucket in self.buckets for slot in bucket.slots]
        self._known = {slot.parameter: slot for slot in self._slots}
        # As plain as can be, since every step goes through them. Modules keep their dicts of parameters.
        self._places = [
            (
                bucket,
                [
                    (module._parameters, name, slot, slot.start * bucket.dtype.itemsize)  # noqa: SLF001 - named_parameters() walks the whole model
                    for slot in bucket.slots
                    for module, name in slot.owners
                ],
            )
            for bucket in self.buckets
        ]
        self._parts = _parts_of(model)
        self._trained = {id(parameter) for parameter in (*self._known, *self._apart, *self._frozen)}
        self.loads = count_loads(model)
        """How often `load_state_dict` was called on the model or a part of it."""

    def fragment(self, number: int) -> list[Bucket]:
        """The buckets of a fragment; buffers ride in the first of their device and dtype."""
        return [bucket for bucket in self.buckets if bucket.fragment == number]

    def arrays(self) -> list[torch.Tensor]:
        """The live numbers of all buckets."""
        return [bucket.flat.detach() for bucket in self.buckets]

    @property
    def frozen(self) -> list[torch.Tensor]:
        """The parameters that were not trainable at wrapping, which are equal on all workers and nobody averages."""
        return [stored(local(parameter)) for parameter in self._frozen]

    def named_frozen(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Their names, and some of each one's numbers, by which a change is noticed."""
        for name, values in zip(self._frozen.values(), self.frozen, strict=True):
            yield name, values.detach().reshape(-1)[:: max(1, values.numel() // SAMPLED_FROZEN)]

    def slots(self) -> list[Slot]:
        return self._slots

    def holds(self, parameter: torch.Tensor) -> bool:
        """Whether a parameter is exchanged: as a view of a bucket, or as a table."""
        return parameter in self._known or parameter in self._apart

    def named_buffers(self) -> list[tuple[str, torch.Tensor]]:
        """The model's dense buffers of every dtype, each once; of expanded ones the numbers that are in memory.

        Sparse ones are constants, such as a graph, which are equal on all workers (see `layout`).
        """
        return [(name, stored(one)) for name, one in self.model.named_buffers() if one.layout is torch.strided]

    def buffers(self) -> list[torch.Tensor]:
        return [buffer for _, buffer in self.named_buffers()]

    def check(self, rank: int, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Notice parameters that were moved or replaced since wrapping, or given to the optimizer, and other buffers.

        O(their number).

        Args:
            rank: this worker, to be named.
            optimizer: whose groups are looked at, too.

        Raises:
            InputError: naming the parameter or the buffer.
        """
        if self.sharders.shards:
            self.sharders.reshard()
        for bucket, places in self._places:
            base = bucket.flat.data_ptr()
            for held, attribute, slot, offset in places:
                values = slot.values
                is_there = values.data_ptr() == base + offset or not values.numel()
                if held.get(attribute) is not slot.parameter or not (is_there or slot.returns(bucket.flat)):
                    self._check_moved(rank)
        self.check_buffers(rank)
        for parts, name, module in self._parts:
            if parts.get(name) is not module:
                self._check_lost(rank)
                break
        for parameter, name in self._frozen.items():
            if parameter.requires_grad:
                raise InputError(
                    f"model: parameter {name!r} of worker {rank} was frozen when DistributedOptimizer was made and is "
                    "trainable now, so it would be trained without being averaged; wrap first and then freeze it for "
                    "as long as you like"
                )

        for index, group in enumerate(optimizer.param_groups if optimizer is not None else ()):
            for parameter in group["params"]:
                if id(parameter) not in self._trained:
                    raise InputError(
                        f"optimizer: group {index} of worker {rank} holds a parameter of shape "
                        f"{list(parameter.shape)} that the model did not have when DistributedOptimizer was made, so "
                        "it would be trained without being averaged; change the model first, then wrap"
                    )

    def check_buffers(self, rank: int) -> None:
        """Check that every buffer has the form that it had at wrapping; part of `check`.

        Raises:
            InputError: naming the buffer.
        """
        for held, attribute, name, spec in self._specs:
            buffer = held.get(attribute)
            if buffer is None or (buffer.shape, buffer.dtype, buffer.layout) != spec:
                check_spec(name, buffer, spec, rank)

    def _check_lost(self, rank: int) -> None:
        """A module was replaced: by one that holds it, as torch.compile does, or by one without its parameters."""
        held = set(self.model.parameters())
        for slot in self._slots:
            if slot.parameter not in held:
                raise InputError(
                    f"model: parameter {slot.names[0]!r} is not in the model of worker {rank} any more: its module was "
                    "replaced or taken out after DistributedOptimizer was made, so what is trained now would not be "
                    "averaged; change the model first, on all workers, then wrap"
                )
        self._parts = _parts_of(self.model)

    def _check_moved(self, rank: int) -> None:
        for bucket in self.buckets:
            base, width = bucket.flat.data_ptr(), bucket.dtype.itemsize
            for slot in bucket.slots:
                for module, attribute in slot.owners:
                    if module._parameters.get(attribute) is not slot.parameter:  # noqa: SLF001 - as above
                        raise InputError(
                            f"model: parameter {slot.names[0]!r} of worker {rank} was replaced by another after "
                            "DistributedOptimizer was made, so it would be trained without being averaged; "
                            f"{wrapped_by(module) or 'change the model first, then wrap'}"
                        )
                if not slot.values.numel():
                    continue  # nothing is stored, so nothing can have moved
                if slot.values.data_ptr() != base + slot.start * width or slot.values.dtype != bucket.dtype:
                    usual = f"model.to(), .half(), .cuda(), load_state_dict(assign=True), p.data = ...{_cudnn(slot)} do"
                    usual = f" ({usual} that); do it before, or write in place, p.data.copy_(...)"
                    who = wrapped_by(slot.owners[0][0])
                    if _newest[slot.parameter]() is not self:
                        who = (
                            "another DistributedOptimizer was made of it; give each its own part of the model, such as "
                            "model.encoder"
                        )
                    raise InputError(
                        f"model: the storage of parameter {slot.names[0]!r} of worker {rank} was replaced after "
                        f"DistributedOptimizer was made{f'; {who}' if who else usual}"
                    )

    def check_unforeseen(self, optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> None:
        """Notice a new parameter group whose settings make the optimizer keep what does not ride along."""
        if not self._riding:
            return
        keys = set(state_keys(optimizer, group))
        for entry in group["params"]:
            missed = keys - set(self._riding.get(entry[1] if isinstance(entry, tuple) else entry, ()))
            if missed:
                raise InputError(
                    f"add_param_group: optimizer_state='average': {', '.join(sorted(missed))} of the new group was not "
                    "foreseen when DistributedOptimizer was made, so it would not be averaged; give the optimizer "
                    "these settings when it is made"
                )

    def layout(self) -> list[str]:
        """One line per parameter and piggybacked tensor, equal on all workers that run the same model."""
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
        lines += self._apart.values()
        lines += [f"frozen parameter {'×'.join(map(str, p.shape))} {p.dtype}" for p in self.frozen]
        lines += [
            f"buffer {name} {'×'.join(map(str, b.shape))} {b.dtype}{_digest_if_sparse(b)}"
            for name, b in self.model.named_buffers()
        ]
        return lines

    def rule_lines(self) -> list[str]:
        """One line per buffer with its rule, equal on all workers that run the same model."""
        return [f"buffer {name} {rule.value}" for name, rule in self.rules.items()]

    def details(self) -> dict[str, list[str]]:
        """The lines behind what a handshake compares by hashes."""
        return {"model": self.layout(), "buffer rules": self.rule_lines()}

    def undecided_values(self) -> dict[str, str]:
        """What the values of those buffers look like that are averaged unless they are masks; waits for a device."""
        named = dict(self.named_buffers())
        return {name: values_of(named[name]).value for name in self._undecided if name in named}

    def masks_among(self, seen: Sequence[Mapping[str, str]]) -> list[str]:
        """The masks, by what the values look like to all workers: zeros and ones everywhere, somewhere both."""
        looks = {name: {one.get(name) for one in seen} for name in self._undecided}
        return [name for name, found in looks.items() if Values.MASK in found and Values.OTHER not in found]

    def copy_masks(self, masks: Sequence[str]) -> None:
        """Copy these buffers from now on; called on all workers, between two operations."""
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
                name, kind = f"{prefix}.{attribute}".lstrip("."), buffer_kind(attribute, buffer, module)
                rule = self.rules[name] = kind.rule
                self._specs.append((module._buffers, attribute, name, BufferSpec.of(buffer)))  # noqa: SLF001 - as above
                if rule is BufferRule.CONSTANT:
                    continue

                def fetch(module: torch.nn.Module = module, attribute: str = attribute) -> torch.Tensor | None:
                    now = module._buffers.get(attribute)  # noqa: SLF001 - modules may replace the tensor at any time
                    return None if now is None else stored(now)

                if rule is BufferRule.OWN:
                    self.keeps_buffers |= buffer.is_floating_point()
                    _ride(self.buffer_buckets, name, stored(buffer), rule, fetch)
                    continue
                if may_be_mask(kind):
                    self._undecided.append(name)
                if rule is BufferRule.MEAN and self.buffer_policy is BufferPolicy.BROADCAST:
                    rule = BufferRule.FIRST
                _ride(self.buffer_buckets if is_local else self.buckets, name, stored(buffer), rule, fetch)

    def _add_state(self, optimizer: torch.optim.Optimizer) -> None:
        others = state_keys(optimizer)
        kept = {
            p: keys
            for group in optimizer.param_groups
            for keys in [state_keys(optimizer, group)]
            for p in group["params"]
        }
        for bucket, slot in [(one, slot) for one in self.buckets for slot in one.slots]:
            self._riding[slot.parameter] = kept.get(slot.parameter, others)
            for key in self._riding[slot.parameter]:

                def fetch(parameter: torch.nn.Parameter = slot.parameter, key: str = key) -> torch.Tensor | None:
                    value = optimizer.state[parameter].get(key) if parameter in optimizer.state else None
                    return local(value) if isinstance(value, torch.Tensor) else None

                _ride([bucket], f"{slot.names[0]}:{key}", slot.values, BufferRule.MEAN, fetch)


def _ride(
    buckets: list[Bucket], name: str, like: torch.Tensor, rule: BufferRule, fetch: Callable[[], torch.Tensor | None]
) -> None:
    """Let a tensor ride in the bucket of its device and dtype, or of bytes; a new bucket if there is none."""
    dtype = torch.uint8 if rule is BufferRule.OWN else like.dtype
    bucket = next((known for known in buckets if known.device == like.device and known.dtype == dtype), None)
    if bucket is None:
        bucket = Bucket(like.device, dtype, 0, torch.empty(0, dtype=dtype, device=like.device))
        buckets.append(bucket)
    if rule is BufferRule.OWN:  # whose bytes are looked at in its own dtype
        bucket.length = -(-bucket.length // ALIGN_BYTES) * ALIGN_BYTES
    bucket.piggybacked.append(Piggybacked(name, BufferSpec.of(like), bucket.length, rule, fetch))
    bucket.length += bucket.piggybacked[-1].room


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


def _parts_of(model: torch.nn.Module) -> list[tuple[dict[str, torch.nn.Module | None], str, torch.nn.Module]]:
    """Where each module with parameters hangs in the model: its parent's dict, its name there, and itself."""
    return [
        (parent._modules, name, part)  # noqa: SLF001 - as plain as can be, since every step goes through them
        for parent in model.modules()
        for name, part in parent._modules.items()  # noqa: SLF001 - as above
        if part is not None and next(part.parameters(), None) is not None
    ]


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
        size = aligned(size, parameter.dtype)
    device, dtype = entries[0][2].device, entries[0][2].dtype
    flat = torch.zeros(size, dtype=dtype, device=device)
    bucket = Bucket(device, dtype, size, flat, slots, length=size, fragment=fragment)
    with torch.no_grad():
        for slot in slots:
            slot.put(slot.window(flat).copy_(slot.values))
    bucket.count_own_users()
    return bucket


def _digest_if_sparse(buffer: torch.Tensor) -> str:
    """A sparse buffer is not sent, so all workers must have made the same; a fingerprint of its content says so."""
    if buffer.layout is torch.strided:
        return ""
    whole: torch.Tensor = buffer.detach().to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
    return f" sparse {digest_of([whole.indices(), whole.values()])}"


def _cudnn(slot: Slot) -> str:
    """What replaces the storage of recurrent layers on a GPU, where this is one of their parameters."""
    recurrent = any(isinstance(module, torch.nn.RNNBase) for module, _ in slot.owners)
    return ", and for recurrent layers flatten_parameters()" if recurrent and slot.parameter.is_cuda else ""


def _check_several_devices(model: torch.nn.Module, apart: Mapping[torch.nn.Parameter, str]) -> None:
    """Parameters and buffers are sent by the same groups, and a group works on one kind of device."""
    others = [(name, parameter) for name, parameter in model.named_parameters() if parameter not in apart]
    first: dict[torch.device, str] = {}
    for kind, tensors in (("parameter", others), ("buffer", model.named_buffers())):
        for name, tensor in tensors:
            first.setdefault(tensor.device, f"{kind} {name!r} on {tensor.device}")
    if len(first) > 1:
        raise InputError(
            f"model: lies on several devices ({', '.join(first.values())}); move all of it to one before wrapping, "
            "model.to(device)"
        )


def _check_wrapped(model: torch.nn.Module, apart: Mapping[torch.nn.Parameter, str]) -> None:
    for name, parameter in model.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise InputError(f"model: parameter {name!r} is not initialized yet; run one forward pass, then wrap")
        if parameter.is_meta and parameter not in apart:  # the rows of those are drawn where they will lie
            raise InputError(
                f"model: parameter {name!r} is on the meta device and has no numbers; call model.to_empty(device=...), "
                "initialize it and make the optimizer, then wrap"
            )
        if parameter.layout is not torch.strided:
            raise InputError(f"model: parameter {name!r} is sparse; make it dense, or a buffer if it is a constant")
        if parameter.requires_grad and parameter.dtype not in AVERAGED:
            raise InputError(
                f"model: parameter {name!r} is {parameter.dtype}; only {', '.join(map(str, AVERAGED))} are averaged, "
                "so convert it, or freeze it before wrapping"
            )
    managed = any(getattr(module, "_is_fsdp_managed_module", False) for module in model.modules())
    if managed and not any(map(is_sharded, model.parameters())):  # not by fully_shard
        raise InputError(
            "model: is sharded by FullyShardedDataParallel; pass the bare module, whose parameters are whole"
        )


def _check_foreign(
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
