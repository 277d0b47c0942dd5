"""Any networkx graph: edge attribute `weight` holds mixing weights, if all edges have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from preduce.schedulers.imports.base import Imported, exact, from_edges, round_of, schedule
from preduce.topo.errors import ScheduleError

if TYPE_CHECKING:
    import networkx as nx

    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def read_graph(graph: nx.Graph[Any] | nx.DiGraph[Any]) -> Imported:
    """Edges and weights; nodes are numbered in their own order unless they are 0..n−1 (also as text) already.

    Raises:
        ScheduleError: a multigraph, some edges with a weight and some without, or a weight that is no share.
    """
    if graph.is_multigraph():
        raise ScheduleError("graph: is a multigraph; a topology has one edge between two workers")
    names = list(graph.nodes)
    count = len(names)
    if {str(name) for name in names} == {str(i) for i in range(count)}:
        rank = {name: int(name) for name in names}
    else:
        rank = {name: i for i, name in enumerate(names)}
    listed: list[tuple[int, int, Any]] = [
        (rank[a], rank[b], data.get("weight")) for a, b, data in graph.edges(data=True)
    ]
    with_weight = [edge for edge in listed if edge[2] is not None]
    if with_weight and len(with_weight) != len(listed):
        a, b, _ = next(edge for edge in listed if edge[2] is None)
        raise ScheduleError(f"edge {a}→{b}: has no weight, others have one; give all edges a weight, or none")
    weights = [exact(w, f"edge {a}→{b}") for a, b, w in with_weight] or None
    if weights is not None and all(weight == 1 for weight in weights):
        weights = None  # the usual placeholder of tools that always write a weight
    return from_edges(count, [(a, b) for a, b, _ in listed], weights, directed=graph.is_directed())


def from_networkx(
    graph: nx.Graph[Any] | nx.DiGraph[Any],
    *,
    name: str = "imported",
    cluster: Cluster | None = None,
    weights: str = "metropolis",
) -> Schedule:
    """A schedule from a networkx graph. A DiGraph's edge u→v with weight w means: v takes the share w from u.

    Without weights (or with all of them 1) the graph is weighed by `weights`.

    Raises:
        ScheduleError: the graph is disconnected, its weights are no shares, or it does not fit the cluster.
    """
    return schedule(name, [round_of(read_graph(graph), weights)], cluster)
