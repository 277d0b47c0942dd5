"""What partial collectives share: a worker with two sides, its events, its messages, and the part of its state.

A worker's *training* computes, calls (which hands over what it has made) and takes results. Its *thread* takes part in
the rounds, strictly 0, 1, 2, …: it enters a round once that may start, with what has been handed over by then, and is
done with it when all others of that round have entered. `partial` has one round of all workers at a time,
`partial_groups` rounds of groups.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import shake_256
from itertools import permutations
from typing import Generic, TypeVar

from partreduce.schedulers.protocols.base import changed
from partreduce.topo.strategies.quorum import Quorum

COMPUTING, CALLED, MEETING = range(3)
"""What the training does: it computes, has called and waits for a result, or synchronises its model."""


@dataclass(frozen=True, slots=True)
class Activate:
    """Message: round `round` may start; so may all before it."""

    round: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """Message (quorum of a number): the sender counts for round `round`."""

    round: int


@dataclass(frozen=True, slots=True)
class Share:
    """What a worker brings to the sum of a round: the numbers of its gradients, and whether it has ended.

    `oldest` is how many rounds the oldest of them had taken when its computing began (−1: there is none).
    A driver with a collective starts that when shares are to be sent, and hands in what it says of the others.
    """

    round: int
    gradients: tuple[int, ...]
    oldest: int = -1
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """Event: a gradient is computed; it is added to the send buffer."""


@dataclass(frozen=True, slots=True)
class End:
    """Event: the worker has no more data; from now on it only takes results."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Event: the thread enters its next round with what is in the send buffer. Grace is only when this happens."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Event: the sum of the round is there."""


@dataclass(frozen=True, slots=True)
class Take:
    """Event: the training takes results and applies them."""


@dataclass(frozen=True, slots=True)
class Result:
    """The sum of a round: how many gradients of each worker are in it."""

    round: int
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sides:
    """One worker. What it makes has numbers, by which it can be told where each of them is.

    Training: `calls` made, `version` rounds taken, `stage`, whether it is `resting` for ever; `buffer` holds what no
    round has, `oldest` is the version with which the oldest of it was begun (−1: none). Thread: rounds `entered`,
    rounds `done`, `results` that wait for the training, `shares[w]` of worker w in rounds that are not done.
    `arrived[w]` is 1 + the last round for which worker w is known to have come.
    """

    calls: int = 0
    version: int = 0
    stage: int = COMPUTING
    resting: bool = False
    buffer: tuple[int, ...] = ()
    oldest: int = -1
    entered: int = 0
    done: int = 0
    results: tuple[Result, ...] = ()
    shares: tuple[tuple[Share, ...], ...] = ()
    arrived: tuple[int, ...] = ()

    @property
    def is_running(self) -> bool:
        return self.entered > self.done


OneWorker = TypeVar("OneWorker", bound=Sides)
OwnEvent = Call | End | Begin | Finish | Take


class TwoSided(ABC, Generic[OneWorker]):
    """The part of a `Machine` that follows from the two sides."""

    setting: Quorum
    num_workers: int
    calls: tuple[int, ...] | None
    initiators: tuple[int, ...] | None

    @property
    def num_processes(self) -> int:
        return self.num_workers

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        """Everybody writes to everybody, if only at its end."""
        return tuple(permutations(range(self.num_workers), 2))

    def ready(self, process: int, state: OneWorker) -> Sequence[OwnEvent]:
        found: list[OwnEvent] = []
        if state.stage == COMPUTING and not state.resting:
            is_last = self.calls is not None and state.calls >= self.calls[process]
            found.append(End() if is_last else Call())
        elif self._may_take(state):
            found.append(Take())
        if state.is_running:
            if self._is_summed(process, state):
                found.append(Finish())
        elif self._may_begin(state):
            found.append(Begin())
        return found

    def _may_take(self, state: OneWorker) -> bool:
        """Whether there are results for a training that waits for them, or has ended."""
        return state.done > state.version

    @abstractmethod
    def _is_summed(self, process: int, state: OneWorker) -> bool:
        """Whether all others have entered the round that runs."""

    @abstractmethod
    def _may_begin(self, state: OneWorker) -> bool:
        """Whether the next round may be entered."""

    def _made(self, state: OneWorker) -> OneWorker:
        """What a call has made joins the buffer."""
        return replace(
            state,
            calls=state.calls + 1,
            stage=CALLED,
            buffer=(*state.buffer, state.calls),
            oldest=state.version if state.oldest < 0 else state.oldest,
        )

    def _shared(self, state: OneWorker, source: int, share: Share) -> OneWorker:
        """What a worker brings is kept for its round, in the order of rounds, unless it is known or that is done."""
        known = state.shares[source]
        if share.round < state.done or share.round in [other.round for other in known]:
            return state
        kept = tuple(sorted((*known, share), key=lambda other: other.round))
        return replace(state, shares=changed(state.shares, source, kept))

    def _drawn(self, round_: int, count: int, of_whom: str = "") -> int:
        """Which of so many starts a round under `majority`, drawn from the seed; evenly, and the same on all workers.

        The words keep these numbers apart from all others that come from a seed.
        """
        if self.initiators:
            return self.initiators[round_ % len(self.initiators)]
        words = f"partreduce quorum, seed {self.setting.seed}, round {round_}{of_whom}"
        return int.from_bytes(shake_256(words.encode()).digest(8)) % count
