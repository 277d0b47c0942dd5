"""Table: one embedding's parameter on its own route, with the gradients that wait for the end of a backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from partreduce.runtime.sharding.columns import Part
from partreduce.runtime.sharding.layout import RowLayout
from partreduce.runtime.sharding.staging import Landing, Staging
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.payload import Gradient, TablePlacement

Embeddings = torch.nn.Embedding | torch.nn.EmbeddingBag


@dataclass(eq=False)
class Table:
    """A table of a run, on one worker.

    Sharded, the module's parameter holds this worker's rows only; gathered, all of them. Parameter, gradient and the
    optimizer's state lie on the parameter's device; numbers of rows, and rows that travel, on the host.
    """

    index: int
    route: TablePlacement
    parameter: torch.nn.Parameter
    modules: tuple[Embeddings, ...]
    num_workers: int
    average: bool
    layout: RowLayout | None
    """None where every worker has all rows."""
    own: torch.Tensor | None = None
    """The rows that lie here, ascending, once the table is sharded."""
    staging: Staging = field(default_factory=Staging)
    pending: list[tuple[torch.Tensor, Landing]] = field(default_factory=list)
    """Row numbers, and gradients on their way to the host, of lookups that no exchange has taken yet."""
    copies: list[weakref.ref[Embeddings]] = field(default_factory=list)
    """The module in which each copy of the model has this table; 0 is the one that is trained."""

    @property
    def name(self) -> str:
        return self.route.parameter

    @property
    def is_sharded(self) -> bool:
        """Whether this worker has only its own rows."""
        return self.layout is not None

    def placed(self, rows: torch.Tensor) -> torch.Tensor:
        """Where rows stand in this worker's array."""
        return rows if self.layout is None else self.layout.place_of(rows)

    def rows_at(self, array: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Rows of an array, wherever it lies, by their places in it; both on the host."""
        return self.staging.to_host(array[self.staging.to_device(places, array.device)])

    def put(self, array: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """Write rows that came over the host into an array that has this worker's, wherever it lies."""
        places = self.staging.to_device(self.placed(ids), array.device)
        array[places] = self.staging.to_device(rows, array.device)

    def taken(self) -> Part | None:
        """What the lookups of a backward pass have brought, each row once; None where none took part in it."""
        if not self.pending:
            return None
        brought, self.pending = self.pending, []
        rows = [landing.wait() for _, landing in brought]
        if len(rows) == 1:
            return Part(brought[0][0], rows[0])
        return Part(torch.cat([ids for ids, _ in brought]), torch.cat(rows)).coalesced()

    def add(self, part: Part) -> None:
        """Add what all workers have brought for this worker's rows to its gradient."""
        parameter, rows = self.parameter, part.rows
        if not parameter.requires_grad:
            return
        assert rows is not None, "gradients have rows"
        if self.average:
            rows = rows / self.num_workers
        places = self.staging.to_device(self.placed(part.ids), parameter.device)
        rows = self.staging.to_device(rows, parameter.device)
        old = parameter.grad
        if self.route.gradient is Gradient.SPARSE:
            new = torch.sparse_coo_tensor(
                places[None, :], rows, parameter.shape, is_coalesced=True, check_invariants=False
            )
            parameter.grad = new if old is None else (old + new).coalesce()
        elif old is None:
            dense = torch.zeros_like(parameter, requires_grad=False)
            dense.index_add_(0, places, rows)
            parameter.grad = guarded_gradient(dense, self.name) if self.is_sharded else dense
        else:
            old.index_add_(0, places, rows)

    def shard_of(self, whole: torch.Tensor) -> torch.Tensor:
        if self.layout is None:
            return whole
        assert self.own is not None, "the table is sharded"
        return whole[self.own]

    def is_whole(self, value: Any) -> bool:  # noqa: ANN401 - whatever a state holds
        """Whether a value has a number for each number of the whole table."""
        whole = (self.route.rows, self.route.columns)
        return isinstance(value, torch.Tensor) and tuple(value.shape) == whole


_NORMS = (torch._foreach_norm, torch.linalg.vector_norm)  # noqa: SLF001 - what torch.nn.utils.clip_grad_norm_ calls


class ShardGradient(torch.Tensor):
    """A gradient of a table's rows on one worker. Everything may be done with it except torch's gradient clipping.

    (Torch's clipping fails by itself for sparse gradients.)
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        """Refuse norms of parts.

        Raises:
            InputError: torch's `clip_grad_norm_` or `get_total_norm` was called.
        """
        if func in _NORMS:
            first = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
            name = next((one.table for one in first if isinstance(one, ShardGradient)), "?")
            raise InputError(
                f"parameter {name!r}: its rows are spread over the workers, so torch's clip_grad_norm_ would clip by "
                "another norm on each; call partreduce.clip_grad_norm_ instead, with the same arguments"
            )
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - torch's documented way
            return func(*args, **(kwargs or {}))

    table: str
    """The parameter's name."""


def guarded_gradient(gradient: torch.Tensor, table: str) -> torch.Tensor:
    """The same numbers, of which torch's clipping refuses to take the norm."""
    guarded = gradient.as_subclass(ShardGradient)
    guarded.table = table
    return guarded
