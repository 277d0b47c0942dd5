"""What of a partial all-reduce takes time beside computing and sums, as events: a thread's grace, the mean of models.

The protocol object says what happens, never when: it lets a thread enter a round that is activated at any time, and
models be averaged as soon as all wait for it. A thread that has no gradient of its own may wait for one instead, and a
mean of models is an all-reduce of all. Here both are events of their own, so that a `Timing` says how long they take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partreduce.schedulers.protocols.base import Received, Send
from partreduce.schedulers.protocols.partial import MEETING, Begin, Here

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from partreduce.schedulers.protocols.base import Action, Outcome
    from partreduce.schedulers.protocols.partial import Partial, PartialState


@dataclass(frozen=True, slots=True)
class BeginWithout:
    """Event: the thread enters its next round without a gradient of its own, for which it has waited long enough."""


@dataclass(frozen=True, slots=True)
class Mean:
    """Event: the mean of all models is there."""


@dataclass(frozen=True)
class WaitingPartial:
    """A `Partial` whose threads and models wait; a `Machine`.

    A thread waits, from when it may enter its round, for a gradient in its worker's send buffer. One that has ended
    sends none, so nobody waits for it. With one that comes in time the thread enters at once.
    """

    machine: Partial

    @property
    def num_processes(self) -> int:
        """The number of workers."""
        return self.machine.num_processes

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        """Those of the protocol."""
        return self.machine.channels

    def start(self, process: int) -> Outcome[PartialState]:
        """As the protocol."""
        return self.machine.start(process)

    def ready(self, process: int, state: PartialState) -> Sequence[Hashable]:
        """As the protocol, with what waits by its own name."""
        found: list[Hashable] = list(self.machine.ready(process, state))
        if self.machine.setting.grace and not state.buffer and not state.resting:
            found = [BeginWithout() if event == Begin() else event for event in found]
        if state.stage == MEETING:
            found.append(Mean())
        return found

    def step(self, process: int, state: PartialState, event: object) -> Outcome[PartialState]:
        """As the protocol; the mean of models is the meeting by which it otherwise sends word."""
        if isinstance(event, Mean):
            actions: tuple[Action, ...] = ()
            for other in range(self.num_processes):
                if other != process:
                    state, more = self.machine.step(process, state, Received(other, Here(state.version)))
                    actions += more
            return state, actions
        after, actions = self.machine.step(process, state, Begin() if isinstance(event, BeginWithout) else event)
        return after, tuple(one for one in actions if not (isinstance(one, Send) and isinstance(one.message, Here)))
