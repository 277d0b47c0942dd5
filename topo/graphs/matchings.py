"""Matchings of a graph, how often to use each, and with which weight: the three steps of MATCHA.

Source: Wang, Sahu, Yang, Joshi, Kar, MATCHA: speeding up decentralized SGD via matching decomposition sampling, 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from partreduce.topo.errors import ScheduleError
from partreduce.topo.graphs.base import Graph
from partreduce.topo.graphs.convex import edge_gram, inverse_and_logdet, minimise
from partreduce.topo.round import Round

Array = npt.NDArray[np.float64]


def matchings(graph: Graph) -> list[Graph]:
    """Disjoint matchings that make up the graph: as large as possible, one after the other (blossom algorithm).

    Raises:
        ScheduleError: a directed or disconnected graph.
    """
    import networkx as nx

    graph.require_undirected("matchings")
    graph.require_connected()
    rest = graph.to_networkx()
    parts = []
    while rest.number_of_edges():
        chosen = sorted(tuple(sorted(pair)) for pair in nx.max_weight_matching(rest, maxcardinality=True))
        rest.remove_edges_from(chosen)
        parts.append(Graph.undirected(graph.num_workers, [a for a, _ in chosen], [b for _, b in chosen]))
    return parts


def activation(parts: Sequence[Graph], budget: float) -> Array:
    """Probabilities p that maximise λ₂(Σ p_j L_j) with 0 ≤ p ≤ 1 and Σp ≤ budget·(number of matchings).

    Raises:
        ScheduleError: a budget outside (0, 1].
        UnknownError: the program did not converge.
    """
    if not 0 < budget <= 1:
        raise ScheduleError(f"budget: is {budget:g}; it is a share of the matchings, above 0 and at most 1")
    number, count = len(parts), parts[0].num_workers
    if budget == 1 or number == 1:
        return np.full(number, budget)
    ends = np.concatenate([m.sources[m.sources < m.targets] for m in parts])
    others = np.concatenate([m.targets[m.sources < m.targets] for m in parts])
    owner = np.repeat(np.arange(number), [len(m) // 2 for m in parts])
    spread = np.eye(number)[owner]  # (edges, matchings)
    laplacians = np.array([m.laplacian() for m in parts])  # (matchings, workers, workers)
    total = budget * number

    def barrier(point: Array) -> tuple[float, Array, Array] | None:
        """−log det(Σ p_j L_j + J − s(I − J)) and the inequalities; the point is (p, s)."""
        p, gap = point[:-1], point[-1]
        slack = total - p.sum()
        if p.min() <= 0 or p.max() >= 1 or slack <= 0:
            return None
        mean = np.full((count, count), 1 / count)
        factored = inverse_and_logdet(np.tensordot(p, laplacians, 1) + mean - gap * (np.eye(count) - mean))
        if factored is None:
            return None
        inverse, logdet = factored
        off = inverse - mean  # the inverse on the complement of the mean
        gram = edge_gram(inverse, ends, others)
        rows = inverse[ends] - inverse[others]
        cross = spread.T @ np.einsum("ij,ij->i", rows, rows)
        gradient = np.append(1 / (1 - p) - 1 / p + 1 / slack - spread.T @ np.diag(gram), np.trace(off))
        hessian = np.zeros((number + 1, number + 1))
        hessian[:-1, :-1] = spread.T @ gram**2 @ spread + np.diag(1 / p**2 + 1 / (1 - p) ** 2) + 1 / slack**2
        hessian[:-1, -1] = hessian[-1, :-1] = -cross
        hessian[-1, -1] = float((off**2).sum())
        return -logdet - float(np.log(p).sum() + np.log(1 - p).sum() + np.log(slack)), gradient, hessian

    start = np.append(np.full(number, 0.9 * budget), 0.0)
    start[-1] = 0.5 * np.linalg.eigvalsh(np.tensordot(start[:-1], laplacians, 1))[1]
    cost = np.append(np.zeros(number), -1.0)
    return np.clip(minimise(cost, barrier, start, parameter=count + 2 * number + 1)[:-1], 0, 1)


def mixing_weight(parts: Sequence[Graph], probabilities: Array) -> tuple[float, float]:
    """(α, ρ): the weight that minimises ρ = ‖E[W²] − J‖₂ for W = I − α Σ_active L_j, and the least ρ.

    E[W²] = I − 2αL̄ + α²(L̄² + 2L̃) with L̄ = Σ p_j L_j, L̃ = Σ p_j(1−p_j)L_j. For every direction this is a convex
    parabola in α, so ρ is convex in α and a search in one variable replaces the semidefinite program.
    """
    from scipy.optimize import minimize_scalar

    laplacians = np.array([m.laplacian() for m in parts])
    count = laplacians.shape[1]
    mean = np.tensordot(probabilities, laplacians, 1)
    second = mean @ mean + 2 * np.tensordot(probabilities * (1 - probabilities), laplacians, 1)
    base = np.eye(count) - 1 / count

    def rho(alpha: float) -> float:
        return float(np.linalg.eigvalsh(base - 2 * alpha * mean + alpha**2 * second)[-1])

    # ρ(α) ≥ 1 beyond 2/λ₂(second), and λ_max(second) ≥ every p_j: a bracket that always holds the minimum.
    upper = 2 / max(float(np.linalg.eigvalsh(mean)[1]), 1e-9)
    least = minimize_scalar(rho, bounds=(0.0, min(upper, 2.0)), method="bounded", options={"xatol": 1e-10})
    return float(least.x), float(least.fun)


def sample(
    parts: Sequence[Graph], probabilities: Array, alpha: Fraction, rounds: int, rng: np.random.Generator
) -> list[Round]:
    """`rounds` draws of active matchings, as rounds of weight α; drawn again until they connect all."""
    count = parts[0].num_workers
    for _ in range(1000):
        active = rng.random((rounds, len(parts))) < probabilities
        used = [m for m, hit in zip(parts, np.asarray(active.any(axis=0)).tolist(), strict=True) if hit]
        union = _union(count, used)
        if union.is_connected:
            break
    else:
        raise ScheduleError(
            f"rounds: {rounds} rounds at this budget do not connect {count} workers in 1000 draws; use more of either"
        )
    drawn = []
    for row in active.tolist():
        graph = _union(count, [m for m, hit in zip(parts, row, strict=True) if hit])
        drawn.append(
            Round.from_arrays(count, graph.sources, graph.targets, [alpha], np.zeros(len(graph), dtype=np.int32))
        )
    return drawn


def _union(count: int, parts: Sequence[Graph]) -> Graph:
    none = np.zeros(0, dtype=np.int32)
    return Graph.directed(
        count,
        np.concatenate([none, *(m.sources for m in parts)]),
        np.concatenate([none, *(m.targets for m in parts)]),
    )
