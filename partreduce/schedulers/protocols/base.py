"""Define a protocol: a pure state machine that three drivers share.

A machine says how each of its processes (workers, services) reacts to events; it holds no clock, socket, thread or
tensor. The explorer (`benchmarks/explore/`) runs it through every interleaving, a virtual-time engine runs it for
thousands of workers, and the runtime runs the same object between real processes. The explored code is the code that
runs.

A driver keeps one state per process and does three things, in any order that it likes:

* it calls `ready(process, state)` and lets one of the events that come back happen (work that has ended, a choice that
  is free): the driver decides *when*, the machine decides *whether*;
* it hands a message that has arrived to `step(process, state, Received(source, message))`;
* it carries out the actions that `start` and `step` return: `Send` puts a message on its way, `Note` tells the world.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

State = TypeVar("State")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Send:
    """Action: put `message` on its way to process `to`."""

    to: int
    message: Hashable


@dataclass(frozen=True, slots=True)
class Note:
    """Action: something the outside wants to know (a step entered, a group granted); drivers may act on it."""

    what: Hashable


@dataclass(frozen=True, slots=True)
class Received:
    """Event: a message from process `source` has arrived."""

    source: int
    message: Hashable


@dataclass(frozen=True, slots=True)
class Signal:
    """A message or event without content; it equals all others of its own class."""


class Crashed(Signal):
    """Message that a failure detector sends in the name of a process that has stopped for ever, or seems to have."""


Action = Send | Note
Outcome = tuple[State, tuple[Action, ...]]


class Machine(Protocol[State]):
    """A protocol: pure functions over hashable states of `num_processes` processes.

    `step` is total on the events that `ready` offers and on every message that a process may be sent; for the same
    arguments it always returns an equal result. `channels` lists the (source, destination) pairs that may carry
    messages.
    """

    @property
    def num_processes(self) -> int:
        """The number of processes; they are named 0..num_processes-1."""

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        """Every (source, destination) pair that may carry messages."""

    def start(self, process: int) -> Outcome[State]:
        """The first state of a process and its first actions."""

    def ready(self, process: int, state: State) -> Sequence[Hashable]:
        """The events that a process may raise by itself in this state."""

    def step(self, process: int, state: State, event: Any) -> Outcome[State]:  # noqa: ANN401 - machines own their events
        """What an event (a ready one, or `Received`) does."""


@runtime_checkable
class Finishing(Protocol):
    """A machine whose processes may come to a proper end; a halt in which all have ended is no deadlock."""

    def finished(self, process: int, state: Any) -> bool:  # noqa: ANN401 - as in Machine
        """Whether the process may rest here for ever."""


def replace_at(values: tuple[Value, ...], place: int, value: Value) -> tuple[Value, ...]:
    """The same values but for one place, as states that are never changed themselves need it."""
    return (*values[:place], value, *values[place + 1 :])
