"""GlooWorld: workers that meet in a store and reduce over gloo, each group made by its members only."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from partreduce.runtime.transport.bounded import BoundedCall, OverdueError
from partreduce.runtime.transport.coded_sums import FlatCodedStages
from partreduce.runtime.transport.communicators import Communicator, first_line
from partreduce.runtime.transport.needed_groups import check_budget, member_sets
from partreduce.runtime.transport.notes import deaths_of
from partreduce.runtime.transport.own_host import chosen_interface, has_address, own_host
from partreduce.runtime.transport.staged import StagedSums
from partreduce.runtime.transport.torch_api import PrefixStore, ProcessGroupGloo, Store
from partreduce.runtime.transport.waiting import DIAGNOSE_SECONDS, PeerWatch, SignsOfLife
from partreduce.runtime.transport.worlds import MAX_GROUPS, GroupTable, World
from partreduce.topo.errors import StoreLostError, UnavailableError
from partreduce.topo.phase import Group
from partreduce.topo.schedule import Schedule

IN_BLOCKS = "blocks"
"""The name of the second communicators of groups that sum by codecs of blocks."""
GLOO_LIMIT = timedelta(days=1)
GRACE_SECONDS = 1.0
"""How much longer than the timeout we wait for gloo to say by itself that a member did not connect."""


class GlooWorld(GroupTable):
    """Workers that meet in a store and reduce over gloo.

    Groups are created by their members only, in the order of their sorted members, which is one total order for all
    workers: so nobody waits in a cycle; the second communicators, in the same order, follow all first ones. All groups
    of a worker share one gloo device and use one thread each.
    """

    def __init__(
        self, store: Store, rank: int, size: int, timeout: timedelta, *, max_groups: int = MAX_GROUPS, attempt: int = 1
    ) -> None:
        """Join; `attempt` counts, alike on all workers, the worlds of a process that starts afresh after a failure."""
        super().__init__(store, rank, size, timeout)
        self.max_groups = max_groups
        self.relatives: list[GlooWorld] = []
        """Worlds of the same workers whose groups have another form; they are abandoned together."""
        # Addresses that a failed attempt left in the store belong to connections that are gone.
        self._prefix = "partreduce/group" if attempt == 1 else f"partreduce/group/attempt-{attempt}"
        self.given_up: Callable[[], str | None] = lambda: None
        """Asked, too, while a group connects: why it need not."""
        self._device: object = None
        self._left_behind: list[BoundedCall[object]] = []

    def prepare(self, schedule: Schedule) -> None:
        """Make the groups of this worker; see World.prepare.

        Raises:
            InputError: more groups, or more file descriptors, than this worker may have.
            UnavailableError: members did not arrive within the timeout.
        """
        own = member_sets(schedule, self.rank)
        wanted = own | {tuple(range(self.size))}
        in_blocks = schedule.strategy.how.codec.has_blocks
        second = sorted(members for members in own if in_blocks and self.needs_second(members))
        parts = [part for members in wanted for part in self.parts(members)]
        check_budget(schedule.name, [*parts, *second], self.max_groups)
        for members in sorted(wanted - self._groups.keys()):
            self.create(members)
        for members in second:
            self._sum_in_blocks(members)

    def needs_second(self, members: tuple[int, ...]) -> bool:  # noqa: ARG002 - forms with stages have their own groups
        """Whether sums by codecs of blocks over these members need a communicator beside that of everything else."""
        return True

    def _sum_in_blocks(self, members: tuple[int, ...]) -> None:
        """Let a group sum by codecs of blocks: its thread has a communicator that nothing else uses."""
        communicator = self._groups[members]
        if communicator.in_blocks is None:
            beside = self.create(members, name=IN_BLOCKS)
            communicator.in_blocks = StagedSums(FlatCodedStages(beside))

    def parts(self, members: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The members of each gloo group that this worker joins for one group."""
        return [members]

    def kin(self) -> Sequence[World]:
        """This world and its relatives."""
        return [self, *self.relatives]

    def abandon(self) -> None:
        """Destroy all groups at once, and those of the relatives."""
        super().abandon()
        for other in self.relatives:
            if not other.abandoned:
                other.abandon()

    def begin_anew(self, name: str) -> None:
        """Destroy all groups; those that are made from now on meet at another place of the store."""
        self.destroy(self._members())
        self._prefix = f"partreduce/group/{name}"

    def create(
        self, members: tuple[int, ...], *, name: str = "", instance: str = "", within: timedelta | None = None
    ) -> Communicator:
        """Make one group; all its members call this, in one order that is the same for all workers.

        Args:
            members: of the group, ascending, this worker among them.
            name: of a further communicator of members who have one, for a thread of its own.
            instance: names one making of a group that may have to be made again.
            within: how long connecting may take, where that is known to be shorter than the world's timeout.

        Raises:
            UnavailableError: members did not arrive within the timeout, or the world is abandoned.
        """
        return self._keep(members, name, self._connect(members, self._place(members, name, instance), within))

    def _place(self, members: tuple[int, ...], name: str, instance: str) -> str:
        """Where in the store the members of a new group meet."""
        return f"{self._prefix}{name and '-'}{name}/{','.join(map(str, members))}{instance and '/'}{instance}"

    def _connect(self, members: tuple[int, ...], name: str, within: timedelta | None) -> Communicator:
        if self.abandoned:
            raise UnavailableError(f"group {Group(members)}: the groups of this run were destroyed after a failure")
        limit = self.timeout if within is None else min(within, self.timeout)
        options = ProcessGroupGloo._Options()  # noqa: SLF001 - the only way to share a device and set one thread
        options._timeout = limit  # noqa: SLF001 - as above
        options._threads = 1  # noqa: SLF001 - as above
        options._devices = [self.gloo_device()]  # noqa: SLF001 - as above
        store, place = PrefixStore(name, self._store_to_connect()), members.index(self.rank)
        call: BoundedCall[object] = BoundedCall(lambda: ProcessGroupGloo(store, place, len(members), options))
        try:
            backend = call.result(limit.total_seconds() + GRACE_SECONDS, self._watch_over(members))
        except (RuntimeError, OverdueError) as error:
            if call.is_running:
                self._left_behind.append(call)
            raise self._not_connected(members, limit.total_seconds(), error) from None
        try:
            return self._warmed_up(members, backend, "cpu", self._limit_of_sums(is_for_a_while=within is not None))
        except UnavailableError as error:
            raise self._explained(members, error) from None

    def _limit_of_sums(self, *, is_for_a_while: bool) -> timedelta | None:
        """Gloo's own limit of an operation; None for the one with which a group connects.

        Gloo counts the time in which this process was stopped. So where a run waits by limits of its own (see `Wait`),
        gloo's is one that does not come first. A group that the others go on without keeps its memory until it is over.
        """
        if is_for_a_while:
            return self.timeout
        return None if self.signs is None else GLOO_LIMIT

    def _explained(self, members: tuple[int, ...], error: UnavailableError) -> UnavailableError:
        """The failure of a group's first operation with the death that caused it, if one becomes known soon."""
        why = self._soon_known(members)
        if why is None:
            return error if self.signs is None else UnavailableError(f"{error}; {self.signs.waits_for(members, None)}")
        return UnavailableError(f"group {Group(members)}: {why}")

    def _soon_known(self, members: tuple[int, ...]) -> str | None:
        """Why a member cannot come: a closed connection is seen before anybody has told of the death behind it."""
        signs, deadline = self.signs, time.monotonic() + DIAGNOSE_SECONDS
        while time.monotonic() < deadline:
            why = deaths_of(self.store, members) if signs is None else self._why(signs, members)
            if why is not None:
                return why
            time.sleep(DIAGNOSE_SECONDS / 30)
        return None

    def _store_to_connect(self) -> Store:
        """The world's store; a client of its own where a call that was left behind may still hold up that one."""
        self._left_behind = [call for call in self._left_behind if call.is_running]
        if not self._left_behind or not hasattr(self.store, "clone"):
            return self.store
        other: Store = self.store.clone()
        return other

    def _watch_over(self, members: tuple[int, ...]) -> Callable[[], str | None]:
        """Asked now and then while a group connects: why a member can no longer come."""
        signs = self.signs
        if signs is None:
            return lambda: deaths_of(self.store, members)
        signs.doing(f"entered the making of group {Group(members)}", members)
        watch = PeerWatch(signs, members)
        return lambda: self.given_up() or (self._why(signs, members) if watch.is_due() else None)

    @staticmethod
    def _why(signs: SignsOfLife, members: tuple[int, ...]) -> str | None:
        """Why one of these members, and not just any worker, is known not to come; or that the store is gone."""
        lost = signs.lost(members)
        return signs.gone(lost) if lost else None if (problem := signs.store_lost()) is None else str(problem)

    def _not_connected(self, members: tuple[int, ...], seconds: float, error: Exception) -> UnavailableError:
        """Why a group was not made, with the worker that held it up where that is known."""
        signs, where = self.signs, f"group {Group(members)}"
        if signs is not None and (store_lost := signs.store_lost()) is not None:
            return StoreLostError(f"{where}: {store_lost}")
        text = f"{where}: not all members connected within {seconds:g} s"
        if isinstance(error, OverdueError):
            reason, why = str(error), None if signs is None else self._why(signs, members)
        else:
            reason, why = first_line(error), self._soon_known(members)
        if why is None and signs is not None:
            why = signs.waits_for(members, None)
        return UnavailableError(f"{text} ({reason})" if why in (None, reason) else f"{text}: {why} ({reason})")

    def gloo_device(self) -> object:
        """The network device that all groups of this process share.

        By itself gloo takes the address of this machine's name, which on many machines is a loopback address.
        """
        if self._device is None:
            make = ProcessGroupGloo
            if interface := chosen_interface():
                self._device = make.create_device(interface=interface)
            elif has_address(self.store):
                self._device = make.create_device(hostname=own_host(self.store)[0])
            else:
                self._device = make.create_default_device()
        return self._device
