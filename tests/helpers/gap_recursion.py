"""When the workers of Hop enter, send and reduce, as a recursion over arrays: all workers of a step at once.

Write E[k] for when a worker enters step k, c[k] for what it computes, S[k] for when it sends, R[k] for when it reduces.
An update takes the same time whenever it is sent (`update`), so does a token (`token`); an update that serves in step k
is there as soon as that of step k-s is, since a worker sends one after the other:

    S[k] = E[k] + c[k] in the serial order, E[k] in the parallel one; under NOTIFY-ACK not before R[k-1] + token of any
           out-neighbour
    R[k] = max(S[k], E[k] + c[k], the (|N_in| - backup)-th smallest of S[max(k-s, 0)] + update over the in-neighbours)
    E[k+1] = max(R[k], max over the out-neighbours of E[k+1-max_ig] + token)

So these are the times of the protocol object wherever nothing stands in line on a link; that they are equal is a test.
Skipping is not here: a worker that skips sends nothing in between, and who waits for what is no longer one row a step.
Inquiry leaves out only what nobody waits for. A run of 10,000 workers takes milliseconds a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from partreduce.runtime.virtual_time.record import GapRecord
from partreduce.topo.errors import ScheduleError
from partreduce.topo.strategies.gap import Gap, Order

if TYPE_CHECKING:
    import numpy.typing as npt

    from partreduce.topo.round import Round

    Times = npt.NDArray[np.float64]


class GapTimes(NamedTuple):
    """When each step was entered, its computing ended, it was sent, reduced and left; all (num_rounds, num_workers)."""

    begun: Times
    computed: Times
    sent: Times
    reduced: Times
    finish: Times


def gap_times(
    graph: Round, gap: Gap, seconds: Times, *, update: Times | float = 0.0, token: Times | float = 0.0
) -> GapTimes:
    """Run the recursion. O(num_rounds · edges), with backup workers times the logarithm of the largest degree.

    Args:
        graph: who sends to whom.
        gap: the setting, without skipping.
        seconds: that each worker computes in each step, shape (num_rounds, num_workers).
        update: seconds that an update takes along each edge, shape (edges,), or along all.
        token: seconds that a token or an acknowledgement takes against each edge, as above.

    Raises:
        ScheduleError: the setting skips.
    """
    if gap.skip is not None:
        raise ScheduleError("when.gap.skip: workers that skip have no common recursion; simulate the schedule")
    rounds, count = seconds.shape
    sources, targets = graph.sources.astype(np.int64), graph.targets.astype(np.int64)  # sorted by target
    token = np.broadcast_to(token, sources.shape)
    first = _FirstUpdates(sources, targets, count, np.array(gap.backups(count)))
    by_source = np.argsort(sources, kind="stable")
    leads = _Latest(sources[by_source], count)
    heard_from, by_source_token = targets[by_source], token[by_source]
    begun, computed, sent, reduced, finish = np.zeros((5, rounds, count))
    for k in range(rounds):
        if k:
            begun[k] = finish[k - 1]
        computed[k] = begun[k] + seconds[k]
        sent[k] = begun[k] if gap.order is Order.PARALLEL else computed[k]
        if gap.notify_ack and k:
            sent[k] = np.maximum(sent[k], leads.of(reduced[k - 1][heard_from] + by_source_token))
        there = sent[max(k - gap.staleness, 0)][sources] + update
        reduced[k] = np.maximum(np.maximum(sent[k], computed[k]), first.enough(there))
        finish[k] = reduced[k]
        if gap.max_ig is not None and k >= gap.max_ig:
            given = finish[k - gap.max_ig]  # when step k+1-max_ig was entered
            finish[k] = np.maximum(finish[k], leads.of(given[heard_from] + by_source_token))
    return GapTimes(begun, computed, sent, reduced, finish)


def record_of(graph: Round, gap: Gap, times: GapTimes, *, update: Times | float = 0.0) -> GapRecord:
    """What a run shows of gaps; entries of the same time count in the order of their steps, then of the workers."""
    sources, targets = graph.sources.astype(np.int64), graph.targets.astype(np.int64)
    finish, rounds = times.finish, len(times.finish)
    order = np.empty(finish.size, dtype=np.int64)
    order[np.argsort(finish, axis=None, kind="stable")] = np.arange(finish.size)
    there = times.sent[:, sources] + update  # (num_rounds, edges)
    left = finish[:, targets]
    fill = np.zeros(finish.shape[1], dtype=np.int64)
    if gap.staleness:  # a newer one replaces an older one
        serves = there[np.maximum(np.arange(rounds) - gap.staleness, 0)]
        fill[targets[(serves <= left).any(axis=0)]] = 1
    for held in range(1, 1 if gap.staleness else rounds + 1):  # of step k and the held-1 after it, when k is left
        early, late = there[held - 1 :], left[: rounds - held + 1]
        # Without wires much happens at one instant: then what came of the worker's own leaving is not in the queue yet.
        full = ((early < late) | (early == late) & (held == 1)).any(axis=0)
        if not full.any():
            break
        fill[targets[full]] = held
    return GapRecord(
        finish,
        order.reshape(finish.shape),
        sources,
        targets,
        np.zeros(finish.shape[1], dtype=np.int64),
        fill,
        (times.reduced - times.computed).sum(axis=0),
        (finish - times.reduced).sum(axis=0),
    )


class _Latest:
    """The largest value over each worker's edges, where edges are sorted by worker; minus infinity without any."""

    def __init__(self, owners: npt.NDArray[np.int64], count: int) -> None:
        self._workers, self._starts = np.unique(owners, return_index=True)
        self._count = count

    def of(self, values: Times) -> Times:
        """Of one value for each edge, shape (edges,) to (num_workers,)."""
        result = np.full(self._count, -np.inf)
        if len(self._workers):
            result[self._workers] = np.maximum.reduceat(values, self._starts)
        return result


class _FirstUpdates:
    """When each worker has the updates that it needs: all but its backup workers."""

    def __init__(
        self,
        sources: npt.NDArray[np.int64],
        targets: npt.NDArray[np.int64],
        count: int,
        spare: npt.NDArray[np.int64],
    ) -> None:
        self._all = None if spare.any() else _Latest(targets, count)
        degrees = np.bincount(targets, minlength=count)
        self._needed = degrees - spare  # (num_workers,)
        self._row = targets
        self._column = np.arange(len(sources)) - (np.cumsum(degrees) - degrees)[targets]
        self._shape = (count, int(degrees.max(initial=0)) + 1)

    def enough(self, there: Times) -> Times:
        """Of when each edge's update is there, shape (edges,) to (num_workers,)."""
        if self._all is not None:
            return self._all.of(there)
        table = np.full(self._shape, np.inf)  # (num_workers, largest in-degree + 1)
        table[self._row, self._column] = there
        table[:, -1] = -np.inf  # what a worker that needs nobody waits for
        table.sort(axis=1)
        return np.asarray(np.take_along_axis(table, self._needed[:, None], axis=1)[:, 0])
