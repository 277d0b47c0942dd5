"""MATCHA: matchings of a base graph, each active with its own probability under a communication budget.

Source: Wang, Sahu, Yang, Joshi, Kar, MATCHA: speeding up decentralized SGD via matching decomposition sampling, 2019;
its three steps are in `topo.graphs.matchings`.
"""

from __future__ import annotations

from fractions import Fraction
from math import log

import numpy as np

from partreduce.schedulers.constructions.sizes import sides
from partreduce.topo.cluster import Cluster
from partreduce.topo.graphs.base import Graph
from partreduce.topo.graphs.classic import complete, ring, torus
from partreduce.topo.graphs.matchings import activation, matchings, mixing_weight, sample
from partreduce.topo.graphs.random_graphs import erdos_renyi
from partreduce.topo.strategies.neighbor import Neighbor

MAX_WORKERS = 500
MAX_EDGES = 2000
TORUS_SIDE = 3


def matcha(cluster: Cluster, graph: str, budget: float, rounds: int, seed: int) -> Neighbor:
    """Rounds W = I − α Σ_active L_j, drawn once; they repeat after the last."""
    return sampled_matchings(matchings(_base_graph(cluster.num_workers, graph, seed)), budget, rounds, seed)


def sampled_matchings(parts: list[Graph], budget: float, rounds: int, seed: int) -> Neighbor:
    """`rounds` draws of matchings with the probabilities and the weight that are best for the budget.

    Raises:
        ScheduleError: a budget outside (0, 1], or too small to connect the workers.
        UnknownError: the convex program did not converge.
    """
    probabilities = activation(parts, budget)
    alpha = Fraction(mixing_weight(parts, probabilities)[0]).limit_denominator(1000)
    return Neighbor(rounds=tuple(sample(parts, probabilities, alpha, rounds, np.random.default_rng(seed))))


def _base_graph(num_workers: int, name: str, seed: int) -> Graph:
    if name == "ring":
        return ring(num_workers)
    if name == "torus":
        shape = sides(num_workers, TORUS_SIDE)
        assert shape is not None
        return torus(*shape)
    if name == "complete":
        return complete(num_workers)
    return erdos_renyi(num_workers, likely_connected(num_workers), seed)


def likely_connected(num_workers: int) -> float:
    """An edge probability of twice the threshold of connectedness, ln n / n; at most 1."""
    return min(1.0, 2 * log(num_workers) / num_workers)


def matcha_refusal(cluster: Cluster, graph: str, budget: float, rounds: int, seed: int) -> str | None:
    """The base graph exists and is small enough for the convex program."""
    del rounds, seed
    count = cluster.num_workers
    if budget <= 0:
        return "budget 0 never communicates; use a share of the matchings above 0, such as 0.5"
    if graph == "torus" and sides(count, TORUS_SIDE) is None:
        return f"{count} workers have no torus; use graph=ring"
    edges = {"ring": count, "torus": 2 * count, "complete": count * (count - 1) // 2}.get(graph, 0)
    if count > MAX_WORKERS or edges > MAX_EDGES:
        return (
            f"the probabilities come from a convex program for up to {MAX_WORKERS} workers and {MAX_EDGES} edges; "
            "use od-equidyn"
        )
    return None
