"""A planner's answer beside the best of the catalogue, at the catalogue's own communication and consensus distance."""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.synthesis.baseline import Point, catalogue_points
from partreduce import plan
from partreduce.planner.competitors import MAX_CONVEX_WORKERS
from partreduce.schedulers.synthesis import Problem

if TYPE_CHECKING:
    from partreduce import Job, Option, Plan

RESULTS = Path(__file__).resolve().parents[1] / "results"
SLACK = 1 + 1e-9
TARGET = 1.5


@dataclass(frozen=True)
class Place:
    """One entry of the catalogue's own front, and the best options of the planner that need no more of one figure.

    `possible` is the largest ratio in consensus distance that the proved bound leaves open for its class, None without
    one.
    """

    rival: str
    rival_seconds: float
    rival_consensus_distance: float
    best_seconds: float | None
    best_consensus_distance: float | None
    less_consensus_distance: float
    possible: float | None
    cheaper_seconds: float | None
    cheaper_consensus_distance: float | None
    less_communication: float

    def calmer(self) -> str:
        """The gain in consensus distance, in words."""
        rival = f"{self.rival}: {self.rival_consensus_distance:.4f}, at {1e3 * self.rival_seconds:.2f} ms"
        return f"{self.less_consensus_distance:.2f}x ({self.best_consensus_distance or 0:.4f} against {rival})"

    def cheaper(self) -> str:
        """The gain in communication, in words."""
        rival = f"{self.rival}: {1e3 * self.rival_seconds:.2f} ms, at {self.rival_consensus_distance:.4f}"
        return f"{self.less_communication:.2f}x ({1e3 * (self.cheaper_seconds or 0):.2f} ms against {rival})"


@dataclass(frozen=True)
class Answer:
    """A plan, how long it took, and how it compares."""

    plan: Plan
    seconds: float
    cpu_seconds: float
    load: float
    catalogue: list[Point]
    places: list[Place]

    @property
    def most_consensus_distance(self) -> Place:
        """Where the planner saves most consensus distance at equal communication."""
        return max(self._compared(), key=lambda place: place.less_consensus_distance)

    @property
    def most_communication(self) -> Place:
        """Where the planner saves most communication at equal consensus distance."""
        return max(self._compared(), key=lambda place: place.less_communication)

    def _compared(self) -> list[Place]:
        if not self.places:
            sys.exit("nothing was found in the time that could be compared; give a longer --time-limit")
        return self.places

    @property
    def meets_target(self) -> bool:
        return (
            max(self.most_consensus_distance.less_consensus_distance, self.most_communication.less_communication)
            >= TARGET
        )

    @property
    def spent(self) -> str:
        """Wall-clock and CPU seconds of the plan."""
        return f"{self.seconds:.1f} ({self.cpu_seconds:.1f})"

    def to_json(self) -> dict[str, object]:
        recommendation = self.plan.recommendation
        return {
            "seconds": round(self.seconds, 2),
            "cpu_seconds": round(self.cpu_seconds, 2),
            "load_average": round(self.load, 1),
            "catalogue_points": len(self.catalogue),
            "front": [option.to_json() for option in self.plan.front],
            "recommendation": recommendation.to_json() | {"verdict": self.plan.proof.verdict},
            "search": {"status": self.plan.search_status, "proof": self.plan.search_proof},
            "places": [asdict(place) for place in self.places],
        }


def answer(job: Job) -> Answer:
    """Plan a job on the clock; the catalogue beside it has all its parameters swept, more than the planner offers.

    What takes minutes to make at this size (MATCHA beyond 64 workers) is left out, as the planner leaves it out.
    """
    clock, work = time.monotonic(), time.process_time()
    found = plan(job)
    seconds, cpu_seconds = time.monotonic() - clock, time.process_time() - work
    load = os.getloadavg()[0]
    skip = [name for name, most in MAX_CONVEX_WORKERS.items() if job.cluster.num_workers > most]
    points = catalogue_points(Problem(cluster=job.cluster, form=job.problem().form), skip=skip)
    return Answer(found, seconds, cpu_seconds, load, points, places(points, found.options))


def places(points: list[Point], options: list[Option]) -> list[Place]:
    """Every entry of the catalogue's front that leaves something to gain, against the planner's found schedules."""
    found = [
        option for option in options if option.status != "catalogue" and option.consensus_distance.value is not None
    ]
    result = []
    for rival in catalogue_front(points):
        within = [o for o in found if o.communication <= rival.seconds * SLACK]
        calm = [o for o in found if float(o.consensus_distance) <= rival.consensus_distance * SLACK]
        if rival.consensus_distance < 1e-9 or not (within or calm):
            continue
        best = min(within, key=lambda o: float(o.consensus_distance), default=None)
        cheaper = min(calm, key=lambda o: o.communication, default=None)
        bounded = best is not None and best.bound is not None and best.bound > 1e-9
        result.append(
            Place(
                rival=rival.name,
                rival_seconds=rival.seconds,
                rival_consensus_distance=rival.consensus_distance,
                best_seconds=best.communication if best else None,
                best_consensus_distance=float(best.consensus_distance) if best else None,
                less_consensus_distance=ratio(rival.consensus_distance, float(best.consensus_distance))
                if best
                else 0.0,
                possible=rival.consensus_distance / best.bound if bounded else None,  # type: ignore[union-attr, operator]
                cheaper_seconds=cheaper.communication if cheaper else None,
                cheaper_consensus_distance=float(cheaper.consensus_distance) if cheaper else None,
                less_communication=ratio(rival.seconds, cheaper.communication) if cheaper else 0.0,
            )
        )
    return result


def ratio(theirs: float, ours: float) -> float:
    return theirs / ours if ours > 1e-12 else math.inf


def catalogue_front(points: list[Point]) -> list[Point]:
    """The catalogue's entries that no other entry beats, by rising communication."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.seconds, p.consensus_distance)):
        if not kept or point.consensus_distance < kept[-1].consensus_distance * (1 - 1e-9):
            kept.append(point)
    return kept


def best_within(
    points: list[Point], *, seconds: float = math.inf, consensus_distance: float = math.inf
) -> Point | None:
    """The catalogue's least consensus distance within a budget, or its least communication below such a distance."""
    fitting = [p for p in points if p.seconds <= seconds * SLACK and p.consensus_distance <= consensus_distance * SLACK]
    least = (lambda p: p.consensus_distance) if seconds < math.inf else (lambda p: p.seconds)
    return min(fitting, key=least, default=None)


def place_rows(answer: Answer) -> list[str]:
    """One Markdown row per place."""
    head = [
        "catalogue entry",
        "its ms",
        "its consensus distance",
        "found consensus distance (ms)",
        "less consensus distance",
        "possible",
    ]
    head += ["found ms (consensus distance)", "less communication"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for p in answer.places:
        cells = [p.rival, f"{1e3 * p.rival_seconds:.2f}", f"{p.rival_consensus_distance:.4f}"]
        cells += pair(p.best_consensus_distance, p.best_seconds, p.less_consensus_distance, order=(1, 1e3))
        cells.insert(5, "-" if p.possible is None else f"≤ {p.possible:.2f}x")
        cells += pair(p.cheaper_seconds, p.cheaper_consensus_distance, p.less_communication, order=(1e3, 1))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def pair(first: float | None, second: float | None, gain: float, *, order: tuple[float, float]) -> list[str]:
    """What was found and the gain, or dashes where nothing found is within the entry's figure."""
    if first is None or second is None:
        return ["-", "-"]
    return [f"{order[0] * first:.4g} ({order[1] * second:.4g})", f"{gain:.2f}x"]


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
