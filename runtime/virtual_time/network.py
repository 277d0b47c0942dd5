"""Messages between single workers in virtual time: those that are on the same link at the same time share it evenly.

Groups share links by closed equations (`topo.timing.loads`). Where each message goes at its own time, shares change
whenever one is sent or is through, as those of TCP's streams do: a message goes as fast as the place on its way allows
that has the least for each (not what one place leaves over, so a little slower than max-min fairness). A NIC, and an
uplink, works in both directions at once; a message uses one of a node's NICs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from partreduce.topo.timing.links import Uplinks, inside_arrays, nic_arrays

if TYPE_CHECKING:
    import numpy.typing as npt

    from partreduce.topo.cluster import Cluster
    from partreduce.topo.hardware import Hardware

Place = tuple[str, int]
"""What a message passes: `bus`, `out` and `in` of a node, `up` and `down` of a switch, `inside` towards a worker."""
CLOSE = 1e-12
"""Messages whose ends differ by less than this part of the clock end together."""


class Way(NamedTuple):
    """The places on a way from worker to worker (numbers of them), and its latency."""

    places: tuple[int, ...]
    latency: float


class Ways:
    """What is on the way from each worker to each other one, found when it is first asked for."""

    def __init__(self, cluster: Cluster, hardware: Hardware) -> None:
        self.node_of = cluster.node_of().tolist()
        self._nic, self._inside = nic_arrays(cluster, hardware), inside_arrays(cluster, hardware)
        self._uplinks = Uplinks.of(cluster, hardware)
        self._bus, self._num_nics = hardware.bus, hardware.num_nics
        self._numbers: dict[Place, int] = {}
        self.inverse, self.lanes = [0.0], [1]
        """Of each place; place 0 takes no time and fills up ways that have fewer places than others."""
        self._known: dict[tuple[int, int], Way] = {}
        self.longest = 3 + 2 * (0 if self._uplinks is None else len(self._uplinks.above))
        """The most places on a way."""

    def between(self, source: int, to: int) -> Way:
        """The way from a worker to a worker."""
        way = self._known.get((source, to))
        if way is None:
            way = self._known[source, to] = self._way(source, to)
        return way

    def _way(self, source: int, to: int) -> Way:
        if source == to:
            return Way((), 0.0)
        here, there = self.node_of[source], self.node_of[to]
        bus = self._place(("bus", here), self._bus.seconds_per_byte)
        if here == there:
            inside = self._place(("inside", to), float(self._inside[1][here]))
            return Way((bus, inside), self._bus.latency + float(self._inside[0][here]))
        places = [
            bus,
            self._place(("out", here), float(self._nic[1][here]), self._num_nics),
            self._place(("in", there), float(self._nic[1][there]), self._num_nics),
        ]
        up, down = float(self._nic[0][here]), float(self._nic[0][there])
        if self._uplinks is not None:
            for row in self._uplinks.above:
                if row[here] == row[there]:
                    continue
                if row[here] >= 0:
                    places.append(self._place(("up", int(row[here])), float(self._uplinks.inverse[row[here]])))
                    up += float(self._uplinks.latency[row[here]])
                if row[there] >= 0:
                    places.append(self._place(("down", int(row[there])), float(self._uplinks.inverse[row[there]])))
                    down += float(self._uplinks.latency[row[there]])
        return Way(tuple(places), self._bus.latency + max(up, down))

    def _place(self, place: Place, inverse: float, lanes: int = 1) -> int:
        number = self._numbers.get(place)
        if number is None:
            number = self._numbers[place] = len(self.inverse)
            self.inverse.append(inverse)
            self.lanes.append(lanes)
        return number


class Network:
    """The messages that are on the links of a cluster. `nic_bytes` (num_nodes,) counts what left each node."""

    def __init__(self, cluster: Cluster, hardware: Hardware) -> None:
        self._ways = Ways(cluster, hardware)
        self.nic_bytes: npt.NDArray[np.float64] = np.zeros(cluster.num_nodes)
        self._now = 0.0
        self._keys: list[Any] = []
        self._latencies: list[float] = []
        self._on: npt.NDArray[np.int64] = np.zeros((0, self._ways.longest), dtype=np.int64)
        self._left: npt.NDArray[np.float64] = np.zeros(0)
        self._pace: npt.NDArray[np.float64] | None = None

    def send(self, source: int, to: int, num_bytes: float, key: Any) -> None:  # noqa: ANN401 - what the sender is told of
        """Let a message go now, to be told of by its key."""
        way, node_of = self._ways.between(source, to), self._ways.node_of
        here = node_of[source]
        if here != node_of[to]:
            self.nic_bytes[here] += num_bytes
        row = np.zeros((1, self._on.shape[1]), dtype=np.int64)
        row[0, : len(way.places)] = way.places
        self._on, self._left = np.concatenate([self._on, row]), np.append(self._left, num_bytes)
        self._keys.append(key)
        self._latencies.append(way.latency)
        self._pace = None

    def next_end(self) -> float:
        """When the next message leaves the links, if none is sent before; infinity if there is none. O(messages)."""
        return self._now + float((self._left * self._seconds_per_byte()).min(initial=float("inf")))

    def go_to(self, now: float) -> list[tuple[float, Any]]:
        """Let time pass, no further than `next_end`: when those are there that have left the links, and their keys."""
        paces, passed = self._seconds_per_byte(), now - self._now
        is_through = self._left * paces <= passed + CLOSE * now
        self._left = np.maximum(self._left - passed / np.where(paces > 0, paces, 1.0), 0.0)
        self._now = now
        ended = [(now + self._latencies[index], self._keys[index]) for index in np.flatnonzero(is_through)]
        if ended:
            keep = np.flatnonzero(~is_through)
            self._on, self._left, self._pace = self._on[keep], self._left[keep], None
            self._keys = [self._keys[index] for index in keep]
            self._latencies = [self._latencies[index] for index in keep]
        return ended

    def _seconds_per_byte(self) -> npt.NDArray[np.float64]:
        """Of every message, shape (messages,)."""
        if self._pace is None:
            inverse, lanes = np.array(self._ways.inverse), np.array(self._ways.lanes)
            shared = inverse * np.maximum(1.0, np.bincount(self._on.ravel(), minlength=len(inverse)) / lanes)
            self._pace = shared[self._on].max(axis=1, initial=0.0)
        return self._pace
