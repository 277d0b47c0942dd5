"""The hardware of a cluster: links, switches and speeds of workers, in seconds and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from partreduce.topo.argument_types import check_fields
from partreduce.topo.errors import InputError, of_type
from partreduce.topo.fields import CheckedFields, JsonObject

LONGEST_SECONDS = 1e9
"""The largest value of a step time, a latency, a byte's time (seconds; 30 years) or a factor on them.

Sums and products of numbers up to here stay finite in floats.
"""

LARGEST_JITTER = 1000.0
"""The largest coefficient of variation: with more, nearly all factors of a log-normal of mean 1 are nearly 0."""

Seconds = Annotated[float, Ge(0), Le(LONGEST_SECONDS)]
Variation = Annotated[float, Ge(0), Le(LARGEST_JITTER)]
Share = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True, slots=True)
class Link(CheckedFields):
    """A link in the α–β model: a message of b bytes takes latency + b · seconds_per_byte seconds."""

    place: ClassVar[str] = "link."
    latency: Seconds = 0.0
    seconds_per_byte: Seconds = 0.0

    @classmethod
    def of_bandwidth(cls, bytes_per_second: float, latency: float = 0.0) -> Link:
        """Return a link of this bandwidth (bytes per second, > 0, else InputError) and latency (seconds)."""
        of_type(bytes_per_second, (int, float), "link: bandwidth", "give bytes per second, such as 10e9")
        if not bytes_per_second > 0:
            raise InputError(f"link: bandwidth is {bytes_per_second} bytes/s; it must be > 0")
        return cls(latency, 1.0 / bytes_per_second)


@dataclass(frozen=True, slots=True)
class CodecSeconds(JsonObject):
    """The seconds that one worker needs to encode, and to decode, one byte of float32."""

    place: ClassVar[str] = "codec."

    encode: Seconds = 0.0
    decode: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Switch:
    """A network switch: its uplink, and all nodes below it, directly or through other switches, in ascending order.

    The uplink is full duplex, with the same numbers in both directions. The default uplink costs nothing; it stands for
    a switch of unknown bandwidth.
    """

    nodes: tuple[int, ...]
    uplink: Link = field(default_factory=Link)

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.nodes:
            raise InputError("switch: has no nodes below it; a switch names at least 1 node")
        object.__setattr__(self, "nodes", tuple(sorted(self.nodes)))
        if self.nodes[0] < 0:
            raise InputError(f"switch: names node {self.nodes[0]}; nodes are numbered from 0")
        if len(set(self.nodes)) < len(self.nodes):
            raise InputError(f"switch: names {len(self.nodes)} nodes, {len(set(self.nodes))} different; name each once")


def nesting_problem(switches: Sequence[Switch]) -> tuple[int, str] | None:
    """Return a switch that partly overlaps another or has the same nodes, as (index, reason); None if there is none.

    The smallest switches are checked first. O(sum of sizes).
    """
    largest: dict[int, int] = {}
    for index in smallest_first(switches):
        members = set(switches[index].nodes)
        for other in sorted({largest[node] for node in members if node in largest}):
            inner = set(switches[other].nodes)
            if inner == members:
                return index, (
                    f"stands above the same nodes as switches[{other}]; keep one of them, with the smaller bandwidth "
                    "and both latencies added"
                )
            if not inner <= members:
                return index, (
                    f"shares node {min(inner & members)} with switches[{other}], and neither holds all nodes of the "
                    "other; switches nest or are disjoint"
                )
        largest.update(dict.fromkeys(members, index))
    return None


def smallest_first(switches: Sequence[Switch]) -> list[int]:
    """Return the indices of the switches, sorted by number of nodes, so that inner switches precede outer ones."""
    return sorted(range(len(switches)), key=lambda index: (len(switches[index].nodes), index))


@dataclass(frozen=True, slots=True)
class Hardware(CheckedFields):
    """Links and speeds of a cluster, and sizes and times of the training job.

    `inside` is the link between two workers of one node, `nic` the link of a node to the others, shared by every
    group that crosses it; `node_nic` and `node_inside` override them for single nodes; `num_nics` is the number of
    NICs (rails) of a node. `bus` is a resource that all workers of a node share when they send (the memory bus, or the
    host's processors under gloo): every message and every byte that leaves a worker passes it; it is free by default.
    `switches` are those above the nodes, in any order: any two nest or are disjoint, and the uplink of each is
    shared by every group that has workers on both of its sides. Without switches only NICs stand between nodes.
    `slowdown` gives the factor on the compute time of single workers (5.0 = five times as long), `jitter` the
    coefficient of variation of a step's compute time. `codec` gives the coding times of single codecs, by name; other
    codecs have defaults (`topo.timing.coding`).

    `model_bytes`, `compute` (seconds per step) and, if gradients are sent layer by layer, `layers` and `backward`
    describe the job: `layers` is the number of equal segments, or the bytes of each in the order in which the backward
    pass produces them (0 for a segment that takes time and sends nothing); `backward` is the share of the backward pass
    in a step's computing.
    """

    place: ClassVar[str] = "hardware."
    inside: Link = field(default_factory=Link)
    nic: Link = field(default_factory=Link)
    bus: Link = field(default_factory=Link)
    node_inside: tuple[tuple[int, Link], ...] = ()
    node_nic: tuple[tuple[int, Link], ...] = ()
    num_nics: int = 1
    switches: tuple[Switch, ...] = ()
    slowdown: tuple[tuple[int, float], ...] = ()
    jitter: Variation = 0.0
    codec: tuple[tuple[str, CodecSeconds], ...] = ()
    model_bytes: int | None = None
    compute: Seconds | None = None
    layers: int | tuple[int, ...] | None = None
    backward: Share = 2 / 3

    def __post_init__(self) -> None:
        CheckedFields.__post_init__(self)
        listed = (self.layers,) if isinstance(self.layers, int) else self.layers
        if listed is not None and (min(listed, default=0) < 0 or not any(listed)):
            raise InputError(
                f"hardware: layers is {self.layers}; it is a number of segments >= 1, or their bytes >= 0, one > 0"
            )
        if self.switches and (problem := nesting_problem(self.switches)):
            raise InputError(f"hardware: switches[{problem[0]}]: {problem[1]}")

    def nic_of(self, node: int) -> Link:
        return dict(self.node_nic).get(node, self.nic)

    def inside_of(self, node: int) -> Link:
        return dict(self.node_inside).get(node, self.inside)

    def shared_switches(self, num_nodes: int) -> tuple[Switch, ...]:
        """Return the switches that can slow down a job: their uplinks take time, and some node is not below them."""
        return tuple(s for s in self.switches if s.uplink != Link() and len(s.nodes) < num_nodes)

    def is_free_of_bytes(self) -> bool:
        """Whether all links have zero seconds per byte, so that no time depends on the model's size."""
        return self == self.without_bandwidths()

    def without_bandwidths(self) -> Hardware:
        """Return the same hardware with zero seconds per byte on all links; latencies stay."""

        def quick(links: tuple[tuple[int, Link], ...]) -> tuple[tuple[int, Link], ...]:
            return tuple((node, Link(link.latency)) for node, link in links)

        return replace(
            self,
            inside=Link(self.inside.latency),
            nic=Link(self.nic.latency),
            bus=Link(self.bus.latency),
            node_inside=quick(self.node_inside),
            node_nic=quick(self.node_nic),
            switches=tuple(Switch(switch.nodes, Link(switch.uplink.latency)) for switch in self.switches),
        )


USUAL = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9))
"""The hardware that `partreduce design` assumes if the cluster states none."""


def switches_above(switches: Sequence[Switch], num_nodes: int) -> npt.NDArray[np.int64]:
    """Return the switches above every node, shape (levels, num_nodes): indices into `switches`, −1 for no switch.

    Row 0 holds the switches with no switch below them; any other is one row after the last row of those below it.
    The switches must nest or be disjoint.
    """
    largest: dict[int, int] = {}
    level: dict[int, int] = {}
    for index in smallest_first(switches):
        nodes = switches[index].nodes
        level[index] = 1 + max((level[largest[node]] for node in nodes if node in largest), default=-1)
        largest.update(dict.fromkeys(nodes, index))
    result = np.full((1 + max(level.values(), default=-1), num_nodes), -1, dtype=np.int64)
    for index, row in level.items():
        result[row, list(switches[index].nodes)] = index
    return result


@lru_cache(maxsize=64)
def regular_levels(switches: tuple[Switch, ...], num_nodes: int) -> tuple[int, ...] | None:
    """Return the number of children on every level of a regular switch tree, top first; None if it is not regular.

    For example (pods, racks in a pod, nodes in a rack); `(num_nodes,)` without switches. Regular means: on every level
    all switches hold equally many nodes with consecutive numbers, every node is below a switch, and all uplinks are
    equal. The numbers can serve as node radices; the product of the first k is the number of switches on level k
    from the top.
    """
    counts = [1]
    for row in switches_above(switches, num_nodes)[::-1]:
        if (row < 0).any():
            return None
        starts = np.flatnonzero(np.r_[True, row[1:] != row[:-1]])
        count = len(set(row.tolist()))
        even = np.array_equal(starts, np.arange(count) * (num_nodes // count)) and num_nodes % count == 0
        if not even or count % counts[-1] or len({switches[index].uplink for index in row.tolist()}) > 1:
            return None
        counts.append(count)
    counts.append(num_nodes)
    return tuple(b // a for a, b in pairwise(counts) if b > a)
