"""Tables in checkpoints: each worker saves its own rows; another number of workers deals them out anew.

Worker 0 then reads one old worker's file after the other, and every worker takes its rows out of it block by block, so
that nobody holds more than two shards at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from preduce.runtime.sharding.blocks import blocks
from preduce.runtime.sharding.layout import RowLayout
from preduce.topo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from preduce.runtime.sharding.layout import Layout
    from preduce.runtime.sharding.table import Table
    from preduce.runtime.sharding.tables import Tables


def layouts_of(tables: Tables) -> dict[str, Any]:
    """How each sharded table is dealt out, as JSON."""
    return {
        table.name: [layout.num_rows, list(layout.hosts), layout.partitions]
        for table in tables
        if (layout := table.layout) is not None
    }


@dataclass(frozen=True, slots=True)
class _OldShard:
    """Rows of an old worker's shard, which worker 0 has read."""

    old: RowLayout

    def owner_of(self, rows: torch.Tensor) -> torch.Tensor:
        """See Layout."""
        return torch.zeros_like(rows)

    def place_of(self, rows: torch.Tensor) -> torch.Tensor:
        """See Layout."""
        return self.old.place_of(rows)


def deal_anew(
    tables: Tables,
    saved: Mapping[str, Any],
    old_ranks: Sequence[int],
    read: Callable[[int], Mapping[str, torch.Tensor]],
) -> None:
    """Fill all sharded tables from files that another number of workers saved; all workers call it.

    Args:
        tables: of this worker.
        saved: what `layouts_of` gave when they were saved.
        old_ranks: whose files there are.
        read: the tensors of such a file; called on worker 0 only.

    Raises:
        InputError: the files lack a table, or rows of it.
        PeerLostError: a worker is gone.
    """
    for table in tables:
        if table.layout is not None:
            if table.name not in saved or saved[table.name][0] != table.route.rows:
                raise InputError(f"load_checkpoint: table {table.name!r} was not saved as a sharded one of this size")
            rows, hosts, partitions = saved[table.name]
            if missing := set(hosts) - set(old_ranks):
                raise InputError(f"load_checkpoint: the rows of {table.name!r} on worker {min(missing)} were not saved")
            _deal(tables, table, RowLayout(rows, tuple(hosts), partitions), read)


def _deal(tables: Tables, table: Table, old: RowLayout, read: Callable[[int], Mapping[str, torch.Tensor]]) -> None:
    assert table.own is not None, "the table is sharded"
    assert table.layout is not None, "as above"
    weight = table.parameter.detach()
    layout: Layout = _OldShard(old)
    for rank in old.hosts:
        shard = read(rank)[f"model/{table.name}"] if tables.rank == 0 else weight
        mine = table.own[old.owner_of(table.own) == rank]
        for first, last in blocks(table):
            ids = mine[(mine >= first) & (mine < last)]
            table.put(weight, ids, tables.block(table, ids, layout, shard))


def reader(folder: Path, file_of: Callable[[int], str], unpack: Callable[..., Any]) -> Callable[[int], Any]:
    """Reads a worker's file, the last one only kept."""
    kept: dict[int, Any] = {}

    def read(rank: int) -> Any:  # noqa: ANN401 - tensors by name
        if rank not in kept:
            kept.clear()
            path = folder / file_of(rank)
            kept[rank], _ = unpack(path.read_bytes(), path)
        return kept[rank]

    return read


def shards_of(tables: Tables) -> dict[str, torch.Tensor]:
    """This worker's rows of all sharded tables, by their names in a file."""
    return {f"model/{table.name}": table.parameter for table in tables if table.is_sharded}


def gathered_of(tables: Tables) -> dict[str, torch.Tensor]:
    """The tables that every worker has, by their names in a file."""
    return {f"model/{table.name}": table.parameter for table in tables if not table.is_sharded}
