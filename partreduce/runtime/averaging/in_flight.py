"""Queue operations in flight: each starts in one step and is waited for and committed, or dropped, in a later step.

`FixedMembership` is the queue of a run that ends at the first failure. A run that continues after failures has a queue
with the same methods (`elastic.member`), which commits an operation on all members of a group or on none.
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
Piggybacked = Sequence[Sequence[torch.Tensor | None]]  # per bucket; None for a tensor that does not exist yet
State = dict[str, torch.Tensor]
KEY = "flight"  # prefix of saved tensors that belong to an operation in flight


@dataclass(slots=True, eq=False, kw_only=True)
class Flight:
    """An average that starts in step `step` and is written back later, at the schedule's operation number `turn`."""

    turn: int  # index of the schedule's operation at which it is committed
    step: int
    round: int  # round in which it started, for reports and tags
    start: Callable[[Flight, Group], Sums]  # starts the all-reduces; called again after a member failed
    group: Group | None = None  # group in the schedule; None if this worker averages with no other
    kind: str = ""
    settings: Settings = ()  # optimizer settings that must be equal on all members if gradients are sent
    kept: Sequence[Snapshot] = ()  # per bucket, a copy of what is sent, if needed until the commit
    before: Piggybacked = ()  # piggybacked tensors at the start; empty if the mean replaces them
    scaled: bool = False  # whether a GradScaler is used: the step is skipped if a mean is not finite
    sums: Sums | None = None  # the running all-reduces; None before the start and after a failure
    is_waited: bool = False
    is_restored: bool = False  # whether the sums come from a checkpoint

    def wait(self) -> None:
        """Wait for the all-reduces; raise PeerFailedError if a member is gone, or InputError as `Reducer.wait` does."""
        if not self.is_waited:
            for reducer, reduction in self.sums or ():
                reducer.wait(reduction)
            self.is_waited = True

    def release(self) -> None:
        """Return all borrowed arrays to their buckets, after the result is committed or dropped."""
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
    """Queue of operations in flight for a run that ends at the first failed worker; its members never change.

    An operation is an average that starts in one step and is written back in a later one.
    """

    may_change = False  # whether operations may have to restart, so that their inputs are kept

    def __init__(self, members: tuple[int, ...]) -> None:
        self._members = members
        self.flights: deque[Flight] = deque()  # started and not committed, oldest first
        self.changed: list[Callable[[], object]] = []  # callbacks after a change of members

    @property
    def members(self) -> tuple[int, ...]:
        return self._members

    @property
    def is_between(self) -> bool:
        """Whether members are leaving or joining now, so that nothing can be averaged; always False here."""
        return False

    # Operations.

    def outliving(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that restarts operations that fail in it, if members may change; here it does nothing."""
        return contextlib.nullcontext()

    def begin(self, flight: Flight) -> None:
        """Start an operation and queue it; its all-reduces run while this worker computes."""
        self.flights.append(flight)
        if flight.group is None:
            return
        try:
            flight.sums = flight.start(flight, flight.group)
        except BaseException:
            self.flights.remove(flight)
            raise

    def wait(self, flight: Flight, *, meets: bool = False) -> Flight:  # noqa: ARG002 - for members that change
        """Wait for an operation, starting it first if it is not queued; remove it from the queue and return it.

        `meets` marks an operation of all members outside the schedule, such as a mean model; it has no effect here.
        """
        is_queued = flight in self.flights
        if not is_queued and flight.sums is None and flight.group is not None:
            flight.sums = flight.start(flight, flight.group)
        try:
            flight.wait()
        finally:  # also after an InputError, which all members raise
            if is_queued:
                self.flights.remove(flight)
        return flight

    def arrive(self, flight: Flight) -> None:
        """Wait for an operation but leave it in the queue, to be saved in a checkpoint."""
        try:
            flight.wait()
        except InputError:  # raised by all members
            self.flights.remove(flight)
            raise

    def settle(self) -> None:
        """Wait for all operations in flight, so that an average over all workers can follow."""
        for flight in tuple(self.flights):
            self.arrive(flight)

    def drop(self) -> None:
        """Complete all operations in flight and discard their results; all members call it."""
        self.settle()
        while self.flights:
            self.flights.popleft().release()

    def skip(self, turn: int) -> None:
        """Count the schedule's operation with index `turn` as done without an average; here nothing is counted."""

    def givers(self, step: int) -> int:  # noqa: ARG002 - for members that join
        return len(self._members)

    def common_start(
        self, reducer: Reducer, step: int, round_: int, *, name: str, starts: int, host: Streams | None
    ) -> Reference:
        """Return reference parameters, equal on all workers, to measure change from; see `mean_model.common_start`."""
        del name  # for members that communicate through the store
        return common_start(reducer, self._members, starts, step, round_, host=host)

    def average_model(self, reducers: Sequence[Reducer], members: tuple[int, ...], step: int, round_: int) -> None:
        average_model(reducers, members, step, round_)

    # Membership queries, for code that communicates through the store.

    @property
    def lost_workers(self) -> Callable[[], frozenset[int]] | None:
        """A function that returns the ranks lost for good, or None (as here) if the run ends at the first failure."""
        return None

    def gathered(self, place: str) -> tuple[int, ...]:  # noqa: ARG002 - for runs that lose workers
        """Return the ranks that take part in the operation named `place`; if members may change, once they agree."""
        return self._members

    def connect(self, members: tuple[int, ...], place: str) -> None:
        """Create the group of the ranks `members`, which all call it, by store keys under `place`; it exists here."""

    def check_to_go_back(self, round_: int) -> None:
        """Raise InputError if other members would not restart averaging at round `round_`; here none is raised."""


def state_of(flight: Flight, prefix: str, buckets: Sequence[Bucket], *, joins: bool = False) -> State:
    """Return the tensors that save an operation in flight (not written back yet); their names start with `prefix`.

    For a worker that `joins`, only the inputs are returned, from which the operation restarts.
    """
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
    """Return the operation in flight (an average, not written back yet) that `state_of` saved under `prefix`.

    `start` is that of the new `Flight`, `group` returns its group by round; `lag` and `since` (by group) are those of
    its `Content`. Raises KeyError, ValueError or RuntimeError for a state of another model.
    """
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
