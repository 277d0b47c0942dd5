"""Read graphs: edge lists, networkx graphs, and the formats that networkx writes, node-link JSON and GraphML.

In an edge list `#` starts a comment; lines as networkx writes them are valid, too: `0 1 {}` and `0 1 {'weight':
0.25}`. In the other formats the edge attribute `weight` holds mixing weights, if all edges have it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeGuard
from xml.etree.ElementTree import ParseError

import numpy as np

from partreduce.schedulers.imports.exact import balance_weights, check_own_weights, exact
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.reader import decode, parse_json
from partreduce.topo.errors import DocumentError, ScheduleError
from partreduce.topo.graphs import Graph
from partreduce.topo.graphs.weights import weigh
from partreduce.topo.place import format_value
from partreduce.topo.round import Round
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.neighbor import NeighborAveraging

if TYPE_CHECKING:
    import networkx as nx

MAX_WORKERS = 1_000_000
PLACEHOLDER = 1
"""The weight that tools around networkx write for unweighted edges; a graph whose edges all have it is unweighted."""
NODE_LINK = "node-link JSON has nodes and links"
_ATTRIBUTES = re.compile(r"\{(?:[^{}]*['\"]weight['\"]\s*:\s*([^,{}\s]+))?[^{}]*\}\s*$")
"""The dictionary of edge attributes that networkx writes after an edge; group 1 is its weight, if it has one."""


@dataclass(frozen=True, slots=True)
class ImportedGraph:
    """A graph from a file, with the weight of each edge in the graph's order; None if the file has no weights."""

    graph: Graph
    weights: tuple[Fraction, ...] | None = None


def from_table(
    nodes: Collection[Hashable],
    edges: Sequence[tuple[Hashable, Hashable]],
    weights: Sequence[object],
    lines: Sequence[str] | None = None,
    *,
    directed: bool,
) -> ImportedGraph:
    """Build a graph from node names and edges (sender, receiver), each with a weight or None and a place in the file.

    Nodes 0..n−1 (also as text) keep their numbers; other names are numbered in the order of `nodes`. Without the places
    `lines`, weights that are all 1 count as none, because some tools always write a weight. Raises ScheduleError if
    only some edges have a weight, or the weights are invalid.
    """

    def place(e: int) -> str:
        return lines[e] if lines else f"edge {format_value(edges[e][0])}→{format_value(edges[e][1])}"

    rank = {name: i for i, name in enumerate(nodes)}
    if {str(name) for name in nodes} == {str(i) for i in rank.values()}:
        rank = {name: int(str(name)) for name in nodes}
    pairs, absent = [(rank[a], rank[b]) for a, b in edges], [weight is None for weight in weights]
    shares = None
    if not all(absent):
        if any(absent):
            odd = absent.index(not absent[0])
            lacks = "has no weight, others have one; " if absent[odd] else ""
            raise ScheduleError(f"{place(odd)}: {lacks}give all edges a weight, or none")
        shares = [exact(weight, place(e)) for e, weight in enumerate(weights)]
    if shares is not None and not lines and all(share == PLACEHOLDER for share in shares):
        shares = None
    return from_edges(len(nodes), pairs, shares, directed=directed)


def from_edges(
    num_workers: int, edges: Iterable[tuple[int, int]], weights: Sequence[Fraction] | None, *, directed: bool
) -> ImportedGraph:
    """Build a graph from edges between ranks; an undirected edge may be listed in one or both directions.

    Raises ScheduleError for an edge with two weights, weights of a worker with a self-loop that do not sum to 1, or
    less than 2 workers.
    """
    if not 2 <= num_workers <= MAX_WORKERS:
        raise ScheduleError(f"graph: has {num_workers} workers; graphs of 2 to {MAX_WORKERS} workers are read")
    pairs = np.array(list(edges), dtype=np.int64).reshape(-1, 2)
    make = Graph.directed if directed else Graph.undirected
    graph = make(num_workers, pairs[:, 0], pairs[:, 1])
    if weights is None:
        return ImportedGraph(graph)
    weight_of: dict[tuple[int, int], Fraction] = {}
    for (a, b), weight in zip(pairs.tolist(), weights, strict=True):
        for edge in ((a, b),) if directed else ((a, b), (b, a)):
            if weight_of.setdefault(edge, weight) != weight:
                raise ScheduleError(f"edge {a}→{b}: has the weights {weight_of[edge]} and {weight}; give it one")
    check_own_weights(num_workers, weight_of)
    arcs = zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    return ImportedGraph(graph, tuple(weight_of[arc] for arc in arcs))


def round_of(imported: ImportedGraph, method: str) -> Round:
    """Return the graph as a round, with its own weights or, if it has none, the mixing weights of `method`.

    Raises ScheduleError if the graph is not connected.
    """
    imported.graph.require_connected()
    return weigh(imported.graph, method) if imported.weights is None else weighted_round(imported)


def weighted_round(imported: ImportedGraph) -> Round:
    """Return the graph as a round with its own weights, without zeros, balanced; raise ScheduleError if it has none."""
    graph, weights = imported.graph, imported.weights
    if weights is None:
        raise ScheduleError("rows of 0 and 1 do not sum to 1; a stack holds mixing weights")
    kept = [e for e, weight in enumerate(weights) if weight]
    sources, targets = graph.sources[kept], graph.targets[kept]
    balanced = balance_weights(graph.num_workers, sources.tolist(), targets.tolist(), [weights[e] for e in kept])
    return Round.from_arrays(graph.num_workers, sources, targets, balanced, np.arange(len(kept)))


def schedule(name: str, rounds: Sequence[Round], cluster: Cluster | None) -> Schedule:
    """Return a schedule of kind `neighbor` with these weighted graphs; without a cluster every worker has its own node.

    Raises ScheduleError if the cluster has another number of workers.
    """
    count = rounds[0].num_workers
    chosen = Cluster.regular(count, 1) if cluster is None else cluster
    if chosen.num_workers != count:
        raise ScheduleError(
            f"cluster {chosen}: has {chosen.num_workers} workers, {name!r} is for {count}; name a cluster of {count}"
        )
    return Schedule(name, chosen, NeighborAveraging(rounds=tuple(rounds)))


def lines_of(data: bytes, source: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, words) of every line that is not empty or a comment."""
    for number, line in enumerate(decode(data, source=source).splitlines(), start=1):
        plain = _ATTRIBUTES.sub(lambda match: match[1] or "", line.split("#", 1)[0])
        words = plain.replace(",", " ").split()
        if words:
            yield number, words


def read_edge_list(data: bytes, source: str, *, directed: bool = False) -> ImportedGraph:
    """Read an undirected graph (`directed`: a directed one) from lines `a b` or `a b weight` of two ranks.

    The workers are 0 … the largest rank named. A rank determines a worker's node, so names that are not numbers raise
    DocumentError; 01 is rank 1.
    """
    edges: list[tuple[int, int]] = []
    weights: list[str | None] = []
    places: list[str] = []
    for number, words in lines_of(data, source):
        place = f"line {number}"
        if len(words) not in (2, 3):
            count = "1 word" if len(words) == 1 else f"{len(words)} words"
            raise DocumentError(place, f"has {count}; an edge is two nodes and perhaps a weight", source)
        edges.append((_rank(words[0], place, source), _rank(words[1], place, source)))
        weights.append(words[2] if len(words) == 3 else None)
        places.append(place)
    if not edges:
        raise DocumentError("document", "has no edges", source)
    lowest = min(min(edge) for edge in edges)
    if lowest:
        raise DocumentError(
            "document", f"has no edge of rank 0, the lowest is {lowest}; ranks count from 0: subtract {lowest}", source
        )
    nodes = range(max(max(edge) for edge in edges) + 1)
    return from_table(nodes, edges, weights, places, directed=directed)


def _rank(word: str, place: str, source: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 9):
        raise DocumentError(place, f"{word!r} is not a rank; ranks are whole numbers from 0", source)
    return int(word)


def from_networkx(
    graph: nx.Graph[Any] | nx.DiGraph[Any],
    *,
    name: str = "imported",
    cluster: Cluster | None = None,
    weights: str = "metropolis",
) -> Schedule:
    """Build a schedule from a networkx graph. A DiGraph's edge u→v with weight w adds w · x_u to v's average.

    Without weights (or if all of them are 1) the method `weights` computes mixing weights.

    Raises:
        ScheduleError: the graph is disconnected, its weights are invalid, or it does not fit the cluster.
    """
    return schedule(name, [round_of(_of_graph(graph), weights)], cluster)


def _of_graph(graph: nx.Graph[Any] | nx.DiGraph[Any]) -> ImportedGraph:
    if graph.is_multigraph():
        raise ScheduleError("graph: is a multigraph; a topology has one edge between two workers")
    weights = [attributes.get("weight") for _, _, attributes in graph.edges(data=True)]
    return from_table(list(graph.nodes), list(graph.edges), weights, directed=graph.is_directed())


def read_node_link(data: bytes, source: str) -> ImportedGraph:
    """Read D3's node-link JSON: `{"nodes": [{"id"}], "links" or "edges": [{"source", "target", "weight"?}]}`.

    Raises DocumentError for other content, ScheduleError for invalid weights; `source` is the file's name in them.
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
            raise DocumentError(f"{key}[{i}]", f"edge {format_value(a)}→{format_value(b)} is listed twice", source)
        seen.add(once)
        edges.append((a, b))
        weights.append(link.get("weight"))
    return from_table(nodes, edges, weights, directed=directed)


def _is_name(value: object) -> TypeGuard[int | str]:
    return isinstance(value, int | str) and not isinstance(value, bool)


def read_graphml(data: bytes, source: str) -> ImportedGraph:
    """Read GraphML with one graph, as networkx, yEd and Gephi write it; the edge key `weight` holds mixing weights.

    Raises as `read_node_link`.
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
    return _of_graph(graph)
