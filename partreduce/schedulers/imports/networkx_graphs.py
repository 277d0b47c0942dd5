"""networkx graphs and the formats that networkx writes, node-link JSON and GraphML.

The edge attribute `weight` holds mixing weights, if all edges have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard
from xml.etree.ElementTree import ParseError

from partreduce.schedulers.imports.base import EdgeTable, round_of, schedule
from partreduce.topo.document.reader import parse_json
from partreduce.topo.errors import DocumentError, ScheduleError
from partreduce.topo.place import format_value

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Sequence

    import networkx as nx

    from partreduce.schedulers.imports.base import ImportedGraph
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.schedule import Schedule

PLACEHOLDER = 1
"""The weight that networkx's world writes where there is none; a graph in which all edges have it is unweighted."""

NODE_LINK = "node-link JSON has nodes and links"


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
    return schedule(name, [round_of(_of_graph(graph).weighted(placeholder=PLACEHOLDER), weights)], cluster)


def _of_graph(graph: nx.Graph[Any] | nx.DiGraph[Any]) -> EdgeTable:
    if graph.is_multigraph():
        raise ScheduleError("graph: is a multigraph; a topology has one edge between two workers")
    edges = list(graph.edges)
    weights = [attributes.get("weight") for _, _, attributes in graph.edges(data=True)]
    return _table(list(graph.nodes), edges, weights, directed=graph.is_directed())


def _table(
    nodes: Collection[Hashable], edges: Sequence[tuple[Any, Any]], weights: Sequence[object], *, directed: bool
) -> EdgeTable:
    def place(e: int) -> str:
        return _arrow(*edges[e])

    return EdgeTable(nodes, edges, weights, directed, place)


def read_node_link(data: bytes, source: str) -> ImportedGraph:
    """`{"directed": …, "nodes": [{"id": …}], "links" or "edges": [{"source", "target", "weight"?}]}`, as D3 reads it.

    Raises:
        DocumentError: not such a document, two nodes with one id, or an edge that is listed twice.
        ScheduleError: a graph that cannot be a topology.
    """
    document = parse_json(data, source=source)
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
        raise DocumentError("document", f"has no list `nodes`; {NODE_LINK}", source)
    key = "links" if "links" in document else "edges"
    links = document.get(key)
    if not isinstance(links, list):
        raise DocumentError("document", f"has no list `links` or `edges`; {NODE_LINK}", source)
    directed = document.get("directed", False)
    if not isinstance(directed, bool):
        raise DocumentError(
            "directed", f"is {format_value(directed)}; a graph is directed (true) or not (false)", source
        )
    nodes: dict[int | str, None] = {}
    for i, node in enumerate(document["nodes"]):
        name = node.get("id") if isinstance(node, dict) else node
        if not _is_name(name):
            raise DocumentError(f"nodes[{i}]", "has no `id`, a number or a text", source)
        if name in nodes:
            raise DocumentError(f"nodes[{i}]", f"two nodes share an id, {format_value(name)}", source)
        nodes[name] = None
    edges: list[tuple[int | str, int | str]] = []
    weights: list[object] = []
    seen: set[object] = set()
    for i, link in enumerate(links):
        a, b = (link.get("source"), link.get("target")) if isinstance(link, dict) else (None, None)
        if not (_is_name(a) and a in nodes and _is_name(b) and b in nodes):
            raise DocumentError(f"{key}[{i}]", "needs `source` and `target`, ids of listed nodes", source)
        once = (a, b) if directed else frozenset((a, b))
        if once in seen:
            raise DocumentError(f"{key}[{i}]", f"{_arrow(a, b)} is listed twice", source)
        seen.add(once)
        edges.append((a, b))
        weights.append(link.get("weight"))
    return _table(nodes, edges, weights, directed=directed).weighted(placeholder=PLACEHOLDER)


def _arrow(source: object, target: object) -> str:
    return f"edge {format_value(source)}→{format_value(target)}"


def _is_name(value: object) -> TypeGuard[int | str]:
    return isinstance(value, int | str) and not isinstance(value, bool)


def read_graphml(data: bytes, source: str) -> ImportedGraph:
    """GraphML with one graph, as networkx, yEd and Gephi write it; the edge key `weight` holds mixing weights.

    Raises:
        DocumentError: not GraphML, or a document with its own entities.
        ScheduleError: a graph that cannot be a topology.
    """
    import networkx as nx

    if b"<!ENTITY" in data or b"<!DOCTYPE" in data:
        raise DocumentError(
            "document", "declares a document type; GraphML needs none, and entities can grow endlessly", source
        )
    try:
        graph = nx.parse_graphml(data.decode("utf-8"))
    except (ParseError, nx.NetworkXError, UnicodeDecodeError, ValueError, KeyError, TypeError, StopIteration) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise DocumentError("document", f"is not GraphML: {text}", source) from None
    return _of_graph(graph).weighted(placeholder=PLACEHOLDER)
