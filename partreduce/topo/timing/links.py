"""The numbers of a cluster's links as arrays over its nodes and switches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.fields import Floats, Whole
from partreduce.topo.hardware import Hardware, Link, Switch, above


class Crossings(NamedTuple):
    """Groups and the uplinks that they cross: the group, the switch, and how many workers and nodes are below it.

    `climb` has one entry for every (group, node) incidence: the latencies of the crossed uplinks on the node's way up.
    """

    group: Whole
    switch: Whole
    workers: Floats
    nodes: Floats
    climb: Floats


@dataclass(frozen=True, slots=True)
class Uplinks:
    """The uplinks of the switches above the nodes.

    `above` (levels, num_nodes) names the switches over each node, −1 for none; `latency` and `inverse` (switches,) are
    their numbers.
    """

    above: Whole
    latency: Floats
    inverse: Floats

    @classmethod
    def of(cls, cluster: Cluster, hardware: Hardware) -> Uplinks | None:
        """Those of a cluster; None where no uplink can make anything slower."""
        for switch in hardware.switches:
            check_node(max(switch.nodes), cluster.num_nodes)
        shared = hardware.shared_switches(cluster.num_nodes)
        return _uplinks(shared, cluster.num_nodes) if shared else None

    def crossings(self, group: Whole, node: Whole, here: Floats, num_nodes: Whole) -> Crossings:
        """Which groups cross which uplinks: those with nodes on both sides of the switch. O(incidences · levels).

        Args:
            group: of every (group, node) incidence, complete for the groups that cross nodes.
            node: of every incidence.
            here: workers of the group on the node, of every incidence.
            num_nodes: how many nodes each group has.
        """
        found: list[tuple[Whole, Whole, Floats, Floats]] = []
        climb = np.zeros(len(group))
        for row in self.above:
            below = np.flatnonzero(row[node] >= 0)
            keys, inverse, counts = np.unique(
                group[below] * len(self.latency) + row[node[below]], return_inverse=True, return_counts=True
            )
            of, switch = keys // len(self.latency), keys % len(self.latency)
            crossed = counts < num_nodes[of]
            climb[below] += np.where(crossed, self.latency[switch], 0.0)[inverse]
            workers = np.bincount(inverse, weights=here[below], minlength=len(keys))
            found.append((of[crossed], switch[crossed], workers[crossed], counts[crossed].astype(float)))
        groups, switches, workers_below, nodes_below = zip(*found, strict=True)
        columns = np.concatenate(groups), np.concatenate(switches)
        return Crossings(*columns, np.concatenate(workers_below), np.concatenate(nodes_below), climb)

    def edges(
        self, source: npt.NDArray[np.int32], target: npt.NDArray[np.int32], size: int
    ) -> tuple[Floats, Floats, Floats]:
        """For messages of `size` bytes from node to node, all at once: what the uplinks add to each.

        An uplink works in both directions at once and serves the messages of one direction in turn.

        Returns:
            Seconds until all uplinks on the path are done, the latencies on the way up and those on the way down.
        """
        seconds, up, down = np.zeros(len(source)), np.zeros(len(source)), np.zeros(len(source))
        for row in self.above:
            for ends, others, climb in ((source, target, up), (target, source, down)):
                crossing = np.flatnonzero((row[ends] >= 0) & (row[ends] != row[others]))
                switch = row[ends[crossing]]
                count = np.bincount(switch, minlength=len(self.inverse))
                shared = count[switch] * self.inverse[switch] * size
                seconds[crossing] = np.maximum(seconds[crossing], shared)
                climb[crossing] += self.latency[switch]
        return seconds, up, down


@lru_cache(maxsize=32)
def _uplinks(switches: tuple[Switch, ...], num_nodes: int) -> Uplinks:
    rows = above(switches, num_nodes)
    latency = np.array([switch.uplink.latency for switch in switches])
    inverse = np.array([switch.uplink.seconds_per_byte for switch in switches])
    for array in (rows, latency, inverse):
        array.setflags(write=False)
    return Uplinks(rows, latency, inverse)


@dataclass(frozen=True, slots=True)
class Links:
    """The link numbers of the nodes that take part, one entry per node: latencies in seconds, inverses in s/byte."""

    nic_latency: Floats
    nic_inverse: Floats
    inside_latency: Floats
    inside_inverse: Floats
    bus: Link
    uplinks: Uplinks | None = None

    @classmethod
    def of(cls, cluster: Cluster, hardware: Hardware) -> Links:
        nics, inside = nic_arrays(cluster, hardware), inside_arrays(cluster, hardware)
        return cls(*nics, *inside, hardware.bus, Uplinks.of(cluster, hardware))

    @classmethod
    def of_pairs(cls, links: Sequence[tuple[Link, Link]], bus: Link) -> Links:
        """From (NIC, inside) pairs and the bus that every node has, without switches."""
        columns = [(n.latency, n.seconds_per_byte, i.latency, i.seconds_per_byte) for n, i in links]
        table = np.array(columns, dtype=float).reshape(-1, 4)
        return cls(table[:, 0], table[:, 1], table[:, 2], table[:, 3], bus)


def nic_arrays(cluster: Cluster, hardware: Hardware) -> tuple[Floats, Floats]:
    """Latency and seconds per byte of every node's NIC, shape (num_nodes,) each."""
    return _fill(cluster.num_nodes, hardware.nic, hardware.node_nic)


def inside_arrays(cluster: Cluster, hardware: Hardware) -> tuple[Floats, Floats]:
    """Latency and seconds per byte of every node's inner links, shape (num_nodes,) each."""
    return _fill(cluster.num_nodes, hardware.inside, hardware.node_inside)


def _fill(count: int, usual: Link, own: Sequence[tuple[int, Link]]) -> tuple[Floats, Floats]:
    latency, inverse = np.full(count, usual.latency), np.full(count, usual.seconds_per_byte)
    for node, link in own:
        check_node(node, count)
        latency[node], inverse[node] = link.latency, link.seconds_per_byte
    return latency, inverse


def check_node(node: int, count: int) -> None:
    """Refuse hardware for nodes that the cluster does not have."""
    if not 0 <= node < count:
        raise InputError(f"hardware: states a link of node {node}; the nodes are 0..{count - 1}")
