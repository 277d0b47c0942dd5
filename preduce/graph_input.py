"""Graphs as people give them to a command: a schedule file, a networkx node-link file, an edge list, or a name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from preduce.topo.errors import DocumentError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from preduce.schedulers.protocols.digraph import Digraph
    from preduce.topo.schedule import Schedule

MAX_WORKERS = 100_000
NAMED: dict[str, tuple[str, Callable[[int], bool], str]] = {
    "ring": ("ring", lambda n: n >= 2, "n >= 2"),
    "ring-based": ("ring_based", lambda n: n >= 2 and n % 2 == 0, "even n"),
    "double-ring": ("double_ring", lambda n: n >= 4 and n % 4 == 0, "n divisible by 4"),
    "complete": ("complete", lambda n: n >= 2, "n >= 2"),
    "star": ("star", lambda n: n >= 2, "n >= 2"),
    "directed-ring": ("", lambda n: n >= 2, "n >= 2"),
}
"""Names that need nothing but a size: the function in `topo.graphs`, which sizes exist, and how to say so."""


def load_graph(text: str, *, directed: bool = False, max_bytes: int = 16 * 2**20) -> Digraph:
    """The graph that `text` names: a file, `NAME:SIZE` such as `ring:16`, or a catalogue name on a cluster.

    `directed` says how to read the lines of an edge list; node-link files say it themselves.

    Raises:
        InputError: not a file and not a known name, or a content that is no graph.
    """
    from preduce.topo.document.reader import is_file, read_bytes

    if is_file(text):
        data = read_bytes(text, max_bytes)
        return _document(text, data, max_bytes) if data.lstrip()[:1] == b"{" else _edge_list(text, data, directed)
    match = re.fullmatch(r"([A-Za-z][A-Za-z0-9_-]*):([0-9]{1,6}|[0-9]{1,5}x[0-9]{1,5})", text)
    if match is None:
        raise InputError(
            f"graph {text!r}: is no file; name one, or write NAME:SIZE such as ring:16 ({', '.join(NAMED)}, or a graph "
            "of `preduce catalogue` with its cluster)"
        )
    return _named(match[1].lower().replace("_", "-"), match[2])


def _named(name: str, size: str) -> Digraph:
    from importlib import import_module

    from preduce.schedulers.protocols.digraph import Digraph
    from preduce.schedulers.registry import build, names
    from preduce.topo.cluster import Cluster

    if name in NAMED and size.isdigit():
        function, fits, rule = NAMED[name]
        n = int(size)
        if not fits(n) or n > MAX_WORKERS:
            raise InputError(f"graph {name}:{size}: exists for {rule}, up to {MAX_WORKERS} workers")
        if not function:
            return Digraph.of(n, [(i, (i + 1) % n) for i in range(n)])
        graph = getattr(import_module(f"preduce.topo.graphs.{function}"), function)(n)
        return Digraph.of(n, zip(graph.sources.tolist(), graph.targets.tolist(), strict=True))
    if name not in names():
        raise InputError(f"graph {name}:{size}: no graph of that name; {', '.join(NAMED)} take a number of workers")
    return graph_of(build(name, Cluster.parse(f"{size}x1" if size.isdigit() else size)))


def graph_of(schedule: Schedule) -> Digraph:
    """The graph of a `neighbor` schedule of one round.

    Raises:
        InputError: another kind, or more than one round.
    """
    from preduce.schedulers.protocols.digraph import Digraph

    graphs = schedule.strategy.graphs
    if len(graphs) != 1:
        what = f"{len(graphs)} rounds" if graphs else f"strategy {schedule.strategy.kind!r}"
        raise InputError(
            f"schedule {schedule.name!r}: has {what}; iteration gaps are those of one fixed graph, strategy 'neighbor' "
            "with 1 round"
        )
    return Digraph.of(schedule.num_workers, ((u, v) for u, v, _ in graphs[0].edges()))


def _document(source: str, data: bytes, max_bytes: int) -> Digraph:
    from preduce.topo.document.reader import parse_json
    from preduce.topo.document.schedule import parse_schedule

    document = parse_json(data, max_bytes=max_bytes, source=source)
    assert isinstance(document, dict)
    if "nodes" not in document:
        return graph_of(parse_schedule(data, max_bytes=max_bytes))
    return _node_link(source, document)


def _node_link(source: str, document: dict[str, Any]) -> Digraph:
    from preduce.schedulers.protocols.digraph import Digraph

    nodes, links = document["nodes"], document.get("edges", document.get("links"))
    if not isinstance(nodes, list) or not isinstance(links, list):
        raise DocumentError(f"{source}: edges", "a node-link file has a list `nodes` and a list `edges` (or `links`)")
    if len(nodes) > MAX_WORKERS:
        raise DocumentError(f"{source}: nodes", f"has {len(nodes)} entries; at most {MAX_WORKERS} are supported")
    names = [node.get("id") if isinstance(node, dict) else None for node in nodes]
    for place, name in enumerate(names):
        if not isinstance(name, int | str) or isinstance(name, bool):
            raise DocumentError(f"{source}: nodes[{place}]", "has no `id` that is a number or a string")
    rank = _ranks(names)
    if len(rank) != len(names):
        raise DocumentError(f"{source}: nodes", "two nodes share an id")
    pairs = []
    for place, link in enumerate(links):
        ends = (link.get("source"), link.get("target")) if isinstance(link, dict) else (None, None)
        if any(isinstance(end, list | dict | bool) or end not in rank for end in ends):
            raise DocumentError(f"{source}: edges[{place}]", "names a source or target that is no node")
        pairs.append((rank[ends[0]], rank[ends[1]]))
    make = Digraph.of if document.get("directed") is True else Digraph.undirected
    return _nonempty(source, make(max(1, len(names)), pairs))


def _edge_list(source: str, data: bytes, directed: bool) -> Digraph:
    from preduce.schedulers.protocols.digraph import Digraph
    from preduce.topo.document.reader import decode

    pairs = []
    for number, line in enumerate(decode(data, source=source).splitlines(), start=1):
        words = line.split("#", 1)[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) < 2:
            raise DocumentError(f"{source}: line {number}", "has one word; an edge is two node names")
        pairs.append((words[0], words[1]))
    listed = list(dict.fromkeys(name for pair in pairs for name in pair))
    if all(name.isascii() and name.isdigit() and len(name) <= 9 for name in listed):
        pairs_of: list[tuple[Any, Any]] = [(int(a), int(b)) for a, b in pairs]
        names: list[Any] = list(dict.fromkeys(name for pair in pairs_of for name in pair))
    else:
        pairs_of, names = list(pairs), list(listed)
    if len(names) > MAX_WORKERS:
        raise DocumentError(source, f"names {len(names)} nodes; at most {MAX_WORKERS} are supported")
    rank = _ranks(names)
    make = Digraph.of if directed else Digraph.undirected
    return _nonempty(source, make(max(1, len(names)), [(rank[a], rank[b]) for a, b in pairs_of]))


def _ranks(names: list[Any]) -> dict[Any, int]:
    """Numbers 0..n−1 keep their places; other names are numbered in the order in which they come."""
    if all(isinstance(name, int) for name in names) and set(names) == set(range(len(names))):
        return {name: name for name in names}
    return {name: place for place, name in enumerate(names)}


def _nonempty(source: str, graph: Digraph) -> Digraph:
    if graph.num_workers < 2:
        raise DocumentError(source, "has fewer than 2 nodes; gaps are between workers")
    return graph
