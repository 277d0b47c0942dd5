"""Blocks: the pieces in which whole tables move, so that nobody holds one."""

from __future__ import annotations

from partreduce.runtime.sharding.table import Table

BLOCK_BYTES = 4 * 2**20


def blocks(table: Table) -> list[tuple[int, int]]:
    """First row and the row after the last of each block of a table, equal on all workers."""
    width = max(1, table.route.columns * table.parameter.element_size())
    size = max(1, BLOCK_BYTES // width)
    return [(first, min(first + size, table.route.rows)) for first in range(0, table.route.rows, size)]
