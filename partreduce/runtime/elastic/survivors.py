"""Survivors: who of a run is still there, and connections among them while others may die at any moment.

Nobody ever waits in a call of the transport for a worker that may not come: members first note in the store that they
are there, and look between two looks at those notes whether it still makes sense to wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from partreduce.runtime.averaging.in_flight import FixedMembership
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.transport.store import Notes
from partreduce.runtime.transport.waiting import Deadline, Wait
from partreduce.runtime.transport.worlds import GroupTable
from partreduce.topo.errors import UnavailableError
from partreduce.topo.phase import Group

CONNECT_SECONDS = 15.0
"""How long members that are all there may take to connect; one that dies meanwhile costs the others this."""
LOOK_SECONDS = 0.5
POLL_SECONDS = 0.002


class Survivors(FixedMembership):
    """What one worker knows of the others of a run that goes on without lost workers.

    Args:
        world: its communicators.
        heartbeat: knows what workers, and the launcher, noted of deaths.
        given_up: the workers that the group generator gave up, as far as this one has heard.
        key: of this optimizer, so that notes of several do not mix.
        timeout: seconds after which a worker that lives but does not come is no longer waited for.
    """

    def __init__(
        self,
        world: GroupTable,
        heartbeat: Heartbeat,
        given_up: Callable[[], frozenset[int]],
        *,
        key: str,
        timeout: float,
    ) -> None:
        super().__init__(tuple(range(world.size)))
        self.world, self.heartbeat, self.key, self.timeout = world, heartbeat, key, timeout
        self._given_up = given_up
        self._noted: frozenset[int] = frozenset()
        self._looked = 0.0
        self._dropped: frozenset[int] = frozenset()
        self._gatherings = 0

    @property
    def lost_workers(self) -> Callable[[], frozenset[int]]:
        return self.lost

    def lost(self) -> frozenset[int]:
        """The workers that are known to be gone for good; their groups are destroyed here."""
        now = time.monotonic()
        if now > self._looked + LOOK_SECONDS:
            self._looked = now
            self._noted |= self.heartbeat.lost(set(range(self.world.size)) - self._noted)
        return self.forget(self._noted | self._given_up())

    def forget(self, gone: frozenset[int]) -> frozenset[int]:
        """Destroy the groups of lost workers, once for each of them."""
        if gone - self._dropped:
            self._dropped |= gone
            self.world.destroy_with(gone)
        return self._dropped

    def connected(self, members: tuple[int, ...], instance: str, given_up: Callable[[], str | None]) -> bool:
        """Have a communicator of these members, all of whom call this; False if one does not come.

        A group that was made once is kept until it fails. `instance` names this making of it.
        """
        if self.world.has(members):
            return True
        self.heartbeat.doing(f"makes the communicator of group {Group(members)}")
        arrived = Notes(self.world.store, f"partreduce/arrived/{self.key}/{instance}")
        arrived.write(str(self.world.rank), "1")
        keys, deadline, pause = [str(member) for member in members], Deadline(self.timeout), POLL_SECONDS / 4
        while not arrived.has(*keys):
            if given_up() is not None or deadline.is_over:
                return False
            time.sleep(pause)
            pause = min(POLL_SECONDS, 1.5 * pause)
        try:
            self.world.create(members, instance=f"{self.key}/{instance}", within=timedelta(seconds=CONNECT_SECONDS))
        except UnavailableError:
            return False
        return True

    def gathered(self, place: str) -> tuple[int, ...]:
        """Wait until everybody who is not lost has come to the present gathering; who has, connected.

        Who is lost is asked before who has come, so all that are here agree: a lost worker has come for all or none.
        """
        everybody = frozenset(range(self.world.size))
        wait = Wait(self.heartbeat, everybody, self.timeout)
        self.heartbeat.doing(f"entered {place}", everybody)
        while True:
            self.heartbeat.check_without_store()
            lost = self.lost()
            here = self.heartbeat.gathered(everybody)
            missing = everybody - lost - here
            if not missing:
                break
            wait.only_for(sorted(missing))
            if wait.is_over():
                late = self.heartbeat.waits_for(sorted(missing), self.timeout)
                self.heartbeat.check_without_store()
                raise UnavailableError(f"{place}: {late}")
            time.sleep(2 * POLL_SECONDS)
        members = tuple(sorted(here))
        self._gatherings += 1  # the same members may have to be connected anew in a later gathering
        self.connect(members, f"{place} {self._gatherings}")
        return members

    def connect(self, members: tuple[int, ...], place: str) -> None:
        """Have a communicator of all survivors."""
        lost = sorted(self.lost().intersection(members))
        ok = not lost and self.connected(members, place, lambda: self._why(members))
        if not ok:
            raise UnavailableError(f"{place}: {self._why(members) or 'not all survivors connected'}")

    def _why(self, members: tuple[int, ...]) -> str | None:
        gone = sorted(self.lost().intersection(members))
        return f"worker {gone[0]} was lost after it had come" if gone else None
