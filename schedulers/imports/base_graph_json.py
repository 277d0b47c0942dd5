"""The Base-(k+1) repository's node file: how many nodes, on which addresses; the graph follows from their number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.registry import build
from preduce.topo.cluster import Cluster
from preduce.topo.document.reader import parse_json
from preduce.topo.errors import DocumentError

if TYPE_CHECKING:
    from preduce.topo.schedule import Schedule


def read(data: bytes, source: str, *, cluster: Cluster | None = None, k: int = 1) -> Schedule:
    """`{"n_nodes": n, "node0": {"node_id": 0, "ip_address": …}, …}` as the schedule that the repository runs on it.

    Workers with one `ip_address` are placed on one node, unless a cluster is given.

    Raises:
        DocumentError: another form.
        ScheduleError: too few workers for k, or a cluster of another size.
    """
    value = parse_json(data, source=source)
    count = value.get("n_nodes") if isinstance(value, dict) else None
    if not isinstance(count, int) or isinstance(count, bool) or not 2 <= count <= 10**6:
        raise DocumentError("n_nodes", "is not a number of workers between 2 and 1000000", source)
    assert isinstance(value, dict)
    nodes: dict[str, list[int]] = {}
    for i in range(count):
        node = value.get(f"node{i}")
        if not isinstance(node, dict) or node.get("node_id", i) != i:
            raise DocumentError(f"node{i}", f"is missing or has another node_id than {i}", source)
        nodes.setdefault(str(node.get("ip_address", i)), []).append(i)
    chosen = Cluster.irregular(list(nodes.values())) if cluster is None else cluster
    if chosen.num_workers != count:
        raise DocumentError("n_nodes", f"is {count}, cluster {chosen} has {chosen.num_workers} workers", source)
    return build("base-k-plus-1", chosen, k=k)
