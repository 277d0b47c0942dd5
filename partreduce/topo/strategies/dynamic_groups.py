"""Strategy `dynamic_groups`: groups formed at run time by the group generator (Prague's dynamic schedule)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Choice, Count, Rounds
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Sync, Synchronous
from partreduce.topo.strategies.base import Strategy


class GroupSplit(Choice):
    """How the group generator forms groups from idle workers."""

    RANDOM = "random"
    """A random group that includes the requesting worker; groups that share members run one after another."""
    GLOBAL = "global"
    """All idle workers are divided into random groups at once, so that later requests find their group ready."""
    INTER_INTRA = "inter-intra"
    """All idle workers at once: groups of one worker per node and, inside nodes, of the others; then a group per node.
    """
    NODE_THEN_ALL = "node-then-all"
    """One group of the idle workers on the requesting worker's node, without slow ones.

    Every `all_every` rounds it is one group of all workers except slow ones.
    """


class SlowWorkerPolicy(Choice):
    """How the group generator answers a request of a worker that lags behind."""

    PAPER = "paper"
    """The published rule: a request forms groups as `GroupSplit` says, however far the worker lags behind."""
    PAIR_LOCALLY = "pair_locally"
    """A worker `slow_threshold` rounds or more behind gets one small group, on its own node unless alone there."""
    DEFER = "defer"
    """A worker with long compute times gets a small group only when it has computed, so that no worker waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicGroups(Strategy):
    """Groups of `group_size` workers drawn at run time; `seed` fixes the draw, not the order of requests.

    `slow_threshold` is the paper's filter: worker w is left out of a group requested by worker i if c_i − c_w ≥
    slow_threshold, where c counts rounds (None: no filter); defer filters by compute times instead. `all_every`, for
    the division node-then-all, is the number of rounds between two groups of all workers. `max_known` bounds the
    distinct groups, and so the communicators, of a worker: with that many it is only drawn into these (None: no bound).
    `steps_per_round` is Prague's section length.
    """

    kind: ClassVar[str] = "dynamic_groups"
    is_on_request: ClassVar[bool] = True
    needs_generator: ClassVar[bool] = True
    sync_types: ClassVar[tuple[type[Sync], ...]] = (Synchronous,)
    """Only synchronous: a delayed average starts with the round, before the generator has formed the group."""
    algorithms: ClassVar[tuple[AllReduceAlgorithm, ...]] = (AllReduceAlgorithm.RING, AllReduceAlgorithm.HIERARCHICAL)

    group_size: Annotated[Count, Ge(2)] = 3
    division: GroupSplit = GroupSplit.INTER_INTRA
    slow_worker_policy: SlowWorkerPolicy = SlowWorkerPolicy.PAIR_LOCALLY
    slow_threshold: Count | None = 4
    all_every: Count = 16
    max_known: Count | None = 32
    seed: Rounds = 0

    def check_kind(self, cluster: Cluster) -> None:
        if self.group_size > cluster.num_workers:
            raise ScheduleError(
                f"group_size: is {self.group_size}; it lies between 2 and the number of workers, {cluster.num_workers}"
            )
        if self.division == GroupSplit.NODE_THEN_ALL:
            single = [node for node in range(cluster.num_nodes) if len(cluster.workers_of(node)) < 2]
            if single:
                raise ScheduleError(
                    f"division: node-then-all averages inside nodes and node {single[0]} has one worker only; "
                    "use global"
                )

    def codec_unsupported_reason(self, cluster: Cluster) -> str:  # noqa: ARG002 - the same for all clusters
        """Return the reason why no lossy codec is supported: no round is sure to make all workers equal."""
        return (
            f"strategy {self.kind!r} sends parameters, of which only what was added since all were equal may be "
            "rounded, and its groups may leave out any worker that is slow or failed; leave it out"
        )
