"""Messages between workers and the authority, their events, and the settings of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from partreduce.schedulers.protocols.base import Signal

Place: TypeAlias = tuple[int, int]
"""A worker's position in the run, equal on all workers: (its round, the number of operations outside rounds so far)."""
Members: TypeAlias = tuple[int, ...]
Groups: TypeAlias = Callable[[Members, int], Sequence[Members]]
"""A function from the remaining members and a round to the round's groups, for explored runs."""


class Phase(StrEnum):
    """The stage of a worker: it is outside, runs, votes, connects, leaves, or is no longer part of the run."""

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
    """The authority's decision, sent as a message: a generation's members, and the place where they resume.

    The members in `forward` commit their prepared operation. The members that have `joined` begin with the state of the
    `donor`, another member. From the place where they resume, members follow the run's schedule.
    """

    generation: int
    members: Members
    resume: Place = (0, 0)
    forward: Members = ()
    joined: Members = ()
    donor: int = -1


@dataclass(frozen=True, slots=True)
class Open:
    """Message of the authority: a worker has failed, seems to have, or wants to join; vote for this generation."""

    generation: int


@dataclass(frozen=True, slots=True)
class Vote:
    """Message to the authority: the sender stops until it receives the view of this generation.

    `place` is the first operation that it has not committed, `prepared` the members of that operation if its sum is
    complete, else empty. `stands` is whether the sender has reached that operation and it is one of its rounds, `blank`
    whether it has joined and has no state yet.
    """

    generation: int
    place: Place
    prepared: Members = ()
    stands: bool = False
    blank: bool = False


class Join(Signal):
    """Message to the authority: the sender wants to be a member."""


class Left(Signal):
    """Message to the authority: the sender has committed everything and needs no other worker."""


class Released(Signal):
    """Message of the authority: the receiver may end; all workers that continue have its commits."""


@dataclass(frozen=True, slots=True)
class Share:
    """Message between members in explored runs: the sender's contribution to a sum."""

    generation: int
    place: Place


@dataclass(frozen=True, slots=True)
class Confirm:
    """Message between members in explored runs: the sender has the sum."""

    generation: int
    place: Place


@dataclass(frozen=True, slots=True)
class Here:
    """Message between members in explored runs: the sender connects the groups of a generation, and has a state."""

    generation: int


@dataclass(frozen=True, slots=True)
class Given:
    """Message in explored runs: the state of the donor, given by the list of its commits."""

    generation: int
    held: tuple[tuple[Place, int, Members], ...]


@dataclass(frozen=True, slots=True)
class Enter:
    """Event of a worker: it reaches a place and enters its operation there with these members, if it has one.

    A worker without others has itself as the only member. With `meets` the operation is one of all workers that is not
    part of their rounds, such as computing the mean model.
    """

    place: Place
    group: Members
    meets: bool = False


class Summed(Signal):
    """Event of a worker: the sum is complete."""


class Confirmed(Signal):
    """Event of a worker: all members have the sum."""


class Connected(Signal):
    """Event of a worker: all members of the generation are connected, and have a state."""


class Broken(Signal):
    """Event of a worker: an operation or connecting failed, or a member is known to have failed."""


class Knock(Signal):
    """Event of a worker outside the run: it asks to join."""


class Healed(Signal):
    """Event of a worker that has joined: it has the donor's state."""


class Leave(Signal):
    """Event of a worker: it has committed everything, and asks to leave."""


class Publish(Signal):
    """Event of the authority: it sends the views that it has logged."""


class Expire(Signal):
    """Event of the authority: the leases of workers that have not voted expire."""


class Stop(Signal):
    """Event of the authority: it ends the run because a worker raised an error."""


class Restart(Signal):
    """Event of the authority: it restarts with its log, the votes and the failures, but not what it published."""


@dataclass(frozen=True)
class Setting:
    """The settings of a run of `num_workers`, whose last `outside` workers join on request, up to `knocks` times each.

    At most `max_failures` workers may be missing at a time; else the run ends. `groups` is what an explored run
    averages in each of its `rounds`, in the last over all workers if possible; None if a driver enters operations and
    reports their results, and members exchange no messages. The authority may evict silent workers `leases` times, and
    be restarted `restarts` times.
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
        return self.num_workers
