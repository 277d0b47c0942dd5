"""Metropolis–Hastings weights: doubly stochastic on every undirected graph, from degrees alone."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from preduce.topo.strategies.neighbor import Round

if TYPE_CHECKING:
    from preduce.topo.graphs.base import Graph


def weigh(graph: Graph) -> Round:
    """Weight 1/(1 + the larger degree of the two ends). Symmetric, with a positive weight on oneself.

    Source: Xiao, Boyd, Kim, Distributed average consensus with least-mean-square deviation, 2007.

    Raises:
        ScheduleError: a directed graph whose workers do not all send as often as they hear, equally often.
    """
    degrees = graph.in_degrees()
    if not graph.is_undirected:
        if len(set(degrees.tolist()) | set(graph.out_degrees().tolist())) > 1:
            graph.require_undirected("Metropolis weights")
        degrees = np.full(graph.num_workers, degrees[0])  # a regular directed graph: uniform weights are the same thing
    larger = np.maximum(degrees[graph.sources], degrees[graph.targets])
    weights = [Fraction(1, d + 1) for d in range(int(degrees.max(initial=0)) + 1)]
    return Round.from_arrays(graph.num_workers, graph.sources, graph.targets, weights, larger)
