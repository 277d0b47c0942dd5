"""Credit: how much one worker may have on its way to another, counted in messages and in bytes.

The receiver grants it, as HTTP/2 does (RFC 9113, section 5.2): a sender counts what it ever sent, the receiver says
what it has ever dealt with, and the difference never passes a bound that both know. Grants are totals: one that comes
late or twice does no harm. They ride on messages that travel anyway, and go by themselves when half the bound is
dealt with.

Not libzmq's high-water marks: they count messages and not bytes, hold on both sides besides what TCP's buffers take,
and a socket that has reached one blocks or drops whatever comes next, the answers behind which the others wait
included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")

MESSAGES = 64
"""How many messages may be on their way to one worker, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that may be on its way from one worker to another, and the most that may wait for that."""

    messages: int
    num_bytes: int

    @classmethod
    def of_largest(cls, num_bytes: int, messages: int = MESSAGES) -> Bound:
        """The least bound under which messages of so many bytes never wait for a grant that nobody sends."""
        return cls(messages, 2 * max(num_bytes, 1))

    def holds(self, num_bytes: int) -> bool:
        """Whether a message may be sent at all: up to half of the bound may be dealt with and not granted yet."""
        return 2 * num_bytes <= self.num_bytes


@dataclass(slots=True)
class Tally:
    """So many messages, with so many bytes of payload."""

    messages: int = 0
    num_bytes: int = 0

    def add(self, num_bytes: int) -> None:
        self.messages += 1
        self.num_bytes += num_bytes

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.messages - other.messages, self.num_bytes - other.num_bytes)

    def copy(self) -> Tally:
        return Tally(self.messages, self.num_bytes)


@dataclass(slots=True)
class Account(Generic[Item]):
    """What one worker and one of its peers have sent each other, and what waits until the peer takes more.

    Never more than the bound is sent and not granted; never more than the bound waits. Not to be shared between threads
    without a lock. Every method takes O(1), `grant` O(1) for each item that it lets go.
    """

    bound: Bound
    sent: Tally = field(default_factory=Tally)
    granted: Tally = field(default_factory=Tally)
    """Of what was sent, what the peer has dealt with, as far as it said so."""
    received: Tally = field(default_factory=Tally)
    """What came from the peer and was dealt with."""
    told: Tally = field(default_factory=Tally)
    """Of what was received, what the peer was told."""
    _waiting: deque[tuple[Item, int]] = field(default_factory=deque)
    _waiting_bytes: int = 0

    @property
    def on_the_way(self) -> Tally:
        """What was sent and not granted."""
        return self.sent - self.granted

    @property
    def waiting(self) -> Tally:
        return Tally(len(self._waiting), self._waiting_bytes)

    def has_room(self, num_bytes: int) -> bool:
        """Whether a message may be sent now; none passes those that wait."""
        return not self._waiting and self._fits(num_bytes)

    def take(self, num_bytes: int) -> None:
        assert self._fits(num_bytes), "nobody sends more than the bound"
        self.sent.add(num_bytes)

    def hold(self, item: Item, num_bytes: int) -> bool:
        """Let a message wait; False if as much waits as may."""
        full = len(self._waiting) == self.bound.messages or self._waiting_bytes + num_bytes > self.bound.num_bytes
        if not full:
            self._waiting.append((item, num_bytes))
            self._waiting_bytes += num_bytes
        return not full

    def hold_newest(self, item: Item, replaces: Callable[[Item], bool]) -> None:
        """Let an item without payload wait in the place of one that it replaces, or else after what waits."""
        for place, (other, num_bytes) in enumerate(self._waiting):
            if not num_bytes and replaces(other):
                self._waiting[place] = (item, 0)
                return
        self._waiting.append((item, 0))

    def grant(self, messages: int, num_bytes: int) -> list[Item]:
        """The peer says what it has dealt with since the beginning: the messages that may go now, counted as sent.

        What it cannot have dealt with, and what it said before, counts for nothing.
        """
        self.granted.messages = max(self.granted.messages, min(messages, self.sent.messages))
        self.granted.num_bytes = max(self.granted.num_bytes, min(num_bytes, self.sent.num_bytes))
        released = []
        while self._waiting and self._fits(self._waiting[0][1]):
            item, size = self._waiting.popleft()
            self._waiting_bytes -= size
            self.sent.add(size)
            released.append(item)
        return released

    def release(self) -> list[Item]:
        """At the end: everything that waits, whatever the peer has granted."""
        items = [item for item, _ in self._waiting]
        self._waiting.clear()
        self._waiting_bytes = 0
        return items

    def owes(self) -> bool:
        """Whether the peer should be told: half of what it may have on the way is dealt with."""
        new = self.received - self.told
        return 2 * new.messages >= self.bound.messages or 2 * new.num_bytes >= self.bound.num_bytes

    def tell(self) -> tuple[int, int]:
        self.told = self.received.copy()
        return self.told.messages, self.told.num_bytes

    def _fits(self, num_bytes: int) -> bool:
        way = self.on_the_way
        return way.messages < self.bound.messages and way.num_bytes + num_bytes <= self.bound.num_bytes
