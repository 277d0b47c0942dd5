"""Mixing weights for a graph, in closed form; `weigh` selects a method by name.

A method is a function Graph → Round with exact fractions, listed in `METHODS`.
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
"""The most workers for the best constant weight: it needs all eigenvalues of a dense matrix, seconds at this size."""


def weigh(graph: Graph, method: str = "metropolis") -> Round:
    """Return the round of weighted averaging over `graph` with the weights of `method`.

    The methods are "metropolis", "uniform" and "best-constant"; another one raises ScheduleError.
    """
    check_unknown(method)
    return METHODS[method](graph)


def check_unknown(method: str) -> None:
    """Raise ScheduleError if `method` is not a key of `METHODS`."""
    if method not in METHODS:
        raise ScheduleError(f"weights: {method!r} is not one of {', '.join(METHODS)}")


def constant(graph: Graph, weight: Fraction) -> Round:
    """Return the round with `weight` on every edge; each worker keeps the rest as its own weight.

    The round is doubly stochastic if in- and out-degrees are equal.
    """
    return Round.from_arrays(graph.num_workers, graph.sources, graph.targets, [weight], np.zeros(len(graph), np.int32))


def metropolis(graph: Graph) -> Round:
    """Return the round with Metropolis–Hastings weights: 1/(1 + the larger degree of the edge's two ends).

    Symmetric and doubly stochastic on every undirected graph, with positive self-weights. A directed graph whose
    degrees are not all equal raises ScheduleError.
    Source: Xiao, Boyd, Kim, Distributed average consensus with least-mean-square deviation, 2007.
    """
    degrees = graph.in_degrees()
    if not graph.is_undirected:
        sent = np.bincount(graph.sources, minlength=graph.num_workers)
        if len({*degrees.tolist(), *sent.tolist()}) > 1:
            graph.require_undirected("Metropolis weights")
        degrees = np.full(graph.num_workers, degrees[0])  # regular directed graphs: equal to uniform weights
    larger = np.maximum(degrees[graph.sources], degrees[graph.targets])  # (edges,)
    return Round.from_arrays(graph.num_workers, graph.sources, graph.targets, _one_over_degrees(degrees), larger)


def uniform(graph: Graph) -> Round:
    """Return the round in which every worker takes the plain mean of its model and those of its in-neighbors.

    All weights are 1/(1 + in-degree), as in D-PSGD and Hop. Doubly stochastic on regular graphs only.
    Source: Lian et al., Can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017.
    """
    degrees = graph.in_degrees()
    receivers = degrees[graph.targets]  # (edges,)
    return Round.from_arrays(graph.num_workers, graph.sources, graph.targets, _one_over_degrees(degrees), receivers)


def _one_over_degrees(degrees: npt.NDArray[np.int64]) -> list[Fraction]:
    """Return the list of 1/(d + 1) for d from 0 to the largest of `degrees`."""
    return [Fraction(1, degree + 1) for degree in range(int(degrees.max(initial=0)) + 1)]


def best_constant(graph: Graph) -> Round:
    """Return the round with `best_constant_weight` on every edge, as a fraction with denominator ≤ 10⁶.

    Of all constant edge weights it has the smallest contraction; self-weights may be negative.
    """
    return constant(graph, Fraction(best_constant_weight(graph)).limit_denominator(10**6))


def best_constant_weight(graph: Graph) -> float:
    """Return the constant edge weight with the smallest contraction: 2/(λ₂ + λ_n), λ those of the Laplacian. O(n³).

    It is optimal among all symmetric weights on edge-transitive graphs. Raises ScheduleError for a directed or
    unconnected graph, and for more than 3,000 workers.
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
