"""Uniform weights: every worker averages itself and its neighbours with equal weight (D-PSGD, Hop)."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from preduce.topo.strategies.neighbor import Round

if TYPE_CHECKING:
    from preduce.topo.graphs.base import Graph


def weigh(graph: Graph) -> Round:
    """Weight 1/(1 + number of workers heard from). Doubly stochastic on regular graphs only.

    Source: Lian et al., Can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017.
    """
    degrees = graph.in_degrees()
    weights = [Fraction(1, d + 1) for d in range(int(degrees.max(initial=0)) + 1)]
    return Round.from_arrays(graph.num_workers, graph.sources, graph.targets, weights, degrees[graph.targets])
