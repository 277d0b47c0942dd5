"""Hardware: what a cluster's links and workers can do. All times in seconds, all sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from topo.errors import InputError


@dataclass(frozen=True, slots=True)
class Link:
    """A link class of the α–β model: a message of b bytes takes latency + b * seconds_per_byte."""

    latency: float = 0.0
    seconds_per_byte: float = 0.0

    def __post_init__(self) -> None:
        """Refuse negative and non-finite values."""
        for name in ("latency", "seconds_per_byte"):
            value = getattr(self, name)
            if not (value >= 0 and value < float("inf")):
                raise InputError(f"link: {name} is {value}; it is a finite number >= 0")

    @classmethod
    def of_bandwidth(cls, bytes_per_second: float, latency: float = 0.0) -> Link:
        """A link of the given bandwidth (> 0) and latency."""
        if not bytes_per_second > 0:
            raise InputError(f"link: bandwidth is {bytes_per_second} bytes/s; it must be > 0")
        return cls(latency, 1.0 / bytes_per_second)


@dataclass(frozen=True, slots=True)
class Hardware:
    """Links and speeds of a cluster.

    `inside` is the link between two workers of one node, `nic` the link of a node to the others, shared by every
    group that crosses it; `node_nic` and `node_inside` override them for single nodes; `num_nics` is the number of
    NICs (rails) of a node. `bus` is what all workers of a node share whenever they send (the memory bus, or the host's
    processors under gloo): every message and every byte that leaves a worker passes it; it is free by default.
    `slowdown` gives the factor on the compute time of single workers (5.0 = five times as long), `jitter` the
    coefficient of variation of a step's compute time. `model_bytes` and `compute` (seconds per step) describe the job.
    """

    inside: Link = field(default_factory=Link)
    nic: Link = field(default_factory=Link)
    bus: Link = field(default_factory=Link)
    node_inside: tuple[tuple[int, Link], ...] = ()
    node_nic: tuple[tuple[int, Link], ...] = ()
    num_nics: int = 1
    slowdown: tuple[tuple[int, float], ...] = ()
    jitter: float = 0.0
    model_bytes: int | None = None
    compute: float | None = None

    def nic_of(self, node: int) -> Link:
        """The NIC link of one node."""
        return dict(self.node_nic).get(node, self.nic)

    def inside_of(self, node: int) -> Link:
        """The intra-node link of one node."""
        return dict(self.node_inside).get(node, self.inside)

    def slowdown_of(self, worker: int) -> float:
        """The factor on one worker's compute time."""
        return dict(self.slowdown).get(worker, 1.0)
