"""What crosses a node's network card in a step, by each way, from the rows that batches really touch.

Outgoing bytes, mean over nodes, without headers; rows are float32, a row's number has 8 bytes. With n workers on N
nodes of g, of a table with touched rows α (a worker), α_node and all rows r of c columns:

    way                     a worker's rows and numbers    a node's card sends
    gather                  αr(4c + 8)                     (n − 1) αr(4c + 8), a ring's edge
    gather, aggregated      α_node r(4c + 8)               (n − 1)/g α_node r(4c + 8)
    sharded                 αr(8c + 16)                    g (N − 1)/N αr(8c + 16)
    sharded, aggregated     α_node r(8c + 16)              (N − 1)/N α_node r(8c + 16)
    dense                   4rc                            2 (n − 1)/n 4rc, a ring's edge
    server                  as sharded                     as sharded

Sharded: a lookup sends numbers and gets rows, backward sends both. Dense parameters of d bytes: 2 (n − 1)/n d around a
ring, 2 g (N − 1)/N d through servers on all nodes.
Source: reference numbers are those of Parallax's Table 3 where nodes have one worker (Kim et al. 2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.papers.tables.models import Batch, WithTables

NUMBER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """A table and the shares of its rows that a worker, a node and all workers touch in a step, means."""

    name: str
    rows: int
    columns: int
    worker: float
    node: float
    everyone: float

    @property
    def overlap(self) -> float:
        """A node's distinct rows over the sum of its workers': what local aggregation leaves of the bytes."""
        return self.node / self.worker


def touched(
    model: WithTables, batch: Callable[[int, int], Batch], shape: tuple[int, int], steps: Sequence[int] = range(4)
) -> tuple[Touched, ...]:
    """Count distinct rows of batches (step, worker) on (nodes, workers per node)."""
    num_nodes, size = shape
    sums: dict[str, list[float]] = {name: [0.0, 0.0, 0.0] for name in model.tables()}
    for step in steps:
        of_workers = [model.touched(batch(step, worker)) for worker in range(num_nodes * size)]
        for name, counted in sums.items():
            rows = [found[name] for found in of_workers]
            nodes = [torch.cat(rows[start : start + size]).unique() for start in range(0, len(rows), size)]
            counted[0] += sum(len(each) for each in rows) / len(rows)
            counted[1] += sum(len(each) for each in nodes) / num_nodes
            counted[2] += len(torch.cat(nodes).unique())
    found = []
    for name, parameter in model.tables().items():
        rows, columns = parameter.shape
        worker, node, everyone = (amount / len(steps) / rows for amount in sums[name])
        found.append(Touched(name=name, rows=rows, columns=columns, worker=worker, node=node, everyone=everyone))
    return tuple(found)


def table_bytes(way: str, table: Touched, shape: tuple[int, int]) -> float:
    """What a node's card sends for one table in a step."""
    num_nodes, size = shape
    count = num_nodes * size
    each = 4 * table.columns + NUMBER
    crossing = (num_nodes - 1) / num_nodes
    if way == "dense":
        return 2 * (count - 1) / count * 4 * table.rows * table.columns
    if way == "gather":
        return (count - 1) * table.worker * table.rows * each
    if way == "gather, aggregated":
        return (count - 1) / size * table.node * table.rows * each
    if way == "sharded, aggregated":
        return crossing * table.node * table.rows * 2 * each
    if way in ("sharded", "server"):
        return size * crossing * table.worker * table.rows * 2 * each
    raise KeyError(way)


def dense_bytes(way: str, num_bytes: float, shape: tuple[int, int]) -> float:
    """What a node's card sends for the dense parameters in a step: by servers, or around a ring."""
    num_nodes, size = shape
    count = num_nodes * size
    if way == "server":
        return 2 * size * (num_nodes - 1) / num_nodes * num_bytes
    return 2 * (count - 1) / count * num_bytes
