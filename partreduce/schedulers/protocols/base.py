"""The interface of protocols: pure state machines, which three drivers share.

A machine defines how each of its processes (workers, services) reacts to events; it holds no clock, socket, thread or
tensor. The explorer (`benchmarks/explore/`) runs it through every interleaving, the simulator runs it for
thousands of workers, and the runtime runs the same object between real processes. So the explored code is the code that
runs.

A driver keeps one state per process and does three things, in any order:

* it calls `ready(process, state)` and executes one of the returned events (work that has ended, a free choice): the
  driver decides *when*, the machine decides *whether*;
* it delivers a message that has arrived to `step(process, state, Received(source, message))`;
* it executes the actions that `start` and `step` return: `Send` sends a message, `Note` informs the driver.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

State = TypeVar("State")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Send:
    """Action: send `message` to process `to`."""

    to: int
    message: Hashable


@dataclass(frozen=True, slots=True)
class Note:
    """Action: report something to the driver (a step entered, a group granted), which may act on the report."""

    what: Hashable


@dataclass(frozen=True, slots=True)
class Received:
    """Event: a message from process `source` has arrived."""

    source: int
    message: Hashable


@dataclass(frozen=True, slots=True)
class Signal:
    """A message or event without content; all instances of a class are equal."""


class Crashed(Signal):
    """Message from a failure detector: the process named as its sender has failed, or seems to have."""


Action = Send | Note
Outcome = tuple[State, tuple[Action, ...]]
"""The next state of a process after an event, and the actions for its driver to execute."""


class Machine(Protocol[State]):
    """A protocol: pure functions over hashable states of `num_processes` processes.

    `step` accepts every event that `ready` returns and every message that the process may receive; equal arguments give
    equal results.
    """

    @property
    def num_processes(self) -> int:
        """The number of processes, which are numbered 0..num_processes-1."""

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        """Every (source, destination) pair that may carry messages."""

    def start(self, process: int) -> Outcome[State]:
        """Return the initial state of a process and its first actions."""

    def ready(self, process: int, state: State) -> Sequence[Hashable]:
        """Return the events that a process may execute by itself in this state."""

    def step(self, process: int, state: State, event: Any) -> Outcome[State]:  # noqa: ANN401 - machines own their events
        """Return the next state and actions of a process after an event (one of `ready`, or `Received`)."""


@runtime_checkable
class Finishing(Protocol):
    """A machine whose processes can finish; a state without events in which all have finished is not a deadlock."""

    def finished(self, process: int, state: Any) -> bool:  # noqa: ANN401 - as in Machine
        """Whether the process has finished and may stay in this state."""


def replace_at(values: tuple[Value, ...], place: int, value: Value) -> tuple[Value, ...]:
    """Return a copy of the tuple with `value` at index `place`."""
    return (*values[:place], value, *values[place + 1 :])
