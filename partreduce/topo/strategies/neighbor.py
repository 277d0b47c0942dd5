"""Strategy `neighbor`: weighted averaging over a graph, fixed or one graph per round (D-PSGD, …)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.graphs import Graph
from partreduce.topo.round import Round
from partreduce.topo.strategies.axes import DelayedAveraging, Sync, Synchronous
from partreduce.topo.strategies.base import HasMixingMatrix
from partreduce.topo.strategies.iteration_gap import EdgeWeighting, IterationGap


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighborAveraging(HasMixingMatrix):
    """Rounds of weighted averaging over graphs, repeated periodically; a single round is a fixed graph.

    With x the parameters and u the local update, a synchronous round is x ← W(x + u), the serial order of Hop's Figure
    2, and a delayed one x ← Wx + u(x), the parallel order. With an iteration gap workers advance asynchronously over
    one fixed graph (`IterationGap`).
    """

    kind: ClassVar[str] = "neighbor"
    sync_types: ClassVar[tuple[type[Sync], ...]] = (Synchronous, DelayedAveraging, IterationGap)
    rounds: tuple[Round, ...]

    def check_kind(self, cluster: Cluster) -> None:
        if not self.rounds:
            raise ScheduleError("rounds: is empty; a neighbor schedule has at least 1 round")
        for t, graph in enumerate(self.rounds):
            if graph.num_workers != cluster.num_workers:
                raise ScheduleError(
                    f"rounds[{t}]: is for {graph.num_workers} workers, the cluster has {cluster.num_workers}"
                )
        if isinstance(self.sync, IterationGap):
            self._check_gap(self.sync)

    def _check_gap(self, gap: IterationGap) -> None:
        if len(self.rounds) > 1:
            raise ScheduleError(f"rounds: has {len(self.rounds)}; a gap is kept over the edges of 1 fixed graph")
        if not isinstance(self.steps_per_round, int):
            rule = "with sync.iteration_gap give one, a faster worker runs ahead"
            raise ScheduleError(f"steps_per_round: has one number for each worker; {rule}")
        graph = self.rounds[0]
        gap.check_neighbors(np.bincount(graph.targets, minlength=graph.num_workers).tolist())
        if gap.takes_all and gap.weights is EdgeWeighting.UNIFORM and (edge := _uneven(graph)) is not None:
            raise ScheduleError(
                f"sync.iteration_gap.weights: is uniform, but edge {edge[0]}→{edge[1]} of rounds[0] has another "
                "weight; every update of every round is taken, so give the graph uniform weights"
            )
        if gap.max_ig == 0:
            raise ScheduleError("sync.iteration_gap.max_ig: is 0; without a token no worker ever enters step 1")
        if gap.max_ig is not None:
            return
        if gap.has_backup:
            raise ScheduleError(
                "sync.iteration_gap.backup: without token queues a worker that others do without falls behind without "
                "limit, and no queue is long enough; give max_ig as well"
            )
        if (edge := _one_way(graph)) is not None:
            raise ScheduleError(
                f"rounds[0]: no path leads back along edge {edge[0]}→{edge[1]}, so worker {edge[0]} runs ahead without "
                "limit and no queue is long enough; give sync.iteration_gap.max_ig, or a graph with a way back"
            )

    @property
    def period(self) -> int:
        return len(self.rounds)

    @property
    def graphs(self) -> tuple[Round, ...]:
        return self.rounds

    def steps(self, cluster: Cluster) -> tuple[Round, ...]:  # noqa: ARG002 - rounds name their workers
        return self.rounds

    def num_distinct_phases(self, cluster: Cluster) -> int:  # noqa: ARG002 - as above
        return len(set(self.rounds))


def _uneven(graph: Round) -> tuple[int, int] | None:
    """Return an edge (source, target) of other weight than 1/(1 + in-degree of the target); None if there is none."""
    number = np.bincount(graph.targets, minlength=graph.num_workers) + 1
    for source, target, weight in graph.edges():
        if weight * int(number[target]) != 1:
            return source, target
    return None


def _one_way(graph: Round) -> tuple[int, int] | None:
    """Return an edge (source, target) without a path from target to source; None if there is none. O(edges)."""
    shape = Graph(graph.num_workers, graph.sources, graph.targets)
    if shape.is_undirected:
        return None
    component = shape.components()  # (n,)
    across = np.flatnonzero(component[graph.sources] != component[graph.targets])
    if not len(across):
        return None
    return int(graph.sources[across[0]]), int(graph.targets[across[0]])
