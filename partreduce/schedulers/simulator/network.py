"""Simulated transfers of messages and all-reduces: those on the same link at the same time share it evenly.

Groups of a phase that start together share links by closed equations (`topo.timing.loads`). If each message and each
group has its own start time, shares change whenever one begins or ends, as with TCP streams: its rate is the smallest
even share along its path (without redistributing unused shares, so slightly slower than max-min fairness). NICs and
uplinks are full duplex; a message uses one of a node's NICs.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware
from partreduce.topo.timing.loads import Loads, Uplinks, inside_arrays, nic_arrays

Place = tuple[str, int]
"""A link, by kind and index: `bus`, `out` and `in` of a node, `up` and `down` of a switch, `inside` toward a worker."""
CLOSE = 1e-12
"""Transfers whose ends differ by less than this share of the present time end together."""


class Way(NamedTuple):
    """A path from worker to worker: the indices of its links (NICs, uplinks, buses), and its latency in seconds."""

    places: tuple[int, ...]
    latency: float


class Ways:
    """The paths between workers: `between(source, to)` returns a Way, computed when first used."""

    def __init__(self, cluster: Cluster, hardware: Hardware) -> None:
        self.node_of = cluster.node_of().tolist()
        self._nic, self._inside = nic_arrays(cluster, hardware), inside_arrays(cluster, hardware)
        self._uplinks = Uplinks.of(cluster, hardware)
        self._bus, self._num_nics = hardware.bus, hardware.num_nics
        self._numbers: dict[Place, int] = {}
        self.inverse, self.lanes = [0.0], [1]
        """Seconds per byte on a lane, and the number of lanes, of each link.

        Link 0 is a placeholder that takes no time.
        """
        self.between = cache(self._way)

    def _way(self, source: int, to: int) -> Way:
        if source == to:
            return Way((), 0.0)
        here, there = self.node_of[source], self.node_of[to]
        bus = self.place(("bus", here), self._bus.seconds_per_byte)
        if here == there:
            inside = self.place(("inside", to), float(self._inside[1][here]))
            return Way((bus, inside), self._bus.latency + float(self._inside[0][here]))
        places = [bus, self.nic_of(here), self.place(("in", there), float(self._nic[1][there]), self._num_nics)]
        up, down = float(self._nic[0][here]), float(self._nic[0][there])
        if self._uplinks is not None:
            for row in self._uplinks.above:
                if row[here] == row[there]:
                    continue
                if row[here] >= 0:
                    places.append(self.place(("up", int(row[here])), float(self._uplinks.inverse[row[here]])))
                    up += float(self._uplinks.latency[row[here]])
                if row[there] >= 0:
                    places.append(self.place(("down", int(row[there])), float(self._uplinks.inverse[row[there]])))
                    down += float(self._uplinks.latency[row[there]])
        return Way(tuple(places), self._bus.latency + max(up, down))

    def nic_of(self, node: int) -> int:
        return self.place(("out", node), float(self._nic[1][node]), self._num_nics)

    def place(self, place: Place, inverse: float, lanes: int = 1) -> int:
        """Return the index of the link at `place`, added if it is new; each lane takes `inverse` seconds per byte."""
        number = self._numbers.get(place)
        if number is None:
            number = self._numbers[place] = len(self.inverse)
            self.inverse.append(inverse)
            self.lanes.append(lanes)
        return number


class _Flow(NamedTuple):
    """A transfer in progress: the links on its path, with the amount through a lane of each and the number of lanes.

    The transfer takes at least `least` seconds, even on free links, and `latency` more; then `go_to` returns `key`.
    """

    key: Any
    latency: float
    least: float
    places: list[int]
    amounts: list[float]
    lanes: list[float]


class Network:
    """The transfers on a cluster's links. `nic_bytes` (num_nodes,) counts the bytes that left each node.

    A message passes each link of its path with all its bytes. The operation of a group passes one or several NICs of
    each of its nodes (the lanes of that link), and the uplinks and buses on its path; without other transfers it takes
    the time that `Loads` gives. Transfers on a link share it evenly, per lane.
    """

    def __init__(self, cluster: Cluster, hardware: Hardware) -> None:
        self._ways = Ways(cluster, hardware)
        self.nic_bytes: npt.NDArray[np.float64] = np.zeros(cluster.num_nodes)
        self._now = 0.0
        self._flows: list[_Flow] = []
        self._left: npt.NDArray[np.float64] = np.zeros(0)
        self._kept_seconds: npt.NDArray[np.float64] | None = None

    def send(self, source: int, to: int, num_bytes: float, key: Any) -> None:  # noqa: ANN401 - what the sender gets back
        """Start to send a message of `num_bytes` now; `go_to` returns `key` when it has arrived."""
        way, node_of = self._ways.between(source, to), self._ways.node_of
        here = node_of[source]
        if here != node_of[to]:
            self.nic_bytes[here] += num_bytes
        ones = [1.0] * len(way.places)
        self._put(_Flow(key, way.latency, 0.0, list(way.places), ones, ones), num_bytes)

    def sum(self, loads: Loads, key: Any) -> None:  # noqa: ANN401 - as above
        """Start the operation of one group with these loads on links now; `go_to` returns `key` when it has ended."""
        np.add.at(self.nic_bytes, loads.node, loads.bytes_)
        latency, lanes = float(loads.latency[0]), np.minimum(loads.lanes, loads.num_nics)
        places = [self._ways.nic_of(node) for node in loads.node.tolist()]
        amounts = (loads.bytes_ / lanes).tolist()
        busy = lanes.tolist()
        for index, other in enumerate(loads.other_links):
            # In seconds, relative to the group's own latency: without other transfers the slowest link decides.
            seconds = np.maximum(0.0, other.latency[other.group] + other.bytes_ * other.inverse - latency)
            places += [self._ways.place((f"other_links {index}", number), 1.0) for number in other.node.tolist()]
            amounts += seconds.tolist()
            busy += [1.0] * len(seconds)
        self._put(_Flow(key, latency, float(loads.inside[0]), places, amounts, busy), 1.0)

    def next_end(self) -> float:
        """Return the time at which the next transfer ends if no other begins; infinity if there is none. O(flows)."""
        return self._now + float((self._left * self._seconds_per_unit()).min(initial=float("inf")))

    def go_to(self, now: float) -> list[tuple[float, Any]]:
        """Advance time to `now`, at most `next_end`; return (arrival time, key) of each transfer that has ended."""
        per_unit, passed = self._seconds_per_unit(), now - self._now
        is_through = self._left * per_unit <= passed + CLOSE * now
        self._left = np.maximum(self._left - passed / np.where(per_unit > 0, per_unit, 1.0), 0.0)
        self._now = now
        ended = [(now + self._flows[index].latency, self._flows[index].key) for index in np.flatnonzero(is_through)]
        if ended:
            self._left, self._kept_seconds = self._left[~is_through], None
            self._flows = [flow for flow, is_gone in zip(self._flows, is_through, strict=True) if not is_gone]
        return ended

    def _put(self, flow: _Flow, amount: float) -> None:
        self._flows.append(flow)
        self._left, self._kept_seconds = np.append(self._left, amount), None

    def _seconds_per_unit(self) -> npt.NDArray[np.float64]:
        """Return the seconds per unit of what each transfer has left, shape (flows,).

        A unit is a byte of a message, or the whole of a group's operation.
        """
        if self._kept_seconds is None:
            inverse, num_lanes = np.array(self._ways.inverse), np.array(self._ways.lanes)
            # Place 0 takes no time; with it every flow has a place.
            place = np.array([place for flow in self._flows for place in (0, *flow.places)], dtype=np.int64)
            amount = np.array([amount for flow in self._flows for amount in (0.0, *flow.amounts)])
            lanes = np.array([lanes for flow in self._flows for lanes in (0.0, *flow.lanes)])
            crowd = np.maximum(1.0, np.bincount(place, weights=lanes, minlength=len(inverse)) / num_lanes)
            first = np.cumsum([0, *(1 + len(flow.places) for flow in self._flows)])[:-1]
            shared = np.maximum.reduceat(inverse[place] * amount * crowd[place], first) if len(first) else np.zeros(0)
            self._kept_seconds = np.maximum(shared, [flow.least for flow in self._flows])
        return self._kept_seconds


class _Line(NamedTuple):
    """A path: for each link its index, the seconds per byte of one message, and of all messages on the link together.

    They differ where a link has several lanes (NICs). `latency` is in seconds; `nic_of` is the node whose NIC it leaves
    through; None inside a node.
    """

    places: tuple[tuple[int, float, float], ...]
    latency: float
    nic_of: int | None


class InTurn:
    """The links of a cluster on which messages queue. `nic_bytes` (num_nodes,) counts the bytes that left each node.

    `Network` shares a link among all concurrent messages, which takes O(messages) for each; here a message waits at
    every link (NIC, uplink, bus) for all sent through it before, and arrives when the last link is done with it.
    Messages have to be sent in order of time. O(links on the path) for a message.
    """

    def __init__(self, cluster: Cluster, hardware: Hardware) -> None:
        self._ways = Ways(cluster, hardware)
        self._line = cache(self._make_line)
        self.nic_bytes: npt.NDArray[np.float64] = np.zeros(cluster.num_nodes)
        self._free: dict[int, float] = {}
        """The time when each link has finished the messages sent through it so far."""

    def seconds(self, source: int, to: int, num_bytes: float, now: float) -> float:
        """Send a message at `now` and return the seconds until it arrives."""
        line = self._line(source, to)
        if line.nic_of is not None:
            self.nic_bytes[line.nic_of] += num_bytes
        end = now
        for place, alone, shared in line.places:
            begin = max(now, self._free.get(place, 0.0))
            through = self._free[place] = begin + num_bytes * shared
            end = max(end, through, now + num_bytes * alone)
        return end - now + line.latency

    def latency(self, source: int, to: int) -> float:
        """Return the seconds of a message without content, which does not queue."""
        return self._line(source, to).latency

    def _make_line(self, source: int, to: int) -> _Line:
        ways, way = self._ways, self._ways.between(source, to)
        # A message uses one NIC, so several NICs do not speed it up.
        busy = [(place, ways.inverse[place], ways.inverse[place] / ways.lanes[place]) for place in way.places]
        here = ways.node_of[source]
        nic_of = here if here != ways.node_of[to] else None
        return _Line(tuple(place for place in busy if place[1] > 0), way.latency, nic_of)
