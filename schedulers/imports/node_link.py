"""Node-link JSON, as networkx and D3 write it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from preduce.schedulers.imports.networkx_graph import read_graph
from preduce.topo.document.reader import parse_json
from preduce.topo.errors import DocumentError

if TYPE_CHECKING:
    from preduce.schedulers.imports.base import Imported


def read(data: bytes, source: str) -> Imported:
    """`{"directed": …, "nodes": [{"id": …}], "links" or "edges": [{"source", "target", "weight"?}]}`.

    Raises:
        DocumentError: not such a document.
        ScheduleError: a graph that cannot be a topology.
    """
    return read_graph(graph_of(parse_json(data, source=source), source))


def graph_of(value: object, source: str) -> Any:  # noqa: ANN401 - networkx's graph classes, imported late
    """The networkx graph of a node-link document."""
    import networkx as nx

    if not isinstance(value, dict) or not isinstance(value.get("nodes"), list):
        raise DocumentError("document", "has no list `nodes`; node-link JSON has nodes and links", source)
    key = "links" if "links" in value else "edges"
    edges = value.get(key)
    if not isinstance(edges, list):
        raise DocumentError("document", "has no list `links` or `edges`; node-link JSON has nodes and links", source)
    graph: Any = nx.DiGraph() if value.get("directed") else nx.Graph()
    for i, node in enumerate(value["nodes"]):
        name = node.get("id") if isinstance(node, dict) else node
        if not isinstance(name, int | str):
            raise DocumentError(f"nodes[{i}]", "has no `id`, a number or a text", source)
        graph.add_node(name)
    for i, edge in enumerate(edges):
        ends = [edge.get("source"), edge.get("target")] if isinstance(edge, dict) else []
        if len(ends) != 2 or not all(isinstance(end, int | str) and end in graph for end in ends):
            raise DocumentError(f"{key}[{i}]", "needs `source` and `target`, ids of listed nodes", source)
        if graph.has_edge(*ends):
            raise DocumentError(f"{key}[{i}]", f"edge {ends[0]}→{ends[1]} is listed twice", source)
        graph.add_edge(*ends, **({"weight": edge["weight"]} if edge.get("weight") is not None else {}))
    return graph
