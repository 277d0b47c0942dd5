"""Strategy `server`: a sharded parameter server, synchronous or asynchronous."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Index, Rounds
from partreduce.topo.strategies.base import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Server(Strategy):
    """A sharded parameter server: one shard of the parameters for each of `hosts`, served by the worker of that rank.

    Synchronous: a shard averages the gradients of all workers before it answers. Asynchronous: each worker's gradient
    is applied when it arrives; a worker that is more than `staleness` rounds ahead of the slowest waits (None: never).
    """

    kind: ClassVar[str] = "server"
    is_on_request: ClassVar[bool] = True
    hosts: tuple[Index, ...] = (0,)
    synchronous: bool = True
    staleness: Rounds | None = None

    def check_kind(self, cluster: Cluster) -> None:
        n = cluster.num_workers
        if not self.hosts or len(set(self.hosts)) != len(self.hosts) or not all(0 <= h < n for h in self.hosts):
            raise ScheduleError(f"hosts: lists at least one rank of 0..{n - 1}, each once; it is {list(self.hosts)}")
        if self.staleness is not None and self.synchronous:
            raise ScheduleError(f"staleness: is {self.staleness}; only an asynchronous server has one; leave it out")

    def tables_unsupported_reason(self) -> str:
        """Return the reason (no common steps) why tables cannot be exchanged separately; empty if they can."""
        if self.synchronous and self.steps_once:
            return ""
        return "workers of a server have common steps only where it is synchronous, with steps_per_round 1"

    def codec_unsupported_reason(self, cluster: Cluster) -> str:
        """Return the reason (it sends parameters) why the strategy cannot use a lossy codec; empty if it can."""
        return "" if self.averages_gradients else Strategy.codec_unsupported_reason(self, cluster)

    @property
    def averages_gradients(self) -> bool:
        return self.synchronous and self.steps_once and not self.mixes_late
