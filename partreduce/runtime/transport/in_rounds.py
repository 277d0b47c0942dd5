"""An all_to_all in rounds of pairs, for long messages: in each, a worker sends to one other and hears from one other.

At once, everybody hears from all others at the same time. What they send before they know how full the way is meets in
the queue of one link; if it does not fit, packets are lost, which their senders notice after 0.2 s or more (TCP incast:
Phanishayee et al., FAST 2008), and even if it fits, what tells them to continue waits in the same queues. So long
messages go as in MPICH (Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH,
2005, section 4.4, pairwise exchange), by rank + i in round i; short ones at once, which costs the fewest latencies.

A worker sends its next message when those of all rounds but the last `AHEAD` have come, so that one who is late is
waited for by few, and no more than about so many senders meet at one link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.work import Work

AHEAD = 2
"""Rounds that may be under way at the same time."""
BURST_BYTES = 256 * 2**10
"""What a link's queue is taken to hold: where more may meet there, messages are long."""


def goes_in_rounds(longest: int, group_size: int, node_size: int) -> bool:
    """Whether messages are long, of which the longest has so many bytes, as all members of a group know.

    Args:
        longest: bytes of the longest message of all.
        group_size: how many members send to each other.
        node_size: how many such exchanges share a node's link, at most.
    """
    return group_size > 1 + AHEAD and longest * (group_size - 1) * node_size > BURST_BYTES


def rounds(
    group: Communicator, target: torch.Tensor, source: torch.Tensor, receives: Sequence[int], sends: Sequence[int]
) -> Iterator[Work]:
    """Carry out an all_to_all (see Communicator.all_to_all) while somebody waits for what this yields, in order.

    All receives are posted first. Where two have nothing for each other no message is sent. O(group.size) messages.

    Raises:
        UnavailableError: the group was destroyed, or a connection of it is broken.
    """
    theirs, mine = torch.split(target, list(receives)), torch.split(source, list(sends))
    theirs[group.place].copy_(mine[group.place])
    distances = range(1, group.size)
    sources = [(group.place - distance) % group.size for distance in distances]
    posted = iter(group.exchange([], [(place, theirs[place]) for place in sources if len(theirs[place])]))
    coming = [[next(posted)] if len(theirs[place]) else [] for place in sources]
    sent: list[Work] = []
    for index, distance in enumerate(distances):
        if index >= AHEAD:
            yield from coming[index - AHEAD]
        place = (group.place + distance) % group.size
        if len(mine[place]):
            sent += group.exchange([(place, mine[place])], [])
    for last in coming[-AHEAD:]:
        yield from last
    yield from sent
