"""What the planner's search gains over Prague's Figure 10 and over the whole catalogue, by cluster and by question.

    python -m benchmarks.planner.gains example [--time-limit 25] [--seeds 0 2] [--forms ring hierarchical] [-o FILE]
    python -m benchmarks.planner.gains clusters [--time-limit 28] [--only 3,3,2 ...]

*example*: 4x4, 552 MB, 10 GB/s inside a node, 5 GB/s NIC: the least consensus distance within 110.4 ms of communication
per step (what Figure 10 costs), and the least communication at Figure 10's consensus distance, 8/7, in periods up to
48. *clusters*: regular, irregular and uneven ones. Gains are taken at the entries of the catalogue's own front, with
all its parameters swept, more than the planner offers. "possible" is what the proved bound of the option leaves open.
Writes FILE.md after every answer, so that a run that is stopped loses nothing.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.kit import RESULTS, command, machine, parser, table, write
from partreduce import Job, Limits, Objective, plan
from partreduce.schedulers import registry
from partreduce.topo import figures
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import PartreduceError
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.strategies.axes import Form
from partreduce.topo.timing.cost import communication

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partreduce.types import Option

SLACK = 1 + 1e-9
TARGET = 1.5
EVEN = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9), model_bytes=552_000_000, compute=0.05)
UNEVEN = replace(EVEN, node_nic=((3, Link.of_bandwidth(2.5e9)),), slowdown=tuple((worker, 2.0) for worker in range(4)))
CLUSTERS = {
    "8x8": ("8x8", EVEN),
    "16x8": ("16x8", EVEN),
    "3,3,2": ("3,3,2", EVEN),
    "5,3": ("5,3", EVEN),
    "4x4, node 0 at half speed, NIC of node 3 halved": ("4x4", UNEVEN),
}
QUESTIONS: dict[str, dict[str, Any]] = {
    "at most 110.4 ms": {"objective": Objective.CONSENSUS_DISTANCE, "limits": Limits(max_communication=0.1104)},
    "consensus distance at most 8/7": {
        "objective": Objective.COMMUNICATION,
        "limits": Limits(max_consensus_distance=8 / 7, max_period=48),
    },
}
SWEPT = {"every": range(1, 25), "node_rounds": range(1, 24), "pair_rounds": range(1, 24), "rounds": range(1, 9)}


@dataclass(frozen=True)
class Point:
    """An entry of the catalogue."""

    name: str
    seconds: float
    consensus_distance: float


def catalogue(job: Job) -> Iterator[Point]:
    """Every schedule of groups and rounds that the cluster can have, parameters swept."""
    cluster, form = job.cluster, job.problem().form
    assert cluster.hardware is not None
    for name in registry.names():
        entry = registry.entry(name)
        if name == "local-sgd":
            continue
        swept = [p.name for p in entry.parameters if p.name in SWEPT and (p.name != "rounds" or entry.kind == "rule")]
        for values in product(*(SWEPT[p] for p in swept)):
            parameters = dict(zip(swept, values, strict=True))
            try:
                schedule = registry.build(name, cluster, **parameters)
                seconds = communication(schedule, cluster.hardware, form=form).per_step
                value = float(figures.consensus_distance(schedule))
            except PartreduceError:
                continue
            if math.isfinite(value):
                label = name + "".join(f" {key}={value}" for key, value in parameters.items())
                yield Point(label + (" (graph)" if schedule.strategy.graphs else ""), seconds, value)


def front(points: list[Point]) -> list[Point]:
    """The entries that no other one beats, by rising communication."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.seconds, p.consensus_distance)):
        if not kept or point.consensus_distance < kept[-1].consensus_distance * (1 - 1e-9):
            kept.append(point)
    return kept


@dataclass(frozen=True)
class Place:
    """An entry of that front, with the planner's best options that need no more of one figure."""

    rival: Point
    calm: Option | None
    cheap: Option | None

    @property
    def calmer(self) -> float:
        """How many times less consensus distance at no more communication."""
        return 0.0 if self.calm is None else _over(self.rival.consensus_distance, float(self.calm.consensus_distance))

    @property
    def cheaper(self) -> float:
        """How many times less communication at no more consensus distance."""
        return 0.0 if self.cheap is None else _over(self.rival.seconds, self.cheap.communication)

    def row(self) -> list[str]:
        bound = self.calm and self.calm.bound
        possible = f"≤ {self.rival.consensus_distance / bound:.2f}x" if bound and bound > 1e-9 else "-"
        cells = [self.rival.name, f"{1e3 * self.rival.seconds:.2f}", f"{self.rival.consensus_distance:.4f}"]
        return [*cells, shown(self.calm), f"{self.calmer:.2f}x", possible, shown(self.cheap), f"{self.cheaper:.2f}x"]


PLACES = (
    "catalogue entry", "its ms", "its consensus distance", "found: ms, consensus distance", "less consensus distance",
    "possible", "found: ms, consensus distance", "less communication",
)  # fmt: skip
HEAD = (
    "asked", "recommendation", "ms, consensus distance", "period", "bound", "status", "best catalogue entry",
    "less consensus distance", "less communication", f"≥ {TARGET}x", "s (of processor), load",
)  # fmt: skip


def _over(theirs: float, ours: float) -> float:
    return theirs / ours if ours > 1e-12 else math.inf


def shown(option: Option | None) -> str:
    return "-" if option is None else f"{1e3 * option.communication:.3f}, {float(option.consensus_distance):.5f}"


def places_of(points: list[Point], options: list[Option]) -> Iterator[Place]:
    """Every entry of the catalogue's front that options can be compared with."""
    for rival in front(points):
        within = [o for o in options if o.communication <= rival.seconds * SLACK]
        calm = [o for o in options if float(o.consensus_distance) <= rival.consensus_distance * SLACK]
        if rival.consensus_distance >= 1e-9 and (within or calm):
            least = min(within, key=lambda o: float(o.consensus_distance), default=None)
            yield Place(rival, least, min(calm, key=lambda o: o.communication, default=None))


def answer(asked: str, job: Job) -> tuple[list[str], list[Place]]:
    """The row of a job, planned on the clock, and the places where its options can be compared."""
    clock, work = time.monotonic(), time.process_time()
    found = plan(job)
    spent = f"{time.monotonic() - clock:.1f} ({time.process_time() - work:.1f}), {os.getloadavg()[0]:.0f}"
    points, chosen, limits = list(catalogue(job)), found.recommendation, job.limits
    options = [o for o in found.options if o.status != "catalogue" and o.consensus_distance.value is not None]
    places = list(places_of(points, options))
    most, worst = limits.max_communication or math.inf, float(limits.max_consensus_distance or math.inf)
    fitting = [p for p in points if p.seconds <= most * SLACK and p.consensus_distance <= worst * SLACK]
    by_distance = job.objective is Objective.CONSENSUS_DISTANCE
    best = min(fitting, key=lambda p: p.consensus_distance if by_distance else p.seconds)
    calmer = max((place.calmer for place in places), default=0.0)
    cheaper = max((place.cheaper for place in places), default=0.0)
    bound = "-" if chosen.bound is None else f"{chosen.bound:.5f}"
    row = [asked, chosen.name, shown(chosen), str(chosen.period), bound, chosen.status]
    row += [f"{best.name}: {1e3 * best.seconds:.2f}, {best.consensus_distance:.4f}"]
    row += [f"{calmer:.2f}x", f"{cheaper:.2f}x", "yes" if max(calmer, cheaper) >= TARGET else "no", spent]
    return row, places


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("what", choices=["example", "clusters"])
    arguments.add_argument("--time-limit", type=float, default=25.0)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments.add_argument("--forms", nargs="+", default=["ring"], choices=[str(form) for form in Form])
    arguments.add_argument("--only", nargs="+", choices=list(CLUSTERS), metavar="CLUSTER")
    arguments.add_argument("-o", "--output", type=Path)
    chosen = arguments.parse_args()
    jobs: dict[str, Job] = {}
    if chosen.what == "example":
        cluster = Cluster.regular(4, 4, hardware=replace(EVEN, compute=0.0))
        for form, seed, (words, fields) in product(chosen.forms, chosen.seeds, QUESTIONS.items()):
            jobs[f"{form}, {words}, seed {seed}"] = Job(cluster=cluster, form=Form(form), seed=seed, **fields)
    else:
        for name, seed in product(chosen.only or CLUSTERS, chosen.seeds):
            shape, hardware = CLUSTERS[name]
            jobs[f"{name}, seed {seed}"] = Job(cluster=replace(Cluster.parse(shape), hardware=hardware), seed=seed)
    about = f"`{command('planner.gains')}`; {machine()} at the start."
    path = chosen.output or RESULTS / {"example": "worked_example", "clusters": "clusters"}[chosen.what]
    rows, fronts = [], []
    for asked, job in jobs.items():
        row, places = answer(asked, replace(job, time_limit=chosen.time_limit))
        rows.append(row)
        fronts.append(f"### {asked}\n\n{table(PLACES, [place.row() for place in places])}")
        words = "At every entry of the catalogue's own front:"
        write(path, f"What the planner gains: {chosen.what}", about, table(HEAD, rows), words, *fronts)


if __name__ == "__main__":
    main()
