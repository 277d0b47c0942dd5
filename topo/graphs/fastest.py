"""Fastest mixing weights: the doubly stochastic weights that minimise ‖W − J‖₂, by semidefinite programming."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from partreduce.topo.errors import ScheduleError
from partreduce.topo.graphs.base import Graph
from partreduce.topo.graphs.convex import edge_gram, inverse_and_logdet, minimise
from partreduce.topo.round import Round

MAX_EDGES = 1000
DENOMINATOR = 10**6


def fastest(graph: Graph) -> Round:
    """Symmetric non-negative weights in millionths, with a non-negative weight on oneself.

    Solver output is rounded *down*, edge by edge and equally in both directions, so that the fractions stay symmetric
    and doubly stochastic; the contraction loses less than degree·1e-6 by it.

    Source: Boyd, Diaconis, Xiao, Fastest mixing Markov chain on a graph, SIAM Review 2004.

    Raises:
        ScheduleError: a directed or disconnected graph, or more than 1000 edges.
        UnknownError: the program did not converge.
    """
    graph.require_undirected("fastest mixing weights")
    graph.require_connected()
    once = graph.sources < graph.targets
    ends, others = graph.sources[once], graph.targets[once]
    if len(ends) > MAX_EDGES:
        raise ScheduleError(
            f"weights: fastest solves a convex program and stops at {MAX_EDGES} edges; there are {len(ends)}; "
            "use best-constant or metropolis"
        )
    solved = np.clip(_solve(graph.num_workers, ends, others), 0, None)
    # Simple fractions such as 1/3 are recognised, where that keeps every worker's own weight non-negative.
    simple = [Fraction(float(w)).limit_denominator(60) for w in solved]
    exact = [
        s if abs(float(s) - w) < 2e-6 else Fraction(int(w * DENOMINATOR), DENOMINATOR)
        for s, w in zip(simple, solved.tolist(), strict=True)
    ]
    exact = _within_one(graph.num_workers, ends.tolist(), others.tolist(), exact)
    kept = [(a, b, w) for a, b, w in zip(ends.tolist(), others.tolist(), exact, strict=True) if w]
    return Round.from_edges(graph.num_workers, [arc for a, b, w in kept for arc in ((a, b, w), (b, a, w))])


def _within_one(count: int, ends: list[int], others: list[int], weights: list[Fraction]) -> list[Fraction]:
    """Scale down the edges of workers whose weights exceed 1 by a rounding error."""
    total = [Fraction(0)] * count
    for a, b, w in zip(ends, others, weights, strict=True):
        total[a] += w
        total[b] += w
    return [w / max(total[a], total[b], Fraction(1)) for a, b, w in zip(ends, others, weights, strict=True)]


def _solve(count: int, ends: npt.NDArray[np.int32], others: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """Minimise s with −sI ⪯ I − B diag(w) Bᵀ − J ⪯ sI, w ≥ 0, row sums of w ≤ 1; B the incidence matrix."""
    degrees = np.bincount(np.concatenate([ends, others]), minlength=count)
    touches = np.zeros((count, len(ends)))
    touches[ends, np.arange(len(ends))] = touches[others, np.arange(len(ends))] = 1.0
    base = np.eye(count) - 1 / count

    def barrier(
        point: npt.NDArray[np.float64],
    ) -> tuple[float, npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
        weights, bound = point[:-1], point[-1]
        slack = 1 - touches @ weights
        if weights.min() <= 0 or slack.min() <= 0:
            return None
        mixing = base.copy()
        np.add.at(mixing, (ends, others), weights)
        np.add.at(mixing, (others, ends), weights)
        mixing[np.diag_indices(count)] -= touches @ weights
        value = -float(np.log(weights).sum() + np.log(slack).sum())
        gradient = np.append(touches.T @ (1 / slack) - 1 / weights, 0.0)
        hessian = np.zeros((len(point), len(point)))
        hessian[:-1, :-1] = (touches.T / slack**2) @ touches + np.diag(1 / weights**2)
        for sign in (1.0, -1.0):
            factored = inverse_and_logdet(bound * np.eye(count) - sign * mixing)
            if factored is None:
                return None
            inverse, logdet = factored
            gram = edge_gram(inverse, ends, others)
            squared = inverse[ends] - inverse[others]
            cross = sign * np.einsum("ij,ij->i", squared, squared)
            value -= logdet
            gradient[:-1] -= sign * np.diag(gram)
            gradient[-1] -= np.trace(inverse)
            hessian[:-1, :-1] += gram**2
            hessian[:-1, -1] += cross
            hessian[-1, :-1] += cross
            hessian[-1, -1] += float((inverse**2).sum())
        return value, gradient, hessian

    start = np.append(0.95 / (1 + np.maximum(degrees[ends], degrees[others])), 1.01)
    cost = np.zeros(len(start))
    cost[-1] = 1.0
    return minimise(cost, barrier, start, parameter=3 * count + len(ends))[:-1]
