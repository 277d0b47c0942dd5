"""Define a runner without collective operations: its mailbox, its watch on peers, and its progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partreduce.runtime.recorder import Operation
from partreduce.runtime.strategies.base import Run, Runner
from partreduce.runtime.transport.mailbox import Bound, Mailbox, Message
from partreduce.runtime.transport.waiting import PeerGoneError, PeerWatch
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.base import Averaging, Strategy


class OneSided(Runner):
    """A runner whose workers write to each other's mailboxes; `deliver` takes what comes, in the side thread.

    Args:
        strategy: whose kind names the mailbox.
        run: the worker's part of the run.
        place: with whom optimizer state would have to be averaged, for the refusal.
        deliver: called with each message from `start` on.
        bound: what may be on the way to each worker, where the mailbox's own is not what the protocol needs.
    """

    def __init__(
        self,
        strategy: Strategy,
        run: Run,
        place: str,
        deliver: Callable[[Message], None],
        *,
        bound: Bound | None = None,
    ) -> None:
        super().__init__(run)
        if any(tensor.is_state for bucket in run.flat.buckets for tensor in bucket.piggybacked):
            raise InputError(f"optimizer_state='average': stays with each worker of {place}; use 'local'")
        normalizes = strategy.averaging is Averaging.STEP_NORMALIZED
        self._factor = float(run.schedule.worker_steps().mean()) / run.steps_per_round if normalizes else 1.0
        """By which a round's progress is multiplied."""
        reducer = run.reducer
        self._peer_watch = PeerWatch(reducer.heartbeat, range(run.schedule.num_workers))
        self._mailbox = Mailbox(
            reducer.world.store,
            run.rank,
            f"{reducer.key} {strategy.kind}",
            deliver,
            max_bytes=sum(bucket.size * bucket.dtype.itemsize for bucket in run.flat.buckets),
            timeout=reducer.timeout,
            bound=bound,
            heartbeat=reducer.heartbeat,
        )
        self.mailboxes.append(self._mailbox)
        reducer.recorder.attach("mailbox", self._mailbox.traffic_facts)

    def until(self, done: Callable[[], bool], members: Sequence[int], operation: Operation | None = None) -> None:
        """Wait until messages made `done` true, with which an operation is over."""
        reducer = self.run.reducer
        try:
            self._mailbox.until(done, reducer.heartbeat, members, None if operation is None else operation.round)
        except PeerGoneError as error:
            operation = operation or reducer.recorder.begin("pause of exchanges", 0, 0, tuple(members), 0)
            raise reducer.failure(operation, error) from None
        if operation is not None:
            reducer.recorder.end(operation)
            reducer.heartbeat.doing(operation.finished)
