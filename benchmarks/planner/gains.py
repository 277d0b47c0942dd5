"""What the planner's search gains over Prague's Figure 10 and over the whole catalogue, by cluster and by question.

    python -m benchmarks.planner.gains example [--time-limit 25] [--seeds 0 2] [--drawn 5] [--forms ring hierarchical]
    python -m benchmarks.planner.gains clusters [--time-limit 28] [--only 3,3,2 ...]

*example*: 4x4, 552 MB, 10 GB/s inside a node, 5 GB/s NIC: the least consensus distance within 110.4 ms of communication
per step (what Figure 10 costs), and the least communication at Figure 10's consensus distance, 8/7, in periods up to
48; then bandwidths drawn at random (NIC 1 to 32 GB/s, inside 1 to 20 times that). *clusters*: regular, irregular and
uneven ones. Gains are taken at the entries of the catalogue's own front, with all its parameters swept, more than the
planner offers. "possible" and "bound" are what the proved bound of the named class leaves open. Writes FILE.md after
every answer, so that a run that is stopped loses nothing.
"""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.kit import RESULTS, command, machine, parser, table, write
from partreduce import Job, Limits, Objective, plan
from partreduce.planner.competitors import MAX_CONVEX_WORKERS
from partreduce.schedulers import registry
from partreduce.schedulers.synthesis import Problem
from partreduce.topo import figures
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import PartreduceError
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.strategies.axes import Form
from partreduce.topo.timing.cost import communication

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from partreduce.types import Option, Plan

SLACK = 1 + 1e-9
TARGET = 1.5
BUDGET, VALUE = 0.1104, 8 / 7
EVEN = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9), model_bytes=552_000_000, compute=0.05)
UNEVEN = replace(EVEN, node_nic=((3, Link.of_bandwidth(2.5e9)),), slowdown=tuple((worker, 2.0) for worker in range(4)))
CLUSTERS = {
    "8x8": ("8x8", EVEN),
    "16x8": ("16x8", EVEN),
    "3,3,2": ("3,3,2", EVEN),
    "5,3": ("5,3", EVEN),
    "4x4, node 0 at half speed, NIC of node 3 halved": ("4x4", UNEVEN),
}
SWEPT = {"every": range(1, 25), "node_rounds": range(1, 24), "pair_rounds": range(1, 24), "rounds": range(1, 9)}


@dataclass(frozen=True)
class Point:
    """An entry of the catalogue."""

    name: str
    seconds: float
    consensus_distance: float


def catalogue(problem: Problem, *, skip: Collection[str] = ()) -> Iterator[Point]:
    """Every group schedule and round schedule of the registry that the cluster can have, parameters swept."""
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
        cells += ["-" if self.calm is None else _figures(self.calm), f"{self.calmer:.2f}x", possible]
        return [*cells, "-" if self.cheap is None else _figures(self.cheap), f"{self.cheaper:.2f}x"]


PLACES = (
    "catalogue entry",
    "its ms",
    "its consensus distance",
    "found: ms, consensus distance",
    "less consensus distance",
    "possible",
)
PLACES = (*PLACES, "found: ms, consensus distance", "less communication")


def _over(theirs: float, ours: float) -> float:
    return theirs / ours if ours > 1e-12 else math.inf


def _figures(option: Option) -> str:
    return f"{1e3 * option.communication:.3f}, {float(option.consensus_distance):.5f}"


@dataclass(frozen=True)
class Answer:
    """A plan, what it took, and the places where it can be compared."""

    plan: Plan
    spent: str
    points: list[Point]
    places: list[Place]

    def best(self) -> list[str]:
        """The largest gains, in words."""
        if not self.places:
            sys.exit("nothing was found in the time that could be compared; give a longer --time-limit")
        calm = max(self.places, key=lambda place: place.calmer)
        cheap = max(self.places, key=lambda place: place.cheaper)
        reached = "yes" if max(calm.calmer, cheap.cheaper) >= TARGET else "no"
        return [f"{calm.calmer:.2f}x ({calm.rival.name})", f"{cheap.cheaper:.2f}x ({cheap.rival.name})", reached]


BEST = ("less consensus distance", "less communication", f"≥ {TARGET}x")


def answer(job: Job) -> Answer:
    """Plan a job on the clock; what takes minutes to make at its size is left out of the catalogue, too."""
    clock, work = time.monotonic(), time.process_time()
    found = plan(job)
    spent = f"{time.monotonic() - clock:.1f} ({time.process_time() - work:.1f}), load {os.getloadavg()[0]:.0f}"
    skip = [name for name, most in MAX_CONVEX_WORKERS.items() if job.cluster.num_workers > most]
    points = list(catalogue(Problem(cluster=job.cluster, form=job.problem().form), skip=skip))
    options = [o for o in found.options if o.status != "catalogue" and o.consensus_distance.value is not None]
    places = []
    for rival in front(points):
        within = [o for o in options if o.communication <= rival.seconds * SLACK]
        calm = [o for o in options if float(o.consensus_distance) <= rival.consensus_distance * SLACK]
        if rival.consensus_distance >= 1e-9 and (within or calm):
            least = min(within, key=lambda o: float(o.consensus_distance), default=None)
            places.append(Place(rival, least, min(calm, key=lambda o: o.communication, default=None)))
    return Answer(found, spent, points, places)


class Report:
    """What was found so far."""

    def __init__(self, path: Path, title: str) -> None:
        self.path, self.title = path, title
        self.tables: dict[str, tuple[tuple[str, ...], list[list[str]]]] = {}
        self.fronts: list[str] = []

    def add(self, name: str, head: tuple[str, ...], row: list[str], found: Answer, where: str) -> None:
        self.tables.setdefault(name, (head, []))[1].append(row)
        self.fronts.append(f"## {where}\n\n" + table(PLACES, [place.row() for place in found.places]))
        parts = [f"`{command('planner.gains')}`; {machine()}; seconds (of processor)."]
        parts += [f"## {key}\n\n{table(*content)}" for key, content in self.tables.items()]
        write(self.path, self.title, *parts, "At every entry of the catalogue's own front:", *self.fronts)


def example(chosen: Any, report: Report) -> None:  # noqa: ANN401 - parsed arguments
    """The questions in every form, then random bandwidths."""

    def job(inside: float = 10e9, nic: float = 5e9, **fields: Any) -> Job:  # noqa: ANN401 - fields of Job
        links = replace(EVEN, inside=Link.of_bandwidth(inside), nic=Link.of_bandwidth(nic), compute=0.0)
        cluster = Cluster.regular(4, 4, hardware=links)
        return Job(cluster=cluster, time_limit=chosen.time_limit, **fields)

    head = (
        "form",
        "asked",
        "seed",
        "found: ms, consensus distance",
        "period",
        "bound",
        "status",
        "best catalogue entry",
    )
    for form, seed in product(map(Form, chosen.forms), chosen.seeds):
        asked = {
            f"at most {1e3 * BUDGET:g} ms": (Objective.CONSENSUS_DISTANCE, Limits(max_communication=BUDGET)),
            "consensus distance at most 8/7": (
                Objective.COMMUNICATION,
                Limits(max_consensus_distance=VALUE, max_period=48),
            ),
        }
        for words, (objective, limits) in asked.items():
            found = answer(job(objective=objective, limits=limits, form=form, seed=seed))
            recommendation, budget = found.plan.recommendation, limits.max_communication
            fitting = [
                p for p in found.points if (p.seconds <= BUDGET * SLACK if budget else p.consensus_distance <= VALUE)
            ]
            entry = min(fitting, key=lambda p: p.consensus_distance if budget else p.seconds)
            gain = (
                entry.consensus_distance / float(recommendation.consensus_distance)
                if budget
                else entry.seconds / recommendation.communication
            )
            row = [str(form), words, str(seed), _figures(recommendation), str(recommendation.period)]
            row += ["-" if recommendation.bound is None else f"{recommendation.bound:.5f}", recommendation.status]
            row += [f"{entry.name}: {1e3 * entry.seconds:.2f} ms, {entry.consensus_distance:.4f}"]
            row += [f"{gain:.2f}x", found.spent]
            report.add("Questions", (*head, "gain", "s"), row, found, f"{form}, {words}, seed {seed}")
    rng = np.random.default_rng(chosen.draw)
    for seed in range(chosen.drawn):
        nic = 1e9 * 10 ** (1.5 * rng.uniform())
        inside = nic * 20 ** rng.uniform()
        found = answer(job(inside, nic, seed=seed))
        where = f"{inside / 1e9:.2f} GB/s inside, {nic / 1e9:.2f} GB/s NIC"
        row = [where, str(len(found.plan.front)), *found.best(), found.spent]
        report.add("Random bandwidths", ("links", "front", *BEST, "s"), row, found, where)


def clusters(chosen: Any, report: Report) -> None:  # noqa: ANN401 - as above
    """The default question on every cluster."""
    for name in chosen.only or CLUSTERS:
        shape, hardware = CLUSTERS[name]
        cluster = replace(Cluster.parse(shape), hardware=hardware)
        found = answer(Job(cluster=cluster, time_limit=chosen.time_limit, seed=chosen.seeds[0]))
        chosen = found.plan.recommendation
        words = (
            f"{chosen.name}: {_figures(chosen)}, period {chosen.period}, {chosen.status}, {found.plan.proof.verdict}"
        )
        row = [
            name,
            str(len(found.plan.front)),
            words,
            f"{1e3 * chosen.step_seconds:.2f}",
            *found.best(),
            found.spent,
        ]
        report.add("Clusters", ("cluster", "front", "recommendation", "step ms", *BEST, "s"), row, found, name)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("what", choices=["example", "clusters"])
    arguments.add_argument("--time-limit", type=float, default=25.0)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments.add_argument("--drawn", type=int, default=5, help="how many random bandwidths")
    arguments.add_argument("--draw", type=int, default=2026, help="their seed")
    arguments.add_argument("--forms", nargs="+", default=["ring"], choices=[str(form) for form in Form])
    arguments.add_argument("--only", nargs="+", choices=list(CLUSTERS), metavar="CLUSTER")
    arguments.add_argument("-o", "--output", type=Path)
    chosen = arguments.parse_args()
    name, run = {"example": ("worked_example", example), "clusters": ("clusters", clusters)}[chosen.what]
    run(chosen, Report(chosen.output or RESULTS / name, name.replace("_", " ").capitalize()))


if __name__ == "__main__":
    main()
