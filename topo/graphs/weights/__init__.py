"""Mixing weights for a topology, one method a file; `weigh` picks one by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from preduce.topo.errors import ScheduleError

if TYPE_CHECKING:
    from preduce.topo.graphs.base import Graph
    from preduce.topo.strategies.neighbor import Round

METHODS = {
    "metropolis": "preduce.topo.graphs.weights.metropolis",
    "uniform": "preduce.topo.graphs.weights.uniform",
    "best-constant": "preduce.topo.graphs.weights.best_constant",
    "fastest": "preduce.topo.graphs.weights.fastest",
}


def weigh(graph: Graph, method: str = "metropolis") -> Round:
    """The graph with mixing weights in exact fractions.

    Raises:
        ScheduleError: an unknown method, or a graph that the method cannot weigh.
    """
    if method not in METHODS:
        raise ScheduleError(f"weights: {method!r} is not one of {', '.join(METHODS)}")
    found: Round = import_module(METHODS[method]).weigh(graph)
    return found
