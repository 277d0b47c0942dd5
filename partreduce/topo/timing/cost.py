"""The α–β cost of a schedule's communication, with every node's NICs shared by the groups that cross them.

`topo.timing.coding` has the bytes that a group sends through each NIC that it crosses and through the links inside its
nodes, and the number of latencies of its slowest link (rings: Patarasuk and Yuan, 2009). Groups that cross one
NIC share it fairly. A phase lasts as long as its slowest group.

A node with r NICs (rails) serves r lanes at full speed. A group with at least l workers on each of its nodes spreads
its bytes evenly over l lanes: l parallel rings, or the l shards of the hierarchical algorithm. Parallel rings
are what NCCL makes: it searches for as many rings as bandwidth allows, each of which enters a node through a NIC, goes
through all of the group's GPUs and leaves through a NIC (NVIDIA/nccl, src/graph/search.cc, "Search Patterns"; S.
Jeaugey in issue 412 there: several NICs add up where the links inside the node carry all rings, which the bytes inside
count). NICs are searched beginning with those nearest to the group's GPUs (ncclTopoSelectNets), so one NIC for each
GPU is counted, and all nodes use the smallest number of rings that any can make. gloo makes one ring, through one NIC:
over gloo, several rails serve several groups and the hierarchical algorithm, and a ring costs up to l times the cost
computed here.

A switch is to the nodes below it what a NIC is to the workers of a node: a group with workers on both sides sends as
many bytes through the uplink as through a NIC (the ring visits the nodes below a switch one after another, so it leaves
and enters each once), and groups that cross one uplink share it fairly. The latency of a message is that of the NIC
plus those of all uplinks on the longer of its two ways, up from the source or down to the target.

The algorithm `hierarchical` applies to groups with the same number l ≥ 2 of workers on each of m ≥ 2 nodes and is the
ring for other groups; its two stages are pipelined. It never costs more than the ring.

A codec takes time to encode before and to decode after sending, in every group. A gradient sent layer by layer is
several all-reduces, one after another, each with its own latencies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.fields import Floats
from partreduce.topo.hardware import Hardware
from partreduce.topo.phase import Phase
from partreduce.topo.round import Round
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.timing import loads
from partreduce.topo.timing.coding import PLAIN, Algorithm, Coding, Travel


@dataclass(frozen=True, slots=True)
class Communication:
    """The communication cost of a schedule, without waiting for slow workers.

    `phases` are the seconds of each phase, `per_round` their mean, `per_step` the mean divided by the largest
    steps_per_round. `nic_bytes_per_step` are the bytes that leave the busiest node through its NICs, averaged over
    steps, `peak_nic_bytes` the most in one step.
    """

    phases: tuple[float, ...]
    per_round: float
    per_step: float
    nic_bytes_per_step: float
    peak_nic_bytes: float


def communication(
    schedule: Schedule, hardware: Hardware, *, model_bytes: int | None = None, algorithm: Algorithm = None
) -> Communication:
    """Compute the communication cost of one period, without the prologue; InputError if no model size is known.

    `model_bytes` and `algorithm` default to those of the hardware and of the schedule. O(blocks) for rules, for any
    number of nodes, else O(n·period).
    """
    size, travel = bytes_of(hardware, model_bytes), Travel.of_strategy(schedule.strategy, hardware, algorithm)
    steps = schedule.largest_steps_per_round
    found = list[tuple[float, float, float]]()
    for index, first in enumerate(first_equal(schedule)):
        if first < index:
            found.append(found[first])
            continue
        loaded = phase_loads(schedule, index, hardware, model_bytes=size, travel=travel)
        each = [one.busiest_node_bytes() for one in loaded]
        longest = float(segment_seconds(loaded).sum(axis=0).max(initial=0.0))
        found.append((longest, sum(each), max(each) if travel.turns else sum(each)))
    seconds, sent, peaks = zip(*found, strict=True)
    per_round = float(np.mean(seconds))
    return Communication(seconds, per_round, per_round / steps, float(np.mean(sent)) / steps, float(max(peaks)))


def first_equal(schedule: Schedule) -> list[int]:
    """Return, for each phase of the period, the index of the first phase that equals it and so has the same cost."""
    rule, seen = schedule.rule(by_node=True), dict[object, int]()
    phases = schedule.strategy.graphs or (map(schedule.phase, range(schedule.period)) if rule is None else rule.phases)
    return [seen.setdefault(phase, index) for index, phase in enumerate(phases)]


def group_seconds(
    phase: Phase,
    cluster: Cluster,
    hardware: Hardware,
    *,
    model_bytes: int | None = None,
    algorithm: AllReduceAlgorithm = AllReduceAlgorithm.RING,
    coding: Coding = PLAIN,
) -> Floats:
    """Return the seconds of an all-reduce, in this `coding`, in each group of a phase, started together, (groups,)."""
    return loads.of_phase(
        phase, cluster, hardware, model_bytes=bytes_of(hardware, model_bytes), algorithm=algorithm.value, coding=coding
    ).seconds()


def round_seconds(edges: Round, cluster: Cluster, hardware: Hardware, *, model_bytes: int | None = None) -> Floats:
    """Return the seconds until each worker has received the models of all its in-neighbors, shape (num_workers,).

    Every edge carries the whole model. NICs and uplinks are full duplex and serve their messages one after another,
    so a worker is done when the sending NICs of its sources and the receiving NIC of its own node are.
    """
    size = bytes_of(hardware, model_bytes)
    node_of = cluster.node_of()
    source_node, target_node = node_of[edges.sources], node_of[edges.targets]
    crosses = source_node != target_node
    latency, inverse = loads.nic_arrays(cluster, hardware)
    inside_latency, inside_inverse = loads.inside_arrays(cluster, hardware)
    out = np.bincount(source_node[crosses], minlength=cluster.num_nodes) / hardware.num_nics
    into = np.bincount(target_node[crosses], minlength=cluster.num_nodes) / hardware.num_nics
    out, into = (np.where(count > 0, np.maximum(count, 1.0), 0.0) * size * inverse for count in (out, into))
    local = np.bincount(edges.targets[~crosses], minlength=cluster.num_workers)
    busy, up, down = np.maximum(out[source_node], into[target_node]), latency[source_node], latency[target_node]
    if (uplinks := loads.Uplinks.of(cluster, hardware)) is not None:
        shared, climb, descent = uplinks.edges(source_node, target_node, size)
        busy, up, down = np.maximum(busy, shared), up + climb, down + descent
    across = busy + np.maximum(up, down)
    within = local[edges.targets] * size * inside_inverse[target_node] + inside_latency[target_node]
    result = np.zeros(cluster.num_workers)
    np.maximum.at(result, edges.targets, np.where(crosses, across, within))
    return result


def phase_loads(
    schedule: Schedule, index: int, hardware: Hardware, *, model_bytes: int, travel: Travel
) -> list[loads.Loads]:
    """Return the loads on links of the groups of phase `index`, one entry for each segment in `travel`.

    Rules are not expanded into groups.
    """
    cluster, index = schedule.cluster, index % schedule.period
    if graphs := schedule.strategy.graphs:
        edges = graphs[index]
        seconds = round_seconds(edges, cluster, hardware, model_bytes=model_bytes)
        source, target = cluster.node_of()[edges.sources], cluster.node_of()[edges.targets]
        busiest = float(np.bincount(source[source != target], minlength=1).max(initial=0)) * model_bytes
        return [loads.Loads.fixed(seconds, busiest)]
    rule = schedule.rule(by_node=True)

    @cache
    def of(share: float) -> loads.Loads:
        part = share * model_bytes if share != 1.0 else model_bytes
        algorithm, coding = travel.algorithm.value, travel.coding
        if rule is None:
            phase = schedule.phase(index)
            return loads.of_phase(phase, cluster, hardware, model_bytes=part, algorithm=algorithm, coding=coding)
        return loads.of_rule(
            rule.phases[index], rule.radices, cluster, hardware, model_bytes=part, algorithm=algorithm, coding=coding
        )

    return [of(share) for share in travel.shares]


def segment_seconds(listed: list[loads.Loads]) -> Floats:
    """Return the seconds of each group, for loads as of `phase_loads`, one per segment; shape (segments, groups)."""
    known = {id(loaded): loaded.seconds() for loaded in listed}
    return np.stack([known[id(loaded)] for loaded in listed])


def bytes_of(hardware: Hardware, model_bytes: int | None) -> int:
    """Return `model_bytes`, or the hardware's if that is None; raise InputError if both are None, or for <= 0 bytes."""
    size = model_bytes if model_bytes is not None else hardware.model_bytes
    if size is None:
        raise InputError("model_bytes: is not given; say how many bytes the model has, such as 552_000_000")
    if size <= 0:
        raise InputError(f"model_bytes: is {size}; it is a number of bytes > 0")
    return size
