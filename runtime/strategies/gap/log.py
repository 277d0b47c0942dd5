"""Gap log: what a worker that keeps a gap did and when, as its messages and queues of payloads say it.

Nothing in it is asked of the protocol's state: the steps stand in the messages that went and came, and beside the
arrays that were averaged. So whoever compares it with what was proved, or replays it through the protocol object,
compares two different things.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_EVENTS = 200_000


@dataclass(frozen=True, slots=True)
class GapEvent:
    """One event of a worker.

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


class GapLog:
    """The events of one worker in their order, if asked for; a step is counted from the first and from every skip."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self.events: list[GapEvent] = []
        self.capacities: Mapping[int, int] = {}
        self.dropped = 0

    def add(self, kind: str, step: int, **details: Any) -> None:  # noqa: ANN401 - the fields of an event
        """Note an event, under the lock that orders them."""
        if not self.is_on:
            return
        if len(self.events) < MAX_EVENTS:
            self.events.append(GapEvent(time.monotonic(), kind, step, **details))
        else:
            self.dropped += 1

    def facts(self) -> dict[str, Any]:
        """As JSON: what the recorder writes into traces."""
        return {
            "capacities": {str(source): capacity for source, capacity in self.capacities.items()},
            "dropped": self.dropped,
            "events": [asdict(event) for event in list(self.events)],
        }
