"""Messages of workers and of the authority, which decides who continues a run; their events; a run's settings."""

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
    """The authority's decision on who continues: a generation's members, and the place in the run where they resume.

    The members in `forward` first commit (apply) the all-reduce whose sum they already have. The members that have
    `joined` begin with the state of the `donor`, another member. From `resume` on, members follow the run's schedule.
    """

    generation: int
    members: Members
    resume: Place = (0, 0)
    forward: Members = ()
    joined: Members = ()
    donor: int = -1


@dataclass(frozen=True, slots=True)
class Open:
    """Message of the authority: vote for this generation, because a worker failed, or seems to, or wants to join."""

    generation: int


@dataclass(frozen=True, slots=True)
class Vote:
    """Message to the authority: the sender stops until it receives the view of this generation.

    `place` is the first operation (all-reduce) that it has not committed, `prepared` the members of that operation if
    the sender has its sum, else empty. `stands` is whether the sender has reached that operation and it is one of its
    rounds, `blank` whether it has joined and has no state yet.
    """

    generation: int
    place: Place
    prepared: Members = ()
    stands: bool = False
    blank: bool = False


class Join(Signal):
    """Message to the authority: the sender wants to be a member."""


class Left(Signal):
    """Message to the authority: the sender has committed all of its operations, and needs no other worker."""


class Released(Signal):
    """Message of the authority, in answer to `Left`: the receiver may end."""


@dataclass(frozen=True, slots=True)
class Share:
    """Message between members in runs of the explorer: the sender's contribution to the all-reduce at `place`."""

    generation: int
    place: Place


@dataclass(frozen=True, slots=True)
class Confirm:
    """Message between members in runs of the explorer: the sender has the sum of the all-reduce at `place`."""

    generation: int
    place: Place


@dataclass(frozen=True, slots=True)
class Here:
    """Message between members in runs of the explorer: the sender has a state, and connects with this generation."""

    generation: int


@dataclass(frozen=True, slots=True)
class Given:
    """Message in runs of the explorer: the donor's state for a worker that joins, as the list of its commits."""

    generation: int
    held: tuple[tuple[Place, int, Members], ...]


@dataclass(frozen=True, slots=True)
class Enter:
    """Event of a worker: it reaches a place in the run and enters its all-reduce there, with the members `group`.

    The group is empty if the worker has none, and has the worker alone if no other is left in it. With `meets` the
    operation is one of all workers that is not part of their rounds, such as computing the mean model.
    """

    place: Place
    group: Members
    meets: bool = False


class Summed(Signal):
    """Event of a worker: it has the sum of its all-reduce."""


class Confirmed(Signal):
    """Event of a worker: all members of its group have the sum of their all-reduce, so that it can commit."""


class Connected(Signal):
    """Event of a worker: all members of the generation are connected, and have a state."""


class Broken(Signal):
    """Event of a worker: an operation or connecting failed, or a member is known to have failed."""


class Knock(Signal):
    """Event of a worker outside the run: it asks to join."""


class Healed(Signal):
    """Event of a worker that has joined: it has received the state of another worker, the donor."""


class Leave(Signal):
    """Event of a worker: it has committed all of its operations, and asks to leave."""


class Publish(Signal):
    """Event of the authority: it sends the next of the decisions (views) that it has logged."""


class Expire(Signal):
    """Event of the authority: it evicts the workers that have not voted in time."""


class Stop(Signal):
    """Event of the authority: it ends the run because a worker raised an error."""


class Restart(Signal):
    """Event of the authority: it restarts with its log, the votes and the failures, but not what it published."""


@dataclass(frozen=True)
class Setting:
    """The settings of a run of `num_workers`, whose last `outside` workers join on request, up to `knocks` times each.

    At most `max_failures` workers may be missing at a time; else the run ends. In runs of the explorer `groups(members,
    round)` returns the groups of each of `rounds`; with None a driver enters operations and reports their results, and
    members exchange no messages. The authority may evict silent workers `leases` times and restart `restarts` times.
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
