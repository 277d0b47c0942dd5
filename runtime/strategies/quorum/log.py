"""Quorum log: which of a worker's gradients went into which round, and which rounds it applied in which call.

Numbers only, as the sums brought them: whoever has the gradients can compute all that was applied, without us.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

MAX_EVENTS = 200_000


@dataclass(frozen=True, slots=True)
class QuorumEvent:
    """One event of a worker.

    Kinds: it `called` (with gradient `numbers[0]`), its thread has `begun` a round with the gradients `numbers` and
    `finished` it with so many gradients of each worker, its training has `taken` the rounds `numbers` and is `round`
    rounds far, the models were `synchronised` there. Gradients and rounds are counted from the last place where all
    workers met, which is `segment`.
    """

    seconds: float
    """On the monotonic clock, which all processes of a machine share."""
    kind: str
    segment: int
    round: int
    numbers: tuple[int, ...] = ()


class QuorumLog:
    """The events of one worker in their order, if asked for."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self.events: list[QuorumEvent] = []
        self.dropped = 0

    def add(self, kind: str, segment: int, round_: int, numbers: tuple[int, ...] = ()) -> None:
        """Note an event, under the lock that orders them."""
        if not self.is_on:
            return
        if len(self.events) < MAX_EVENTS:
            self.events.append(QuorumEvent(time.monotonic(), kind, segment, round_, numbers))
        else:
            self.dropped += 1

    def facts(self) -> dict[str, Any]:
        """As JSON: what the recorder writes into traces."""
        return {"dropped": self.dropped, "events": [asdict(event) for event in list(self.events)]}
