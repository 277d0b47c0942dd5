"""Gap sizes: what a gap says about the messages between two workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partreduce.runtime.transport.credit import MESSAGES

if TYPE_CHECKING:
    from partreduce.runtime.transport.credit import Bound
    from partreduce.runtime.transport.updates import Layout
    from partreduce.schedulers.protocols.hop import Hop


def message_bound(machine: Hop, layout: Layout) -> Bound:
    """What may be on the way to each neighbour: equal on all workers, and never what a worker waits for.

    The protocol lets at most a queue's capacity of updates be on the way. Where token queues bound the gap of every
    edge, it is no larger than `max_ig`; otherwise no path is longer than all workers.
    """
    setting = machine.setting
    longest = (setting.staleness + 1) * max(1, machine.num_processes - 1)
    capacity = 1 + (longest if setting.max_ig is None else setting.max_ig)
    # Of each update at most one token message and one acknowledgement besides, and the mark of a pause.
    return layout.bound([capacity], MESSAGES + 2 * capacity)
