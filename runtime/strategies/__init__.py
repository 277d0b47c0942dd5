"""Run-time strategies, one file each; `build` maps a schedule's strategy to the one that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.topo.errors import MissingFeatureError
from preduce.topo.strategies.allreduce import AllReduce
from preduce.topo.strategies.generated import Generated
from preduce.topo.strategies.neighbor import Neighbor
from preduce.topo.strategies.pairwise import Pairwise
from preduce.topo.strategies.server import Server
from preduce.topo.strategies.static import Static

if TYPE_CHECKING:
    from preduce.runtime.strategies.base import Run, Strategy


def build(run: Run) -> Strategy:
    """The run-time strategy of a schedule.

    Raises:
        MissingFeatureError: no strategy here runs schedules of this kind.
    """
    strategy = run.schedule.strategy
    if isinstance(strategy, AllReduce) and strategy.averages_gradients:
        from preduce.runtime.strategies.gradient_means import GradientMeans

        return GradientMeans(run)
    if isinstance(strategy, AllReduce | Static):
        from preduce.runtime.strategies.group_means import GroupMeans

        return GroupMeans(run, overlap=strategy.overlap)
    if isinstance(strategy, Neighbor):
        from preduce.runtime.strategies.neighbor import NeighborMeans

        return NeighborMeans(run)
    if isinstance(strategy, Server):
        from preduce.runtime.strategies.server import AsynchronousServer, SynchronousServer

        return SynchronousServer(run) if strategy.synchronous else AsynchronousServer(run)
    if isinstance(strategy, Generated):
        from preduce.runtime.strategies.generated import GeneratedMeans

        return GeneratedMeans(run)
    if isinstance(strategy, Pairwise):
        from preduce.runtime.strategies.pairwise import PairMeans

        return PairMeans(run)
    raise MissingFeatureError(
        f"schedule {run.schedule.name!r}: strategy {strategy.kind!r} cannot be executed by this version"
    )
