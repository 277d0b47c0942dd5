"""Properties: what the explorer is asked to check in every state that it reaches.

Each looks at as little of a state as it can, because the explorer checks every *distinct* piece only once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.explore.search.view import View


@dataclass(frozen=True, slots=True)
class PerProcess:
    """Holds of every process by itself. `check(process, state)` returns None or says what is wrong."""

    name: str
    check: Callable[[int, Any], str | None]


class Pair(NamedTuple):
    """Two processes, their states, and the messages on their way from the first to the second and back."""

    first: int
    first_state: Any
    second: int
    second_state: Any
    there: tuple[Any, ...]
    back: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PerPair:
    """Holds of every ordered pair in `pairs`. `check(pair)` returns None or says what is wrong.

    Without `messages` the pair comes without them, and far fewer distinct pieces are to be checked.
    """

    name: str
    pairs: tuple[tuple[int, int], ...]
    check: Callable[[Pair], str | None]
    messages: bool = True


@dataclass(frozen=True, slots=True)
class PerState:
    """Holds of every whole state; the slowest kind. `check(view)` returns None or says what is wrong."""

    name: str
    check: Callable[[View], str | None]


@dataclass(frozen=True, slots=True)
class NoDeadlock:
    """Every state in which nothing more can happen is a proper end."""

    name: str = "no deadlock"


@dataclass(frozen=True, slots=True)
class Progress:
    """No fair endless run without what is asked for: the lasso search of `liveness`.

    `goal(label)` says whether a transition is the progress that is waited for. Fair means: an event that stays
    possible for a process, and a message that waits, does not wait for ever. Mishaps are never owed.
    """

    name: str
    goal: Callable[[Any], bool]


Property = PerProcess | PerPair | PerState | NoDeadlock | Progress


def through(prop: Property, inner: Callable[[Any], Any]) -> Property:
    """The same asked of the states inside of others, where there are some: `inner` says None where there is none."""
    match prop:
        case PerProcess(name, check):

            def of_one(process: int, state: Any) -> str | None:  # noqa: ANN401 - of any machine
                held = inner(state)
                return None if held is None else check(process, held)

            return PerProcess(name, of_one)
        case PerPair(name, pairs, of_pair, messages):

            def of_two(pair: Pair) -> str | None:
                first, second = inner(pair.first_state), inner(pair.second_state)
                if first is None or second is None:
                    return None
                return of_pair(pair._replace(first_state=first, second_state=second))

            return PerPair(name, pairs, of_two, messages)
    return prop
