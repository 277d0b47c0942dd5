"""Mixing weights for a topology: the closed forms, and `weigh`, which picks a method by name.

A method is a function Graph → Round with exact fractions; a new one is such a function and a row of `METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from partreduce.topo.errors import ScheduleError
from partreduce.topo.graphs import Graph
from partreduce.topo.round import Round

MAX_SPECTRUM_WORKERS = 3000
"""The best constant weight needs all eigenvalues of a dense matrix; this many take seconds."""


def weigh(graph: Graph, method: str = "metropolis") -> Round:
    """The graph with mixing weights in exact fractions."""
    check_unknown(method)
    return METHODS[method](graph)


def check_unknown(method: str) -> None:
    """Refuse a name that no method has."""
    if method not in METHODS:
        raise ScheduleError(f"weights: {method!r} is not one of {', '.join(METHODS)}")


def constant(graph: Graph, weight: Fraction) -> Round:
    """`weight` on every edge, the rest on oneself. Doubly stochastic where workers send as often as they hear."""
    return Round.from_arrays(graph.num_workers, graph.sources, graph.targets, [weight], np.zeros(len(graph), np.int32))


def metropolis(graph: Graph) -> Round:
    """Metropolis–Hastings: 1/(1 + the larger degree of the two ends). Symmetric, with a positive weight on oneself.

    Doubly stochastic on every undirected graph, from degrees alone.
    Source: Xiao, Boyd, Kim, Distributed average consensus with least-mean-square deviation, 2007.
    """
    degrees = graph.in_degrees()
    if not graph.is_undirected:
        sent = np.bincount(graph.sources, minlength=graph.num_workers)
        if len({*degrees.tolist(), *sent.tolist()}) > 1:
            graph.require_undirected("Metropolis weights")
        degrees = np.full(graph.num_workers, degrees[0])  # a regular directed graph: uniform weights are the same thing
    larger = np.maximum(degrees[graph.sources], degrees[graph.targets])  # (edges,)
    return Round.from_arrays(graph.num_workers, graph.sources, graph.targets, _one_over_degrees(degrees), larger)


def uniform(graph: Graph) -> Round:
    """Every worker averages itself and its neighbors: 1/(1 + number of workers heard from) (D-PSGD, Hop).

    Doubly stochastic on regular graphs only.
    Source: Lian et al., Can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017.
    """
    degrees = graph.in_degrees()
    heard = degrees[graph.targets]  # (edges,)
    return Round.from_arrays(graph.num_workers, graph.sources, graph.targets, _one_over_degrees(degrees), heard)


def _one_over_degrees(degrees: npt.NDArray[np.int64]) -> list[Fraction]:
    """1/(d + 1) at place d, up to the largest degree."""
    return [Fraction(1, degree + 1) for degree in range(int(degrees.max(initial=0)) + 1)]


def best_constant(graph: Graph) -> Round:
    """`best_constant_weight` on every edge, as a fraction with a denominator ≤ 10⁶; own weights may be negative."""
    return constant(graph, Fraction(best_constant_weight(graph)).limit_denominator(10**6))


def best_constant_weight(graph: Graph) -> float:
    """2/(λ₂ + λ_n) of the Laplacian: optimal among constant weights, and among all on edge-transitive graphs. O(n³).

    Source: Xiao and Boyd, Fast linear iterations for distributed averaging, 2004.
    """
    graph.require_undirected("best constant weights")
    graph.require_connected()
    if graph.num_workers > MAX_SPECTRUM_WORKERS:
        raise ScheduleError(
            f"weights: best-constant needs the spectrum and stops at {MAX_SPECTRUM_WORKERS} workers; there are "
            f"{graph.num_workers}; use metropolis"
        )
    laplacian = np.diag(graph.in_degrees().astype(np.float64)) - graph.adjacency()
    eigenvalues = np.linalg.eigvalsh(laplacian)
    return float(2 / (eigenvalues[1] + eigenvalues[-1]))


METHODS: dict[str, Callable[[Graph], Round]] = {
    "metropolis": metropolis,
    "uniform": uniform,
    "best-constant": best_constant,
}
