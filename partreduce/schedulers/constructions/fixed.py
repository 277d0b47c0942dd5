"""Fixed weighted graphs for a cluster and the parameters of a catalogue entry, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from partreduce.schedulers.constructions import preconditions
from partreduce.topo.cluster import Cluster
from partreduce.topo.graphs import Graph
from partreduce.topo.graphs.named import clustered_graph, de_bruijn
from partreduce.topo.graphs.weights import constant, weigh
from partreduce.topo.strategies.neighbor import NeighborAveraging

MAX_COMPLETE = 5000
"""The most workers of a complete graph, which has n²/2 edges; all-reduce gives the same mean."""

MAX_EDGES = MAX_COMPLETE**2 // 2
"""The most edges of a graph made of cliques: those of the largest complete graph."""


def neighbor_averaging(
    graph_of: Callable[..., Graph], cluster: Cluster, *, weights: str, **parameters: object
) -> NeighborAveraging:
    """Return averaging over the graph `graph_of(n, **parameters)` in rank order, weighted by the method `weights`."""
    return NeighborAveraging(rounds=(weigh(graph_of(cluster.num_workers, **parameters), weights),))


def rectangular(
    graph_of: Callable[[int, int], Graph], least: int, num_workers: int, shape: tuple[int, ...] | None
) -> Graph:
    """Return a graph of rows × columns over n workers: of `shape`, or as square as possible with sides ≥ `least`."""
    chosen = shape or preconditions.sides(num_workers, least)
    assert chosen is not None
    return graph_of(chosen[0], chosen[1])


def figure_21_unsupported_reason(cluster: Cluster, **_: object) -> str | None:
    """Return why Hop's Figure 21 does not fit the cluster (it needs 8 workers); None if it fits."""
    if cluster.num_workers == 8:
        return None
    return f"the figure shows 8 workers, not {cluster.num_workers}; use ring-based for other sizes"


def clustered_nodes(
    cluster: Cluster, *, inside: str, across: str, links: int, ends: str, weights: str
) -> NeighborAveraging:
    """Return averaging over a graph that is dense inside the cluster's nodes and sparse between them.

    Workers of a node (`inside`), and the nodes (`across`), are joined as a "ring" or "complete". Two joined nodes have
    `links` edges, between their first workers (`ends` "gateway") or between different ones ("spread"). `weights` is the
    method of `topo.graphs.weights`.
    """
    nodes = [cluster.workers_of(node) for node in range(cluster.num_nodes)]
    graph = clustered_graph(nodes, inside=inside, across=across, links=links, ends=ends)
    return NeighborAveraging(rounds=(weigh(graph, weights),))


def clustered_unsupported_reason(
    cluster: Cluster, *, inside: str, across: str, links: int, ends: str, **_: object
) -> str | None:
    """Return why `clustered_nodes` with these arguments is impossible (as for one node); None if it is possible."""
    if cluster.num_nodes < 2:
        return "1 node has no edges across; use complete, or ring-based for fewer edges"
    sizes_ = cluster.node_sizes()
    if inside == "complete" and (edges := int((sizes_ * (sizes_ - 1) // 2).sum())) > MAX_EDGES:
        return f"{edges} edges inside nodes; use inside=ring"
    if across == "complete" and (edges := cluster.num_nodes * (cluster.num_nodes - 1) // 2 * links) > MAX_EDGES:
        return f"{edges} edges between nodes; use across=ring"
    if ends == "gateway" and links > 1:
        return f"links {links}: gateways have 1 edge between each two nodes; use ends=spread"
    return None


def complete_unsupported_reason(cluster: Cluster, **_: object) -> str | None:
    """Return why the complete graph is not built (n²/2 edges are too many); None if it is."""
    count = cluster.num_workers
    if count <= MAX_COMPLETE:
        return None
    return f"{count} workers have {count * (count - 1) // 2} edges; use allreduce, the same mean with less traffic"


def de_bruijn_graph(cluster: Cluster, base: int | None) -> NeighborAveraging:
    """Return averaging over the de Bruijn graph: edges i → base·i + a mod n of weight 1/base (None: smallest base)."""
    chosen = preconditions.smallest_base(cluster.num_workers) if base is None else base
    length = preconditions.exponent(cluster.num_workers, chosen)
    assert length is not None
    return NeighborAveraging(rounds=(constant(de_bruijn(chosen, length), Fraction(1, chosen)),))


def random_regular_unsupported_reason(cluster: Cluster, degree: int, **_: object) -> str | None:
    """Return why no random regular graph exists (it needs degree < n and n·degree even); None if it exists."""
    count = cluster.num_workers
    if degree >= count:
        return f"degree {degree} needs more than {degree} workers; the largest degree here is {count - 1}"
    if count * degree % 2:
        near = degree + 1 if degree + 1 < count else degree - 1
        return f"{count} workers of degree {degree} have half an edge too many; use an even degree such as {near}"
    return None
