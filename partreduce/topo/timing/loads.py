"""The load of a phase's groups on the links of a cluster, and their time under fair sharing of NICs and uplinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.fields import Floats, Whole
from partreduce.topo.hardware import Hardware, Link, Switch, switches_above
from partreduce.topo.phase import Phase
from partreduce.topo.rule import RulePhase, representatives
from partreduce.topo.timing.coding import PLAIN, Coding, Shape, Traffic, all_to_all, of_sum


class Crossings(NamedTuple):
    """The uplinks that groups cross, as arrays: `group`, `switch`, and the group's workers and nodes below the switch.

    `climb` has one entry for every (group, node) incidence, a group with a worker on the node: the seconds of latency
    on all uplinks that the group crosses above the node.
    """

    group: Whole
    switch: Whole
    workers: Floats
    nodes: Floats
    climb: Floats


@dataclass(frozen=True, slots=True)
class Uplinks:
    """The uplinks of the switches above the nodes.

    `above` (levels, num_nodes) holds the switches above each node, −1 for none; `latency` (seconds) and `inverse`
    (seconds per byte) have shape (switches,).
    """

    above: Whole
    latency: Floats
    inverse: Floats

    @classmethod
    def of(cls, cluster: Cluster, hardware: Hardware) -> Uplinks | None:
        """Return the uplinks of a cluster, None if none takes time; InputError for nodes that it does not have."""
        for switch in hardware.switches:
            check_node(max(switch.nodes), cluster.num_nodes)
        shared = hardware.shared_switches(cluster.num_nodes)
        return _uplinks(shared, cluster.num_nodes) if shared else None

    def crossings(self, group: Whole, node: Whole, here: Floats, num_nodes: Whole) -> Crossings:
        """Return which groups cross which uplinks: those with nodes on both sides of the switch.

        `group`, `node` and `here` (the group's workers on the node) list (group, node) incidences, all of them for
        groups on several nodes; `num_nodes` (groups,) are their numbers of nodes. O(incidences · levels).
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
        """Return the seconds that uplinks add to messages of `size` bytes from nodes `source` to `target`, all at once.

        Three arrays (messages,): the seconds until all uplinks on the path have served all messages, the latency on the
        way up, and that on the way down. An uplink is full duplex and serves each direction's messages in turn.
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
    rows = switches_above(switches, num_nodes)
    latency = np.array([switch.uplink.latency for switch in switches])
    inverse = np.array([switch.uplink.seconds_per_byte for switch in switches])
    for array in (rows, latency, inverse):
        array.setflags(write=False)
    return Uplinks(rows, latency, inverse)


@dataclass(frozen=True, slots=True)
class Links:
    """The links of nodes, one array entry per node: latencies in seconds, inverse bandwidths in seconds per byte."""

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
        """Build from a pair (NIC, link inside) for each node and the `bus` that each node has, without switches."""
        columns = [(n.latency, n.seconds_per_byte, i.latency, i.seconds_per_byte) for n, i in links]
        table = np.array(columns, dtype=float).reshape(-1, 4)
        return cls(table[:, 0], table[:, 1], table[:, 2], table[:, 3], bus)


def nic_arrays(cluster: Cluster, hardware: Hardware) -> tuple[Floats, Floats]:
    """Return the latency (seconds) and the seconds per byte of every node's NIC, shape (num_nodes,) each."""
    return _fill(cluster.num_nodes, hardware.nic, hardware.node_nic)


def inside_arrays(cluster: Cluster, hardware: Hardware) -> tuple[Floats, Floats]:
    """Return the latency (seconds) and the seconds per byte of every node's inner links, shape (num_nodes,) each."""
    return _fill(cluster.num_nodes, hardware.inside, hardware.node_inside)


def _fill(count: int, usual: Link, own: Sequence[tuple[int, Link]]) -> tuple[Floats, Floats]:
    latency, inverse = np.full(count, usual.latency), np.full(count, usual.seconds_per_byte)
    for node, link in own:
        check_node(node, count)
        latency[node], inverse[node] = link.latency, link.seconds_per_byte
    return latency, inverse


def check_node(node: int, count: int) -> None:
    """Raise InputError if hardware is given for `node`, which a cluster of `count` nodes does not have."""
    if not 0 <= node < count:
        raise InputError(f"hardware: states a link of node {node}; the nodes are 0..{count - 1}")


KEPT = 4096
"""The number of rule phases whose loads are cached: the planner needs the same few hundred for many schedules."""


@dataclass(frozen=True)
class Loads:
    """The load of groups on shared links; a crossing is a group's use of the NICs of one node.

    `latency` (groups,) is the sum of a group's latencies and `inside` (groups,) the seconds on its slowest intra-node
    link. Crossing e: group `group[e]` sends `bytes_[e]` out of node `node[e]` over up to `lanes[e]` NICs at once, at
    `inverse[e]` seconds per byte and NIC. Every node has `num_nics` NICs. `other_links` are the loads of the same
    groups on buses and on uplinks (`node` is then a switch); a group takes as long as on the slowest. `fixed_bytes`
    replaces the result of `busiest_node_bytes`.
    """

    latency: Floats
    inside: Floats
    group: Whole
    node: Whole
    bytes_: Floats
    lanes: Floats
    inverse: Floats
    num_nics: int
    fixed_bytes: float | None = None
    other_links: tuple[Loads, ...] = ()

    @classmethod
    def fixed(cls, seconds: Floats, busiest: float) -> Loads:
        """Return loads that take the given `seconds`, (groups,); `busiest` bytes leave the busiest node."""
        none, whole = np.zeros(0), np.zeros(0, dtype=np.int64)
        return cls(np.zeros(len(seconds)), seconds, whole, whole, none, none, none, 1, busiest)

    def seconds(self) -> Floats:
        """Return the seconds of each group when all start together, shape (groups,).

        O(crossings log crossings) at the first call, then cached.
        """
        return self._seconds.copy()

    @cached_property
    def _seconds(self) -> Floats:
        result = self.inside.copy()
        np.maximum.at(result, self.group, self._shared())
        result += self.latency
        for other in self.other_links:
            result = np.maximum(result, other.seconds())
        return result

    def busiest_node_bytes(self) -> float:
        """Return the bytes that leave the busiest node through its NICs in this phase."""
        if self.fixed_bytes is not None:
            return self.fixed_bytes
        if not len(self.node):
            return 0.0
        _, index = np.unique(self.node, return_inverse=True)
        return float(np.bincount(index, weights=self.bytes_).max())

    def _shared(self) -> Floats:
        """Return the seconds of each crossing if crossings share the NICs of a node fairly.

        A crossing divides its bytes over its lanes (parallel streams, at most one per NIC); those of a lane take p
        seconds on a free NIC. A node's crossings end in order of p. While c lanes are busy on r NICs, each lane has
        min(1, r/c) of a NIC, so from one end to the next max(1, c/r) times the difference of their p passes.
        """
        if not len(self.node):
            return np.zeros(0)
        lanes = np.minimum(self.lanes, self.num_nics)
        piece = self.bytes_ / lanes * self.inverse
        order = np.lexsort((piece, self.node))
        node, piece, lanes = self.node[order], piece[order], lanes[order]
        first = np.flatnonzero(np.concatenate(([True], node[1:] != node[:-1])))
        counts = np.diff(np.concatenate((first, [len(node)])))
        start = np.repeat(first, counts)
        running = np.cumsum(lanes)
        before = running - lanes
        total = np.repeat(np.add.reduceat(lanes, first), counts)
        busy = total - (before - before[start])
        previous = np.concatenate(([0.0], piece[:-1]))
        previous[first] = 0.0
        grown = np.cumsum((piece - previous) * np.maximum(1.0, busy / self.num_nics))
        offset = np.concatenate(([0.0], grown[:-1]))[start]
        shared = np.empty(len(node))
        shared[order] = grown - offset
        return shared


def of_phase(
    phase: Phase, cluster: Cluster, hardware: Hardware, *, model_bytes: float, algorithm: str, coding: Coding = PLAIN
) -> Loads:
    """Return the loads of an all-reduce of `model_bytes` in explicit groups; `algorithm`, `coding` as in `of_sum`."""
    groups, links = SummingGroups.of(phase, cluster, algorithm, coding), Links.of(cluster, hardware)
    return groups.loads(links, num_nics=hardware.num_nics, model_bytes=model_bytes)


@dataclass(frozen=True, slots=True)
class SummingGroups:
    """Groups that all-reduce at the same time: their sizes, incidences as of `shape_of`, and traffic, for any links."""

    shape: Shape
    pairs: Whole
    traffic: Traffic

    @classmethod
    def of(cls, phase: Phase, cluster: Cluster, algorithm: str, coding: Coding = PLAIN) -> SummingGroups:
        shape, pairs = shape_of(phase, cluster)
        return cls(shape, pairs, of_sum(shape, algorithm, coding))

    def loads(self, links: Links, *, num_nics: int, model_bytes: float) -> Loads:
        """Return the loads of an all-reduce of `model_bytes` on `links`."""
        return _assemble(self.shape, self.pairs, links, self.traffic, num_nics=num_nics, model_bytes=model_bytes)


def of_exchange(phase: Phase, cluster: Cluster, hardware: Hardware, *, num_bytes: float) -> Loads:
    """Return the loads of an all-to-all in every group: a worker sends `num_bytes` in equal pieces to its group."""
    shape, pairs = shape_of(phase, cluster)
    traffic, links = all_to_all(shape), Links.of(cluster, hardware)
    return _assemble(shape, pairs, links, traffic, num_nics=hardware.num_nics, model_bytes=num_bytes)


def of_pieces(
    cluster: Cluster, hardware: Hardware, *, wanted: Floats, held: Floats, workers: Whole, others: int | None = None
) -> Loads:
    """Return the loads of an all-to-all over all workers in which workers request bytes from those that hold them.

    Arrays (num_nodes,): the workers of a node together request `wanted` bytes, and `workers` of them hold the share
    `held` of all bytes. Links are full duplex: the direction with more bytes counts. Each worker gets a message, also
    an empty one, from each other worker, or only from `others` of other nodes. O(num_nodes · levels of switches).
    """
    messages = cluster.num_workers - 1 if others is None else others
    sizes, links = cluster.node_sizes().astype(float), Links.of(cluster, hardware)
    nodes, one = np.arange(cluster.num_nodes), np.zeros(cluster.num_nodes, dtype=np.int64)

    def through(requested: Floats, share: Floats) -> Floats:
        larger: Floats = np.maximum(share * (wanted.sum() - requested), requested * (1 - share))
        return larger

    crossing = through(wanted, held)
    within = wanted * held * np.maximum(sizes - 1, 0) / sizes
    inside = np.max(within / np.maximum(workers, 1) * links.inside_inverse, initial=0.0)
    worst_inside = np.max(links.inside_latency * (sizes > 1), initial=0.0)
    way_up, other_links = links.nic_latency, []
    latency = np.zeros(1)
    if links.uplinks is not None:
        found = links.uplinks.crossings(one, nodes, sizes, np.array([cluster.num_nodes]))
        way_up = way_up + found.climb
        below = [(links.uplinks.above == switch).any(axis=0) for switch in found.switch]
        shared = np.array([through(wanted[nodes_].sum(), held[nodes_].sum()) for nodes_ in below])
    across = np.max(way_up, initial=0.0) if cluster.num_nodes > 1 else 0.0
    latency += messages * (max(across, worst_inside) if others is None else across)
    if links.uplinks is not None:
        other_links.append(
            _shared_once(latency, found.group, found.switch, shared, links.uplinks.inverse[found.switch])
        )
    if links.bus != Link():
        busy = sizes * messages * links.bus.latency + (crossing + within) * links.bus.seconds_per_byte
        other_links.append(_shared_once(np.zeros(1), one, nodes, busy, np.ones(len(busy))))
    used = nodes if cluster.num_nodes > 1 else nodes[:0]
    return Loads(
        latency,
        np.array([inside]),
        one[used],
        used,
        crossing[used],
        sizes[used],
        links.nic_inverse[used],
        hardware.num_nics,
        other_links=tuple(other_links),
    )


def shape_of(phase: Phase, cluster: Cluster) -> tuple[Shape, Whole]:
    """Return the sizes of explicit groups, and all their incidences, an array (count, 2).

    An incidence is a pair (group index, node): the group has a worker on the node.
    """
    sizes = phase.sizes
    group = np.repeat(np.arange(len(phase)), sizes)
    keys = group * cluster.num_nodes + cluster.node_of()[phase.members]
    pairs, here = np.unique(keys, return_counts=True)
    pair_group, pair_node = pairs // cluster.num_nodes, pairs % cluster.num_nodes
    num_nodes = np.bincount(pair_group, minlength=len(phase))
    most, least = np.zeros(len(phase)), np.full(len(phase), np.inf)
    np.maximum.at(most, pair_group, here)
    np.minimum.at(least, pair_group, here)
    return Shape(sizes, num_nodes, most, least, here.astype(float)), np.stack([pair_group, pair_node], 1)


def of_rule(
    phase: RulePhase,
    radices: Sequence[int],
    cluster: Cluster,
    hardware: Hardware,
    *,
    model_bytes: float,
    algorithm: str,
    coding: Coding = PLAIN,
) -> Loads:
    """Return the loads of an all-reduce in the groups of a rule's phase, on the fewest nodes that show every cost.

    `radices` are those of the node digits; other arguments as in `of_phase`. Every node is crossed by exactly one group
    of each block, so nodes with equal links carry the same load. The result has the nodes with their own links, and so
    many of the others that no two groups of a block cross the same one. O(blocks · nodes with own links). Under
    switches all nodes may differ, so the result has all of them: O(blocks · num_nodes), vectorized.
    """
    for node in {node for switch in hardware.switches for node in switch.nodes}:
        check_node(node, cluster.num_nodes)
    find = _rule_loads.__wrapped__ if hardware.shared_switches(cluster.num_nodes) else _rule_loads
    return find(phase, tuple(radices), cluster, hardware, model_bytes=model_bytes, algorithm=algorithm, coding=coding)


@lru_cache(maxsize=KEPT)
def _rule_loads(
    phase: RulePhase,
    radices: tuple[int, ...],
    cluster: Cluster,
    hardware: Hardware,
    *,
    model_bytes: float,
    algorithm: str,
    coding: Coding,
) -> Loads:
    shape, pairs, links = _show_nodes(phase, radices, cluster, hardware)
    traffic = of_sum(shape, algorithm, coding)
    return _assemble(shape, pairs, links, traffic, num_nics=hardware.num_nics, model_bytes=model_bytes)


def _show_nodes(
    phase: RulePhase, radices: Sequence[int], cluster: Cluster, hardware: Hardware
) -> tuple[Shape, Whole, Links]:
    """Return the sizes and incidences of a rule's phase, as `shape_of` does, and the links of the nodes.

    The nodes are those of `of_rule`: the ones with their own links, and a few that stand for the others.
    """
    num_nodes, own = cluster.num_nodes, sorted({node for node, _ in (*hardware.node_nic, *hardware.node_inside)})
    for node in own:
        check_node(node, num_nodes)
    has_switches = bool(hardware.shared_switches(num_nodes))
    nodes = np.arange(num_nodes) if has_switches else np.array(own, dtype=np.int64)
    sizes, spans, locals_ = list[int](), list[int](), list[float]()
    pairs, mixed = [np.zeros((0, 2), dtype=np.int64)], list[Whole]()
    for block in phase:
        span = prod(radices[d] for d in block.across)
        if span * len(block.local) < 2:
            continue
        _, group, counts = np.unique(
            representatives(nodes, radices, block.across), return_inverse=True, return_counts=True
        )
        has_ordinary = np.append(counts < span, len(counts) * span < num_nodes)
        pairs.append(np.stack([len(sizes) + group, np.arange(len(nodes))], axis=1))
        mixed.append(len(sizes) + np.flatnonzero(has_ordinary))
        count = len(counts) + int(has_ordinary[-1])
        sizes += [span * len(block.local)] * count
        spans += [span] * count
        locals_ += [float(len(block.local))] * count
    stand_ins = np.arange(max(map(len, mixed), default=0))
    pairs += [
        np.stack([groups[np.minimum(stand_ins, len(groups) - 1)], len(nodes) + stand_ins], axis=1) for groups in mixed
    ]
    incidence, members = np.concatenate(pairs), np.array(locals_)
    shape = Shape(np.array(sizes, np.int64), np.array(spans, np.int64), members, members, members[incidence[:, 0]])
    if has_switches:
        return shape, incidence, Links.of(cluster, hardware)
    links = [(hardware.nic_of(node), hardware.inside_of(node)) for node in nodes.tolist()]
    links += [(hardware.nic, hardware.inside)] * len(stand_ins)
    return shape, incidence, Links.of_pairs(links, hardware.bus)


def _assemble(
    shape: Shape, pairs: Whole, links: Links, traffic: Traffic, *, num_nics: int, model_bytes: float
) -> Loads:
    """Return the loads that the `traffic` of groups, in shares of a payload of `model_bytes`, puts on `links`.

    `pairs` (count, 2) are the incidences (group, node) of the groups in `shape`; nodes index `links`.
    """
    pair_group, pair_node = pairs[:, 0], pairs[:, 1]
    groups, few, crosses = len(shape.sizes), shape.inside, shape.crosses
    worst_inverse, worst_inside, worst_nic = np.zeros(groups), np.zeros(groups), np.zeros(groups)
    np.maximum.at(worst_inverse, pair_group, links.inside_inverse[pair_node])
    np.maximum.at(worst_inside, pair_group, links.inside_latency[pair_node])
    way_up, uplinks = links.nic_latency[pair_node], links.uplinks
    if uplinks is not None:
        crossings = uplinks.crossings(pair_group, pair_node, shape.here, shape.num_nodes)
        way_up = way_up + crossings.climb
    np.maximum.at(worst_nic, pair_group, way_up)
    across = np.maximum(worst_nic, np.where(few > 1, worst_inside, 0.0))
    flat = traffic.flat_hops * np.where(crosses, across, worst_inside)
    coding = traffic.codec * model_bytes
    latency = flat + traffic.inside_hops * worst_inside + traffic.nic_hops * worst_nic + coding
    other_links = []
    if uplinks is not None:
        over, switch = crossings.group, crossings.switch
        shares = traffic.through(over, crossings.workers, crossings.nodes)
        other_links.append(_shared_once(latency, over, switch, shares * model_bytes, uplinks.inverse[switch]))
    if links.bus != Link() and groups:
        # On the bus each member's messages and bytes count, wherever they go; times are shared like bytes on a NIC.
        own = traffic.messages * links.bus.latency + traffic.sent * model_bytes * links.bus.seconds_per_byte
        busy = shape.here * own[pair_group]
        other_links.append(_shared_once(coding, pair_group, pair_node, busy, np.ones(len(busy))))
    used = crosses[pair_group] if groups else np.zeros(0, dtype=bool)
    group, node = pair_group[used], pair_node[used]
    return Loads(
        latency,
        traffic.inside * model_bytes * worst_inverse,
        group,
        node,
        traffic.through(group, shape.here[used], np.ones(len(group))) * model_bytes,
        shape.least[group],
        links.nic_inverse[node],
        num_nics,
        other_links=tuple(other_links),
    )


def _shared_once(latency: Floats, group: Whole, place: Whole, bytes_: Floats, inverse: Floats) -> Loads:
    """Return the loads on links of one kind, one for each node or switch, such as buses or uplinks.

    Crossing e sends `bytes_[e]` of group `group[e]` over the link of node or switch `place[e]`, at `inverse[e]` seconds
    per byte, shared with the other crossings there; `latency` (groups,) is added to a group's seconds.
    """
    return Loads(latency, np.zeros(len(latency)), group, place, bytes_, np.ones(len(group)), inverse, 1)
