"""Queue operations in flight: each begins in one step, and is awaited and committed or dropped in a later one.

The queue belongs to the run's membership, which lists the members. Here these are fixed; a run that continues after
failures has the same queue (`elastic.member`), whose operations are committed by all members of a group or by none.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.gradients import Snapshot
from partreduce.runtime.averaging.mean_model import average_model, common_start
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.averaging.reduction import Content, Reduction
from partreduce.runtime.averaging.reference import Reference
from partreduce.runtime.liveness.settings import Settings
from partreduce.runtime.transport.streams import Streams
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Group

Sums = list[tuple[Reducer, Reduction]]
Piggybacked = Sequence[Sequence[torch.Tensor | None]]  # by bucket what rides along; None where there is nothing yet
State = dict[str, torch.Tensor]
KEY = "flight"  # what the names of tensors begin with that belong to an operation in flight


@dataclass(slots=True, eq=False, kw_only=True)
class Flight:
    """One group operation in flight, from the start of its sums until they are committed."""

    turn: int  # the operation of the schedule, counted from 0, with which it is committed
    step: int
    round: int  # where it began, as reports and tags name it
    start: Callable[[Flight, Group], Sums]  # copies what is sent and begins to sum it; again, where members failed
    group: Group | None = None  # with whom, as the schedule says; None where this worker rests
    kind: str = ""
    settings: Settings = ()  # what all members must have in common where gradients are sent
    kept: Sequence[Snapshot] = ()  # by bucket what is sent, as it was in the beginning, where that is needed for longer
    before: Piggybacked = ()  # what rode along, as it was when the sum began; empty where it is taken as it is
    scaled: bool = False  # whether by a GradScaler: the step is skipped if an averaged one is infinite or NaN
    sums: Sums | None = None  # None before they have begun, and after they were lost
    is_waited: bool = False
    is_restored: bool = False  # whether the sums come from a checkpoint

    def wait(self) -> None:
        """Wait for the sums. Raises PeerFailedError if a member is gone, InputError if operations differ."""
        if not self.is_waited:
            for reducer, reduction in self.sums or ():
                reducer.wait(reduction)
            self.is_waited = True

    def release(self) -> None:
        """Return all arrays to their buckets, after the sums are committed or dropped."""
        for _, reduction in self.sums or ():
            reduction.release()
        self.sums = []
        self.release_kept()

    def release_kept(self) -> None:
        for snapshot in self.kept:
            snapshot.release()
        self.kept = ()

    def abandon(self, why: str) -> None:
        for reducer, reduction in self.sums or ():
            if not self.is_waited and reduction.operation.end is None:
                reducer.recorder.end(reduction.operation, f"failed: {why}")
            reduction.abandon()
        self.sums, self.is_waited = None, False


class FixedMembership:
    """The queue of operations in flight of a run that ends with the first failed worker."""

    may_change = False  # whether operations may have to begin again, so that what they send is kept until the commit

    def __init__(self, members: tuple[int, ...]) -> None:
        self._members = members
        self.flights: deque[Flight] = deque()  # what has begun and is not committed, the oldest first
        self.changed: list[Callable[[], object]] = []  # called where members have changed, before one gives its state

    @property
    def members(self) -> tuple[int, ...]:
        return self._members

    @property
    def is_between(self) -> bool:
        """Whether the members are changing now; never here."""
        return False

    # Operations.

    def outliving(self) -> contextlib.AbstractContextManager[None]:
        """Context in which a failed operation begins again if members may change; here it does nothing."""
        return contextlib.nullcontext()

    def begin(self, flight: Flight) -> None:
        """Start an operation and queue it; its sums are formed while this worker computes."""
        self.flights.append(flight)
        if flight.group is None:
            return
        try:
            flight.sums = flight.start(flight, flight.group)
        except BaseException:
            self.flights.remove(flight)
            raise

    def wait(self, flight: Flight, *, meets: bool = False) -> Flight:  # noqa: ARG002 - for members that change
        """Wait for an operation's sums, remove it from the queue and return it; one that is not queued starts now.

        `meets` marks an operation of all members outside the schedule; with fixed members it changes nothing.
        """
        is_queued = flight in self.flights
        if not is_queued and flight.sums is None and flight.group is not None:
            flight.sums = flight.start(flight, flight.group)
        try:
            flight.wait()
        finally:  # also where all refuse it
            if is_queued:
                self.flights.remove(flight)
        return flight

    def arrive(self, flight: Flight) -> None:
        """Wait for an operation's sums but leave it in the queue, to be saved."""
        try:
            flight.wait()
        except InputError:  # all members refuse it
            self.flights.remove(flight)
            raise

    def settle(self) -> None:
        """Wait for all sums in flight, so that a mean over all workers can follow."""
        for flight in tuple(self.flights):
            self.arrive(flight)

    def drop(self) -> None:
        """Complete all operations in flight without committing them; all members call it."""
        self.settle()
        while self.flights:
            self.flights.popleft().release()

    def skip(self, turn: int) -> None:
        """Count operation `turn` of the schedule, in which nothing is averaged yet."""

    def givers(self, step: int) -> int:  # noqa: ARG002 - for members that join
        return len(self._members)

    def common_start(
        self, reducer: Reducer, step: int, round_: int, *, name: str, starts: int, host: Streams | None
    ) -> Reference:
        """Return the reference parameters, equal on all workers, of the run's `starts`-th start."""
        del name  # for members that meet by notes
        return common_start(reducer, self._members, starts, step, round_, host=host)

    def average_model(self, reducers: Sequence[Reducer], members: tuple[int, ...], step: int, round_: int) -> None:
        average_model(reducers, members, step, round_)

    # Who else is there, for those that wait by notes.

    @property
    def lost_workers(self) -> Callable[[], frozenset[int]] | None:
        """A function that returns the workers gone for good; None for a run that ends with a failure."""
        return None

    def gathered(self, place: str) -> tuple[int, ...]:  # noqa: ARG002 - for runs that lose workers
        """Wait until all workers have come to `place`; returns those that take part in its mean, connected."""
        return self._members

    def connect(self, members: tuple[int, ...], place: str) -> None:
        """Create a communicator of these workers; all of them call it."""

    def check_to_go_back(self, round_: int) -> None:
        """Raise InputError if not all members would average again from round `round_` on."""


def state_of(flight: Flight, prefix: str, buckets: Sequence[Bucket], *, joins: bool = False) -> State:
    """Return the tensors that save a flight, by name; for a worker that `joins`, those to start it again."""
    begins_again = joins and not flight.is_restored
    sums, rode = ([], []) if begins_again else (flight.sums or [], flight.before)
    facts = [flight.turn, flight.step, flight.round, flight.scaled, len(sums), len(rode)]
    named = {f"{prefix}/facts": torch.tensor([int(fact) for fact in facts])}
    common = json.dumps([flight.kind, flight.settings]).encode()
    named[f"{prefix}/common"] = torch.frombuffer(bytearray(common), dtype=torch.uint8)
    for _, reduction in sums:
        for index, (bucket, array) in enumerate(zip(buckets, reduction.arrays, strict=True)):
            named[f"{prefix}/sums/{index}"] = array[: bucket.length + len(bucket.slots)]
            if index in reduction.absent:
                named[f"{prefix}/absent/{index}"] = torch.tensor(sorted(reduction.absent[index]), dtype=torch.int64)
    for index, (bucket, snapshot) in enumerate(zip(buckets, flight.kept, strict=bool(flight.kept))):
        if snapshot.array is not None and not snapshot.is_of_gradients:
            named[f"{prefix}/kept/{index}"] = snapshot.array[: bucket.size]
    for index, values in enumerate(rode):
        named |= {f"{prefix}/before/{index}/{at}": value for at, value in enumerate(values) if value is not None}
    return named


def restore_flights(
    state: Mapping[str, torch.Tensor],
    prefix: str,
    reducer: Reducer,
    start: Callable[[Flight, Group], Sums],
    group: Callable[[int], Group | None],
    *,
    lag: int = 0,
    since: Callable[[Group], Reference | None] = lambda _: None,
) -> Flight:
    """Return the flight that `state_of` saved. Raises KeyError, ValueError or RuntimeError for another model."""
    turn, step, round_, scaled, with_sums, with_before = map(int, state[f"{prefix}/facts"])
    kind, settings = _tuples(json.loads(bytes(state[f"{prefix}/common"].tolist())))
    flight = Flight(
        turn=turn, step=step, round=round_, start=start, kind=kind, settings=settings, group=group(round_),
        scaled=bool(scaled),
    )  # fmt: skip
    buckets, is_kept = reducer.buckets, f"{prefix}/kept/0" in state
    if is_kept:
        flight.kept = [Snapshot.copy(b, state[f"{prefix}/kept/{index}"]) for index, b in enumerate(buckets)]
    elif not with_sums:
        flight.kept = [Snapshot.none(bucket) for bucket in buckets]
    if with_sums:
        sums = [state[f"{prefix}/sums/{index}"] for index in range(len(buckets))]
        with_whom = flight.group or Group((reducer.world.rank,))
        content = Content(lag=lag, since=since(with_whom))
        reduction = reducer.announce(kind, step, round_, with_whom, content, num_bytes=0)
        reducer.recorder.end(reduction.operation)
        for index, (array, kept) in enumerate(zip(reduction.arrays, sums, strict=True)):
            array[: len(kept)].copy_(kept)
            if (absent := state.get(f"{prefix}/absent/{index}")) is not None:
                reduction.absent[index] = frozenset(absent.tolist())
        flight.sums, flight.is_waited, flight.is_restored = [(reducer, reduction)], True, True
    if with_before:
        values = ((b, (state.get(f"{prefix}/before/{i}/{at}") for at in range(len(b.piggybacked))))
                  for i, b in enumerate(buckets))  # fmt: skip
        flight.before = [[None if v is None else v.to(bucket.device) for v in of] for bucket, of in values]
    return flight


def _tuples(value: Any) -> Any:  # noqa: ANN401 - what JSON holds
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
