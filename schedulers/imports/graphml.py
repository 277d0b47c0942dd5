"""GraphML, as networkx, yEd and Gephi write it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree.ElementTree import ParseError

from preduce.schedulers.imports.networkx_graph import read_graph
from preduce.topo.errors import DocumentError

if TYPE_CHECKING:
    from preduce.schedulers.imports.base import Imported


def read(data: bytes, source: str) -> Imported:
    """One graph; the edge key `weight` holds mixing weights.

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
    return read_graph(graph)
