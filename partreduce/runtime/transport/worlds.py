"""Define a world: one worker's view of all workers of a run, with the groups that this worker belongs to.

Its subclasses are `GlooWorld` (CPU; also with many ranks as threads of one process, as in tests) and `NcclWorld`
(CUDA). All other code uses a `World` and never the global state of `torch.distributed`.
"""

from __future__ import annotations

import hashlib
import os
import resource
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch

from partreduce.runtime.environment import OVER_GLOO
from partreduce.runtime.transport.communicators import Communicator, Sums, first_line
from partreduce.runtime.transport.multistage_allreduce import (
    FlatCodedStages,
    HierarchicalCommunicator,
    Stages,
    levels_of,
)
from partreduce.runtime.transport.store import deaths_of
from partreduce.runtime.transport.streams import Streams, streams_of
from partreduce.runtime.transport.tags import sums_agree, tag_of
from partreduce.runtime.transport.torch_api import Store
from partreduce.runtime.transport.waiting import GLANCE_SECONDS, PeerWatch, SignsOfLife
from partreduce.runtime.transport.work import Background
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError, MissingDependencyError, UnavailableError
from partreduce.topo.phase import Group
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm

MAX_GROUPS = 64  # most groups per worker; each costs about one file descriptor per other member
SPARE_DESCRIPTORS = 64
DESTROY_SECONDS = 0.2
IN_BLOCKS = "blocks"  # name of the separate communicators for all-reduces with int8 or int4


class World:
    """One worker's view of all workers of a run; creates, finds and destroys the groups of worker `rank`.

    A group is created by its members only. All workers create groups in the order of their sorted members, so that
    workers cannot wait in a circle; further communicators follow in the same order. Members find each other by keys in
    `store` that start with `prefix`. `timeout` is for connecting and for operations, `max_groups` limits the groups.

    If `nodes`, the node of every worker, is set, groups with equally many members on each node are hierarchical. These
    have three communicators: of all members, of those on this node, and of those with the same local index on other
    nodes. They are created in this order, one group after the other. No two groups share a communicator, so that each
    can be destroyed separately.
    """

    is_queued = False
    """Whether all-reduces in several stages are queued on a device, in order with all other operations of a group."""

    def __init__(
        self, store: Store, rank: int, size: int, timeout: timedelta, *, prefix: str, max_groups: int = MAX_GROUPS
    ) -> None:
        self.store, self.rank, self.size, self.timeout, self.max_groups = store, rank, size, timeout, max_groups
        self.prefix = prefix
        self.signs: SignsOfLife | None = None
        """Source of information on other workers, once set; names the worker that delays the creation of a group."""
        self._instances = 0
        self._groups: dict[tuple[tuple[int, ...], str], Communicator] = {}
        """Communicators by (members, name); those of the same members are destroyed together. The main one is
        unnamed."""
        self._streams: dict[torch.device, Streams] = {}
        self.p_reducer: Any = None
        """State of `p_reduce` in this world, after its first call."""
        self.abandoned = False
        self.nodes: tuple[int, ...] | None = None
        self.relatives: list[World] = []
        """Worlds of the same workers with another all-reduce algorithm; they are abandoned together."""
        self.abort_reason: Callable[[], str | None] = lambda: None  # returns why to stop connecting a group, or None

    def with_prefix(self, prefix: str) -> World:
        """Return a second world (set of groups) of these workers, with keys under `prefix` in the store."""
        raise NotImplementedError

    def _connect(self, members: tuple[int, ...], place: str, within: timedelta | None) -> Communicator:
        """Connect `members` by store keys under `place`, within the time `within`, and run a first all-reduce."""
        raise NotImplementedError

    def _staged(self, stages: Stages) -> Sums:
        raise NotImplementedError

    def everyone(self) -> Communicator:
        return self.communicator(range(self.size))

    def next_instance(self) -> int:
        """Return a number for this world's next optimizer, counted from 1; it is equal on all workers."""
        self._instances += 1
        return self._instances

    def on_host(self) -> World:
        """Return a world of the same workers for tensors in host memory: this one, or another for CUDA."""
        return self

    def prepare(self, schedule: Schedule) -> None:
        """Connect all groups of this worker in the schedule; all workers call it.

        Raises InputError if there are too many groups, UnavailableError if one does not connect.
        """
        own = member_sets(schedule, self.rank)
        wanted = own | {tuple(range(self.size))}
        in_blocks = schedule.strategy.transport.codec.has_blocks
        flat = sorted(members for members in own if in_blocks and self._levels(members) is None)
        parts = [part for members in wanted for part in (members, *(self._levels(members) or ()))]
        check_budget(schedule.name, [*parts, *([] if self.is_queued else flat)], self.max_groups)
        self.make(wanted, of_codes=own if in_blocks else ())

    def make(self, wanted: Iterable[tuple[int, ...]], *, of_codes: Iterable[tuple[int, ...]]) -> None:
        """Create those of the groups `wanted` that do not exist; prepare the groups `of_codes` for int8 and int4."""
        for members in sorted(members for members in set(wanted) if not self.has(members)):
            self.create(members)
        for members in sorted(of_codes):
            if self._levels(members) is None:  # hierarchical groups have stages for codecs already
                self._sum_in_blocks(members)

    def create(
        self, members: tuple[int, ...], *, name: str = "", instance: str = "", within: timedelta | None = None
    ) -> Communicator:
        """Create one group; all its members call it, and all workers create groups in one common order.

        Args:
            members: ranks of the group, ascending, this worker among them.
            name: name of a separate communicator of the same members, for use by another thread.
            instance: distinguishes repeated creations of the same group.
            within: timeout for connecting, if shorter than the world's.

        Raises:
            UnavailableError: a member is gone or did not connect in time, or this world was abandoned.
        """
        if self.abandoned:
            raise UnavailableError(f"group {Group(members)}: the groups of this run were destroyed after a failure")
        place = f"{self.prefix}{name and '-'}{name}/{','.join(map(str, members))}{instance and '/'}{instance}"
        group = self._groups[members, name] = self._connect(members, place, within)
        if self.nodes is None:
            return group
        group.is_inside_a_node = len({self.nodes[member] for member in members}) == 1
        levels = self._levels(members)
        if levels is None:
            return group
        made: list[Communicator] = []
        try:
            for level, part in zip(("inside", "across"), levels, strict=True):
                made.append(self._connect(part, f"{place}/{level}/{','.join(map(str, part))}", within))
        except UnavailableError:
            self._end([backend for one in made for backend in one.close()])
            self.destroy([members])
            raise
        inside, across = made
        group = self._groups[members, name] = HierarchicalCommunicator(group, inside, across, self._staged)
        return group

    def _levels(self, members: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        return None if self.nodes is None else levels_of(members, self.nodes, self.rank)

    def _sum_in_blocks(self, members: tuple[int, ...]) -> None:
        """Prepare a group for all-reduces with int8 or int4, whose blocks share a scale, on a separate communicator."""
        group = self._groups[members, ""]
        if group.in_blocks is None:
            stages = FlatCodedStages(group if self.is_queued else self.create(members, name=IN_BLOCKS))
            group.in_blocks = self._staged(stages)

    def _watch_over(self, members: tuple[int, ...]) -> Callable[[], str | None]:
        """Return a function to call repeatedly while a group connects; it returns a reason to stop waiting, or None."""
        signs = self.signs or SignsOfLife()
        signs.doing(f"entered the making of group {Group(members)}", members)
        watch = PeerWatch(signs, members)
        return lambda: (self.abort_reason() or self._why(members)) if watch.is_due() else None

    def _why(self, members: tuple[int, ...]) -> str | None:
        """Return why a member can no longer connect, or that the store is gone; None if not known."""
        if (signs := self.signs) is None:
            return deaths_of(self.store, members)
        lost = signs.lost(members)
        return signs.failure_reason(lost) if lost else None if (problem := signs.store_lost()) is None else str(problem)

    def communicator(self, members: Sequence[int], *, name: str = "") -> Communicator:
        """Return the communicator of these members (ascending), or a separate one of the same members called `name`.

        Raises UnavailableError if it was not created at start or was destroyed.
        """
        key = tuple(members)
        if (communicator := self._groups.get((key, name))) is None:
            why = "was destroyed after an earlier failure" if self.abandoned else "was not made at start"
            raise UnavailableError(f"group {Group(key)}{name and ' '}{name}: {why}")
        return communicator

    def has(self, members: Sequence[int], *, name: str = "") -> bool:
        """Return whether the communicator that `communicator` would return for these arguments exists."""
        return (tuple(members), name) in self._groups

    def streams(self, device: torch.device) -> Streams:
        """Return the streams of a device, created once; all operations of this worker share the side stream."""
        if device not in self._streams:
            self._streams.setdefault(device, streams_of(device))  # another thread may have been faster
        return self._streams[device]

    def abandon(self) -> None:
        """Destroy all groups at once, also those of related worlds, so that peers notice a failure in milliseconds."""
        self.abandoned = True
        self.destroy_with(range(self.size))
        for other in self.relatives:
            if not other.abandoned:
                other.abandon()

    def destroy(self, doomed: Iterable[tuple[int, ...]], *, seconds: float = DESTROY_SECONDS) -> None:
        """Destroy the groups with these members at once, and wait up to `seconds` for their connections to close."""
        sets = set(doomed)
        # Another thread may destroy groups at the same time.
        taken = [self._groups.pop(key, None) for key in list(self._groups) if key[0] in sets]
        self._end([backend for group in taken if group is not None for backend in group.close()], seconds)

    def _end(self, backends: list[object], seconds: float = DESTROY_SECONDS) -> None:
        """Destroy backends (gloo's or NCCL's groups) in separate threads, waiting up to `seconds`.

        A backend without a running operation closes its sockets at once, so that other members notice within
        milliseconds; one with a running operation closes them when that ends.
        """
        # The destructor waits for the running operation, without the GIL.
        endings = [Background([backend].clear, name="partreduce-destroy-group") for backend in backends]
        backends.clear()
        for ending in endings:
            ending.start()
        deadline = time.monotonic() + seconds
        for ending in endings:
            ending.join(max(0.0, deadline - time.monotonic()))

    def destroy_with(self, ranks: Iterable[int], *, seconds: float = DESTROY_SECONDS) -> None:
        """Destroy all groups that contain one of the failed workers `ranks`; for `seconds` see `destroy`."""
        gone = frozenset(ranks)
        self.destroy([members for members, _ in list(self._groups) if not gone.isdisjoint(members)], seconds=seconds)

    def _warmed_up(
        self,
        communicator: Communicator,
        device: str,
        timeout: timedelta | None,
        watch: Callable[[], str | None] | None = None,
    ) -> Communicator:
        """Return a new communicator, after its members have all-reduced a tag on `device`.

        Later operations have the given timeout. Raises UnavailableError if that all-reduce fails, if the tags differ,
        or if `watch`, called repeatedly, returns a reason to stop waiting.
        """
        members = communicator.members
        tag = tag_of("warm-up", members)
        numbers = torch.tensor(tag, dtype=torch.float32, device=device)

        def look() -> float:
            if watch is not None and (why := watch()) is not None:
                raise UnavailableError(why)
            return GLANCE_SECONDS

        try:
            communicator.all_reduce(numbers).wait(None if watch is None else look)
            if not sums_agree(numbers, tag, len(members)):
                raise UnavailableError("workers of different groups answered it")
        except (RuntimeError, UnavailableError) as error:
            self._end(communicator.close(), seconds=0.0)
            reason = first_line(error)
            raise UnavailableError(f"group {Group(members)}: its first operation failed ({reason})") from None
        communicator.limit_to(timeout)
        return communicator


def member_sets(schedule: Schedule, rank: int) -> set[tuple[int, ...]]:
    """Return the distinct groups of a worker in all rounds of a schedule; empty for a schedule without fixed groups."""
    if not schedule.is_phased:
        return set()
    rounds = range(schedule.phased.period + (1 if schedule.prologue else 0))
    first = max(schedule.prologue - 1, 0)
    groups = (schedule.group_of(rank, first + index) for index in rounds)
    return {group.members for group in groups if group is not None}


def check_budget(name: str, groups: Iterable[tuple[int, ...]], max_groups: int) -> None:
    """Raise InputError if a worker's `groups` in schedule `name` exceed `max_groups`, or the limit of open files."""
    member_lists = list(groups)
    if len(member_lists) > max_groups:
        raise InputError(
            f"schedule {name!r}: puts this worker into {len(member_lists)} distinct groups, and each costs it sockets "
            f"and a thread; at most {max_groups} are allowed; repeat groups within the period"
        )
    needed = sum(len(members) + 2 for members in member_lists) + SPARE_DESCRIPTORS
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit not in (resource.RLIM_INFINITY, -1) and needed > limit:
        raise InputError(
            f"schedule {name!r}: its groups need about {needed} file descriptors in each worker and the limit is "
            f"{limit}; raise it with `ulimit -n {2 * needed}`"
        )


def over_gloo() -> bool:
    """Return whether PARTREDUCE_CUDA_OVER_GLOO is set to 1: CUDA tensors are then sent over gloo."""
    return os.environ.get(OVER_GLOO) == "1"


def chosen_algorithm(algorithm: AllReduceAlgorithm | str, device: torch.device) -> AllReduceAlgorithm:
    """Return the all-reduce algorithm with this name as an enum; `device` is that of the parameters.

    Raises InputError for an unknown one, MissingDependencyError for `hierarchical` with CUDA tensors over gloo.
    """
    try:
        chosen = AllReduceAlgorithm(algorithm)
    except ValueError:
        raise InputError(
            f"algorithm: {algorithm!r} is not one of {', '.join(one.value for one in AllReduceAlgorithm)}"
        ) from None
    if chosen is AllReduceAlgorithm.HIERARCHICAL:
        check_stages_over_gloo("algorithm: 'hierarchical'", device, "leave algorithm at ring")
    return chosen


def check_stages_over_gloo(what: str, device: torch.device, instead: str) -> None:
    """Raise MissingDependencyError if all-reduces in several stages would send CUDA tensors over gloo.

    The error contains `what`, the setting that needs them, and `instead`, what to do in its place.
    """
    if device.type == "cuda" and over_gloo():
        raise MissingDependencyError(
            f"{what}: adds up in stages, which over gloo are a host thread's, and no CUDA stream waits for that; unset "
            f"{OVER_GLOO}, or {instead}"
        )


def world_for_algorithm(world: World, algorithm: AllReduceAlgorithm, cluster: Cluster) -> World:
    """Return the world whose groups use the algorithm: `world` for a ring, else another, created once per cluster."""
    if algorithm is AllReduceAlgorithm.RING:
        return world
    nodes = tuple(cluster.node_of().tolist())
    for other in world.relatives:
        if other.nodes == nodes:
            return other
    digest = hashlib.sha256(repr((world.size, nodes)).encode()).hexdigest()[:16]
    made = world.with_prefix(f"{world.prefix}/hierarchical/{digest}")
    made.nodes, made.relatives = nodes, [world]
    world.relatives.append(made)
    return made
