"""The best constant weight: one number on all edges that contracts fastest."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from preduce.topo.errors import ScheduleError
from preduce.topo.graphs.weights.constant import constant

if TYPE_CHECKING:
    from preduce.topo.graphs.base import Graph
    from preduce.topo.strategies.neighbor import Round

MAX_WORKERS = 3000


def best_constant(graph: Graph) -> float:
    """2/(λ₂ + λ_n) of the Laplacian: optimal among constant weights, and among all on edge-transitive graphs. O(n³).

    Source: Xiao and Boyd, Fast linear iterations for distributed averaging, 2004.

    Raises:
        ScheduleError: a directed or disconnected graph, or more than 3000 workers.
    """
    graph.require_undirected("best constant weights")
    graph.require_connected()
    if graph.num_workers > MAX_WORKERS:
        raise ScheduleError(
            f"weights: best-constant needs the spectrum and stops at {MAX_WORKERS} workers; there are "
            f"{graph.num_workers}; use metropolis"
        )
    eigenvalues = np.linalg.eigvalsh(graph.laplacian())
    return float(2 / (eigenvalues[1] + eigenvalues[-1]))


def weigh(graph: Graph) -> Round:
    """That weight as a fraction with a denominator ≤ 10⁶. On uneven graphs a worker's own weight may be negative.

    Raises:
        ScheduleError: as `best_constant`.
    """
    return constant(graph, Fraction(best_constant(graph)).limit_denominator(10**6))
