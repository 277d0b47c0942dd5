"""One strategy kind a file: its closed model and the way to and from its value. A new kind is one file and one line."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preduce.topo.document.kinds.base import Kind

MODULES: dict[str, str] = {
    "static": "preduce.topo.document.kinds.static",
    "allreduce": "preduce.topo.document.kinds.allreduce",
    "neighbor": "preduce.topo.document.kinds.neighbor",
    "generated": "preduce.topo.document.kinds.generated",
    "pairwise": "preduce.topo.document.kinds.pairwise",
    "server": "preduce.topo.document.kinds.server",
}


def kind_of(name: str) -> Kind:
    """The document side of one strategy kind; each module offers it as `KIND`. KeyError for unknown names."""
    kind: Kind = import_module(MODULES[name]).KIND
    return kind
