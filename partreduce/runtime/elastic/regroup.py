"""Connect all members of a new generation, the time between two changes of members; joining workers copy a state.

The members first compare schedule and view, then create their groups; they continue once every member has a state.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

import torch

from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.liveness.handshake import handshake
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.store import NamedPrefixStore
from partreduce.runtime.transport.waiting import PeerGoneError
from partreduce.runtime.transport.worlds import member_sets
from partreduce.schedulers.protocols.membership.messages import Members, View
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.errors import UnavailableError
from partreduce.topo.phase import Group
from partreduce.topo.schedule import Schedule
from partreduce.topo.survivors import after_failure

FAILED = "a further worker is lost"


class State(Protocol):
    """A worker's complete training state, which joining workers copy from one member, the donor."""

    def give(self) -> bytes: ...

    def take(self, data: bytes, turn: int) -> None:
        """Load `data`, which the donor packed; training continues with the step before average `turn` of the run."""

    def check_unfit(self) -> None:
        """Raise InputError if the script holds state that a joining worker could not copy."""


def name_of(generation: int) -> str:
    """Return the prefix in the store of all keys of a generation, the time between two changes of members."""
    return f"generation-{generation}"


class Regroup:
    """One worker's groups in the current generation, and its connection to the members of the next.

    A generation is the time between two changes of members. `key` names the optimizer; `timeout` is in seconds.
    """

    def __init__(self, world: GlooWorld, schedule: Schedule, *, key: str, timeout: float) -> None:
        self.world, self.schedule, self.key, self.timeout = world, schedule, key, timeout
        self.reducers: dict[Reducer, str] = {}  # reducers of the run, with their original keys
        self.held: State | None = None
        self._members: Members = tuple(range(world.size))
        self._now: Schedule | None = schedule  # None if this worker is the only member

    @property
    def first(self) -> Reducer:
        return next(iter(self.reducers))

    def group_of(self, round_: int) -> Group | None:
        """Return this worker's group in a round, in ranks of the run's start; None if it has none in that round."""
        rank, members = self.world.rank, self._members
        if self._now is self.schedule:
            return self._now.group_of(rank, round_)
        if self._now is None:
            own = self.schedule.group_of(rank, round_)
            return Group(members) if own is None else Group(members, own.relaxation)
        group = self._now.group_of(members.index(rank), round_)
        return None if group is None else Group(tuple(members[place] for place in group.members), group.relaxation)

    def connect(self, view: View, is_open: Callable[[], bool], healed: Callable[[], None]) -> str | None:
        """Connect to all members of a view (the launcher's list of members); return why that failed, or None.

        `is_open` returns whether another vote has been called; `healed` is called after this worker has copied a state.
        """
        world, name, members = self.world, name_of(view.generation), view.members
        failed = frozenset(range(world.size)) - frozenset(members)
        self._members = members
        if world.rank in view.joined:
            world.start_over(name)  # the other members did so when they voted
        self._now = now = (
            self.schedule if not failed else after_failure(self.schedule, failed) if len(members) > 1 else None
        )
        self.first.heartbeat.doing(f"connects the groups of generation {view.generation}", members)
        for reducer, key in self.reducers.items():
            reducer.key = f"{key} {name}"
        if now is None:
            return None
        world.abort_reason = lambda: FAILED if is_open() else None
        try:
            facts = {
                "schedule": schedule_sha256(now),
                "generation": json.dumps([view.generation, members, view.resume]),
            }
            self._compare(view, facts, "")
            healing = tuple(sorted((view.donor, *view.joined)))
            takes_part = {healing} if world.rank in healing else set()
            sets = member_sets(now, members.index(world.rank))
            own = [tuple(members[place] for place in group) for group in sets]
            has_blocks = self.schedule.strategy.transport.codec.has_blocks
            world.make({members, *takes_part, *own}, of_codes=own if has_blocks else ())
            if takes_part:
                self._hand_over(view, healing, is_open, healed)
            if view.joined:
                self._compare(view, {}, "-healed")
        except UnavailableError as error:
            return str(error)
        finally:
            world.abort_reason = lambda: None
        return None

    def _compare(self, view: View, facts: dict[str, str], what: str) -> None:
        name, ranks = name_of(view.generation), {place: [rank] for place, rank in enumerate(view.members)}
        store, place = NamedPrefixStore(name, self.world.store, ranks), view.members.index(self.world.rank)
        handshake(
            store, place, len(view.members), facts,
            key=f"{self.key}-{name}{what}", timeout=self.timeout, abort_reason=self.world.abort_reason,
        )  # fmt: skip

    def _hand_over(self, view: View, members: Members, is_open: Callable[[], bool], healed: Callable[[], None]) -> None:
        """Copy the donor's state to the joining workers, by an all-reduce of donor and joining workers, `members`.

        The joining workers add zeros. For `is_open` and `healed` see `connect`.
        """
        held, first = self.held, self.first
        assert held is not None, "as above"
        is_donor, line = self.world.rank == view.donor, self.world.communicator(members)
        data = held.give() if is_donor else b""
        operation = first.recorder.begin("state for joining workers", 0, view.resume[0], members, len(data))

        def sum_of(array: torch.Tensor) -> torch.Tensor:
            first.wait_for(line.all_reduce(array), operation, lambda: FAILED if is_open() else None)
            return array

        try:
            length = int(sum_of(torch.tensor([len(data)])))
            array = torch.zeros(length, dtype=torch.uint8)
            if is_donor:
                array.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            sum_of(array)
        except (RuntimeError, PeerGoneError) as error:
            first.recorder.end(operation, f"failed: {error}")
            raise UnavailableError(str(error)) from None
        first.recorder.end(operation)
        if not is_donor:
            held.take(array.numpy().tobytes(), view.resume[0])
            healed()
