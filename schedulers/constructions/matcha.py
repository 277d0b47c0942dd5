"""MATCHA: matchings of a base graph, each active with its own probability under a communication budget."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from preduce.schedulers.constructions.common import ROUNDS, SEED, sides
from preduce.schedulers.constructions.common import rounds as of_rounds
from preduce.schedulers.entry import Entry, Parameter
from preduce.topo.graphs.matchings import activation, matchings, mixing_weight, sample

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.graphs.base import Graph
    from preduce.topo.schedule import Schedule

MAX_EDGES = 2000


def base_graph(num_workers: int, name: str, seed: int) -> Graph:
    """The graph that is decomposed."""
    from preduce.topo.graphs import complete, erdos_renyi, ring, torus

    if name == "ring":
        return ring.ring(num_workers)
    if name == "torus":
        shape = sides(num_workers, 3)
        assert shape is not None
        return torus.torus(*shape)
    if name == "complete":
        return complete.complete(num_workers)
    probability = min(1.0, 2 * np.log(num_workers) / num_workers)
    return erdos_renyi.erdos_renyi(num_workers, float(probability), seed)


def make(cluster: Cluster, graph: str, budget: float, rounds: int, seed: int) -> Schedule:
    """Rounds W = I − α Σ_active L_j, drawn once; they repeat after the last."""
    listed = matchings(base_graph(cluster.num_workers, graph, seed))
    probabilities = activation(listed, budget)
    alpha = Fraction(mixing_weight(listed, probabilities)[0]).limit_denominator(1000)
    drawn = sample(listed, probabilities, alpha, rounds, np.random.default_rng(seed))
    return of_rounds(ENTRY.label(graph=graph, budget=budget, rounds=rounds, seed=seed), cluster, drawn)


def refuse(cluster: Cluster, graph: str, budget: float, rounds: int, seed: int) -> str | None:
    """The base graph exists and is small enough for the convex program."""
    del rounds, seed
    count = cluster.num_workers
    if budget <= 0:
        return "budget 0 never communicates; use a share of the matchings above 0, such as 0.5"
    if graph == "torus" and sides(count, 3) is None:
        return f"{count} workers have no torus; use graph=ring"
    edges = {"ring": count, "torus": 2 * count, "complete": count * (count - 1) // 2}.get(graph, 0)
    if count > 500 or edges > MAX_EDGES:
        return (
            f"the probabilities come from a convex program for up to 500 workers and {MAX_EDGES} edges; use od-equidyn"
        )
    return None


ENTRY = Entry(
    name="matcha",
    summary="Random matchings of a graph, those that matter for consensus more often, within a traffic budget.",
    source="Wang et al., MATCHA: speeding up decentralized SGD via matching decomposition sampling, 2019",
    kind="rounds",
    make=make,
    refuse=refuse,
    parameters=(
        Parameter(
            name="graph",
            kind="text",
            default="ring",
            choices=("ring", "torus", "erdos-renyi", "complete"),
            help="the graph that is decomposed",
        ),
        Parameter(
            name="budget", kind="float", default=0.5, minimum=0, maximum=1, help="share of the matchings active a round"
        ),
        ROUNDS,
        SEED,
    ),
    condition="n ≤ 500, base graph connected",
    degree="budget × number of matchings on average",
    period="rounds",
    figures="expected factor ρ = ‖E[WᵀW] − J‖₂, minimised over α",
)
