"""Save embedding tables: whole tables in state dicts, and each worker's rows in checkpoints.

For a state dict, worker 0 receives all rows block by block, into memory backed by an unnamed file in TMPDIR, so that no
worker holds more of a table in memory than its own rows and a block. The other workers' state dicts get a tensor on the
meta device, which cannot be loaded by mistake.

In a checkpoint each worker saves its own rows and their optimizer state. For another number of workers the rows are
redistributed: worker 0 reads the old workers' files one after the other, and every worker takes its rows from there.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from partreduce.runtime.sharding.table import OnFirst, RowLayout, Table
from partreduce.runtime.sharding.tables import Tables
from partreduce.topo.errors import FileError, InputError

SMALL_BYTES = 2**20  # smaller tables stay in memory


def gather_full_table(tables: Tables, table: Table, array: torch.Tensor, number: int) -> torch.Tensor:
    """Gather all rows of `array`, which is sharded like the table (its weights or an optimizer state), on worker 0.

    All workers call it with the same `number`, which identifies the array. Other workers get a meta tensor.
    """
    assert table.layout is not None, "only sharded tables are put together"
    shape = (table.route.rows, *array.shape[1:])
    is_first = tables.rank == 0
    array = array.to_dense() if array.layout is not torch.strided else array
    target = backed_by_file(shape, array.dtype) if is_first else torch.empty(shape, dtype=array.dtype, device="meta")
    advice = (
        f"worker {tables.rank} is in state_dict(), which puts the rows of {table.name!r} together from all workers: "
        "let all of them call it at the same place; worker 0's then holds the whole table"
    )
    with tables.with_advice(advice):
        for first, last in table.blocks():
            ids = torch.arange(first, last if is_first else first)
            rows = tables.block(table, ids, table.layout, array, number)
            if is_first:
                target[first:last] = rows
    return target


def backed_by_file(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialized array in an unnamed temporary file, so that the kernel may evict its pages.

    A small array is in memory. Raises FileError if there is no room for the file.
    """
    size = torch.Size(shape).numel()
    if size * dtype.itemsize <= SMALL_BYTES:
        return torch.empty(shape, dtype=dtype)
    try:
        handle, path = tempfile.mkstemp(prefix="partreduce-table-")
        try:
            os.posix_fallocate(handle, 0, size * dtype.itemsize)
            return torch.from_file(path, shared=True, size=size, dtype=dtype).view(shape)
        finally:
            os.close(handle)
            Path(path).unlink()
    except OSError as error:
        raise FileError(
            f"state_dict: no file of {size * dtype.itemsize} bytes for a whole table in {tempfile.gettempdir()}: "
            f"{error.strerror}; set TMPDIR"
        ) from None


def local_rows(table: Table, value: torch.Tensor) -> torch.Tensor:
    """Return this worker's rows of `value`, a whole table. Raises InputError for any other tensor."""
    if value.is_meta:
        raise InputError(
            f"load_state_dict: parameter {table.name!r} has no numbers, since only worker 0's state_dict() holds whole "
            "tables; load the file that worker 0 saved, on all workers (torch.load(path, mmap=True))"
        )
    if not table.is_whole(value):
        # A shard and a smaller whole table may have the same shape, so torch's own check does not suffice.
        raise InputError(
            f"load_state_dict: parameter {table.name!r} is {'×'.join(map(str, value.shape))}, and the table is "
            f"{table.route.rows}×{table.route.columns}; load a state dict of this model, with whole tables"
        )
    return table.shard_of(value)


def full_optimizer_states(tables: Tables, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """Return `saved`, the optimizer's state dict, with tables' states gathered on worker 0; all workers call it."""
    state = dict(saved["state"])
    for index, table in places_of(tables, optimizer):
        if index in state:
            entries = state[index] = dict(state[index])
            arrays = [key for key in sorted(entries) if is_like(entries[key], table.parameter)]
            for number, key in enumerate(arrays):
                entries[key] = gather_full_table(tables, table, entries[key], 1 + number)
    return saved | {"state": state}


def local_optimizer_states(
    tables: Tables, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `saved`, an optimizer's state dict, with only this worker's rows of the states of whole tables."""
    state = dict(saved["state"])
    for index, table in places_of(tables, optimizer):
        if index in state:
            entries = state[index].items()
            state[index] = {key: local_rows(table, one) if table.is_whole(one) else one for key, one in entries}
    return {**saved, "state": state}


def places_of(tables: Tables, optimizer: torch.optim.Optimizer) -> list[tuple[int, Table]]:
    """Return (index of its parameter in the optimizer's state dict, table) of each sharded table."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    found = ((index, tables.of(parameter)) for index, parameter in enumerate(parameters))
    return [(index, table) for index, table in found if table is not None and table.is_sharded]


def is_like(value: Any, parameter: torch.Tensor) -> bool:  # noqa: ANN401 - whatever a state holds
    """Return whether an entry of an optimizer state is a tensor with the parameter's shape on this worker."""
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape


def shards_of(tables: Tables) -> dict[str, torch.Tensor]:
    """Return this worker's rows of all sharded tables, by their names in a checkpoint."""
    return {f"model/{table.name}": table.parameter for table in tables if table.is_sharded}


def gathered_of(tables: Tables) -> dict[str, torch.Tensor]:
    """Return the tables that every worker holds whole, by their names in a checkpoint."""
    return {f"model/{table.name}": table.parameter for table in tables if not table.is_sharded}


def layouts_of(tables: Tables, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return, as JSON by table, how the rows of each sharded table are divided, and what its optimizer state is."""
    found: dict[str, Any] = {
        table.name: [layout.num_rows, list(layout.hosts), layout.partitions, None]
        for table in tables
        if (layout := table.layout) is not None
    }
    states = optimizer.state_dict()["state"]
    for index, table in places_of(tables, optimizer):
        if index in states:
            found[table.name][-1] = _describe_state(states[index], table, index, _kind(optimizer, table))
    return found


def _describe_state(state: Mapping[str, Any], table: Table, index: int, kind: list[str]) -> dict[str, Any] | None:
    """Return a table's optimizer state without its arrays, as JSON; None if an array has an unexpected shape.

    `index` is that of the table's parameter in the optimizer's state dict, `kind` the result of `_kind`.
    """
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
    """Return the optimizer's class and the options that are True for a table: these decide what the state contains."""
    group = next(group for group in optimizer.param_groups if any(one is table.parameter for one in group["params"]))
    return [type(optimizer).__name__, *sorted(key for key, value in group.items() if value is True)]


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def redistribute(
    tables: Tables,
    optimizer: torch.optim.Optimizer,
    saved: Mapping[str, Any],
    old_ranks: Sequence[int],
    read: Callable[[int], Mapping[str, torch.Tensor]],
) -> None:
    """Fill all sharded tables from files saved by another number of workers; all workers call it.

    Optimizer states of the rows are restored if the optimizer has the same class and options. `saved` is the result of
    `layouts_of`; `old_ranks` are the ranks with a file, and `read` reads a rank's file on worker 0. Raises InputError
    if a table or some of its rows were not saved.
    """
    state = optimizer.state_dict()
    indices = {table.name: index for index, table in places_of(tables, optimizer)}
    for table in tables:
        if table.is_sharded:
            if table.name not in saved or saved[table.name][0] != table.route.rows:
                raise InputError(f"load_checkpoint: table {table.name!r} was not saved as a sharded one of this size")
            rows, hosts, partitions, kept = saved[table.name]
            if missing := set(hosts) - set(old_ranks):
                raise InputError(f"load_checkpoint: the rows of {table.name!r} on worker {min(missing)} were not saved")
            targets = {f"model/{table.name}": table.parameter.detach()}
            if kept is not None and table.name in indices and kept["kind"] == _kind(optimizer, table):
                entries = _empty_state(kept, table.parameter.detach())
                state["state"][indices[table.name]] = entries
                targets |= {f"optimizer/{kept['index']}/{key}": entries[key] for key in kept["arrays"]}
            _deal(tables, table, RowLayout(rows, tuple(hosts), partitions), targets, read)
    optimizer.load_state_dict(state)


def _empty_state(kept: Mapping[str, Any], weight: torch.Tensor) -> dict[str, Any]:
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
    """Fill `targets`, arrays of this worker's rows, from the arrays with the same names in the old workers' files.

    `old` says which old worker had which rows; `read` reads an old rank's file, on worker 0.
    """
    assert table.own is not None, "the table is sharded"
    for rank in old.hosts:
        shards = read(rank) if tables.rank == 0 else targets
        mine = table.own[old.owner_of(table.own) == rank]
        for number, (name, target) in enumerate(targets.items()):
            for first, last in table.blocks():
                ids = mine[(mine >= first) & (mine < last)]
                table.put(target, ids, tables.block(table, ids, OnFirst(old.place_of), shards[name], number))


def reader(folder: Path, file_of: Callable[[int], str], unpack: Callable[..., Any]) -> Callable[[int], Any]:
    """Return a function that reads a worker's file in `folder`, given its rank, and caches only the last one.

    `file_of` returns a rank's file name, `unpack` decodes (bytes, path).
    """
    kept: dict[int, Any] = {}

    def read(rank: int) -> Any:  # noqa: ANN401 - tensors by name
        if rank not in kept:
            kept.clear()
            path = folder / file_of(rank)
            kept[rank], _ = unpack(path.read_bytes(), path)
        return kept[rank]

    return read
