"""Communicators: the groups of a run, made once at start in one canonical order, each with an explicit timeout.

Two worlds offer them: `GlooWorld` (CPU; also many ranks as threads of one process, which is how tests run) makes one
raw gloo group per distinct set of members, by its members only; `NcclWorld` (CUDA) splits the parent communicator once
per distinct phase. Everything above talks to a `World` and never to the global state of `torch.distributed`.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from preduce.runtime.averaging.tags import sums_agree, tag_of
from preduce.runtime.transport.needed_groups import check_budget, distinct_partitions, member_sets
from preduce.runtime.transport.torch_api import PrefixStore, ProcessGroupGloo, default_group, sum_options
from preduce.topo.errors import InputError, UnavailableError
from preduce.topo.phase import Group

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta

    from preduce.runtime.transport.torch_api import Store, Work
    from preduce.topo.schedule import Schedule

MAX_GROUPS = 64
"""Groups that one worker may belong to; each costs it about one file descriptor per other member."""
DESTROY_SECONDS = 0.2


class Communicator:
    """One group that can reduce; `backend` is a torch ProcessGroup or a raw gloo backend.

    `timeout` is that of a sum, where it differs from the one with which the group was made.
    """

    def __init__(
        self,
        members: tuple[int, ...],
        rank: int,
        backend: Any,  # noqa: ANN401 - as in _live
        timeout: timedelta | None = None,
    ) -> None:
        self.members, self.timeout = members, timeout
        self.place = members.index(rank)
        self._backend: Any = backend

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.members)

    @property
    def is_first(self) -> bool:
        """Whether this worker is the lowest rank in the group."""
        return self.place == 0

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        """Start a sum over the group, in place.

        Raises:
            UnavailableError: the group was destroyed, or a connection of it is broken.
        """
        try:
            work: Work = self._live().allreduce([tensor], sum_options(self.timeout))
        except RuntimeError as error:
            raise UnavailableError(_first_line(error)) from None
        return work

    def exchange(
        self, sends: Sequence[tuple[int, torch.Tensor]], receives: Sequence[tuple[int, torch.Tensor]]
    ) -> list[Work]:
        """Start sending and receiving whole tensors, as (place in the group, tensor) pairs in equal order on both ends.

        All receives are posted before the first send: a send over gloo blocks until its receive is posted, so no order
        of workers can wait in a circle.

        Raises:
            UnavailableError: the group was destroyed, or a connection of it is broken.
        """
        try:
            backend = self._live()
            if not isinstance(backend, ProcessGroupGloo):
                operations = [dist.P2POp(dist.irecv, tensor, place) for place, tensor in receives]
                operations += [dist.P2POp(dist.isend, tensor, place) for place, tensor in sends]
                return list(dist.batch_isend_irecv(operations)) if operations else []
            works: list[Work] = [backend.recv([tensor], place, 0) for place, tensor in receives]
            return works + [backend.send([tensor], place, 0) for place, tensor in sends]
        except RuntimeError as error:
            raise UnavailableError(_first_line(error)) from None

    def broadcast(self, tensor: torch.Tensor) -> Work:
        """Start a copy from the lowest rank to the others, in place."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        work: Work = self._live().broadcast([tensor], options)
        return work

    def all_to_all(
        self, target: torch.Tensor, source: torch.Tensor, receives: Sequence[int], sends: Sequence[int]
    ) -> Work:
        """Start handing out pieces of `source`, one to each member in order, and collecting theirs in `target`.

        Args:
            target: filled with the pieces of all members, in order of their places.
            source: cut into pieces; read until the work has ended.
            receives: elements from each member.
            sends: elements to each member; what i sends to j is what j receives from i.

        Raises:
            UnavailableError: the group was destroyed, or a connection of it is broken.
        """
        options = dist.AllToAllOptions()
        if self.timeout is not None:
            options.timeout = self.timeout
        try:
            work: Work = self._live().alltoall_base(target, source, list(receives), list(sends), options)
        except RuntimeError as error:
            raise UnavailableError(_first_line(error)) from None
        return work

    def _live(self) -> Any:  # noqa: ANN401 - a ProcessGroup or a Backend, which share no typed base
        if self._backend is None:
            raise UnavailableError(f"group {Group(self.members)}: was destroyed after an earlier failure")
        return self._backend

    def close(self) -> list[object]:
        """Let go of what lies below and return it; when the last reference to it goes, its sockets close."""
        backend, self._backend = self._backend, None
        return [backend]


class World(Protocol):
    """All workers of a run, as one of them sees it."""

    rank: int
    size: int
    store: Store
    timeout: timedelta

    def prepare(self, schedule: Schedule) -> None:
        """Make and warm up every group that the schedule needs; all workers call it."""

    def communicator(self, members: Sequence[int]) -> Communicator:
        """The group with these members (ascending), which contain this worker."""

    def everyone(self) -> Communicator:
        """The group of all workers."""

    def next_instance(self) -> int:
        """A number that counts the optimizers of this world, equal on all workers."""

    def abandon(self) -> None:
        """Destroy all groups at once, so that peers learn of a failure in milliseconds."""


class _Groups:
    """What both worlds share: the table of groups, warmed up in order."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self._groups: dict[tuple[int, ...], Communicator] = {}
        self._instances = 0
        self._abandoned = False

    def communicator(self, members: Sequence[int]) -> Communicator:
        """The group with these members.

        Raises:
            UnavailableError: the groups were destroyed, or this one was never made.
        """
        found = self._groups.get(tuple(members))
        if found is None:
            why = "was destroyed after an earlier failure" if self._abandoned else "was not made at start"
            raise UnavailableError(f"group {Group(tuple(members))}: {why}")
        return found

    def has(self, members: Sequence[int]) -> bool:
        """Whether the group with these members was made."""
        return tuple(members) in self._groups

    def everyone(self) -> Communicator:
        """The group of all workers."""
        return self.communicator(range(self.size))

    def next_instance(self) -> int:
        """A number that counts the optimizers of this world, equal on all workers."""
        self._instances += 1
        return self._instances

    def abandon(self) -> None:
        """Destroy all groups at once.

        A group without a running operation closes its sockets immediately, so that its other members learn in
        milliseconds; one with a running operation only when that ends, so each is left to a thread.
        """
        self._abandoned = True
        self.destroy(list(self._groups))

    def destroy(self, doomed: Iterable[tuple[int, ...]]) -> None:
        """Destroy some groups at once, as `abandon` does all; the others stay as they are."""
        found = [self._groups.pop(members) for members in doomed if members in self._groups]
        backends = [[backend] for communicator in found for backend in communicator.close()]
        name = "preduce-destroy-group"
        endings = [threading.Thread(target=_drop, args=(held,), name=name, daemon=True) for held in backends]
        backends.clear()
        for ending in endings:
            ending.start()
        deadline = time.monotonic() + DESTROY_SECONDS
        for ending in endings:
            ending.join(max(0.0, deadline - time.monotonic()))

    def destroy_with(self, ranks: Iterable[int]) -> None:
        """Destroy the groups that a lost worker was in."""
        gone = frozenset(ranks)
        self.destroy([members for members in self._groups if not gone.isdisjoint(members)])

    def _keep(
        self, members: tuple[int, ...], backend: object, device: str, timeout: timedelta | None = None
    ) -> Communicator:
        """Put a new group into the table after one tagged warm-up operation."""
        communicator = self._groups[members] = self._warmed_up(members, backend, device, timeout)
        return communicator

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
            reason = _first_line(error)
            raise UnavailableError(f"group {Group(members)}: its first operation failed ({reason})") from None
        if not bool(sums_agree(numbers, tag, len(members))):
            raise UnavailableError(f"group {Group(members)}: workers of different groups answered the first operation")
        communicator.timeout = timeout
        return communicator


class GlooWorld(_Groups):
    """Workers that meet in a store and reduce over gloo.

    Groups are created by their members only, in the order of their sorted members, which is one total order for all
    workers: so nobody waits in a cycle. All groups of a worker share one gloo device and use one thread each.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, *, max_groups: int = MAX_GROUPS) -> None:
        super().__init__(store, rank, size, timeout)
        self.max_groups = max_groups
        self.relatives: list[GlooWorld] = []
        """Worlds of the same workers whose groups have another form; they are abandoned together."""
        self._prefix = "preduce/group"
        self._device: object = None

    def prepare(self, schedule: Schedule) -> None:
        """Make the groups of this worker; see World.prepare.

        Raises:
            InputError: more groups, or more file descriptors, than this worker may have.
            UnavailableError: members did not arrive within the timeout.
        """
        wanted = member_sets(schedule, self.rank) | {tuple(range(self.size))}
        missing = sorted(wanted - self._groups.keys())
        check_budget(schedule.name, [part for members in wanted for part in self.parts(members)], self.max_groups)
        for members in missing:
            self.create(members)

    def parts(self, members: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The members of each gloo group that this worker joins for one group."""
        return [members]

    def abandon(self) -> None:
        """Destroy all groups at once, and those of the relatives."""
        super().abandon()
        for other in self.relatives:
            if not other._abandoned:  # noqa: SLF001 - of the same class
                other.abandon()

    def create(self, members: tuple[int, ...], *, instance: str = "", within: timedelta | None = None) -> Communicator:
        """Make one group; all its members call this, in one order that is the same for all workers.

        Args:
            members: of the group, ascending, this worker among them.
            instance: names one making of a group that may have to be made again.
            within: how long connecting may take, where that is known to be shorter than the world's timeout.

        Raises:
            UnavailableError: members did not arrive within the timeout, or the world is abandoned.
        """
        communicator = self._groups[members] = self._connect(members, self._name(members, instance), within)
        return communicator

    def _name(self, members: tuple[int, ...], instance: str) -> str:
        """Where in the store the members of a new group meet."""
        return f"{self._prefix}/{','.join(map(str, members))}{instance and '/'}{instance}"

    def _connect(self, members: tuple[int, ...], name: str, within: timedelta | None) -> Communicator:
        """A new gloo group, warmed up."""
        if self._abandoned:
            raise UnavailableError(f"group {Group(members)}: the groups of this run were destroyed after a failure")
        limit = self.timeout if within is None else min(within, self.timeout)
        options = ProcessGroupGloo._Options()  # noqa: SLF001 - the only way to share a device and set one thread
        options._timeout = limit  # noqa: SLF001 - as above
        options._threads = 1  # noqa: SLF001 - as above
        options._devices = [self._gloo_device()]  # noqa: SLF001 - as above
        try:
            backend = ProcessGroupGloo(PrefixStore(name, self.store), members.index(self.rank), len(members), options)
        except RuntimeError as error:
            raise UnavailableError(
                f"group {Group(members)}: not all members connected within {limit.total_seconds():g} s "
                f"({_first_line(error)})"
            ) from None
        return self._warmed_up(members, backend, "cpu", None if within is None else self.timeout)

    def _gloo_device(self) -> object:
        if self._device is None:
            interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
            make = ProcessGroupGloo
            self._device = make.create_device(interface=interface) if interface else make.create_default_device()
        return self._device


class NcclWorld(_Groups):
    """Workers with one CUDA device each; groups are splits of the default process group, one split per distinct phase.

    This path has never been executed on a GPU.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        *,
        device: torch.device,
        max_splits: int = MAX_GROUPS,
    ) -> None:
        super().__init__(store, rank, size, timeout)
        self.device, self.max_splits = device, max_splits
        self._splits: set[tuple[tuple[int, ...], ...]] = set()

    def prepare(self, schedule: Schedule) -> None:
        """Split once per distinct phase, on all workers in one order; see World.prepare.

        Raises:
            InputError: more distinct phases than allowed; each costs GPU memory for a communicator.
        """
        world = tuple(range(self.size))
        if world not in self._groups:
            self._keep(world, default_group(), str(self.device))
        partitions = distinct_partitions(schedule)
        if len(partitions) > self.max_splits:
            raise InputError(
                f"schedule {schedule.name!r}: has {len(partitions)} distinct phases and each needs a communicator "
                f"of its own on the GPU; at most {self.max_splits} are allowed; repeat phases"
            )
        for index, partition in enumerate(partitions):
            if partition in self._splits or partition == (world,):
                continue
            self._splits.add(partition)
            split = dist.split_group(
                split_ranks=[list(members) for members in partition],
                timeout=self.timeout,
                group_desc=f"preduce {schedule.name} phase {index}: " + " ".join(str(Group(m)) for m in partition[:8]),
            )
            mine = next((members for members in partition if self.rank in members), None)
            if split is not None and mine is not None and mine not in self._groups:
                self._keep(mine, split, str(self.device))

    def abandon(self) -> None:
        """Abort all communicators of the process together: one by one can deadlock in NCCL."""
        super().abandon()
        abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
        if abort is not None and dist.is_initialized():
            abort()


def _drop(backends: list[object]) -> None:
    """Release a backend; its destructor waits for the running operation, without the GIL."""
    backends.clear()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
