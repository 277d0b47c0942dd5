"""World: all workers of a run as one of them sees it, with the table of the groups that were made.

Two worlds offer groups: `GlooWorld` (CPU; also many ranks as threads of one process, which is how tests run) and
`NcclWorld` (CUDA). Both make one raw group per distinct set of members, by its members only, in one order. Everything
above talks to a `World` and never to the global state of `torch.distributed`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Protocol

import torch

from partreduce.runtime.transport.background import Background
from partreduce.runtime.transport.communicators import Communicator, first_line
from partreduce.runtime.transport.streams import Streams, streams_of
from partreduce.runtime.transport.tags import sums_agree, tag_of
from partreduce.runtime.transport.torch_api import Store
from partreduce.runtime.transport.waiting import SignsOfLife
from partreduce.topo.errors import UnavailableError
from partreduce.topo.phase import Group
from partreduce.topo.schedule import Schedule

MAX_GROUPS = 64
"""Groups that one worker may belong to; each costs it about one file descriptor per other member."""
DESTROY_SECONDS = 0.2


class World(Protocol):
    """All workers of a run, as one of them sees it."""

    rank: int
    size: int
    store: Store
    timeout: timedelta
    signs: SignsOfLife | None

    def prepare(self, schedule: Schedule) -> None:
        """Make and warm up every group that the schedule needs; all workers call it."""

    def has(self, members: Sequence[int], *, name: str = "") -> bool:
        """Whether the group with these members, or their further communicator of this name, was made."""

    def create(self, members: tuple[int, ...], *, name: str = "") -> Communicator:
        """Make one group, or a further communicator of its members for a thread of its own.

        All members call this, in one order that is the same for all workers.
        """

    def communicator(self, members: Sequence[int], *, name: str = "") -> Communicator:
        """The group with these members (ascending), which contain this worker, or their communicator of this name."""

    def streams(self, device: torch.device) -> Streams:
        """Where the operations on tensors of a device run."""

    def everyone(self) -> Communicator:
        """The group of all workers."""

    def next_instance(self) -> int:
        """A number that counts the optimizers of this world, equal on all workers."""

    def on_host(self) -> World:
        """The same workers over host memory: this world, except where its groups work on devices."""

    def kin(self) -> Sequence[World]:
        """The worlds of the same workers that are abandoned together, this one among them."""

    def abandon(self) -> None:
        """Destroy all groups at once, so that peers learn of a failure in milliseconds."""


class GroupTable(ABC):
    """What both worlds share: the table of groups, warmed up in order."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self._groups: dict[tuple[int, ...], Communicator] = {}
        self._further: dict[tuple[tuple[int, ...], str], Communicator] = {}
        """Communicators beside those of the groups, by members and name; destroyed together with them."""
        self._streams: dict[torch.device, Streams] = {}
        self._instances = 0
        self.abandoned = False
        self.signs: SignsOfLife | None = None
        """What is known of the other workers, once somebody knows it: it names who holds up the making of a group."""

    @abstractmethod
    def prepare(self, schedule: Schedule) -> None:
        """See World."""

    def communicator(self, members: Sequence[int], *, name: str = "") -> Communicator:
        """The group with these members, or their further communicator of this name.

        Raises:
            UnavailableError: the groups were destroyed, or this one was never made.
        """
        key = tuple(members)
        communicator = self._further.get((key, name)) if name else self._groups.get(key)
        if communicator is None:
            why = "was destroyed after an earlier failure" if self.abandoned else "was not made at start"
            raise UnavailableError(f"group {Group(key)}{name and ' '}{name}: {why}")
        return communicator

    @abstractmethod
    def create(self, members: tuple[int, ...], *, name: str = "") -> Communicator:
        """See World."""

    def has(self, members: Sequence[int], *, name: str = "") -> bool:
        """Whether the group with these members, or their further communicator of this name, was made."""
        key = tuple(members)
        return (key, name) in self._further if name else key in self._groups

    def _keep(self, members: tuple[int, ...], name: str, communicator: Communicator) -> Communicator:
        if name:
            self._further[members, name] = communicator
        else:
            self._groups[members] = communicator
        return communicator

    def _taken(self, doomed: Iterable[tuple[int, ...]]) -> list[Communicator]:
        """Take all communicators of these members out of the table; another thread may do so, too."""
        sets = set(doomed)
        taken = [self._groups.pop(members, None) for members in sets]
        taken += [self._further.pop(key, None) for key in list(self._further) if key[0] in sets]
        return [communicator for communicator in taken if communicator is not None]

    def streams(self, device: torch.device) -> Streams:
        """The device's streams, made once: a side stream is shared by all operations of this worker."""
        if device not in self._streams:
            self._streams.setdefault(device, streams_of(device))  # another thread may have been faster
        return self._streams[device]

    def everyone(self) -> Communicator:
        return self.communicator(range(self.size))

    def next_instance(self) -> int:
        """A number that counts the optimizers of this world, equal on all workers."""
        self._instances += 1
        return self._instances

    def on_host(self) -> World:
        return self

    def kin(self) -> Sequence[World]:
        return [self]

    def abandon(self) -> None:
        """Destroy all groups at once.

        A group without a running operation closes its sockets immediately, so that its other members learn in
        milliseconds; one with a running operation only when that ends, so each is left to a thread.
        """
        self.abandoned = True
        self.destroy(self._members())

    def _members(self) -> set[tuple[int, ...]]:
        return {*self._groups, *(members for members, _ in self._further)}

    def destroy(self, doomed: Iterable[tuple[int, ...]]) -> None:
        """Destroy some groups at once, as `abandon` does all; the others stay as they are."""
        backends = [[backend] for communicator in self._taken(doomed) for backend in communicator.close()]
        name = "partreduce-destroy-group"
        endings = [Background(_drop, held, name=name) for held in backends]
        backends.clear()
        for ending in endings:
            ending.start()
        deadline = time.monotonic() + DESTROY_SECONDS
        for ending in endings:
            ending.join(max(0.0, deadline - time.monotonic()))

    def destroy_with(self, ranks: Iterable[int]) -> None:
        """Destroy the groups that a lost worker was in."""
        gone = frozenset(ranks)
        self.destroy([members for members in self._members() if not gone.isdisjoint(members)])

    def _warmed_up(
        self, members: tuple[int, ...], backend: object, device: str, timeout: timedelta | None
    ) -> Communicator:
        """A new group that has done one tagged operation; its later ones have the given timeout."""
        communicator = Communicator(members, self.rank, backend)
        tag = tag_of("warm-up", members)
        numbers = torch.tensor(tag, dtype=torch.float32, device=device)
        try:
            communicator.all_reduce(numbers).wait()
        except (RuntimeError, UnavailableError) as error:
            communicator.close()
            reason = first_line(error)
            raise UnavailableError(f"group {Group(members)}: its first operation failed ({reason})") from None
        if not sums_agree(numbers, tag, len(members)):
            raise UnavailableError(f"group {Group(members)}: workers of different groups answered the first operation")
        communicator.limit_to(timeout)
        return communicator


def _drop(backends: list[object]) -> None:
    """Release a backend; its destructor waits for the running operation, without the GIL."""
    backends.clear()
