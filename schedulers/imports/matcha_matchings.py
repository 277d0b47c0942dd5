"""MATCHA's matchings: a list of lists of pairs, as its graph files hold them."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from preduce.schedulers.imports.base import schedule
from preduce.topo.document.reader import parse_json
from preduce.topo.errors import DocumentError
from preduce.topo.graphs.base import Graph
from preduce.topo.graphs.matchings import activation, mixing_weight, sample

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule

MAX_WORKERS = 500


def read(
    data: bytes,
    source: str,
    *,
    name: str = "matcha",
    cluster: Cluster | None = None,
    budget: float = 0.5,
    rounds: int = 16,
    seed: int = 0,
) -> Schedule:
    """`[[[0, 1], [2, 3]], [[1, 2]]]`, or that under the key `matchings`: one list of pairs a matching.

    Probabilities and weight are those of MATCHA for the budget; `rounds` draws are made, which then repeat.

    Raises:
        DocumentError: another form, or a worker twice in one matching, which is named.
        ScheduleError: matchings that together leave workers apart.
    """
    value = parse_json(data, source=source)
    listed = value.get("matchings") if isinstance(value, dict) else value
    if not isinstance(listed, list) or not listed:
        raise DocumentError("matchings", "is not a list of lists of pairs", source)
    pairs = [_pairs(matching, f"matchings[{m}]", source) for m, matching in enumerate(listed)]
    count = 1 + max(max(pair) for matching in pairs for pair in matching)
    if count > MAX_WORKERS:
        raise DocumentError(
            "matchings", f"name {count} workers; MATCHA's program is solved for up to {MAX_WORKERS}", source
        )
    graphs = [Graph.undirected(count, [a for a, _ in matching], [b for _, b in matching]) for matching in pairs]
    union = Graph.directed(
        count, np.concatenate([g.sources for g in graphs]), np.concatenate([g.targets for g in graphs])
    )
    union.require_connected()
    probabilities = activation(graphs, budget)
    alpha = Fraction(mixing_weight(graphs, probabilities)[0]).limit_denominator(1000)
    return schedule(name, sample(graphs, probabilities, alpha, rounds, np.random.default_rng(seed)), cluster)


def _pairs(matching: object, place: str, source: str) -> list[tuple[int, int]]:
    if not isinstance(matching, list) or not matching:
        raise DocumentError(place, "is not a list of pairs", source)
    pairs: list[tuple[int, int]] = []
    seen: set[int] = set()
    for p, pair in enumerate(matching):
        if (
            not (isinstance(pair, list) and len(pair) == 2 and all(type(w) is int and 0 <= w < 10**6 for w in pair))
            or pair[0] == pair[1]
        ):
            raise DocumentError(f"{place}[{p}]", "is not a pair of different ranks", source)
        for worker in pair:
            if worker in seen:
                raise DocumentError(f"{place}[{p}]", f"worker {worker} stands twice in one matching", source)
            seen.add(worker)
        pairs.append((pair[0], pair[1]))
    return pairs
