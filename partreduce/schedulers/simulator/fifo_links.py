"""Queue messages between single workers in virtual time: every link on the path serves them in order.

Where `network` shares a link among all messages that are on it, which takes O(messages) for each, a message here waits
at every place (NIC, uplink, bus) for what was sent through it before, and is there when the last of them is done with
it. That is how `topo.timing.cost.round_seconds` counts a round of a weighted graph, and if all workers send at once the
last message of a NIC is there when that says; messages that are sent at different times wait only for those before
them. O(places on the way) for a message.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.simulator.network import Ways
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware


class _Line(NamedTuple):
    """A way: its busy places, each with seconds a byte of one message and of the place as a whole; whose NIC it is."""

    places: tuple[tuple[int, float, float], ...]
    latency: float
    nic_of: int | None


class InTurn:
    """The links of a cluster. `nic_bytes` (num_nodes,) counts what left each node.

    Messages have to be sent in the order of time.
    """

    def __init__(self, cluster: Cluster, hardware: Hardware) -> None:
        self._ways = Ways(cluster, hardware)
        self._lines: dict[tuple[int, int], _Line] = {}
        self.nic_bytes: npt.NDArray[np.float64] = np.zeros(cluster.num_nodes)
        self._free: dict[int, float] = {}
        """When each place is done with what was sent through it."""

    def seconds(self, source: int, to: int, num_bytes: float, now: float) -> float:
        """Send a message now: seconds until it is there."""
        line = self._lines.get((source, to)) or self._line(source, to)
        if line.nic_of is not None:
            self.nic_bytes[line.nic_of] += num_bytes
        end = now
        for place, alone, shared in line.places:
            begin = max(now, self._free.get(place, 0.0))
            through = self._free[place] = begin + num_bytes * shared
            end = max(end, through, now + num_bytes * alone)
        return end - now + line.latency

    def latency(self, source: int, to: int) -> float:
        """Seconds that a message without content takes; it overtakes what stands in line."""
        return (self._lines.get((source, to)) or self._line(source, to)).latency

    def _line(self, source: int, to: int) -> _Line:
        ways = self._ways
        way = ways.between(source, to)
        # One NIC of several takes a message no faster than it takes any.
        busy = [(place, ways.inverse[place], ways.inverse[place] / ways.lanes[place]) for place in way.places]
        here = ways.node_of[source]
        line = _Line(
            tuple(place for place in busy if place[1] > 0), way.latency, here if here != ways.node_of[to] else None
        )
        self._lines[source, to] = line
        return line
