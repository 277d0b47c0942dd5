"""The graph argument of `partreduce verify --gaps`: a schedule, node-link or edge-list file, or a name with a size."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from partreduce.topo.errors import DocumentError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from partreduce.schedulers.protocols.digraph import Digraph
    from partreduce.topo.graphs import Graph
    from partreduce.topo.schedule import Schedule
    from partreduce.topo.strategies.gap import Gap

MAX_WORKERS = 100_000
NAME_AND_SIZE = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):([0-9]{1,6}|[0-9]{1,5}x[0-9]{1,5})")
NAMED: dict[str, tuple[Callable[[int], bool], str]] = {
    "ring": (lambda n: n >= 2, "n >= 2"),
    "ring-based": (lambda n: n >= 2 and n % 2 == 0, "even n"),
    "double-ring": (lambda n: n >= 4 and n % 4 == 0, "n divisible by 4"),
    "complete": (lambda n: n >= 2, "n >= 2"),
    "star": (lambda n: n >= 2, "n >= 2"),
    "directed-ring": (lambda n: n >= 2, "n >= 2"),
}
"""Names that need nothing but a size: which sizes exist, and how to say so.

These are graphs without mixing weights, so that they exist for some n for which the catalogue has no schedule.
"""


def is_name(text: str) -> bool:
    """Whether `text` is written as NAME:SIZE, and no file has that name."""
    from partreduce.topo.document.reader import is_file

    return NAME_AND_SIZE.fullmatch(text) is not None and not is_file(text)


def load_gap_graph(text: str, *, directed: bool = False) -> tuple[Digraph, Gap | None]:
    """The graph that `text` names, and the setting under which it runs where that is a schedule with `when.gap`.

    It names a file, `NAME:SIZE` such as `ring:16`, or a catalogue name on a cluster. An edge u→v means that u sends to
    v. The lines of an edge list go both ways unless `directed`; node-link files say themselves whether they are
    directed. Weights do not matter: gaps depend on who waits for whom.

    Raises:
        InputError: not a file and not a known name, or a content that is no graph.
    """
    from partreduce.topo.document.reader import is_file

    if is_file(text):
        return _from_file(text, directed=directed)
    match = NAME_AND_SIZE.fullmatch(text)
    if match is None:
        raise InputError(
            f"graph {text!r}: is no file; name one, or write NAME:SIZE such as ring:16 ({', '.join(NAMED)}, or a graph "
            "of `partreduce design --list` with its cluster)"
        )
    return _named(match[1].lower().replace("_", "-"), match[2]), None


def _from_file(path: str, *, directed: bool) -> tuple[Digraph, Gap | None]:
    """A schedule, or a graph as `partreduce import` reads it, with the same refusals."""
    from partreduce.schedulers.imports.edge_lists import edge_table
    from partreduce.schedulers.imports.networkx_graphs import node_link_table
    from partreduce.topo.document.reader import parse_json, read_bytes
    from partreduce.topo.document.schedule import parse_schedule
    from partreduce.topo.strategies.gap import Gap

    data = read_bytes(path)
    if data.lstrip()[:1] == b"{":
        document = parse_json(data, source=path)
        if isinstance(document, dict) and "nodes" not in document:
            schedule = parse_schedule(data)
            graph, when = graph_of(schedule), schedule.strategy.when
            return graph, when if isinstance(when, Gap) else None
        table = node_link_table(document, path)
    else:
        table = edge_table(data, path, directed=directed)
    if len(table.nodes) < 2:
        raise DocumentError("document", "has fewer than 2 nodes; gaps are between workers", path)
    if len(table.nodes) > MAX_WORKERS:
        raise DocumentError("document", f"has {len(table.nodes)} nodes; at most {MAX_WORKERS} are supported", path)
    return _digraph(table.graph()), None


def _named(name: str, size: str) -> Digraph:
    from partreduce.schedulers.registry import build, names
    from partreduce.topo.cluster import Cluster

    if name in NAMED and size.isdigit():
        fits, rule = NAMED[name]
        n = int(size)
        if not fits(n) or n > MAX_WORKERS:
            raise InputError(f"graph {name}:{size}: exists for {rule}, up to {MAX_WORKERS} workers")
        return _digraph(_drawn(name, n))
    if name not in names():
        raise InputError(f"graph {name}:{size}: no graph of that name; {', '.join(NAMED)} take a number of workers")
    return graph_of(build(name, Cluster.parse(f"{size}x1" if size.isdigit() else size)))


def _drawn(name: str, n: int) -> Graph:
    import numpy as np

    from partreduce.topo.graphs import Graph, classic, hop

    if name == "directed-ring":
        return Graph.directed(n, np.arange(n), (np.arange(n) + 1) % n)
    draw = {
        "ring": classic.ring,
        "ring-based": hop.ring_based,
        "double-ring": hop.double_ring,
        "complete": classic.complete,
        "star": classic.star,
    }
    return draw[name](n)


def graph_of(schedule: Schedule) -> Digraph:
    """The graph of a `neighbor` schedule of one round.

    Raises:
        InputError: another kind, or more than one round.
    """
    from partreduce.schedulers.protocols.digraph import Digraph

    graphs = schedule.strategy.graphs
    if len(graphs) != 1:
        what = f"{len(graphs)} rounds" if graphs else f"strategy {schedule.strategy.kind!r}"
        raise InputError(
            f"schedule {schedule.name!r}: has {what}; iteration gaps are those of one fixed graph, strategy 'neighbor' "
            "with 1 round"
        )
    return Digraph.from_edges_of(graphs[0])


def _digraph(graph: Graph) -> Digraph:
    from partreduce.schedulers.protocols.digraph import Digraph

    return Digraph.from_edges_of(graph)
