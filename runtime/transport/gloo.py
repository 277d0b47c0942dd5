"""GlooWorld: workers that meet in a store and reduce over gloo, each group made by its members only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from preduce.runtime.transport.communicators import first_line
from preduce.runtime.transport.needed_groups import check_budget, member_sets
from preduce.runtime.transport.torch_api import PrefixStore, ProcessGroupGloo
from preduce.runtime.transport.worlds import MAX_GROUPS, GroupTable
from preduce.topo.errors import UnavailableError
from preduce.topo.phase import Group

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from preduce.runtime.transport.communicators import Communicator
    from preduce.runtime.transport.torch_api import Store
    from preduce.runtime.transport.worlds import World
    from preduce.topo.schedule import Schedule


class GlooWorld(GroupTable):
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

    def kin(self) -> Sequence[World]:
        """This world and its relatives."""
        return [self, *self.relatives]

    def abandon(self) -> None:
        """Destroy all groups at once, and those of the relatives."""
        super().abandon()
        for other in self.relatives:
            if not other.abandoned:
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
        if self.abandoned:
            raise UnavailableError(f"group {Group(members)}: the groups of this run were destroyed after a failure")
        limit = self.timeout if within is None else min(within, self.timeout)
        options = ProcessGroupGloo._Options()  # noqa: SLF001 - the only way to share a device and set one thread
        options._timeout = limit  # noqa: SLF001 - as above
        options._threads = 1  # noqa: SLF001 - as above
        options._devices = [self.gloo_device()]  # noqa: SLF001 - as above
        try:
            backend = ProcessGroupGloo(PrefixStore(name, self.store), members.index(self.rank), len(members), options)
        except RuntimeError as error:
            raise UnavailableError(
                f"group {Group(members)}: not all members connected within {limit.total_seconds():g} s "
                f"({first_line(error)})"
            ) from None
        return self._warmed_up(members, backend, "cpu", None if within is None else self.timeout)

    def gloo_device(self) -> object:
        """The network device that all groups of this process share."""
        if self._device is None:
            interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
            make = ProcessGroupGloo
            self._device = make.create_device(interface=interface) if interface else make.create_default_device()
        return self._device
