"""Broadcast a notice to many workers: directly, or, to very many, down a tree.

All notices are cumulative (round r may start, and so may all before it), so a later one replaces an earlier one that
still waits for room, no sender ever waits, and their order does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable

from partreduce.runtime.transport.mailbox import Mailbox, Message

DIRECT = 64
"""Up to so many workers each receives a message from its sender."""
ROOT = " of "
"""Between the kind of a word that travels down a tree, and the worker that began it."""


def children(place: int, size: int) -> tuple[int, ...]:
    """To whom a worker of a binomial tree passes on what it got, by places 0..size-1 from the root.

    Place p = 2ᵏ·q with q odd (the root: any k) tells p + 2ʲ for all j < k: each place is reached once, in at most ⌈log₂
    size⌉ messages one after the other.
    """
    span = place & -place if place else 1 << max(0, size - 1).bit_length()
    found = []
    while span > 1:
        span >>= 1
        if place + span < size:
            found.append(place + span)
    return tuple(found)


class Spread:
    """Sends words from one worker, and passes on those that came down a tree.

    Args:
        mailbox: of this worker.
        num_workers: of the run.
    """

    def __init__(self, mailbox: Mailbox, num_workers: int) -> None:
        self._mailbox, self._size = mailbox, num_workers
        self._has_tree = num_workers > DIRECT

    def send(self, targets: Iterable[int], kind: str, numbers: tuple[int, ...]) -> None:
        """Tell these workers; all others, where the run is large, by the tree that begins here."""
        told = tuple(targets)
        if self._has_tree and len(told) == self._size - 1:
            self._pass_on(self._mailbox.rank, kind, numbers)
            return
        for to in told:
            self._mailbox.send_newest(to, kind, numbers, urgent=True)

    def received(self, message: Message) -> tuple[int, str]:
        """Who began a word, and its kind; what comes down a tree is passed on first."""
        kind, _, root = message.kind.partition(ROOT)
        if not root:
            return message.source, kind
        self._pass_on(int(root), kind, message.numbers)
        return int(root), kind

    def _pass_on(self, root: int, kind: str, numbers: tuple[int, ...]) -> None:
        """A word of one root replaces none of another's: each has its own tree."""
        place = (self._mailbox.rank - root) % self._size
        for child in children(place, self._size):
            self._mailbox.send_newest((root + child) % self._size, f"{kind}{ROOT}{root}", numbers, urgent=True)
