"""Hop as a value of `sync`: workers advance asynchronously, and token queues bound the gap between neighbors.

Source: Luo, Lin, Zhuo, Qian, Hop: heterogeneity-aware decentralized training, ASPLOS 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Choice, Count, JsonObject, Rounds
from partreduce.topo.strategies.waiting import Waiting

Spare = Rounds | tuple[Rounds, ...]
"""A number of in-neighbors: one number for all workers, or one per worker."""

MAX_TOKENS = 2**31 - 1
"""The most tokens that a queue may start with: the largest number that certificates count."""

MAX_STALENESS = 2**16 - 1
"""The largest staleness in steps: a worker's state has one bit per step, so larger ones need much time and memory."""

Tokens = Annotated[int, Ge(0), Le(MAX_TOKENS)]
Steps = Annotated[int, Ge(0), Le(MAX_STALENESS)]
Several = Annotated[Count, Ge(2)]


class EdgeWeighting(Choice):
    """The weight of a received update in a worker's average."""

    GRAPH = "graph"
    """The weights of the graph's edges; a worker adds the weights of updates that it does not use to its own."""
    UNIFORM = "uniform"
    """Equal weights for every update that is used and for the worker itself (Hop, equation 1)."""
    ITERATION = "iteration"
    """With staleness s, an update of step i weighs i - (k - s) + 1 in step k, the worker's own s + 1 (Hop, equation 2).
    """


class UpdateOrder(Choice):
    """Which parameters a worker sends in a step."""

    ADAPT_THEN_COMBINE = "adapt_then_combine"
    """The parameters after computing: x ← W (x + u) (Hop, Figure 2, left)."""
    DPSGD = "dpsgd"
    """The parameters at the start of the step, sent while it computes: x ← W x + u(x) (Hop, Figure 2, right)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipPolicy(JsonObject):
    """When and how far a worker that is behind all its out-neighbors skips steps to catch up (Hop, section 5).

    It skips if the slowest out-neighbor is at least `behind` steps ahead (the paper's condition to jump) and it can
    advance by at least `trigger` steps; it advances by at most `limit` (the paper's maximum jump).
    """

    place: ClassVar[str] = "sync.iteration_gap.skip."

    limit: Count
    trigger: Several = 2
    behind: Several = 2

    def check(self) -> None:
        if self.limit < self.trigger:
            rule = f"a worker skips by {self.trigger} (trigger) or more steps"
            raise ScheduleError(f"sync.iteration_gap.skip.limit: is {self.limit}; {rule}")


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationGap(JsonObject, Waiting):
    """Hop's asynchronous averaging with a bounded gap between neighbors; settings combine as in Hop's Table 1.

    A step here is Hop's iteration, a round of the schedule. Without any setting a worker enters step k+1 when it has
    the updates of step k of all in-neighbors.

    `max_ig`: the largest number of steps that a worker can be ahead of an out-neighbor, by tokens: it takes a token
    from each out-neighbor to enter a step and leaves a token for each in-neighbor (None: no token queues). `staleness`
    s: an update of step k−s or later suffices in step k; updates received since the last average are averaged, and an
    older update within the bound only lets the worker continue. `backup`: the number of in-neighbors whose
    updates a worker may miss. `notify_ack`: update k is sent only after every out-neighbor acknowledged k−1. `skip`: a
    worker that is far behind skips steps. `weights` and `update_order`: see their types.
    """

    word: ClassVar[str] = "iteration_gap"
    place: ClassVar[str] = "sync.iteration_gap."
    called: ClassVar[str] = "gap between neighbors"
    protocol: ClassVar[str] = "gap"

    max_ig: Tokens | None = None
    staleness: Steps = 0
    backup: Spare = 0
    notify_ack: bool = False
    skip: SkipPolicy | None = None
    weights: EdgeWeighting = EdgeWeighting.GRAPH
    update_order: UpdateOrder = UpdateOrder.ADAPT_THEN_COMBINE

    @property
    def lag(self) -> int:
        """The delay of an averaging in rounds: 1 with update_order dpsgd, 0 with adapt_then_combine."""
        return int(self.update_order is UpdateOrder.DPSGD)

    @property
    def takes_all(self) -> bool:
        """Whether every average uses the updates of one step of all in-neighbors, as in D-PSGD."""
        return not self.staleness and not self.has_backup and self.skip is None

    @property
    def has_backup(self) -> bool:
        """Whether some worker may miss an in-neighbor's update."""
        return bool(self.backup) if isinstance(self.backup, int) else any(self.backup)

    def backups(self, num_workers: int) -> tuple[int, ...]:
        """Return how many in-neighbors' updates each worker may miss; ScheduleError if `backup` has another length."""
        given = (self.backup,) * num_workers if isinstance(self.backup, int) else self.backup
        if len(given) != num_workers:
            rule = f"give 1 number or 1 for each of {num_workers} workers"
            raise ScheduleError(f"sync.iteration_gap.backup: has {len(given)} numbers; {rule}")
        return given

    def check(self) -> None:
        if self.notify_ack and not self.takes_all:
            rule = "backup, staleness and skip do not go with it"
            raise ScheduleError(f"sync.iteration_gap.notify_ack: needs every update of every step; {rule}")
        if not self.staleness and self.weights is EdgeWeighting.ITERATION:
            raise ScheduleError(
                "sync.iteration_gap.weights: is iteration; without staleness all that is averaged is of one step; "
                "use uniform"
            )
        if self.skip is not None:
            if self.max_ig is None:
                raise ScheduleError(
                    "sync.iteration_gap.skip: tokens say where the out-neighbors are; give max_ig as well"
                )
            self.skip.check()
            if not (self.staleness or self.has_backup):
                raise ScheduleError(
                    "sync.iteration_gap.skip: never happens, since an out-neighbor that needs every update is at most "
                    "1 step ahead; give backup or staleness as well"
                )

    def check_neighbors(self, numbers: Sequence[int]) -> None:
        """Raise ScheduleError if a worker may miss more in-neighbors than it has.

        `numbers` (num_workers,) counts the in-neighbors of every worker.
        """
        for worker, (spare, number) in enumerate(zip(self.backups(len(numbers)), numbers, strict=True)):
            if spare > number:
                raise ScheduleError(
                    f"sync.iteration_gap.backup[{worker}]: is {spare}, but worker {worker} has only {number} "
                    "in-neighbors besides itself"
                )
