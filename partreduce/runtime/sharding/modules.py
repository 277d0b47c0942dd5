"""Implement `nn.Embedding` and `nn.EmbeddingBag` with rows that are looked up on other workers.

The module of the user's model stays the same object, and so do its parameter and the optimizer's hold on it; only the
module's class becomes one of these (as torch's `fully_shard` does it). What torch computes from rows, it computes here,
too: from the rows that this call needs, each once.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any, SupportsIndex, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch.autograd.function import once_differentiable

from partreduce.runtime.sharding.table import Embeddings, Table
from partreduce.runtime.sharding.table_state import gather_full_table, local_rows
from partreduce.runtime.sharding.tables import Tables
from partreduce.topo.errors import InputError

ATTRIBUTE = "_partreduce_table"


class Handle:
    """What ties a module to its table; a deep copy of the module is tied as another copy of it."""

    def __init__(self, tables: Tables, table: Table, module: Embeddings, copy: int) -> None:
        self.tables, self.table, self.copy = tables, table, copy
        self.module = weakref.ref(module)
        self._trains = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Handle:
        """For moving averages, such as `torch.optim.swa_utils.AveragedModel`: their rows lie as the model's do."""
        module = memo[id(self.module())]
        self.table.copies.append(weakref.ref(module))
        return Handle(self.tables, self.table, module, len(self.table.copies) - 1)

    def rows(self, weight: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int | None]:
        """The rows that a call needs, [rows, columns], the indices into them, and the place of the padding row."""
        module = self.module()
        assert module is not None, "a module calls its own handle"
        ids, inverse, padding = torch.empty(0, dtype=torch.int64), indices, None
        if not (problem := _problem(self.table, weight, indices)):
            unique, inverse = torch.unique(indices.long(), return_inverse=True)  # ascending
            ids = self.table.staging.to_host(unique)
            problem = _out_of_range(self.table, ids)
        if module.padding_idx is not None:
            place = int(torch.searchsorted(ids, module.padding_idx))
            padding = place if place < len(ids) and int(ids[place]) == module.padding_idx else None
        self._trains = torch.is_grad_enabled() and weight.requires_grad and self.copy == 0
        ids = ids[:0] if problem else ids
        rows: torch.Tensor = _Lookup.apply(weight, self, ids, problem, padding)  # type: ignore[no-untyped-call]
        return rows, inverse, padding

    def found(self, ids: torch.Tensor, problem: str) -> torch.Tensor:
        """Rows, where the module's weight lies, by their numbers on the host, which are each there once."""
        module, staging = self.module(), self.table.staging
        assert module is not None, "a module calls its own handle"
        weight = module.weight.detach()
        if self.table.is_sharded:
            rows = self.tables.fetch(self.table, self.copy, ids, trains=self._trains, problem=problem)
            return staging.to_device(rows, weight.device)
        if problem:
            self.tables.stop_for(problem, trains=self._trains)
        return weight[staging.to_device(ids, weight.device)]


def _problem(table: Table, weight: torch.Tensor, indices: torch.Tensor) -> str:
    """What is wrong with the indices of a lookup before anything is known of their values; empty where nothing is."""
    if indices.dtype not in (torch.int32, torch.int64):
        return f"parameter {table.name!r}: is looked up with {indices.dtype}; indices are int32 or int64"
    if indices.device != weight.device:
        return (
            f"parameter {table.name!r}: lies on {weight.device} and is looked up with indices on {indices.device}; "
            f"look up with indices.to('{weight.device}')"
        )
    return ""


def _out_of_range(table: Table, ids: torch.Tensor) -> str:
    """What is wrong with the rows asked for, ascending and on the host; empty where nothing is."""
    last = table.route.rows - 1
    for index in ids[[0, -1]].tolist() if len(ids) else ():
        if not 0 <= index <= last:
            return f"parameter {table.name!r}: index {index} is out of range; its rows are 0..{last}"
    return ""


class _Lookup(torch.autograd.Function):
    """Rows of a table. Their gradients wait in the table for the end of the backward pass, where all are exchanged."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context
        _weight: torch.Tensor,
        handle: Handle,
        ids: torch.Tensor,
        problem: str,
        padding: int | None,
    ) -> torch.Tensor:
        """The rows that all workers look up; the weight is an argument so that torch asks for a gradient."""
        ctx.handle, ctx.ids, ctx.padding = handle, ids, padding
        return handle.found(ids, problem)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, None, None, None]:  # noqa: ANN401 - as above
        """Keep the gradients of the rows but the padding row, on their way to the host during the backward pass."""
        handle, ids = ctx.handle, ctx.ids
        if handle.copy:
            raise InputError(f"parameter {handle.table.name!r}: a copy of the model was trained; wrap it by itself")
        if (place := ctx.padding) is not None:
            ids, gradient = (torch.cat([one[:place], one[place + 1 :]]) for one in (ids, gradient))
        handle.table.pending.append((ids, handle.table.staging.begin(gradient.contiguous())))
        handle.tables.exchange_after_backward()
        return None, None, None, None, None


class _SavedWhole(torch.nn.Module):
    """A module whose state dict holds the whole of its table."""

    weight: torch.Tensor

    def __reduce_ex__(self, _protocol: SupportsIndex) -> tuple[Any, ...]:
        """Pickle the module that the user made, which needs no workers, where this one has the whole table."""
        if (handle := handle_of(self)) is not None and handle.table.is_sharded:
            raise InputError(
                f"parameter {handle.table.name!r}: its rows are spread over the workers, so the model cannot be "
                "pickled; save model.state_dict(), which all workers call"
            )
        own = next(kind for kind in type(self).__mro__ if not issubclass(kind, _SavedWhole))
        plain = own.__new__(own)
        plain.__dict__.update({name: value for name, value in self.__dict__.items() if name != ATTRIBUTE})
        # By protocol 1 a class may be stated that is not this one's.
        return plain.__reduce_ex__(1)  # type: ignore[return-value]  # a module's is a tuple

    def __deepcopy__(self, memo: dict[int, Any]) -> _SavedWhole:
        """Copy the module with its class and its handle; a copy of a routed module is routed."""
        if (copy_as_user_does := getattr(super(), "__deepcopy__", None)) is not None:
            return cast("_SavedWhole", copy_as_user_does(memo))
        memo[id(self)] = copied = type(self).__new__(type(self))
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        handle = handle_of(self)
        if handle is not None and handle.table.is_sharded:
            destination[f"{prefix}weight"] = gather_full_table(
                handle.tables, handle.table, self.weight.detach(), -handle.copy
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:  # noqa: ANN401 - torch's
        handle, name = handle_of(self), f"{prefix}weight"
        if handle is not None and handle.table.is_sharded and name in state_dict:
            state_dict = state_dict | {name: local_rows(handle.table, state_dict[name])}
        super()._load_from_state_dict(state_dict, prefix, *rest)


class TableEmbedding(_SavedWhole, torch.nn.Embedding):
    """`nn.Embedding` on its own route."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        handle: Handle = getattr(self, ATTRIBUTE)
        rows, inverse, padding = handle.rows(self.weight, input)
        return F.embedding(inverse, rows, padding)


class TableEmbeddingBag(_SavedWhole, torch.nn.EmbeddingBag):
    """`nn.EmbeddingBag` on its own route."""

    def forward(
        self,
        input: torch.Tensor,  # noqa: A002 - torch's name
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        handle: Handle = getattr(self, ATTRIBUTE)
        rows, inverse, padding = handle.rows(self.weight, input)
        return F.embedding_bag(
            inverse,
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding,
        )


def route_module(module: Embeddings, handle: Handle) -> None:
    """Let a module look its rows up by its table's route."""
    setattr(module, ATTRIBUTE, handle)
    routed = TableEmbedding if isinstance(module, torch.nn.Embedding) else TableEmbeddingBag
    kind = type(module)
    # A user's subclass keeps its methods and stays what `isinstance` says of it.
    is_plain = kind in (torch.nn.Embedding, torch.nn.EmbeddingBag) or issubclass(kind, routed)
    module.__class__ = routed if is_plain else type(kind.__name__, (routed, kind), {})


def is_routed(module: Embeddings) -> bool:
    """Whether a module still looks its rows up by its table's route."""
    forward = type(module).forward
    return forward in (TableEmbedding.forward, TableEmbeddingBag.forward) and "forward" not in module.__dict__


def handle_of(module: torch.nn.Module) -> Handle | None:
    """What ties a module to a table; None for a module like any other."""
    handle = module.__dict__.get(ATTRIBUTE)
    return handle if isinstance(handle, Handle) else None
