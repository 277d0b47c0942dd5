"""Spreading: how a table comes to lie apart: each worker keeps its rows, and what the optimizer has of these so far."""

from __future__ import annotations

import weakref
import zlib
from typing import TYPE_CHECKING

import torch

from partreduce.runtime.sharding.blocks import blocks
from partreduce.runtime.sharding.layout import BlockOnFirst
from partreduce.runtime.sharding.modules import Handle, route_module

if TYPE_CHECKING:
    from partreduce.runtime.sharding.table import Table
    from partreduce.runtime.sharding.tables import Tables


def spread(tables: Tables, optimizer: torch.optim.Optimizer, *, broadcast: bool) -> None:
    """Keep this worker's rows only, of each sharded table and of its optimizer's state so far; all workers call it.

    Args:
        tables: of this worker, connected.
        optimizer: the one that trains them.
        broadcast: take the values of worker 0's table, block by block, rather than this worker's own.

    Raises:
        PeerFailedError: a worker is gone.
    """
    assert tables.is_connected, "tables are connected before they are spread"
    for table in tables:
        if table.layout is not None:
            _spread_rows(tables, table, broadcast=broadcast)
            _keep_own_state(table, optimizer)
        table.copies = [weakref.ref(table.modules[0])]
        for module in table.modules:
            route_module(module, Handle(tables, table, module, 0))
        if table.parameter.requires_grad:
            refusal = tables.refusal_of_other_uses(table)
            table.parameter.register_hook(refusal)  # type: ignore[no-untyped-call]
    if broadcast:
        tables.broadcast()


def _spread_rows(tables: Tables, table: Table, *, broadcast: bool) -> None:
    """Keep this worker's rows of a sharded table; all workers call it."""
    layout = table.layout
    assert layout is not None, "only sharded tables lie apart"
    whole, table.own = table.parameter.detach(), layout.rows_of(tables.rank)
    if whole.is_meta:
        shard = torch.empty(len(table.own), table.route.columns, dtype=whole.dtype, device=tables.device)
        shard.copy_(_drawn(table, table.own, tables.rank))
    else:
        shard = whole[table.staging.to_device(table.own, whole.device)]
    if broadcast and not whole.is_meta:
        for first, last in blocks(table):
            mine = table.own[(table.own >= first) & (table.own < last)]
            table.put(shard, mine, tables.block(table, mine, BlockOnFirst(first), whole[first:last]))
    if whole.is_meta:
        drawn = torch.nn.Parameter(shard, table.parameter.requires_grad)
        torch.utils.swap_tensors(table.parameter, drawn)  # type: ignore[no-untyped-call]
    else:
        table.parameter.data = shard


def _keep_own_state(table: Table, optimizer: torch.optim.Optimizer) -> None:
    """Of what the optimizer keeps of a whole table, this worker's rows."""
    state = optimizer.state.get(table.parameter, {})
    for key, value in state.items():
        if table.is_whole(value):
            state[key] = table.shard_of(value)
            if value.is_meta:
                # Only Adagrad has a state before its first step: one number in all places.
                state[key] = torch.full_like(table.parameter, optimizer.defaults.get("initial_accumulator_value", 0.0))


def _drawn(table: Table, own: torch.Tensor, rank: int) -> torch.Tensor:
    """Rows of a table that was made without numbers (on the device `meta`), as `nn.Embedding` draws its own.

    They are drawn on the host, so that they are the same wherever they will lie.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(f"{table.name} of worker {rank}".encode()))
    shard = torch.empty(len(own), table.route.columns, dtype=table.parameter.dtype)
    shard.normal_(generator=generator)
    padding = table.modules[0].padding_idx
    if padding is not None:
        shard[own == padding] = 0
    return shard
