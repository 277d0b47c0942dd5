"""Strategy `server`: a sharded parameter server; synchronous here, asynchronous in `asynchronous_server`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.strategies.all_reduce import all_reduce
from partreduce.runtime.strategies.asynchronous_server import AsynchronousServer
from partreduce.runtime.strategies.base import Runner
from partreduce.runtime.transport.through_servers import ServerCommunicator, ThroughServers
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce

if TYPE_CHECKING:
    import torch

    from partreduce.runtime.strategies.base import Run
    from partreduce.topo.strategies.server import Server


def parameter_server(server: Server, run: Run) -> Runner:
    """The runner of a parameter server."""
    return SynchronousServer(server, run) if server.synchronous else AsynchronousServer(server, run)


class SynchronousServer(Runner):
    """All-reduce whose sums pass through the hosts: gradients at pace 1 (which equals DDP), parameters otherwise."""

    def __init__(self, server: Server, run: Run) -> None:
        super().__init__(run)
        base = run.reducer
        communicator = ServerCommunicator(
            base.world,
            server.hosts,
            base.heartbeat,
            key=f"{base.key} server",
            max_bytes=sum(bucket.array_length * bucket.dtype.itemsize for bucket in base.buckets),
            timeout=base.timeout,
        )
        self._mailbox = communicator.mailbox
        base.recorder.attach("mailbox", self._mailbox.traffic_facts)
        world = ThroughServers(base.world, communicator)
        reducer = Reducer(world, base.buckets, base.recorder, base.heartbeat, key=base.key, timeout=base.timeout)
        same = AllReduce(pace=server.pace, when=server.when, how=server.how, averaging=server.averaging)
        schedule = Schedule(run.schedule.name, run.schedule.cluster, same)
        self._inner = all_reduce(same, replace(run, schedule=schedule, reducer=reducer))
        self.averages_gradients = self._inner.averages_gradients
        self.needs_round_start = self._inner.needs_round_start

    def before_step(self, step: int, round_: int, *, first: bool) -> None:
        self._inner.before_step(step, round_, first=first)

    def end_round(self, step: int, round_: int) -> None:
        self._inner.end_round(step, round_)

    def settle(self) -> None:
        self._inner.settle()

    def drain(self) -> None:
        self._inner.drain()

    def takes_for_progress(self, round_: int, *, first: bool) -> bool:
        return self._inner.takes_for_progress(round_, first=first)

    def resume(self, step: int, round_: int) -> None:
        self._inner.resume(step, round_)

    def state(self) -> dict[str, torch.Tensor]:
        return self._inner.state()

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self._inner.load_state(state)

    def close(self) -> None:
        """End the side thread; whoever still waits for a sum learns it from the notes in the store."""
        self._mailbox.close()

    def abandon(self) -> None:
        """The same after a failure, at once."""
        self._mailbox.abandon()
