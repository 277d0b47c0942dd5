"""Random requests to the planner: clusters, links, limits, objectives and time limits."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from partreduce import Data, Limits, Objective, PlanRequest
from partreduce.planner.job import Delay
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link, Switch
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Codec

if TYPE_CHECKING:
    from collections.abc import Sequence


T = TypeVar("T")

MOST_WORKERS = 24
"""Most workers of usual clusters; one in forty has up to a few hundred."""


def draw_job(seed: int, number: int, *, tiny: bool = False) -> PlanRequest:
    """Return the job with this number for the seed; `tiny` ones have at most 5 workers and few phases."""
    rng = np.random.default_rng([seed, number])
    cluster = _cluster(rng, tiny=tiny)
    hardware = _hardware(rng, cluster)
    cluster = replace(cluster, hardware=hardware)
    timed = rng.random() < 0.3
    job = PlanRequest(
        cluster=cluster,
        objective=_one_of(rng, list(Objective)),
        data=_one_of(rng, list(Data)),
        algorithm=_one_of(rng, [None, None, None, AllReduceAlgorithm.RING, *AllReduceAlgorithm]),
        sync=_one_of(rng, [None, None, Delay.SYNCHRONOUS, Delay.LATE]),
        limits=_limits(rng, cluster, hardware, tiny=tiny),
        effort=None if timed else float(rng.uniform(0.05, 0.4)),
        time_limit=float(rng.uniform(0.05, 0.6)) if timed else 60.0,
        seed=int(rng.integers(1000)),
        codec=_one_of(rng, [Codec.NONE, Codec.NONE, None, None, *(one for one in Codec if one is not Codec.INT4)]),
    )
    return replace(job, sync=Delay.PIPELINE) if rng.random() < 0.05 else job


def _one_of(rng: np.random.Generator, values: Sequence[T]) -> T:
    return values[int(rng.integers(len(values)))]


def _log(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _cluster(rng: np.random.Generator, *, tiny: bool) -> Cluster:
    most = 5 if tiny else (300 if rng.random() < 1 / 40 else MOST_WORKERS)
    while True:
        nodes = int(_log(rng, 1, 9))
        if rng.random() < 0.5:
            sizes = [int(_log(rng, 1, 9 if most <= MOST_WORKERS else 40))] * nodes
        else:
            sizes = [int(_log(rng, 1, 9 if most <= MOST_WORKERS else 90)) for _ in range(nodes)]
        if 2 <= sum(sizes) <= most:
            break
    if len(set(sizes)) == 1 and rng.random() < 0.8:
        return Cluster.regular(nodes, sizes[0])
    return Cluster.parse(",".join(map(str, sizes))) if len(sizes) > 1 else Cluster.regular(1, sizes[0])


def _link(rng: np.random.Generator) -> Link:
    latency = 0.0 if rng.random() < 0.5 else _log(rng, 1e-6, 1e-3)
    return Link.of_bandwidth(_log(rng, 1e7, 1e11), latency)


def _hardware(rng: np.random.Generator, cluster: Cluster) -> Hardware:
    nodes, workers = cluster.num_nodes, cluster.num_workers
    nic = _link(rng)
    own = tuple((v, _link(rng)) for v in range(nodes) if rng.random() < 0.3) if rng.random() < 0.3 else ()
    inner = tuple((v, _link(rng)) for v in range(nodes) if rng.random() < 0.3) if rng.random() < 0.15 else ()
    slow = tuple((w, float(rng.choice([1.5, 2.0, 3.0, 5.0]))) for w in range(workers) if rng.random() < 0.15)
    return Hardware(
        inside=nic if rng.random() < 0.1 else _link(rng),
        nic=nic,
        bus=_link(rng) if rng.random() < 0.15 else Link(),
        node_nic=own,
        node_inside=inner,
        num_nics=int(rng.choice([1, 1, 1, 2, 4, 8])),
        switches=_switches(rng, nodes) if rng.random() < 0.25 else (),
        slowdown=slow if rng.random() < 0.3 else (),
        jitter=float(rng.uniform(0.02, 0.3)) if rng.random() < 0.2 else 0.0,
        model_bytes=int(_log(rng, 1e4, 1e10)),
        compute=0.0 if rng.random() < 0.1 else _log(rng, 1e-3, 1.0),
    )


def _switches(rng: np.random.Generator, nodes: int) -> tuple[Switch, ...]:
    """Return racks that cut the nodes into consecutive parts, sometimes with one switch above some of them."""
    cuts = sorted({0, nodes, *rng.integers(0, nodes + 1, 2).tolist()})
    racks = [Switch(tuple(range(a, b)), _link(rng)) for a, b in pairwise(cuts)]
    if len(racks) > 2 and rng.random() < 0.3:
        racks.append(Switch((*racks[0].nodes, *racks[1].nodes), _link(rng)))
    return tuple(racks)


def _limits(rng: np.random.Generator, cluster: Cluster, hardware: Hardware, *, tiny: bool) -> Limits:
    full = (hardware.model_bytes or 0) * max(hardware.nic.seconds_per_byte, hardware.inside.seconds_per_byte)
    chosen: dict[str, Any] = {}
    if rng.random() < 0.35:
        chosen["max_communication"] = 0.0 if rng.random() < 0.05 else full * _log(rng, 0.003, 4.0)
    if rng.random() < 0.35:
        chosen["max_consensus_distance"] = _one_of(
            rng, [0, Fraction(0), Fraction(8, 7), Fraction(1, 3), Fraction(3, 4), _log(rng, 0.01, 20.0)]
        )
    if tiny:
        chosen["max_period"] = int(rng.integers(1, 3))
    elif rng.random() < 0.4:
        chosen["max_period"] = int(rng.integers(1, 25))
    if rng.random() < 0.25:
        chosen["max_group"] = int(rng.integers(2, cluster.num_workers + 1))
    if rng.random() < 0.2:
        chosen["max_distinct_phases"] = int(rng.integers(1, 5))
    if rng.random() < 0.1:
        chosen["max_gap"] = int(rng.integers(0, 6))
    return Limits(**chosen)
