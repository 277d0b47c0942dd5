"""Tables in checkpoints: each worker saves its own rows; another number of workers deals them out again.

What the optimizer keeps of each row (Adagrad's sums, Adam's moments) has one owner, as the row itself, and goes along.
Worker 0 then reads one old worker's file after the other, and every worker takes its rows out of it block by block, so
that nobody holds more than two shards at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from partreduce.runtime.sharding.blocks import blocks
from partreduce.runtime.sharding.layout import Layout, RowLayout
from partreduce.runtime.sharding.table import Table
from partreduce.runtime.sharding.tables import Tables
from partreduce.runtime.sharding.whole import is_like, places_of
from partreduce.topo.errors import InputError


def layouts_of(tables: Tables, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """How each sharded table is dealt out, and what the optimizer keeps of it, as JSON."""
    found: dict[str, Any] = {
        table.name: [layout.num_rows, list(layout.hosts), layout.partitions, None]
        for table in tables
        if (layout := table.layout) is not None
    }
    states = optimizer.state_dict()["state"]
    for index, table in places_of(tables, optimizer):
        if index in states:
            found[table.name][-1] = _described(states[index], table, index, _kind(optimizer, table))
    return found


def _described(state: Mapping[str, Any], table: Table, index: int, kind: list[str]) -> dict[str, Any] | None:
    """A table's state without its arrays; None where it has others than one number for each of the table's."""
    arrays, scalars, plain = {}, {}, {}
    for key, value in state.items():
        if not isinstance(value, torch.Tensor):
            plain[key] = value
        elif is_like(value, table.parameter):
            arrays[key] = _name_of(value.dtype)
        elif value.dim() == 0:
            scalars[key] = [_name_of(value.dtype), value.item()]
        else:
            return None
    return {"kind": kind, "index": index, "arrays": arrays, "scalars": scalars, "plain": plain}


def _kind(optimizer: torch.optim.Optimizer, table: Table) -> list[str]:
    """The optimizer's class and its switches for a table: another one keeps other arrays."""
    group = next(group for group in optimizer.param_groups if any(one is table.parameter for one in group["params"]))
    return [type(optimizer).__name__, *sorted(key for key, value in group.items() if value is True)]


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class _OldShard:
    """Rows of an old worker's shard, which worker 0 has read."""

    old: RowLayout

    def owner_of(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(rows)

    def place_of(self, rows: torch.Tensor) -> torch.Tensor:
        return self.old.place_of(rows)


def redistribute(
    tables: Tables,
    optimizer: torch.optim.Optimizer,
    saved: Mapping[str, Any],
    old_ranks: Sequence[int],
    read: Callable[[int], Mapping[str, torch.Tensor]],
) -> None:
    """Fill all sharded tables from files that another number of workers saved; all workers call it.

    The optimizer continues with its states of the rows, where it is of the class and the switches that it was of.

    Args:
        tables: of this worker.
        optimizer: the one that trains them.
        saved: what `layouts_of` gave when they were saved.
        old_ranks: whose files there are.
        read: the tensors of such a file; called on worker 0 only.

    Raises:
        InputError: the files lack a table, or rows of it.
        PeerFailedError: a worker is gone.
    """
    state = optimizer.state_dict()
    indices = {table.name: index for index, table in places_of(tables, optimizer)}
    for table in tables:
        if table.layout is not None:
            if table.name not in saved or saved[table.name][0] != table.route.rows:
                raise InputError(f"load_checkpoint: table {table.name!r} was not saved as a sharded one of this size")
            rows, hosts, partitions, kept = saved[table.name]
            if missing := set(hosts) - set(old_ranks):
                raise InputError(f"load_checkpoint: the rows of {table.name!r} on worker {min(missing)} were not saved")
            targets = {f"model/{table.name}": table.parameter.detach()}
            if kept is not None and table.name in indices and kept["kind"] == _kind(optimizer, table):
                entries = _prepared(kept, table.parameter.detach())
                state["state"][indices[table.name]] = entries
                targets |= {f"optimizer/{kept['index']}/{key}": entries[key] for key in kept["arrays"]}
            _deal(tables, table, RowLayout(rows, tuple(hosts), partitions), targets, read)
    optimizer.load_state_dict(state)


def _prepared(kept: Mapping[str, Any], weight: torch.Tensor) -> dict[str, Any]:
    """A table's state with arrays that are still to be filled."""
    arrays = {key: torch.zeros_like(weight, dtype=getattr(torch, name)) for key, name in kept["arrays"].items()}
    scalars = {key: torch.tensor(value, dtype=getattr(torch, name)) for key, (name, value) in kept["scalars"].items()}
    return {**arrays, **scalars, **kept["plain"]}


def _deal(
    tables: Tables,
    table: Table,
    old: RowLayout,
    targets: Mapping[str, torch.Tensor],
    read: Callable[[int], Mapping[str, torch.Tensor]],
) -> None:
    """Fill arrays of this worker's rows from those that the old workers' files have under the same names."""
    assert table.own is not None, "the table is sharded"
    assert table.layout is not None, "as above"
    layout: Layout = _OldShard(old)
    for rank in old.hosts:
        shards = read(rank) if tables.rank == 0 else targets
        mine = table.own[old.owner_of(table.own) == rank]
        for number, (name, target) in enumerate(targets.items()):
            for first, last in blocks(table):
                ids = mine[(mine >= first) & (mine < last)]
                table.put(target, ids, tables.block(table, ids, layout, shards[name], number))


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
