"""Define the messages between workers and the authority, their events, and the settings of a run."""

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
    """What a worker is in."""

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
    """Message and decision: a generation's members, from which place they average, and who commits what is prepared.

    The members that have `joined` begin with the state of the `donor`, one of the others. From the place where they
    resume, members follow what the run's schedule says for them.
    """

    generation: int
    members: Members
    resume: Place = (0, 0)
    forward: Members = ()
    joined: Members = ()
    donor: int = -1


@dataclass(frozen=True, slots=True)
class Open:
    """Message: somebody is lost, or seems so, or wants to join; vote for this generation."""

    generation: int


@dataclass(frozen=True, slots=True)
class Vote:
    """Message: the sender does nothing any more before it hears the view of this generation.

    `place` is that of the first operation that it has not committed, `prepared` the members of that one where its sum
    is there, and empty else. It `stands` there if it has come to that operation, and this is one of its rounds. It is
    `blank` if it has joined and has no state yet.
    """

    generation: int
    place: Place
    prepared: Members = ()
    stands: bool = False
    blank: bool = False


class Join(Signal):
    """Message: the sender wants to be a member."""


class Left(Signal):
    """Message: the sender has committed everything and needs no worker any more."""


class Released(Signal):
    """Message: the others agree that the receiver has left; all that continue have what it committed."""


@dataclass(frozen=True, slots=True)
class Share:
    """Message, where members meet by messages: what the sender adds to a sum."""

    generation: int
    place: Place


@dataclass(frozen=True, slots=True)
class Confirm:
    """Message, as above: the sender has the sum."""

    generation: int
    place: Place


@dataclass(frozen=True, slots=True)
class Here:
    """Message, as above: the sender connects the groups of a generation, and has a state."""

    generation: int


@dataclass(frozen=True, slots=True)
class Given:
    """Message, as above: a donor's state, which is what it has committed."""

    generation: int
    held: tuple[tuple[Place, int, Members], ...]


@dataclass(frozen=True, slots=True)
class Enter:
    """Event of a worker: it comes to a place and enters its operation there with these members, if it has one.

    Where it is the only one left, these are itself alone. In an operation that `meets` all do something besides their
    rounds, such as taking the mean model.
    """

    place: Place
    group: Members
    meets: bool = False


class Summed(Signal):
    """Event: the sum is there."""


class Confirmed(Signal):
    """Event: all members have it."""


class Connected(Signal):
    """Event: all members of the generation are connected, and have a state."""


class Broken(Signal):
    """Event: an operation, or connecting, failed, or a member is known to be lost."""


class Knock(Signal):
    """Event of a worker outside: it asks to join."""


class Healed(Signal):
    """Event of a worker that has joined: it has the donor's state."""


class Leave(Signal):
    """Event: nothing is left to do."""


class Publish(Signal):
    """Event of the authority: what it has written down goes out."""


class Expire(Signal):
    """Event: the lease of those who have not voted is over."""


class Stop(Signal):
    """Event of the authority: the run is to end, since a worker failed by itself."""


class Restart(Signal):
    """Event: the authority starts again with its log, the votes and the failures, not with what was published."""


@dataclass(frozen=True)
class Setting:
    """A run of `num_workers`, of which the last `outside` join when they ask, each up to `knocks` times.

    At most `max_failures` may be missing at a time; else the run ends. `groups` is what an explored run averages in
    each of its `rounds`, the last best of all; None where a driver enters operations and reports what comes of them,
    and members do not meet by messages. The authority may give up silent workers by itself `leases` times, and be
    started again `restarts` times.
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
        """The process that decides."""
        return self.num_workers
