"""Share the parts of all import formats: the edges of a graph file, their meaning, and the schedule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.imports.exact import balance_weights, check_own_weights, exact
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.graphs import Graph
from partreduce.topo.graphs.weights import weigh
from partreduce.topo.round import Round
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.neighbor import NeighborAveraging

MAX_WORKERS = 1_000_000


@dataclass(frozen=True, slots=True)
class EdgeTable:
    """A graph file as read, before anybody says what it is for.

    An edge of a directed file goes from source to target: the source sends, the target hears. An edge of an undirected
    file goes both ways.
    """

    nodes: Collection[Hashable]  # every node once, in the file's order
    edges: Sequence[tuple[Hashable, Hashable]]
    weights: Sequence[object]  # of each edge as written; None where the file gives none
    directed: bool
    place: Callable[[int], str]  # where edge number e stands, for messages

    def ranks(self) -> dict[Hashable, int]:
        """Nodes 0..n−1 (also as text) keep their numbers; other names are numbered in their own order."""
        count = len(self.nodes)
        if {str(name) for name in self.nodes} == {str(i) for i in range(count)}:
            return {name: int(str(name)) for name in self.nodes}
        return {name: i for i, name in enumerate(self.nodes)}

    def weighted(self, *, placeholder: int | None = None) -> ImportedGraph:
        """The graph with its weights as shares, if it has any.

        A weight that all edges have may be a placeholder that stands for none: some tools always write a weight.

        Raises:
            ScheduleError: too many nodes or too few, some edges with a weight and some without, a weight that is no
                share, or two different weights for one edge.
        """
        rank = self.ranks()
        pairs = [(rank[a], rank[b]) for a, b in self.edges]
        shares = self._shares()
        if shares is not None and all(share == placeholder for share in shares):
            shares = None
        return from_edges(len(self.nodes), pairs, shares, directed=self.directed)

    def _shares(self) -> list[Fraction] | None:
        absent = [weight is None for weight in self.weights]
        if all(absent):
            return None
        if any(absent):
            odd = absent.index(not absent[0])
            lacks = "has no weight, others have one; " if absent[odd] else ""
            raise ScheduleError(f"{self.place(odd)}: {lacks}give all edges a weight, or none")
        return [exact(weight, self.place(e)) for e, weight in enumerate(self.weights)]


@dataclass(frozen=True, slots=True)
class ImportedGraph:
    """A graph as read, and the weight of each edge in the graph's order if the file gives any."""

    graph: Graph
    weights: tuple[Fraction, ...] | None = None


def from_edges(
    num_workers: int, edges: Iterable[tuple[int, int]], weights: Sequence[Fraction] | None, *, directed: bool
) -> ImportedGraph:
    """Edges between ranks as listed in a file; an undirected edge may stand once or twice.

    Raises:
        ScheduleError: too many workers, a rank out of range, or two different weights for one edge.
    """
    if not 2 <= num_workers <= MAX_WORKERS:
        raise ScheduleError(f"graph: has {num_workers} workers; graphs of 2 to {MAX_WORKERS} workers are read")
    pairs = np.array(list(edges), dtype=np.int64).reshape(-1, 2)
    make = Graph.directed if directed else Graph.undirected
    graph = make(num_workers, pairs[:, 0], pairs[:, 1])
    if weights is None:
        return ImportedGraph(graph)
    weight_of: dict[tuple[int, int], Fraction] = {}
    for (a, b), weight in zip(pairs.tolist(), weights, strict=True):
        for edge in ((a, b),) if directed else ((a, b), (b, a)):
            if weight_of.setdefault(edge, weight) != weight:
                raise ScheduleError(f"edge {a}→{b}: has the weights {weight_of[edge]} and {weight}; give it one")
    check_own_weights(num_workers, weight_of)
    arcs = zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    return ImportedGraph(graph, tuple(weight_of[arc] for arc in arcs))


def round_of(imported: ImportedGraph, method: str) -> Round:
    """The graph as a round: with its own weights if it has any, else weighed by `method`.

    Weights that balance at every worker up to rounding are balanced exactly (see `balance_weights`).

    Raises:
        ScheduleError: a graph that never reaches consensus, or that `method` cannot weigh.
    """
    graph = imported.graph
    graph.require_connected()
    if imported.weights is None:
        return weigh(graph, method)
    return _weighted_round(graph.num_workers, graph.sources, graph.targets, imported.weights)


def matrix_round(imported: ImportedGraph) -> Round:
    """A round of a stack of matrices: as given, whether or not it connects all; 0/1 entries without sums are refused.

    Raises:
        ScheduleError: a matrix without weights.
    """
    graph = imported.graph
    if imported.weights is None:
        raise ScheduleError("rows of 0 and 1 do not sum to 1; a stack holds mixing weights")
    return _weighted_round(graph.num_workers, graph.sources, graph.targets, imported.weights)


def _weighted_round(
    num_workers: int, sources: npt.NDArray[np.int32], targets: npt.NDArray[np.int32], weights: Sequence[Fraction]
) -> Round:
    """A round with a weight per edge; edges of weight 0 are dropped."""
    kept = [e for e, weight in enumerate(weights) if weight]
    exact_weights = balance_weights(
        num_workers, sources[kept].tolist(), targets[kept].tolist(), [weights[e] for e in kept]
    )
    return Round.from_arrays(num_workers, sources[kept], targets[kept], exact_weights, np.arange(len(kept)))


def schedule(name: str, rounds: Sequence[Round], cluster: Cluster | None) -> Schedule:
    """A schedule of kind `neighbor`; without a cluster every worker has its own node.

    Raises:
        ScheduleError: the cluster has another number of workers.
    """
    count = rounds[0].num_workers
    chosen = Cluster.regular(count, 1) if cluster is None else cluster
    if chosen.num_workers != count:
        raise ScheduleError(
            f"cluster {chosen}: has {chosen.num_workers} workers, {name!r} is for {count}; name a cluster of {count}"
        )
    return Schedule(name, chosen, NeighborAveraging(rounds=tuple(rounds)))
