"""The group generator's buffers and lock vector by themselves: a projection small enough to be compared with Spin.

It drives the generator's own `Locking`, without workers, messages or draws; `models/lock_vector.pml` states the
same from the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from partreduce.schedulers.protocols.base import Note, Outcome
from partreduce.schedulers.protocols.group_generator.buffers import GroupBuffers, Locking
from partreduce.verify.explore import Exploration, explore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Push:
    """Event: somebody draws a group."""

    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Event: a worker finishes its running group."""

    worker: int


@dataclass(frozen=True)
class LockVector:
    """The lock vector by itself, as a `Machine` of one process: any group of `group_size` may be drawn at any time.

    `max_outstanding` bounds the groups that are not over. Sequence numbers are counted from the oldest of them, so
    endless runs have finitely many states.
    """

    num_workers: int
    group_size: int
    max_outstanding: int
    locking: Locking = Locking()  # noqa: RUF009 - stateless

    @property
    def num_processes(self) -> int:
        return 1

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        return ()

    def start(self, process: int) -> Outcome[GroupBuffers]:  # noqa: ARG002 - there is one process
        return GroupBuffers.empty(self.num_workers), ()

    def ready(self, process: int, state: GroupBuffers) -> Sequence[Push | Done]:  # noqa: ARG002 - as above
        """Every group may be drawn, and every worker in a running group may finish it."""
        pushes: list[Push | Done] = []
        if len(state.groups) < self.max_outstanding:
            pushes += [Push(members) for members in combinations(range(self.num_workers), self.group_size)]
        return (*pushes, *(Done(worker) for worker, bit in enumerate(state.locks) if bit))

    def step(self, process: int, state: GroupBuffers, event: object) -> Outcome[GroupBuffers]:  # noqa: ARG002 - as above
        """Push or finish, then start what can start."""
        match event:
            case Push(members):
                state = self.locking.pushed(state, members)
            case Done(worker):
                state = self.locking.released(state, worker)
            case _:
                raise AssertionError(f"not an event of the lock vector: {event}")
        state, begun = self.locking.started(state)
        return _from_oldest(state), tuple(Note(("started", group.members)) for group in begun)


def _from_oldest(state: GroupBuffers) -> GroupBuffers:
    """Sequence numbers counted without holes from the oldest outstanding group; only their order matters."""
    place = {group.seq: number for number, group in enumerate(state.groups)}
    rename: Callable[[int], int] = place.__getitem__
    return replace(
        state,
        groups=tuple(replace(group, seq=rename(group.seq)) for group in state.groups),
        buffers=tuple(tuple(map(rename, buffer)) for buffer in state.buffers),
        next_seq=len(state.groups),
    )


@dataclass(frozen=True, slots=True)
class LockConfiguration:
    """One exploration of the lock vector: it never halts."""

    num_workers: int
    group_size: int
    max_outstanding: int

    @property
    def name(self) -> str:
        return f"lock vector of {self.num_workers}, groups of {self.group_size}, at most {self.max_outstanding}"

    def run(self) -> Exploration:
        return explore(LockVector(self.num_workers, self.group_size, self.max_outstanding))


SMALL = tuple(
    LockConfiguration(*sizes)
    for sizes in ((2, 2, 2), (2, 2, 4), (3, 2, 1), (3, 2, 2), (3, 2, 3), (3, 3, 3), (3, 2, 4), (4, 2, 2), (4, 2, 3),
                  (4, 3, 3), (4, 3, 4), (4, 4, 4), (5, 2, 2))
)  # fmt: skip
