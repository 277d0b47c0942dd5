"""The best catalogue entries for a cluster, and by how much a front of found schedules beats them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from partreduce.schedulers import registry
from partreduce.topo import figures
from partreduce.topo.errors import PartreduceError
from partreduce.topo.timing.cost import communication

if TYPE_CHECKING:
    from collections.abc import Collection

    from partreduce.schedulers.synthesis import Candidate, Problem

SWEPT = {"every": range(1, 25), "node_rounds": range(1, 24), "pair_rounds": range(1, 24), "rounds": range(1, 9)}


@dataclass(frozen=True)
class Point:
    name: str
    seconds: float
    consensus_distance: float


def catalogue_points(problem: Problem, *, skip: Collection[str] = ()) -> list[Point]:
    """Every group schedule and round schedule of the registry that the cluster can have, parameters swept."""
    result = []
    for name in registry.names():
        entry = registry.entry(name)
        if entry.kind == "analysis" or name in {"local-sgd", *skip}:
            continue
        swept = [
            p.name for p in entry.parameters if p.name in SWEPT and not (p.name == "rounds" and entry.kind != "rule")
        ]
        for values in product(*(SWEPT[p] for p in swept)):
            parameters = dict(zip(swept, values, strict=True))
            try:
                schedule = registry.build(name, problem.cluster, **parameters)
                seconds = communication(schedule, problem.hardware, form=problem.form).per_step
                value = float(figures.consensus_distance(schedule))
            except PartreduceError:
                continue
            if math.isfinite(value):
                label = name + "".join(f" {k}={v}" for k, v in parameters.items())
                kind = " (graph)" if schedule.strategy.graphs else ""
                result.append(Point(label + kind, seconds, value))
    return result


@dataclass(frozen=True)
class Gain:
    consensus_distance_ratio: float
    communication_ratio: float
    at_seconds: Candidate | None
    at_consensus_distance: Candidate | None
    against_seconds: Point | None
    against_consensus_distance: Point | None


def gain(points: list[Point], found: tuple[Candidate, ...]) -> Gain:
    """The largest ratios over the front: catalogue over found, at equal (or less) of the other figure."""
    best = Gain(0.0, 0.0, None, None, None, None)
    d_ratio, c_ratio = 0.0, 0.0
    a = b = pa = pb = None
    for point in points:
        # At the catalogue's own communication, and at its own consensus distance: the fairest places to compare.
        rivals = [p for p in points if p.seconds <= point.seconds * (1 + 1e-9)]
        rival = min(rivals, key=lambda p: p.consensus_distance)
        ours = [c for c in found if c.communication_seconds_per_step <= point.seconds * (1 + 1e-9)]
        if ours and rival.consensus_distance > 1e-9:
            mine = min(ours, key=lambda c: c.consensus_distance)
            if mine.consensus_distance > 1e-9 and rival.consensus_distance / mine.consensus_distance > d_ratio:
                d_ratio, a, pa = rival.consensus_distance / mine.consensus_distance, mine, rival
        rivals = [p for p in points if p.consensus_distance <= point.consensus_distance * (1 + 1e-9)]
        rival = min(rivals, key=lambda p: p.seconds)
        ours = [c for c in found if c.consensus_distance <= point.consensus_distance * (1 + 1e-9)]
        if ours and rival.seconds > 0:
            mine = min(ours, key=lambda c: c.communication_seconds_per_step)
            ratio = rival.seconds / mine.communication_seconds_per_step
            if ratio > c_ratio:
                c_ratio, b, pb = ratio, mine, rival
    del best
    return Gain(d_ratio, c_ratio, a, b, pa, pb)
