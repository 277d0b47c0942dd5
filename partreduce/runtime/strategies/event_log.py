"""Event logs: what a worker did under a protocol and when, as its messages and their arrays say it.

Nothing in them is asked of the protocol's state. So what compares a log with what was proved, or replays it through
the protocol object, compares two different things; and who has the gradients can compute all that was applied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

MAX_EVENTS = 200_000


@dataclass(frozen=True, slots=True)
class GapEvent:
    """One event of a worker that keeps a gap.

    Kinds: `entered` a step (after `by` steps), `sent` its update, `reduced` it, `renewed` the parameters before a skip
    from it, `update`, `tokens` (`by` of them) and `ack` came from worker `source`.
    """

    seconds: float
    """On the monotonic clock, which all processes of a machine share."""
    kind: str
    step: int
    by: int = 0
    source: int = -1
    used: tuple[tuple[int, int], ...] = ()
    """(source, step) of each update whose arrays were averaged."""
    fill: int = 0
    """Of an update that came: how many of its sender's updates are held then."""


@dataclass(frozen=True, slots=True)
class QuorumEvent:
    """One event of a worker under a quorum.

    Kinds: it `called` (with gradient `numbers[0]`), its thread has `begun` a round with the gradients `numbers` and
    `finished` it with so many gradients of each worker, its training has `taken` the rounds `numbers` and is `round`
    rounds far, the models were `synchronized` there. Gradients and rounds are counted from the last place where all
    workers met, which is `segment`.
    """

    seconds: float
    """As above."""
    kind: str
    segment: int
    round: int
    numbers: tuple[int, ...] = ()


class EventLog:
    """The events of one worker in their order, if asked for."""

    event: ClassVar[Callable[..., Any]]

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self.events: list[Any] = []
        self.dropped = 0

    def add(self, kind: str, *numbers: Any, **details: Any) -> None:  # noqa: ANN401 - the fields of an event
        """Note an event, under the lock that orders them."""
        if not self.is_on:
            return
        if len(self.events) < MAX_EVENTS:
            self.events.append(type(self).event(time.monotonic(), kind, *numbers, **details))
        else:
            self.dropped += 1

    def facts(self) -> dict[str, Any]:
        """As JSON: what the recorder writes into traces."""
        return {"dropped": self.dropped, "events": [asdict(event) for event in list(self.events)]}


class GapLog(EventLog):
    """A step is counted from the first and from every skip."""

    event = GapEvent

    def __init__(self, *, is_on: bool) -> None:
        super().__init__(is_on=is_on)
        self.capacities: Mapping[int, int] = {}
        """Of the queue from each source."""

    def facts(self) -> dict[str, Any]:
        return {"capacities": {str(source): capacity for source, capacity in self.capacities.items()}} | super().facts()


class QuorumLog(EventLog):
    """Numbers only, as the sums brought them."""

    event = QuorumEvent
