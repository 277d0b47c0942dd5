"""The rounds of `neighbor` in documents: directed edges with exact weights, one graph per round."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Discriminator, Field, Tag

from partreduce.topo.closed_model import Exact, Listed, Model, part_of, validate
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import DocumentError
from partreduce.topo.fields import Index
from partreduce.topo.fraction import dump_fraction
from partreduce.topo.place import child
from partreduce.topo.round import Round

Edge = Annotated[Listed[Index], Field(min_length=2, max_length=2)]
EdgeWeighting = Annotated[
    Annotated[Exact, Tag("one")] | Annotated[Listed[Exact], Tag("list")],
    Discriminator(lambda value: "list" if isinstance(value, list) else "one"),
]


class RoundModel(Model):
    """Weighted edges `[source, target]`; a worker's weight on itself is what the others leave."""

    edges: Listed[Edge]
    weights: EdgeWeighting


class RoundsMember(Model):
    """Rounds of weighted averaging over graphs."""

    rounds: Annotated[Listed[RoundModel], Field(min_length=1)]


GRAPH_MODELS = (RoundsMember,)


def load_rounds(raw: dict[str, Any], cluster: Cluster, place: str) -> tuple[Round, ...]:
    """The rounds of a parsed strategy."""
    model = validate(RoundsMember, part_of(raw, "rounds"), place)
    return tuple(
        _round(graph, cluster.num_workers, child(child(place, "rounds"), t)) for t, graph in enumerate(model.rounds)
    )


def _round(model: RoundModel, num_workers: int, place: str) -> Round:
    """The value of one round. O(edges log edges), vectorized."""
    edges = np.array(model.edges, dtype=np.int64).reshape(-1, 2)
    sources, targets = edges[:, 0], edges[:, 1]
    weights = model.weights
    if isinstance(weights, list) and len(weights) != len(edges):
        problem = f"has {len(weights)} entries for {len(edges)} edges; give 1 weight for all or 1 for each edge"
        raise DocumentError(child(place, "weights"), problem)
    _check_edges((edges >= num_workers).any(axis=1), edges, place, f"ranks are 0..{num_workers - 1}")
    _check_edges(
        sources == targets, edges, place, "a worker's weight on itself is what the others leave; leave the edge out"
    )
    order = np.lexsort((sources, targets))
    sources, targets = sources[order], targets[order]
    twice = np.zeros(len(edges), dtype=bool)
    twice[order[1:]] = (np.diff(sources) == 0) & (np.diff(targets) == 0)
    _check_edges(twice, edges, place, "is given twice; keep it once")
    if isinstance(weights, list):
        values = sorted(set(weights))
        index = {weight: number for number, weight in enumerate(values)}
        weight_of = np.array([index[weight] for weight in weights], dtype=np.int32)[order]
    else:
        values, weight_of = [weights] if len(edges) else [], np.zeros(len(edges), dtype=np.int32)
    return Round(num_workers, sources.astype(np.int32), targets.astype(np.int32), tuple(values), weight_of)


def _check_edges(bad: npt.ArrayLike, edges: npt.NDArray[np.int64], place: str, rule: str) -> None:
    where = np.flatnonzero(bad)
    if len(where):
        index = int(where[0])
        source, target = edges[index].tolist()
        raise DocumentError(child(child(place, "edges"), index), f"is {source}→{target}; {rule}")


def dump_rounds(rounds: tuple[Round, ...]) -> dict[str, Any]:
    """The member `rounds`."""
    return {"rounds": [_dump_round(graph) for graph in rounds]}


def _dump_round(graph: Round) -> dict[str, Any]:
    edges = np.stack([graph.sources, graph.targets], axis=1).tolist()
    used = [dump_fraction(Fraction(weight)) for weight in graph.weights]
    if len(used) == 1:
        return {"edges": edges, "weights": used[0]}
    return {"edges": edges, "weights": [used[index] for index in graph.weight_of.tolist()]}
