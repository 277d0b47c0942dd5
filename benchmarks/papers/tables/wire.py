"""What batches touch, and what a node's card sends for it: the numbers beside which measured bytes are put.

What tables cost by our ways is the planner's own model (`partreduce.topo.timing.tables`); servers are sharded tables
without aggregation, for which each of a node's workers asks by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from benchmarks.papers.tables.models import Batch, Language
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.payload import Gradient, Payload, Placement, TablePlacement
from partreduce.topo.timing.tables import RowAccess, exchange

FREE = Hardware(nic=Link())


def touched(
    model: Language, batch: Callable[[int, int], Batch], shape: tuple[int, int], steps: Sequence[int] = range(4)
) -> dict[str, RowAccess]:
    """Count distinct rows of batches (step, worker) on (nodes, workers per node): of each table, means over steps."""
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
    return {
        name: RowAccess(*(amount / len(steps) / len(parameter) for amount in sums[name]))
        for name, parameter in model.tables().items()
    }


def routes_of(
    model: Language, way: Placement, *, aggregated: bool, gradient: str, codec: Codec = Codec.NONE
) -> Payload:
    tables = tuple(
        TablePlacement(parameter=name, rows=rows, columns=columns, way=way, gradient=Gradient(gradient), codec=codec)
        for name, (rows, columns) in ((name, parameter.shape) for name, parameter in model.tables().items())
    )
    return Payload(tables=tables, local_aggregation=aggregated)


def tables_bytes(routes: Payload, shares: dict[str, RowAccess], shape: tuple[int, int]) -> float:
    """What the busiest node's card sends in a step for the tables that go their own way."""
    cluster = Cluster.regular(*shape)
    return sum(
        exchange(route, shares[route.parameter], cluster, FREE, local_aggregation=routes.local_aggregation).nic_bytes
        for route in routes.apart
    )


def ring_bytes(num_bytes: float, shape: tuple[int, int]) -> float:
    """What a node's card sends for so many bytes that all workers average around a ring."""
    count = shape[0] * shape[1]
    return 2 * (count - 1) / count * num_bytes


def server_bytes(pieces: Sequence[int], shape: tuple[int, int]) -> tuple[float, float]:
    """What nodes' cards send where node i's first worker serves piece i to all and takes its gradients: mean, and most.

    A server answers each of the other nodes' workers; a node's workers send what other nodes serve.
    """
    num_nodes, size = shape
    outside = size * (num_nodes - 1)
    sent = [outside * piece + size * (sum(pieces) - piece) for piece in pieces]
    return sum(sent) / num_nodes, max(sent)
