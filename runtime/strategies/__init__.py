"""Run-time strategies, one file each; `build` maps a schedule's strategy to the one that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topo.errors import MissingFeatureError
from topo.strategies.allreduce import AllReduce
from topo.strategies.generated import Generated
from topo.strategies.neighbor import Neighbor
from topo.strategies.pairwise import Pairwise
from topo.strategies.server import Server
from topo.strategies.static import Static

if TYPE_CHECKING:
    from runtime.strategies.base import Run, Strategy


def build(run: Run) -> Strategy:
    """The run-time strategy of a schedule.

    Raises:
        MissingFeatureError: no strategy here runs schedules of this kind.
    """
    strategy = run.schedule.strategy
    if isinstance(strategy, AllReduce) and strategy.averages_gradients:
        from runtime.strategies.gradient_means import GradientMeans

        return GradientMeans(run)
    if isinstance(strategy, AllReduce | Static):
        from runtime.strategies.group_means import GroupMeans

        return GroupMeans(run, overlap=strategy.overlap)
    if isinstance(strategy, Neighbor):
        from runtime.strategies.neighbor import NeighborMeans

        return NeighborMeans(run)
    if isinstance(strategy, Server):
        from runtime.strategies.server import AsynchronousServer, SynchronousServer

        return SynchronousServer(run) if strategy.synchronous else AsynchronousServer(run)
    if isinstance(strategy, Generated):
        from runtime.strategies.generated import GeneratedMeans

        return GeneratedMeans(run)
    if isinstance(strategy, Pairwise):
        from runtime.strategies.pairwise import PairMeans

        return PairMeans(run)
    raise MissingFeatureError(
        f"schedule {run.schedule.name!r}: strategy {strategy.kind!r} cannot be executed by this version"
    )
