"""Whole tables in state dicts: worker 0 gets all rows, block by block, in memory that a file backs.

So `torch.save(model.state_dict(), path)` writes what a script on one device reads, and no worker ever holds more of a
table in memory than its own rows and a block: the kernel writes the mapped pages out and drops them. The file lies in
the folder for temporary files (TMPDIR), has no name, and is gone with the tensor. The other workers' state dicts hold a
tensor without numbers (on the device `meta`), which cannot be loaded by mistake.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from partreduce.runtime.sharding.blocks import blocks
from partreduce.topo.errors import FileError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partreduce.runtime.sharding.table import Table
    from partreduce.runtime.sharding.tables import Tables

SMALL_BYTES = 2**20
"""A smaller table is not worth a file."""


def whole(tables: Tables, table: Table, array: torch.Tensor, number: int) -> torch.Tensor:
    """All rows of a sharded array; all workers call it. O(table) on the wire, into worker 0.

    Args:
        tables: of this worker.
        table: which one's rows they are.
        array: this worker's rows of it.
        number: which array of the table it is, equal on all workers.

    Raises:
        FileError: worker 0 cannot make its file.
        InputError: workers do different things.
        PeerFailedError: a worker is gone.
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
    with tables.together(advice):
        for first, last in blocks(table):
            ids = torch.arange(first, last if is_first else first)
            rows = tables.block(table, ids, table.layout, array, number)
            if is_first:
                target[first:last] = rows
    return target


def backed_by_file(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An array whose pages the kernel may write to the disk and drop; a small one lies in memory.

    Raises:
        FileError: no file can be made.
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


def own_rows(table: Table, value: torch.Tensor) -> torch.Tensor:
    """This worker's rows of a whole table.

    Raises:
        InputError: a tensor that has no numbers, since it is not worker 0's.
    """
    if value.is_meta:
        raise InputError(
            f"load_state_dict: parameter {table.name!r} has no numbers, since only worker 0's state_dict() holds whole "
            "tables; load the file that worker 0 saved, on all workers (torch.load(path, mmap=True))"
        )
    if not table.is_whole(value):
        # A shard of the model and a smaller whole table may have one shape, so torch's own check would not do.
        raise InputError(
            f"load_state_dict: parameter {table.name!r} is {'×'.join(map(str, value.shape))}, and the table is "
            f"{table.route.rows}×{table.route.columns}; load a state dict of this model, with whole tables"
        )
    return table.shard_of(value)


def whole_states(tables: Tables, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """A torch optimizer's state dict with the whole tables' states; all workers call it.

    Raises:
        PeerFailedError: a worker is gone.
    """
    state = dict(saved["state"])
    for index, table in places_of(tables, optimizer):
        if index not in state:
            continue
        entries = dict(state[index])
        arrays = [key for key in sorted(entries) if is_like(entries[key], table.parameter)]
        for number, key in enumerate(arrays):
            entries[key] = whole(tables, table, entries[key], 1 + number)
        state[index] = entries
    return saved | {"state": state}


def own_states(tables: Tables, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> dict[str, Any]:
    """A torch optimizer's state dict with this worker's rows of what has all of them.

    Raises:
        InputError: see `own_rows`.
    """
    state = dict(saved["state"])
    for index, table in places_of(tables, optimizer):
        if index in state:
            entries = state[index].items()
            state[index] = {key: own_rows(table, one) if table.is_whole(one) else one for key, one in entries}
    return {**saved, "state": state}


def places_of(tables: Tables, optimizer: torch.optim.Optimizer) -> list[tuple[int, Table]]:
    """Sharded tables, by their parameters' numbers in the optimizer's state dict."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    found = ((index, tables.of(parameter)) for index, parameter in enumerate(parameters))
    return [(index, table) for index, table in found if table is not None and table.is_sharded]


def is_like(value: Any, parameter: torch.Tensor) -> bool:  # noqa: ANN401 - whatever a state holds
    """Whether a state has a number for each of this worker's."""
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape
