"""Membership: who takes part in a run, and the queue of this worker's operations in flight among them.

Here nobody ever comes or goes. A run that continues after failures has the same queue (`generations`), and each of its
operations is committed by all members of its group or by none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from partreduce.runtime.averaging.common_start import common_start
from partreduce.runtime.averaging.in_flight import Flight
from partreduce.runtime.averaging.mean_model import average_model
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.averaging.reference import Reference
from partreduce.runtime.transport.streams import Streams


class FixedMembership:
    """The workers of a run that ends with the first one that is lost."""

    may_change = False
    """Whether operations may have to begin again, so that what they send is kept until they are committed."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self._members = members
        self.flights: deque[Flight] = deque()
        """What has begun and is not committed, the oldest first."""
        self.changed: list[Callable[[], object]] = []
        """Called where members have failed or join, when all that continue connect, and before one gives its state."""

    @property
    def members(self) -> tuple[int, ...]:
        """Who averages."""
        return self._members

    @property
    def is_between(self) -> bool:
        """Whether the members are changing, and this worker gives or takes a state."""
        return False

    # Operations.

    def begin(self, flight: Flight) -> None:
        """Put an operation in flight: its sum runs while this worker computes.

        Raises:
            PeerFailedError: a member is gone.
        """
        self.flights.append(flight)
        if flight.group is None:
            return
        try:
            flight.sums = flight.start(flight, flight.group)
        except BaseException:
            self.flights.remove(flight)
            raise

    def wait(self, flight: Flight, *, meets: bool = False) -> Flight:  # noqa: ARG002 - for members that change
        """Wait for an operation, which begins here where it has not, and take it from the queue to be committed.

        With `meets` it is one of all members that belongs to no turn of the schedule.

        Raises:
            PeerFailedError: a member is gone, or too late.
            InputError: all members refuse the sums.
        """
        if flight not in self.flights:
            if flight.sums is None and flight.group is not None:
                flight.sums = flight.start(flight, flight.group)
            flight.wait()
            return flight
        try:
            flight.wait()
        finally:  # also where all refuse it
            self.flights.remove(flight)
        return flight

    def arrive(self, flight: Flight) -> None:
        """Wait for the sums of an operation that stays in flight, to be saved."""
        try:
            flight.wait()
        except BaseException:
            self.flights.remove(flight)
            raise

    def settle(self) -> None:
        """Wait for all sums in flight, where a mean of all must not run beside them."""
        for flight in tuple(self.flights):
            self.arrive(flight)

    def drop(self) -> None:
        """Give up all that is in flight: every member has begun it, and none commits it."""
        self.settle()
        while self.flights:
            self.flights.popleft().release()

    def skip(self, turn: int) -> None:
        """A turn in which nothing is due yet."""

    def givers(self, step: int, members: int) -> int:  # noqa: ARG002 - for members that join
        """How many of the members of a group took a step."""
        return members

    def common_start(
        self, reducer: Reducer, step: int, round_: int, *, name: str, starts: int, host: Streams | None
    ) -> Reference:
        """The reference of a run's `starts`-th start, from which all measure their parameters.

        Raises:
            PeerFailedError: a worker is gone, too late, or at another round.
        """
        del name  # for members that meet by notes
        return common_start(reducer, self._members, starts, step, round_, host=host)

    def average_model(self, reducers: Sequence[Reducer], members: tuple[int, ...], step: int, round_: int) -> None:
        """Replace parameters of all workers by their means, and buffers by their rules; all of them call this."""
        average_model(reducers, members, step, round_)

    # Who else is there, for those that wait by notes.

    @property
    def lost_workers(self) -> Callable[[], frozenset[int]] | None:
        """Says which workers are gone for good, where the run outlives them: nothing waits for them any more."""
        return None

    def gathered(self, place: str) -> tuple[int, ...]:  # noqa: ARG002 - for runs that lose workers
        """Who takes part in a mean over all at `place`, connected; all of them have come when this returns."""
        return self._members

    def connect(self, members: tuple[int, ...], place: str) -> None:
        """Have a communicator of these workers, all of whom call this."""

    def check_to_go_back(self, round_: int) -> None:
        """Refuse to load a round from which on not all would average."""
