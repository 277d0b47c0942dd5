"""Schedules with outer steps: workers or regions train separately, and at intervals take an outer step together.

Sources: Douillard et al., DiLoCo: distributed low-communication training of language models, 2023 (arXiv 2311.08105),
and Streaming DiLoCo with overlapping communication, 2025 (arXiv 2501.18512).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import prod

from partreduce.schedulers.rules.algebra import local_ranks, static
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.hardware import regular_levels
from partreduce.topo.rule import Block
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import SYNCHRONOUS, DelayedMerge
from partreduce.topo.strategies.payload import OuterStep, Payload
from partreduce.topo.strategies.static import RulePhases, StaticGroups


def diloco(
    cluster: Cluster, *, every: int, fragments: int, late: int, alpha: float, lr: float, momentum: float
) -> AllReduce:
    """Return DiLoCo, or Streaming DiLoCo: every `every` steps an outer step of each of `fragments` parts of the model.

    The result is merged `late` steps late, with the share `alpha` of the local value; `lr` and `momentum` are those of
    the outer SGD.
    """
    del cluster
    sync = DelayedMerge(steps=late, alpha=Fraction(str(alpha))) if late or alpha else SYNCHRONOUS
    return AllReduce(steps_per_round=every, sync=sync, payload=Payload(outer=_outer(lr, momentum), fragments=fragments))


def diloco_unsupported_reason(cluster: Cluster, **parameters: float) -> str | None:
    """Return why `diloco` with these keyword arguments is invalid for the cluster; None if it is valid."""
    try:
        diloco(cluster, **parameters).check(cluster)  # type: ignore[arg-type]
    except ScheduleError as error:
        return str(error)
    return None


def regions_diloco(cluster: Cluster, regions: int | None, every: int, lr: float, momentum: float) -> StaticGroups:
    """Return DiLoCo between regions: workers of a region average in each step, all take an outer step every `every`.

    The `regions` (a number) have equally many nodes; None: a region is a largest switch's nodes, or else a node. `lr`
    and `momentum` are those of the outer SGD.
    """
    ranks, radices = local_ranks(cluster), _radices(cluster, regions)
    own, everyone = (Block(ranks, tuple(range(first, len(radices)))) for first in (1, 0))
    found = static(cluster, RulePhases(radices, ((own,),) * (every - 1) + ((everyone,),)))
    return replace(found, payload=Payload(outer=_outer(lr, momentum)))


def regions_diloco_unsupported_reason(
    cluster: Cluster, regions: int | None, every: int, lr: float, momentum: float
) -> str | None:
    """Return why `regions_diloco` is impossible (it needs two or more equal regions of several workers); else None."""
    del lr, momentum
    if regions is not None and (regions < 2 or cluster.num_nodes % regions):
        return f"{cluster.num_nodes} nodes are not {regions} regions of as many; give a divisor of the nodes, 2 or more"
    if cluster.num_nodes < 2:
        return f"there is one node, so one region; use diloco(every={every})"
    radices = _radices(cluster, regions)
    if len(local_ranks(cluster)) * prod(radices[1:]) < 2:
        return f"every region has 1 worker; use diloco(every={every})"
    return None


def _outer(lr: float, momentum: float) -> OuterStep:
    return OuterStep(lr=Fraction(str(lr)), momentum=Fraction(str(momentum)), nesterov=momentum > 0)


def _radices(cluster: Cluster, regions: int | None) -> tuple[int, ...]:
    """Return the radices of a rule, (regions, nodes of a region), without those that are 1.

    Without `regions` a region is the nodes below one of the largest switches, if these are regular, else a node.
    """
    count = cluster.num_nodes
    if regions is None:
        switches = () if cluster.hardware is None else cluster.hardware.shared_switches(count)
        regions = (regular_levels(switches, count) or (count,))[0]
    return tuple(radix for radix in (regions, count // regions) if radix > 1)
