"""Group buffers and the lock vector of Prague's group generator (Luo et al., ASPLOS 2020, section 4).

Every group gets the next sequence number and joins the end of the buffer of each of its members. A group starts when it
is the first in all of its members' buffers and no lock bit of a member is set; starting removes it from the buffers and
sets the bits, and each member clears its own bit when it is done. All buffers follow the order of sequence numbers,
so the oldest group can always start once its members are done, and workers cannot wait for one another in a cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Outstanding:
    """A group that has not ended, number `seq`; if it runs, `active` members have not reported that they are done."""

    seq: int
    members: tuple[int, ...]
    active: tuple[int, ...] = ()

    @property
    def running(self) -> bool:
        return bool(self.active)


@dataclass(frozen=True, slots=True)
class GroupBuffers:
    """The groups that have not ended, each worker's queue of their numbers, and whether it is in a running group."""

    groups: tuple[Outstanding, ...]
    buffers: tuple[tuple[int, ...], ...]
    locks: tuple[bool, ...]
    next_seq: int = 0

    @classmethod
    def empty(cls, num_workers: int) -> GroupBuffers:
        return cls((), ((),) * num_workers, (False,) * num_workers)

    def group(self, seq: int) -> Outstanding:
        return next(group for group in self.groups if group.seq == seq)

    def running_of(self, worker: int) -> Outstanding | None:
        """Return the running group that a worker has not finished; None if there is none."""
        if not self.locks[worker]:
            return None
        return next(group for group in self.groups if worker in group.active)


class Locking:
    """The operations on group buffers (queues of groups per worker); each returns new buffers and keeps no state."""

    def pushed(self, state: GroupBuffers, members: tuple[int, ...]) -> GroupBuffers:
        """Return the buffers with a new group at the end of each of its members' buffers. O(num_workers)."""
        seq = state.next_seq
        buffers = list(state.buffers)
        for worker in members:
            buffers[worker] = self.queued(buffers[worker], seq)
        return replace(
            state, groups=(*state.groups, Outstanding(seq, members)), buffers=tuple(buffers), next_seq=seq + 1
        )

    def queued(self, buffer: tuple[int, ...], seq: int) -> tuple[int, ...]:
        return (*buffer, seq)

    def can_start(self, state: GroupBuffers, group: Outstanding) -> bool:
        """Whether the group is first in the buffers of all of its members, and none of them is in a running group."""
        return not group.running and all(
            state.buffers[worker][:1] == (group.seq,) and not state.locks[worker] for worker in group.members
        )

    def started(self, state: GroupBuffers) -> tuple[GroupBuffers, tuple[Outstanding, ...]]:
        """Start all groups that can start, in order of sequence numbers; return the buffers and the started groups."""
        begun = []
        for group in state.groups:
            if self.can_start(state, group):
                running = replace(group, active=group.members)
                buffers, locks = list(state.buffers), list(state.locks)
                for worker in group.members:
                    buffers[worker] = buffers[worker][1:]
                    locks[worker] = True
                groups = tuple(running if other.seq == group.seq else other for other in state.groups)
                state = replace(state, groups=groups, buffers=tuple(buffers), locks=tuple(locks))
                begun.append(running)
        return state, tuple(begun)

    def released(self, state: GroupBuffers, worker: int) -> GroupBuffers:
        """Return the buffers after a worker has finished its running group; its last member to finish ends a group."""
        group = state.running_of(worker)
        if group is None:
            return state
        rest = replace(group, active=tuple(member for member in group.active if member != worker))
        return replace(
            state, groups=_replace_group(state.groups, rest, keep=rest.running), locks=_clear_locks(state, (worker,))
        )

    def withdrawn(self, state: GroupBuffers, worker: int) -> GroupBuffers:
        """Return the buffers after a worker leaves its groups that have not started; those with one member left end."""
        for seq in state.buffers[worker]:
            group = state.group(seq)
            rest = replace(group, members=tuple(member for member in group.members if member != worker))
            gone = (worker,) if len(rest.members) > 1 else group.members
            buffers = tuple(
                tuple(s for s in buffer if s != seq) if w in gone else buffer for w, buffer in enumerate(state.buffers)
            )
            groups = _replace_group(state.groups, rest, keep=len(rest.members) > 1)
            state = replace(state, groups=groups, buffers=buffers)
        return state

    def voided(self, state: GroupBuffers, worker: int) -> tuple[GroupBuffers, tuple[Outstanding, ...]]:
        """End every running group of a failed worker; return the buffers and these groups.

        Groups that it has finished are ended, too, because other members may still wait in them.
        """
        return self.dissolved(state, tuple(g for g in state.groups if g.running and worker in g.members))

    def dissolved(
        self, state: GroupBuffers, ended: tuple[Outstanding, ...]
    ) -> tuple[GroupBuffers, tuple[Outstanding, ...]]:
        """End these running groups for all of their members; return the buffers and the ended groups."""
        free = [member for group in ended for member in group.active]
        groups = tuple(group for group in state.groups if group not in ended)
        return replace(state, groups=groups, locks=_clear_locks(state, free)), ended


def _replace_group(groups: tuple[Outstanding, ...], changed: Outstanding, *, keep: bool) -> tuple[Outstanding, ...]:
    return tuple(changed if group.seq == changed.seq else group for group in groups if keep or group.seq != changed.seq)


def _clear_locks(state: GroupBuffers, workers: Sequence[int]) -> tuple[bool, ...]:
    return tuple(bit and worker not in workers for worker, bit in enumerate(state.locks))
