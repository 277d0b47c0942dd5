"""Runners of strategies: which one carries out a schedule, by its kind, what it averages, and when.

The table names kinds (virtual time has its own, in `simulate.py`). A new kind is a runner and one line there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.strategies.asynchronous_server import AsynchronousServer
from partreduce.runtime.strategies.base import Run, Runner
from partreduce.runtime.strategies.fragment_means import FragmentMeans
from partreduce.runtime.strategies.gap.means import GapMeans
from partreduce.runtime.strategies.generated import GeneratedMeans
from partreduce.runtime.strategies.gradient_means import GradientMeans
from partreduce.runtime.strategies.group_means import GroupMeans
from partreduce.runtime.strategies.lasting_late_means import ElasticDelayedAverage
from partreduce.runtime.strategies.lasting_pipeline import ElasticPipeline
from partreduce.runtime.strategies.neighbor import NeighborMeans
from partreduce.runtime.strategies.outer_means import OuterMeans, OwnOuterParams
from partreduce.runtime.strategies.pairwise import PairMeans
from partreduce.runtime.strategies.pipeline import GradientPipeline
from partreduce.runtime.strategies.progress_means import ProgressMeans
from partreduce.runtime.strategies.quorum.gradients import QuorumGradients
from partreduce.runtime.transport.through_servers import ServerCommunicator, through_servers
from partreduce.topo.errors import MissingDependencyError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import Pipeline
from partreduce.topo.strategies.dynamic_groups import DynamicGroups
from partreduce.topo.strategies.iteration_gap import IterationGap
from partreduce.topo.strategies.neighbor import NeighborAveraging
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.partial import PartialAllReduce
from partreduce.topo.strategies.server import Server
from partreduce.topo.strategies.static import StaticGroups

Kind = TypeVar("Kind")


def _all_reduce(strategy: AllReduce, run: Run) -> Runner:
    """Gradients in each step, at once, late or by a quorum; parameters otherwise."""
    if isinstance(strategy.sync, PartialAllReduce):
        return QuorumGradients(strategy.sync, run)
    if isinstance(strategy.sync, Pipeline):
        return GradientPipeline(strategy.sync, run) if run.generations is None else ElasticPipeline(strategy.sync, run)
    if strategy.averages_gradients:
        return GradientMeans(run, divisor=None if strategy.payload.average_dense else 1)
    return _means_of_groups(strategy, run)


def _means_of_groups(strategy: StaticGroups | AllReduce, run: Run) -> Runner:
    count = strategy.payload.num_fragments
    if not strategy.takes_turns:
        return _means_of_whole(strategy, run)
    parts = []
    for number in range(count):
        reducer = run.reducer.of(run.flat.fragment(number), f"fragment {number}")
        part = _means_of_whole(strategy, run.with_reducer(reducer))
        part.name = f"average of fragment {number}" if count > 1 else part.name
        parts.append(part)
    return FragmentMeans(run, parts)


def _means_of_whole(strategy: StaticGroups | AllReduce, run: Run) -> GroupMeans:
    if not strategy.payload.outer.is_plain:
        kind = OwnOuterParams if strategy.payload.outer.has_own_outer_params else OuterMeans
        return kind(strategy.payload.outer, run, averaging=strategy.averaging)
    if strategy.is_delayed and run.generations is not None:
        return ElasticDelayedAverage(run, averaging=strategy.averaging)
    means = ProgressMeans if strategy.transport.codec.rounds else GroupMeans
    return means(run, averaging=strategy.averaging, is_delayed=strategy.is_delayed)


def _neighbor(strategy: NeighborAveraging, run: Run) -> Runner:
    """In rounds, or with a gap between neighbors."""
    return GapMeans(strategy, run) if isinstance(strategy.sync, IterationGap) else NeighborMeans(strategy, run)


def _server(server: Server, run: Run) -> Runner:
    """Asynchronous, or all-reduce whose sums pass through the hosts: of gradients at one step per round, as DDP."""
    if not server.synchronous:
        return AsynchronousServer(server, run)
    base = run.reducer
    communicator = ServerCommunicator(
        base.world,
        server.hosts,
        base.heartbeat,
        key=f"{base.key} server",
        max_bytes=sum(bucket.array_length * bucket.dtype.itemsize for bucket in base.buckets),
        timeout=base.timeout,
    )
    base.recorder.attach("mailbox", communicator.mailbox.traffic_facts)
    world = through_servers(base.world, communicator)
    reducer = Reducer(world, base.buckets, base.recorder, base.heartbeat, key=base.key, timeout=base.timeout)
    same = AllReduce(
        steps_per_round=server.steps_per_round, sync=server.sync, transport=server.transport, averaging=server.averaging
    )
    schedule = Schedule(run.schedule.name, run.schedule.cluster, same)
    runner = _all_reduce(same, replace(run, schedule=schedule, reducer=reducer))
    runner.mailboxes.append(communicator.mailbox)
    return runner


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Kind]):
    """A kind of strategy and what makes its runner, typed so that the two fit."""

    kind: type[Kind]
    build: Callable[[Kind, Run], Runner]


_RUNNERS: tuple[_Entry[Any], ...] = (
    _Entry(AllReduce, _all_reduce),
    _Entry(StaticGroups, _means_of_groups),
    _Entry(NeighborAveraging, _neighbor),
    _Entry(Server, _server),
    _Entry(DynamicGroups, GeneratedMeans),
    _Entry(Pairwise, PairMeans),
)


def build(run: Run) -> Runner:
    """The runner of a schedule's strategy.

    Raises:
        MissingDependencyError: no strategy here runs schedules of this kind.
    """
    strategy = run.schedule.strategy
    for entry in _RUNNERS:
        if entry.kind is type(strategy):
            return entry.build(strategy, run)
    raise MissingDependencyError(
        f"schedule {run.schedule.name!r}: strategy {strategy.kind!r} cannot be executed by this version"
    )
