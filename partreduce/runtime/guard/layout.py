"""Check that a model still has the tensors and modules that it was wrapped with, in 0.15 µs per parameter.

The checks compare addresses and object identities in C.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter, is_

import torch

from partreduce.runtime.averaging.bucket import Bucket, Slot
from partreduce.runtime.averaging.buffer_rules import BufferSpec, change_of
from partreduce.runtime.averaging.flat_model import FlatModel, newest_of
from partreduce.runtime.guard.table import Found, Moment, When, check, checks_at
from partreduce.runtime.guard.wrapping import wrapped_by
from partreduce.runtime.sharding.placement import is_routed
from partreduce.runtime.sharding.tables import Tables

EACH_STEP = (Moment.BEFORE_STEP, Moment.ROUND_END, Moment.MEETING)
_address, _is_trainable = torch.Tensor.data_ptr, attrgetter("requires_grad")


class Layout:
    """Record of a model's parameters, buffers and modules at wrapping, with memory addresses, to detect later changes.

    `tables` are embedding parameters that are exchanged separately.
    """

    def __init__(
        self, flat: FlatModel, rank: int, optimizer: torch.optim.Optimizer, tables: Tables | None = None
    ) -> None:
        self.flat, self.rank, self.optimizer, self.tables = flat, rank, optimizer, tables
        self.is_sharded = flat.sharders.shards
        places = [
            (module, name, slot) for bucket in flat.buckets for slot in bucket.slots for module, name in slot.owners
        ]
        self.owners = [module for module, _, _ in places]
        self.slots = [slot for _, _, slot in places]
        # Modules keep their dicts of parameters.
        self.held = [module._parameters for module in self.owners]  # noqa: SLF001 - named_parameters() walks the whole model
        self.attributes = [name for _, name, _ in places]
        self.parameters = [slot.parameter for slot in self.slots]
        self.memory = [_Memory(bucket) for bucket in flat.buckets]
        self.note_parts()
        self.buffers = [
            (module._buffers, attribute, f"{prefix}.{attribute}".lstrip("."), BufferSpec.of(buffer))  # noqa: SLF001 - as above
            for prefix, module in flat.model.named_modules()
            for attribute, buffer in module.named_buffers(recurse=False)
        ]
        self.trained = {id(one) for one in (*self.parameters, *flat.apart, *flat.frozen_names)}
        self.groups: list[tuple[int, int]] | None = None  # ids and lengths of the groups when last correct

    def note_parts(self) -> None:
        """Record each submodule that has parameters, with its parent module and its name in the parent."""
        parts = [
            (parent._modules, name, part)  # noqa: SLF001 - as above
            for parent in self.flat.model.modules()
            for name, part in parent._modules.items()  # noqa: SLF001 - as above
            if part is not None and next(part.parameters(), None) is not None
        ]
        self.parents, self.part_names = [parent for parent, _, _ in parts], [name for _, name, _ in parts]
        self.parts = [part for _, _, part in parts]

    def check(self) -> None:
        self.prepare()
        self.groups = None  # forces a check of every parameter in them
        for row in LAYOUT:
            row(self)

    def prepare(self) -> None:
        """Reshard FSDP's parameters if the model is sharded, since all-gathered ones would look replaced."""
        if self.is_sharded:
            self.flat.sharders.reshard()


class _Memory:
    """Memory addresses that a bucket's parameters should have in its flat array, to detect moved parameters."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.slots = [slot for slot in bucket.slots if slot.values.numel()]  # empty ones have no storage
        self.whole = [slot.parameter for slot in self.slots if slot.values is slot.parameter]
        """Parameters that are not sharded; local shards may be new tensor objects each time."""
        self.is_whole = len(self.whole) == len(self.slots)
        self._starts = [slot.start * bucket.dtype.itemsize for slot in self.slots]
        self._known: dict[int, list[int]] = {}

    def moved(self) -> Iterable[Slot]:
        base = self.bucket.flat.data_ptr()
        wanted = self._known.get(base)
        if wanted is None:
            if len(self._known) > 8:
                self._known.clear()
            wanted = self._known[base] = [base + start for start in self._starts]
        found = list(map(_address, self.whole if self.is_whole else [slot.values for slot in self.slots]))
        if found == wanted:
            return ()
        places = zip(self.slots, found, wanted, strict=True)
        return [slot for slot, at, right in places if at != right and not slot.returns(self.bucket.flat)]


@check(
    *EACH_STEP,
    cost="0.05 µs a parameter, in C",
    why="heads are replaced in mid-run; the new one would be trained without being averaged until all meet",
    refuses="model: parameter {name!r} of worker {rank} was replaced by another after DistributedOptimizer was made, "
    "so it would be trained without being averaged; {instead}",
)
def parameter_replaced(layout: Layout) -> Found:
    """Whether a module holds another object than the parameter it had at wrapping."""
    if all(map(is_, map(dict.get, layout.held, layout.attributes), layout.parameters)):
        return None
    for module, held, name, slot in zip(layout.owners, layout.held, layout.attributes, layout.slots, strict=True):
        if held.get(name) is not slot.parameter:
            instead = wrapped_by(module) or "change the model first, then wrap"
            return {"name": slot.names[0], "rank": layout.rank, "instead": instead}
    return None


@check(
    *EACH_STEP,
    cost="0.08 µs a parameter, in C",
    why="`p.data = …` may come in any step, and averages would no longer reach the parameter",
    refuses="model: the storage of parameter {name!r} of worker {rank} was replaced after DistributedOptimizer was "
    "made{instead}",
)
def storage_moved(layout: Layout) -> Found:
    """Whether a parameter's memory address has changed; for an optimizer that is not torch's, also after its step."""
    for memory in layout.memory:
        for slot in memory.moved():
            if newest_of(slot.parameter) is not layout.flat:
                instead = (
                    "; another DistributedOptimizer was made of it; give each its own part of the model, such as "
                    "model.encoder"
                )
            elif who := wrapped_by(slot.owners[0][0]):
                instead = f"; {who}"
            else:
                usual = f"model.to(), .half(), .cuda(), load_state_dict(assign=True), p.data = ...{_cudnn(slot)} do"
                instead = f" ({usual} that); do it before, or write in place, p.data.copy_(...)"
            return {"name": slot.names[0], "rank": layout.rank, "instead": instead}
    return None


def _cudnn(slot: Slot) -> str:
    """For a recurrent layer on a GPU, return a further call that moves storage, flatten_parameters(); else ""."""
    recurrent = any(isinstance(module, torch.nn.RNNBase) for module, _ in slot.owners)
    return ", and for recurrent layers flatten_parameters()" if recurrent and slot.parameter.is_cuda else ""


@check(*EACH_STEP, when=When.FIRST_STEPS, cost="O(buffers), in Python", refuses="buffer {name!r}: {change}")
def buffer_changed(layout: Layout) -> Found:
    """Whether a buffer was removed, or has another shape, layout (dense, sparse) or kind of dtype than at wrapping."""
    for held, attribute, name, spec in layout.buffers:
        buffer = held.get(attribute)
        if (buffer is None or (buffer.shape, buffer.dtype, buffer.layout) != spec) and (
            change := change_of(buffer, spec, layout.rank)
        ):
            return {"name": name, "change": change}
    return None


@check(
    *EACH_STEP,
    cost="0.05 µs a module, in C",
    why="as a parameter that is replaced",
    refuses="model: parameter {name!r} is not in the model of worker {rank} any more: its module was replaced or taken "
    "out after DistributedOptimizer was made, so what is trained now would not be averaged; change the model first, on "
    "all workers, then wrap",
)
def layer_replaced(layout: Layout) -> Found:
    """Whether a parameter left the model because its module was replaced or removed; modules may move inside it."""
    if all(map(is_, map(dict.get, layout.parents, layout.part_names), layout.parts)):
        return None
    held = set(layout.flat.model.parameters())
    for slot in layout.slots:
        if slot.parameter not in held:
            return {"name": slot.names[0], "rank": layout.rank}
    layout.note_parts()
    return None


@check(
    *EACH_STEP,
    cost="0.08 µs a frozen parameter, in C",
    why="layers are unfrozen at the ends of epochs; each worker would train them alone until all meet",
    refuses="model: parameter {name!r} of worker {rank} was frozen when DistributedOptimizer was made and is trainable "
    "now, so it would be trained without being averaged; wrap first and then freeze it for as long as you like",
)
def parameter_unfrozen(layout: Layout) -> Found:
    """Whether `requires_grad` was turned on for a parameter that was frozen at wrapping."""
    frozen = layout.flat.frozen_names
    if not any(map(_is_trainable, frozen)):
        return None
    return {"name": next(name for one, name in frozen.items() if one.requires_grad), "rank": layout.rank}


@check(
    *EACH_STEP,
    cost="O(groups)",
    why="groups are added where layers are unfrozen",
    refuses="optimizer: group {index} of worker {rank} holds a parameter of shape {shape} that the model did not have "
    "when DistributedOptimizer was made, so it would be trained without being averaged; change the model first, then "
    "wrap",
)
def parameter_given_to_the_optimizer(layout: Layout) -> Found:
    """Whether the optimizer's groups contain a new parameter, if a group's list or its length has changed."""
    lists = [group["params"] for group in layout.optimizer.param_groups]
    groups = [(id(one), len(one)) for one in lists]
    if groups == layout.groups:
        return None
    for index, parameters in enumerate(lists):
        for parameter in parameters:
            if id(parameter) not in layout.trained:
                return {"index": index, "rank": layout.rank, "shape": list(parameter.shape)}
    layout.groups = groups
    return None


@check(
    *EACH_STEP,
    cost="O(tables)",
    why="their rows would neither be looked up nor trained",
    refuses="worker {rank}: parameter {name!r}: its embedding was changed after DistributedOptimizer was made (another "
    "weight, class or forward), so its rows would neither be looked up nor trained; change the model first, then wrap",
)
def embedding_changed(layout: Layout) -> Found:
    """Whether an embedding placed as a table has another weight, class or `forward`."""
    tables = layout.tables
    if not tables or not tables.is_connected:
        return None
    for table in tables:
        for module in table.modules:
            if module.weight is not table.parameter or not is_routed(module):
                return {"rank": tables.rank, "name": table.name}
    return None


LAYOUT = checks_at(Moment.MEETING)
