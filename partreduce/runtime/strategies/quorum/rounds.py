"""Run the thread that takes part in the sums of partial collectives, strictly 0, 1, 2, …, for one worker.

It enters a round when the driver allows it, sums the send buffer over all workers together with the values that they
exchange, and returns both.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.recorder import Operation
from partreduce.runtime.strategies.quorum.driver import QuorumDriver, StartedRound
from partreduce.runtime.strategies.quorum.gradient_buffers import GradientSums
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.tags import TAG_LENGTH, tag_of
from partreduce.runtime.transport.waiting import PeerGoneError
from partreduce.runtime.transport.work import Background
from partreduce.schedulers.protocols.partial import Share
from partreduce.topo.errors import PartreduceError, UnavailableError

KIND = "partial sum"


def room_for(num_workers: int) -> int:
    """Numbers that a round's workers tell one another: one for each, one for all, and the tag."""
    return num_workers + 1 + TAG_LENGTH


class RoundsThread:
    """The collective thread of one worker.

    Args:
        driver: says when a round is entered, and learns what came of it; its payload knows the arrays.
        line: the communicator of all workers, for this thread alone.
        reducer: waits with a limit, and says whom for; its buckets lie in host memory.
        clock: rounds before the present segment, equal on all workers.
    """

    def __init__(
        self,
        driver: QuorumDriver,
        line: Communicator,
        reducer: Reducer,
        clock: Callable[[], int],
    ) -> None:
        self._driver, self._line = driver, line
        self._reducer, self._clock = reducer, clock
        self._thread = Background(self._run, name="partreduce-rounds", stop=driver.close)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait until it has ended; after `driver.close`."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while (begun := self._driver.begin()) is not None:
                self._execute(begun)
        except BaseException as error:  # noqa: BLE001 - the training raises it
            self._driver.fail(error)

    @property
    def _sums(self) -> GradientSums:
        return self._driver.payload

    def _execute(self, begun: StartedRound) -> None:
        reducer, line = self._reducer, self._line
        round_ = self._clock() + begun.round
        arrays = self._sums.arrays(begun.payload)
        tag = tag_of(reducer.key, KIND, begun.segment, begun.round)
        self._write(begun, tag)
        num_bytes = sum(array.nbytes for array in arrays)
        operation = reducer.recorder.begin(KIND, round_, round_, line.members, num_bytes)
        try:
            works = [line.all_reduce(array) for array in arrays]
            for work in works:
                reducer.wait_for(work, operation)
            shares, scaled = self._read(begun, tag)
        except (RuntimeError, PeerGoneError, PartreduceError) as error:
            raise self._error_of_round(operation, error) from None
        reducer.recorder.end(operation)
        self._sums.arrived(begun.payload, scaled=scaled)
        self._driver.finish(begun, shares)
        self._driver.publish_activity(reducer.heartbeat.doing)

    def _error_of_round(self, operation: Operation, error: Exception) -> BaseException:
        """The error that the training raises; none is made of a run that ends."""
        if self._driver.is_closing:
            return UnavailableError(f"the run ended during {operation}")
        return self._reducer.failure(operation, error)

    def _write(self, begun: StartedRound, tag: tuple[int, ...]) -> None:
        """What this worker tells, in its own place; all others are zero. (workers + 1 + tag,)."""
        room, numbers = self._sums.room(begun.payload), [0] * self._line.size
        numbers[self._line.place] = len(begun.share.gradients)
        room.copy_(torch.tensor([*numbers, int(begun.payload.scaled), *tag], dtype=room.dtype))

    def _read(self, begun: StartedRound, tag: tuple[int, ...]) -> tuple[list[Share], bool]:
        """What each worker has brought, and whether a GradScaler was at work on any of it."""
        room, size = self._sums.room(begun.payload), self._line.size
        if room[-TAG_LENGTH:].tolist() != [size * number for number in tag]:
            raise PeerGoneError("its members ran different rounds at the same time (their tags differ)")
        *counts, scaled = map(int, room[: size + 1].tolist())
        return [Share(begun.round, tuple(range(count))) for count in counts], bool(scaled)
