"""Track the members of a run with dynamic groups, in which any worker may fail while the rest continue.

No worker waits inside a transport call for a worker that may have failed: the members of a group first record their
arrival in the store, and while they wait for each other they check whether a member has failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import timedelta

from partreduce.runtime.averaging.in_flight import FixedMembership
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.transport.store import Notes, Pauses
from partreduce.runtime.transport.waiting import GLANCE_SECONDS, Deadline, Wait
from partreduce.runtime.transport.worlds import World
from partreduce.topo.errors import UnavailableError
from partreduce.topo.phase import Group

CONNECT_SECONDS = 15.0  # timeout for connecting members that have all arrived; also the delay if one fails then


class Survivors(FixedMembership):
    """Membership of a run with dynamic groups, in which any worker may fail.

    `evicted` returns the ranks that the group service has evicted. A worker that is silent for `timeout` seconds is no
    longer waited for. `key` names the optimizer in the store.
    """

    def __init__(
        self,
        world: World,
        heartbeat: Heartbeat,
        evicted: Callable[[], frozenset[int]],
        *,
        key: str,
        timeout: float,
    ) -> None:
        super().__init__(tuple(range(world.size)))
        self.world, self.heartbeat, self.key, self.timeout = world, heartbeat, key, timeout
        self._evicted = evicted
        self._noted = self._failed = frozenset[int]()
        self._news, self._glanced = 0, 0.0
        self._gatherings = 0

    @property
    def lost_workers(self) -> Callable[[], frozenset[int]]:
        return self.failed

    def failed(self) -> frozenset[int]:
        """Return the ranks known to have failed, by the store or the group service; destroy groups that have them."""
        now = time.monotonic()
        if now > self._glanced + GLANCE_SECONDS:
            self._glanced = now
            if (news := self.heartbeat.num_changes()) != self._news:
                self._news = news
                self._noted |= self.heartbeat.lost(set(self.members) - self._noted)
        return self.forget()

    def forget(self) -> frozenset[int]:
        """Do as `failed`, but without a query of the store."""
        if new := (self._noted | self._evicted()) - self._failed:
            self._failed |= new
            self.world.destroy_with(new)
        return self._failed

    def stop_reason(self, members: tuple[int, ...]) -> str | None:
        failed = sorted(self.failed().intersection(members))
        return f"worker {failed[0]} has failed" if failed else None

    def connected(self, members: tuple[int, ...], instance: str, why: Callable[[], str | None]) -> bool:
        """Create a communicator of `members`, which all call this; return False if one of them does not arrive.

        `why()` returns why to stop waiting, or None; `instance` distinguishes repeated creations for the same members.
        """
        if self.world.has(members):
            return True
        self.heartbeat.doing(f"makes the communicator of group {Group(members)}")
        arrived = Notes(self.world.store, f"partreduce/arrived/{self.key}/{instance}")
        arrived.write(str(self.world.rank), "1")
        keys, deadline, pauses = [str(member) for member in members], Deadline(self.timeout), Pauses()
        while not arrived.has(*keys):
            if why() is not None or deadline.is_over:
                return False
            pauses.sleep()
        try:
            self.world.create(members, instance=f"{self.key}/{instance}", within=timedelta(seconds=CONNECT_SECONDS))
        except UnavailableError:
            return False
        return True

    def gathered(self, place: str) -> tuple[int, ...]:
        """Wait until all workers that have not failed are in the gathering `place`; connect them, return their ranks.

        A gathering is an operation of all workers outside the rounds, such as a checkpoint; `place` is its name. Raises
        UnavailableError if a worker does not arrive before the timeout, or fails while they connect.
        """
        members: tuple[int, ...] = ()

        def missing() -> frozenset[int]:
            nonlocal members
            awaited = frozenset(self.members) - self.failed()
            members = tuple(sorted(self.heartbeat.gathered(self.members)))
            return awaited.difference(members)

        await_gathering(self.heartbeat, place, missing, self.timeout)
        self._gatherings += 1  # makes the name unique if the same members connect again later
        self.connect(members, f"{place} {self._gatherings}")
        return members

    def connect(self, members: tuple[int, ...], place: str) -> None:
        if self.stop_reason(members) is not None or not self.connected(
            members, place, lambda: self.stop_reason(members)
        ):
            raise UnavailableError(f"{place}: {self.stop_reason(members) or 'not all survivors connected'}")


def await_gathering(heartbeat: Heartbeat, place: str, missing: Callable[[], Collection[int]], timeout: float) -> None:
    """Wait until `missing()`, the ranks not yet at `place`, is empty. Raises UnavailableError after `timeout` s."""
    wait, pauses = Wait(heartbeat, (), timeout), Pauses()
    while awaited := sorted(missing()):
        heartbeat.check_without_store()
        heartbeat.doing(f"entered {place}", awaited)
        wait.set_members(awaited)
        if wait.is_over():
            late = heartbeat.describe_wait(awaited, timeout)
            heartbeat.check_without_store()
            raise UnavailableError(f"{place}: {late}")
        pauses.sleep()
