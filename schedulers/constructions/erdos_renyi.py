"""Erdős–Rényi graph."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

from preduce.schedulers.constructions.common import SEED, WEIGHTS, fixed
from preduce.schedulers.entry import Entry, Parameter
from preduce.topo.graphs.erdos_renyi import erdos_renyi

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def make(cluster: Cluster, probability: float | None, seed: int, weights: str) -> Schedule:
    """A connected draw; by default twice the threshold of connectedness."""
    count = cluster.num_workers
    chosen = min(1.0, 2 * log(count) / count) if probability is None else probability
    name = ENTRY.label(probability=probability, seed=seed, weights=weights)
    return fixed(name, cluster, erdos_renyi(count, chosen, seed), weights)


def refuse(cluster: Cluster, probability: float | None, seed: int, weights: str) -> str | None:
    """Too small a probability leaves the graph in pieces."""
    del seed, weights
    count = cluster.num_workers
    threshold = log(count) / count
    if probability is not None and probability < 0.5 * threshold:
        return f"probability {probability:g} leaves the graph in pieces; use more than ln n / n = {threshold:.4f}"
    return None


ENTRY = Entry(
    name="erdos-renyi",
    summary="Every pair of workers is joined with the same probability.",
    source="Erdős and Rényi 1959",
    kind="graph",
    make=make,
    refuse=refuse,
    parameters=(
        Parameter(
            name="probability", kind="float", minimum=0, maximum=1, help="of each edge; auto: 2 ln n / n (at most 1)"
        ),
        SEED,
        WEIGHTS,
    ),
    condition="probability above ln n / n",
    degree="about 2 ln n",
    period="1",
    figures="constant gap with high probability",
)
