"""Create the runner of a schedule: the object that averages for one worker as the schedule's strategy defines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from partreduce.runtime.strategies.asynchronous_server import AsynchronousServer
from partreduce.runtime.strategies.base import Run, Runner
from partreduce.runtime.strategies.dynamic_groups import GeneratedMeans
from partreduce.runtime.strategies.gap.means import GapMeans
from partreduce.runtime.strategies.gradient_average import GradientAverage
from partreduce.runtime.strategies.pairwise import PairMeans
from partreduce.runtime.strategies.parameter_average import ParameterAverage
from partreduce.runtime.strategies.quorum.gradients import QuorumGradients
from partreduce.runtime.transport.server_allreduce import ServerCommunicator, through_servers
from partreduce.topo import strategies as st
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule


def _all_reduce(strategy: st.AllReduce, run: Run) -> Runner:
    """Return the runner of an all-reduce: of gradients (partial, in a pipeline, or in each step), or of parameters."""
    if isinstance(strategy.sync, st.PartialAllReduce):
        return QuorumGradients(strategy.sync, run)
    if isinstance(strategy.sync, st.Pipeline):
        divisor = 1 if strategy.sync.total is st.GradientReduction.SUM else None
        return GradientAverage(run, divisor=divisor, pipeline=strategy.sync)
    if strategy.averages_gradients:
        return GradientAverage(run, divisor=None if strategy.payload.average_dense else 1)
    return ParameterAverage(strategy, run)


def _neighbor(strategy: st.NeighborAveraging, run: Run) -> Runner:
    return GapMeans(strategy, run) if isinstance(strategy.sync, st.IterationGap) else ParameterAverage(strategy, run)


def _server(server: st.Server, run: Run) -> Runner:
    """Return the runner of a parameter server; a synchronous one is run as an all-reduce.

    The hosts, workers that each hold a part of the model, then compute the sums of the all-reduce.
    """
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
    reducer = base.of(base.buckets, world=world)
    same = st.AllReduce(
        steps_per_round=server.steps_per_round, sync=server.sync, transport=server.transport, averaging=server.averaging
    )
    schedule = Schedule(run.schedule.name, run.schedule.cluster, same)
    runner = _all_reduce(same, replace(run, schedule=schedule, reducer=reducer))
    runner.mailboxes.append(communicator.mailbox)
    return runner


_RUNNERS: dict[type[st.Strategy], Callable[[Any, Run], Runner]] = {
    st.AllReduce: _all_reduce,
    st.StaticGroups: ParameterAverage,
    st.NeighborAveraging: _neighbor,
    st.Server: _server,
    st.DynamicGroups: GeneratedMeans,
    st.Pairwise: PairMeans,
}


def build(run: Run) -> Runner:
    """Return the runner for the kind of the schedule's strategy; raise InputError if there is none."""
    strategy = run.schedule.strategy
    if (make := _RUNNERS.get(type(strategy))) is None:
        raise InputError(
            f"schedule {run.schedule.name!r}: strategy {strategy.kind!r} cannot be executed by this version"
        )
    return make(strategy, run)
