"""Status: what a worker that keeps a gap to its neighbours says of its queues."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GapStatus:
    """The queues of one worker at an instant; see `schedulers.protocols.hop` for what they are for."""

    tokens: tuple[int, ...] | None
    """In hand, one number for each out-neighbour in the order of `Digraph.targets`; None without token queues."""
    updates: tuple[int, ...]
    """In the queue of each in-neighbour, in the order of `Digraph.sources`."""
    capacities: tuple[int, ...]
    """Of those queues, as they were allocated: the proved ones."""
    sent: int
    """Bytes of arrays that this worker has sent so far."""
    received: int
    """Bytes of arrays that it has received so far."""
    skipped: int = 0
    """Steps that it has jumped over so far."""

    @property
    def fullest(self) -> tuple[int, int]:
        """Updates and capacity of the queue that has the least room; (0, 0) without in-neighbours."""
        queues = zip(self.updates, self.capacities, strict=True)
        return min(queues, key=lambda queue: (queue[1] - queue[0], -queue[0]), default=(0, 0))
