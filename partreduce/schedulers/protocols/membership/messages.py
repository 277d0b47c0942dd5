"""Messages between workers and the authority, their events, and the settings of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from partreduce.schedulers.protocols.base import Signal

Place: TypeAlias = tuple[int, int]
"""Where a worker stands: its round, and how often all have met by then. Both rise, equally on all workers."""
Members: TypeAlias = tuple[int, ...]
Groups: TypeAlias = Callable[[Members, int], Sequence[Members]]
"""The groups of a round, given who is left; what an explored run follows."""


class Phase(StrEnum):
    """The phase of a worker."""

    OUTSIDE = "outside"
    RUN = "run"
    VOTE = "vote"
    REBUILD = "rebuild"
    FENCED = "fenced"
    ENDED = "ended"
    LEAVING = "leaving"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class View:
    """Decision and message: a generation's members, the place where they resume, and who commits prepared operations.

    The members that have `joined` begin with the state of the `donor`, one of the others. From the place where they
    resume, members follow the run's schedule.
    """

    generation: int
    members: Members
    resume: Place = (0, 0)
    forward: Members = ()
    joined: Members = ()
    donor: int = -1


@dataclass(frozen=True, slots=True)
class Open:
    """Message: a worker has failed, seems to have, or wants to join; vote for this generation."""

    generation: int


@dataclass(frozen=True, slots=True)
class Vote:
    """Message: the sender stops until it receives the view of this generation.

    `place` is the first operation that it has not committed, `prepared` the members of that one if its sum is complete,
    else empty. `stands` is whether it has reached that operation and this is one of its rounds, `blank` whether it has
    joined and has no state yet.
    """

    generation: int
    place: Place
    prepared: Members = ()
    stands: bool = False
    blank: bool = False


class Join(Signal):
    """Message: the sender wants to be a member."""


class Left(Signal):
    """Message: the sender has committed everything and needs no other worker."""


class Released(Signal):
    """Message: the receiver has left with the others' consent; all that continue have its commits."""


@dataclass(frozen=True, slots=True)
class Share:
    """Message in explored runs: the sender's contribution to a sum."""

    generation: int
    place: Place


@dataclass(frozen=True, slots=True)
class Confirm:
    """Message in explored runs: the sender has the sum."""

    generation: int
    place: Place


@dataclass(frozen=True, slots=True)
class Here:
    """Message in explored runs: the sender connects the groups of a generation, and has a state."""

    generation: int


@dataclass(frozen=True, slots=True)
class Given:
    """Message in explored runs: a donor's state, which is the list of its commits."""

    generation: int
    held: tuple[tuple[Place, int, Members], ...]


@dataclass(frozen=True, slots=True)
class Enter:
    """Event of a worker: it reaches a place and enters its operation there with these members, if it has one.

    A worker without others has itself as the only member. With `meets` all workers do something that is not part of
    their rounds, such as computing the mean model.
    """

    place: Place
    group: Members
    meets: bool = False


class Summed(Signal):
    """Event: the sum is complete."""


class Confirmed(Signal):
    """Event: all members have the sum."""


class Connected(Signal):
    """Event: all members of the generation are connected, and have a state."""


class Broken(Signal):
    """Event: an operation or connecting failed, or a member is known to have failed."""


class Knock(Signal):
    """Event of a worker outside the run: it asks to join."""


class Healed(Signal):
    """Event of a worker that has joined: it has the donor's state."""


class Leave(Signal):
    """Event: the worker has nothing left to do."""


class Publish(Signal):
    """Event of the authority: it sends the views that it has written to its log."""


class Expire(Signal):
    """Event: the lease of workers that have not voted expires."""


class Stop(Signal):
    """Event of the authority: the run is to end because a worker raised an error."""


class Restart(Signal):
    """Event: the authority restarts with its log, the votes and the failures, and without what was published."""


@dataclass(frozen=True)
class Setting:
    """A run of `num_workers`, of which the last `outside` join when they ask, each up to `knocks` times.

    At most `max_failures` may be missing at a time; else the run ends. `groups` is what an explored run averages in
    each of its `rounds`, the last over all workers if possible; None if a driver enters operations and reports their
    results, and members exchange no messages. The authority may evict silent workers `leases` times, and be restarted
    `restarts` times.
    """

    num_workers: int
    max_failures: int
    groups: Groups | None = None
    rounds: int = 0
    leases: int = 0
    restarts: int = 0
    outside: int = 0
    knocks: int = 1

    @property
    def authority(self) -> int:
        """The process number of the authority."""
        return self.num_workers
