"""Connect workers through a store and all-reduce over gloo; each group is created by its members only."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from partreduce.runtime.transport.communicators import Communicator, Sums, first_line
from partreduce.runtime.transport.multistage_allreduce import StagedSums, Stages
from partreduce.runtime.transport.store import chosen_interface, host_of, own_host
from partreduce.runtime.transport.torch_api import PrefixStore, ProcessGroupGloo, Store
from partreduce.runtime.transport.waiting import DIAGNOSE_SECONDS
from partreduce.runtime.transport.work import BoundedCall, OverdueError
from partreduce.runtime.transport.worlds import MAX_GROUPS, World
from partreduce.topo.errors import StoreLostError, UnavailableError
from partreduce.topo.phase import Group

GLOO_LIMIT = timedelta(days=1)
GRACE_SECONDS = 1.0  # extra time for gloo's own error about a member that did not connect


class GlooWorld(World):
    """World (all workers of a run) whose groups use gloo over one shared network device and connect through `store`."""

    def __init__(
        self, store: Store, rank: int, size: int, timeout: timedelta, *, max_groups: int = MAX_GROUPS, attempt: int = 1
    ) -> None:
        """Create the world; `attempt`, equal on all workers, counts the worlds that this process creates, from 1."""
        # Separate keys, since addresses in the store from a failed attempt belong to closed connections.
        prefix = "partreduce/group" if attempt == 1 else f"partreduce/group/attempt-{attempt}"
        super().__init__(store, rank, size, timeout, prefix=prefix, max_groups=max_groups)
        self._device: object = None
        self._left_behind: list[BoundedCall[object]] = []

    def with_prefix(self, prefix: str) -> GlooWorld:
        other = GlooWorld(self.store, self.rank, self.size, self.timeout, max_groups=self.max_groups)
        other.prefix, other._device = prefix, self.gloo_device()
        return other

    def _staged(self, stages: Stages) -> Sums:
        return StagedSums(stages)

    def start_over(self, name: str) -> None:
        """Destroy all groups without waiting until connections are closed; later groups use store keys with `name`."""
        self.destroy_with(range(self.size), seconds=0.0)
        self.prefix = f"partreduce/group/{name}"

    def _connect(self, members: tuple[int, ...], place: str, within: timedelta | None) -> Communicator:
        limit = self.timeout if within is None else min(within, self.timeout)
        options = ProcessGroupGloo._Options()  # noqa: SLF001 - the only way to share a device and set one thread
        options._timeout = limit  # noqa: SLF001 - as above
        options._threads = 1  # noqa: SLF001 - as above
        options._devices = [self.gloo_device()]  # noqa: SLF001 - as above
        self._left_behind = [call for call in self._left_behind if call.is_running]
        # A separate client, if an abandoned call may still block the world's.
        own: Any = self.store.clone() if self._left_behind and hasattr(self.store, "clone") else self.store
        store, number = PrefixStore(place, own), members.index(self.rank)
        call: BoundedCall[object] = BoundedCall(lambda: ProcessGroupGloo(store, number, len(members), options))
        watch = self._watch_over(members)
        try:
            # No frame holds the backend itself: its destructor waits for a running operation.
            communicator = Communicator(members, self.rank, call.result(limit.total_seconds() + GRACE_SECONDS, watch))
        except (RuntimeError, OverdueError) as error:
            if call.is_running:
                self._left_behind.append(call)
            raise self._not_connected(members, limit.total_seconds(), error) from None
        # Gloo's timeout also counts time in which this process was stopped. If the run has its own deadlines (see
        # `Wait`), gloo's is so long that theirs come first; an abandoned group keeps its memory until then. None means
        # the timeout with which the group connected.
        own_limit = self.timeout if within is not None else None if self.signs is None else GLOO_LIMIT
        try:
            return self._warmed_up(communicator, "cpu", own_limit, watch)
        except UnavailableError as error:
            if (why := self._soon_known(members)) is not None:
                raise UnavailableError(f"group {Group(members)}: {why}") from None
            if self.signs is None:
                raise
            raise UnavailableError(f"{error}; {self.signs.describe_wait(members, None)}") from None

    def _soon_known(self, members: tuple[int, ...]) -> str | None:
        """Return why a member is gone, or None; wait up to `DIAGNOSE_SECONDS` until the store says so."""
        deadline = time.monotonic() + DIAGNOSE_SECONDS
        while time.monotonic() < deadline:
            if (why := self.abort_reason() or self._why(members)) is not None:
                return why
            time.sleep(DIAGNOSE_SECONDS / 30)
        return None

    def _not_connected(self, members: tuple[int, ...], seconds: float, error: Exception) -> UnavailableError:
        signs, where = self.signs, f"group {Group(members)}"
        if signs is not None and (store_lost := signs.store_lost()) is not None:
            return StoreLostError(f"{where}: {store_lost}")
        text = f"{where}: not all members connected within {seconds:g} s"
        if isinstance(error, OverdueError):
            reason, why = str(error), self._why(members)
        else:
            reason, why = first_line(error), self._soon_known(members)
        if why is None and signs is not None:
            why = signs.describe_wait(members, None)
        return UnavailableError(f"{text} ({reason})" if why in (None, reason) else f"{text}: {why} ({reason})")

    def gloo_device(self) -> object:
        """Return gloo's network device, on interface GLOO_SOCKET_IFNAME, else on the interface towards the store."""
        if self._device is None:
            make = ProcessGroupGloo
            if interface := chosen_interface():
                self._device = make.create_device(interface=interface)
            elif host_of(self.store):
                self._device = make.create_device(hostname=own_host(self.store)[0])
            else:
                self._device = make.create_default_device()
        return self._device
