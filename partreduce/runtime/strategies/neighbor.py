"""Strategy `neighbor`: weighted averaging over a graph, fixed or one per round (D-PSGD, …)."""

from __future__ import annotations

from partreduce.runtime.averaging.flat_model import BufferPolicy
from partreduce.runtime.averaging.neighbor_reducer import Neighborhood, PeerReducer
from partreduce.runtime.strategies.base import Run
from partreduce.runtime.strategies.group_means import GroupMeans
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Group
from partreduce.topo.strategies.neighbor import NeighborAveraging


class NeighborMeans(GroupMeans):
    """x ← W_k (x + u) after each round; with overlap x ← W_k x + u(x), Hop's serial and parallel order (its Figure 2).

    The exchange of the parallel order runs while the round computes. A worker without edges in a round keeps its
    parameters. Step-normalized averaging brings every worker's progress to the mean steps per round of all, since
    neighborhoods overlap.

    Raises:
        InputError: a buffer policy that needs a group with one lowest rank.
    """

    def __init__(self, strategy: NeighborAveraging, run: Run) -> None:
        if run.flat.buffer_policy is BufferPolicy.BROADCAST:
            raise InputError("buffers='broadcast': neighbors have no common first worker; use 'average' or 'local'")
        near = [Neighborhood(strategy, t, run.rank) for t in range(len(strategy.rounds))]
        reducer = PeerReducer(run.reducer, near)
        super().__init__(run.with_reducer(reducer), averaging=strategy.averaging, is_delayed=strategy.is_delayed)
        self._groups = [one.group for one in near]

    def _group(self, round_: int) -> Group | None:
        return self._groups[round_ % len(self._groups)]

    def _makes_equal(self, group: Group) -> bool:  # noqa: ARG002 - neighbors weigh one another as they like
        return False

    def _mean_steps_per_round(self, group: Group) -> float:  # noqa: ARG002 - as said in the class
        return float(self.run.schedule.worker_steps().mean())
