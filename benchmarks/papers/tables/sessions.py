"""A session: several ways of exchanging tables side by side in the lab, and what was measured of each."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.lab.crew import LabError
from benchmarks.lab.standing import FAST
from benchmarks.papers.tables.models import BATCH, CLICK_BATCH
from benchmarks.papers.tables.sweep import ROWS
from benchmarks.papers.tables.ways import BASELINES, DENSE, HOROVOD, TF_PS_CUT, data_of, model_of
from benchmarks.papers.tables.wire import ring_bytes, routes_of, server_bytes, tables_bytes, touched
from benchmarks.papers.tables.worker import READY, SHAPED
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import Codec, Form
from partreduce.topo.strategies.routes import Routes, TableWay

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.lab import standing
    from benchmarks.papers.tables.models import WithTables
    from partreduce.planner.routes import Chosen
    from partreduce.topo.timing.tables import Touched

GATHER, GATHER_LOCAL, HYBRID, HYBRID_LOCAL = "gather", "gather, aggregated", "hybrid", "hybrid, aggregated"
HYBRID_CODED = "hybrid, aggregated, float16"
PLANNED, COMPOSED = "planner's choice", "planner's choice, dense part by its own schedule"
COMPOSED_CODED = "planner's choice, dense part by its own schedule, rows in float16"
OURS = {
    GATHER: (TableWay.GATHER, False, Codec.NONE),
    GATHER_LOCAL: (TableWay.GATHER, True, Codec.NONE),
    HYBRID: (TableWay.SHARDED, False, Codec.NONE),
    HYBRID_LOCAL: (TableWay.SHARDED, True, Codec.NONE),
    HYBRID_CODED: (TableWay.SHARDED, True, Codec.FLOAT16),
}
"""The way of all tables, whether workers of a node agree on rows first, and how rows are written."""
LATENCY = 3e-4
"""Of a message between workers, for the planner, where nobody measured it (`latency_of`)."""
HANDLING = 6.8e-6
"""Seconds per row that a worker hands on, for the planner: 0.85e-6 of one core, which eight workers share."""
APPLYING = 1.2e-8
"""Seconds per byte that Adagrad visits, for the planner: 1.5e-9 of one core, eight workers to a core."""
FEW = 3
"""Turns of a way of which only the seconds of a step are asked for."""
SET_UP_SECONDS = 90.0
"""What a job may take before its first turn; then it ends between two turns when its limit is over."""
TRANSFER_SECONDS = 10.0
"""Until the workers of a session are ready, where all goes well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """`turns` of so many `steps` by each way; `judge` takes the loss before every turn, outside the clock.

    `compute` seconds of a step are slept in addition to what its real computing takes. A way that has reached the
    `target` loss takes no further turns; one that would need more than `slowest` seconds a step on the wire, none; one
    of `few`, which trains step by step as another that goes on, `FEW` turns: what is asked of it is its step's seconds.
    """

    name: str
    task: str
    shape: tuple[int, int]
    rate: str
    compute: float
    ways: tuple[str, ...]
    turns: int = 3
    steps: int = 2
    judge: bool = False
    limit: float = 90.0
    target: float | None = None
    slowest: float | None = None
    few: tuple[str, ...] = ()

    @property
    def bytes_per_second(self) -> float:
        """Of a node's link."""
        number = self.rate.rstrip("abcdefghijklmnopqrstuvwxyz")
        return float(number) * {"mbit": 1e6, "gbit": 1e9}[self.rate[len(number) :]] / 8

    @property
    def items(self) -> int:
        """Words, impressions or rows that all workers read in a step."""
        each = {"language": BATCH, "clicks": CLICK_BATCH}.get(self.task)
        if each is None:
            each = max(1, round(float(self.task.split()[1]) * ROWS))
        return each * self.shape[0] * self.shape[1]

    @property
    def cluster(self) -> Cluster:
        """Its nodes and workers."""
        return Cluster.regular(*self.shape)


class Known:
    """What follows from a session before it is run: shares of touched rows, schedules, bytes."""

    def __init__(self, session: Session, text: Path, latency: float = LATENCY) -> None:
        self.session, self.latency = session, latency
        self.model: WithTables = _model(session.task)
        self.shares: dict[str, Touched] = _shares(session.task, session.shape, str(text))
        self.dense_bytes = 4 * sum(parameter.numel() for parameter in self.model.dense())
        self.schedules: dict[str, Schedule] = {}
        self.words: dict[str, str] = {}
        for way in session.ways:
            self._make(way)

    def _make(self, way: str) -> None:
        if way in OURS:
            self.schedules[way] = Schedule(way, self.session.cluster, AllReduce(what=self._routes(way)))
        elif way == DENSE:
            self.schedules[way] = Schedule(way, self.session.cluster, AllReduce())
        elif way == PLANNED:
            chosen = self.chosen(Schedule(way, self.session.cluster, AllReduce()))
            self.words[way] = "; ".join(chosen.reasons)
            self.schedules[way] = Schedule(way, self.session.cluster, AllReduce(what=chosen.routes))
        elif way in (COMPOSED, COMPOSED_CODED):
            base, codecs = self._planned_dense_part, (Codec.NONE, Codec.FLOAT16)[: 1 + (way == COMPOSED_CODED)]
            chosen = self.chosen(base, codecs)
            strategy: Any = base.strategy
            rows = ", ".join(f"{route.parameter} {route.in_words}" for route in chosen.routes.tables)
            self.words[way] = f"the dense part by {base.name} ({strategy.kind}, {strategy.how.codec}); {rows}"
            self.schedules[way] = Schedule(base.name, base.cluster, replace(strategy, what=chosen.routes))

    def _routes(self, way: str) -> Routes:
        """Those of a way by hand."""
        kind, aggregated, codec = OURS[way]
        return routes_of(self.model, kind, aggregated=aggregated, gradient=self._gradient, codec=codec)

    @property
    def _gradient(self) -> str:
        return "dense" if self.session.task.startswith("sweep") else "sparse"

    def chosen(self, schedule: Schedule, codecs: tuple[Codec, ...] = (Codec.NONE,)) -> Chosen:
        """The planner's routes beside a strategy for everything else, rows in one of these codecs."""
        from partreduce.planner.routes import choose_routes
        from partreduce.planner.table_prices import Table

        tables = [
            Table(parameter=name, rows=rows, columns=columns, touched=self.shares[name], gradient=self._gradient)  # type: ignore[arg-type]
            for name, (rows, columns) in ((name, table.shape) for name, table in self.model.tables().items())
        ]
        return choose_routes(
            tables,
            schedule,
            self.hardware,
            dense_bytes=self.dense_bytes,
            applying=APPLYING,
            handling=HANDLING,
            codecs=codecs,
        )

    @property
    def hardware(self) -> Hardware:
        """Links of the nominal rate, with the latency that was measured."""
        nic = Link.of_bandwidth(self.session.bytes_per_second, self.latency)
        inside = Link.of_bandwidth(1e9, self.latency)
        return Hardware(inside=inside, nic=nic, model_bytes=self.dense_bytes, compute=self.session.compute)

    @cached_property
    def _planned_dense_part(self) -> Schedule:
        """The planner's recommendation for all but the tables, codecs allowed; the tables' time is computing to it."""
        from partreduce import Job as Planned
        from partreduce import plan

        exchange = self.wire_bytes(HYBRID_LOCAL) / self.session.bytes_per_second
        hardware = replace(self.hardware, compute=self.session.compute + exchange)
        form = Form.HIERARCHICAL if self.session.shape[1] > 1 else Form.RING
        cluster = replace(self.session.cluster, hardware=hardware)
        found = plan(Planned(cluster=cluster, form=form, codec=None, fastest=True, time_limit=8.0))
        return replace(found.recommendation.schedule, certificate=None)

    def said(self) -> list[str]:
        """What the planner chose and why."""
        return [f"{self.session.name}: {way}: {words}" for way, words in self.words.items()]

    def same_as(self, way: str) -> str:
        """The contestant whose routes a planned way has; itself where it has its own."""
        what = self.schedules[way].strategy.what
        if way != PLANNED:
            return way
        if not what.apart:
            return DENSE if DENSE in self.session.ways else way
        for name, (_, aggregated, _) in OURS.items():
            routes = self._routes(name)
            if self.session.shape[1] == 1 and not aggregated:
                routes = replace(routes, local_aggregation=what.local_aggregation)
            if name in self.session.ways and what == routes:
                return name
        return way

    def wire_bytes(self, way: str, *, mean: bool = False) -> float:
        """What the busiest node's card, or the mean one, sends in a step, without headers."""
        shape = self.session.shape
        if way in BASELINES:
            kind = TableWay.GATHER if way == HOROVOD else TableWay.SHARDED
            tables = tables_bytes(routes_of(self.model, kind, aggregated=False, gradient="sparse"), self.shares, shape)
            if way == HOROVOD:
                return tables + ring_bytes(self.dense_bytes, shape)
            return tables + server_bytes(self.pieces(way), shape)[0 if mean else 1]
        what = self._routes(way) if way in OURS else self.schedules[way].strategy.what
        by_strategy = sum(
            4 * table.numel()
            for name, table in self.model.tables().items()
            if name not in {r.parameter for r in what.apart}
        )
        if way in (COMPOSED, COMPOSED_CODED):
            from partreduce.topo.timing.cost import communication

            sent = communication(self.schedules[way], self.hardware, model_bytes=self.dense_bytes + by_strategy)
            return tables_bytes(what, self.shares, shape) + sent.nic_bytes_per_step
        return tables_bytes(what, self.shares, shape) + ring_bytes(self.dense_bytes + by_strategy, shape)

    def pieces(self, way: str) -> list[int]:
        """Bytes of the dense parameters on each server, as baselines.Servers deals them."""
        sizes, hosts = [4 * p.numel() for p in self.model.dense()], self.session.shape[0]
        if way == TF_PS_CUT:
            return [sum(sizes) // hosts] * hosts
        return [sum(sizes[place::hosts]) for place in range(hosts)]

    def wire_seconds(self, way: str) -> float:
        """A step in which only sleeping and the wire take time."""
        return self.session.compute + self.wire_bytes(way) / self.session.bytes_per_second


def least_seconds(session: Session) -> float:
    """What is to be left of the time to begin a session: a turn of each way, and the first step before it."""
    return 5.0 + (1 + session.steps) * 0.5 * len(session.ways) + (40.0 if DENSE in session.ways else 0.0)


@cache
def _model(task: str) -> WithTables:
    return model_of(task)


@cache
def _shares(task: str, shape: tuple[int, int], text: str) -> dict[str, Touched]:
    data = data_of(task, text)
    return touched(_model(task), lambda step, worker: data.batch(0, step, worker), shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Consecutive steps of one way: how many came before, seconds from the first worker's start to the last one's end,
    bytes out of a node's card (mean), the loss before it where one was taken, the training loss during it, and seconds
    of processor in all threads of a worker (mean)."""

    done: int
    seconds: float
    nic_bytes: float
    loss: float | None
    trained: float
    busy: float = 0.0


@dataclass(slots=True, kw_only=True)
class Found:
    """What a session left. `predicted` seconds per step and `mean_wire` bytes are those of Known."""

    session: Session
    turns: dict[str, list[Turn]]
    predicted: dict[str, float]
    mean_wire: dict[str, float]
    shares: dict[str, tuple[float, float, float]]
    same: dict[str, str]
    notes: list[str] = field(default_factory=list)

    def timed(self, way: str) -> list[Turn]:
        """Those in which steps were taken."""
        return [turn for turn in self.turns.get(way, ()) if turn.seconds > 0]

    def step_seconds(self, way: str) -> list[float]:
        """Of each turn, per step."""
        return [turn.seconds / self.session.steps for turn in self.timed(way)]

    def curve(self, way: str) -> list[tuple[float, float, float]]:
        """(steps, seconds, loss): seconds of training alone."""
        points, seconds = [], 0.0
        for turn in self.turns.get(way, ()):
            if turn.loss is not None:
                points.append((float(turn.done), seconds, turn.loss))
            seconds += turn.seconds
        return points

    def reached(self, way: str, target: float) -> tuple[float, float] | None:
        """Steps and seconds at which the loss, between judgements on a straight line, first fell to the target."""
        points = self.curve(way)
        for (s0, t0, l0), (s1, t1, l1) in pairwise(points):
            if l1 <= target:
                part = 1.0 if l0 <= target else (l0 - target) / (l0 - l1)
                return s0 + part * (s1 - s0), t0 + part * (t1 - t0)
        return None

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> Found:
        """What `dataclasses.asdict` made, after a way through JSON."""
        session = content["session"]
        fields = {**session, **{name: tuple(session[name]) for name in ("shape", "ways", "few") if name in session}}
        turns = {way: [Turn(**turn) for turn in found] for way, found in content["turns"].items()}
        shares = {name: tuple(found) for name, found in content["shares"].items()}
        return cls(**{**content, "session": Session(**fields), "turns": turns, "shares": shares})


@dataclass(frozen=True, slots=True)
class Lab:
    """Where sessions run: the lab that stands, and what a message takes in it."""

    held: standing.Lab
    latency: float = LATENCY

    @property
    def text(self) -> Path:
        """The words, as `text.py` numbers them."""
        return self.held.scratch / "text.npy"


def latency_of(lab: Lab, shape: tuple[int, int]) -> float:
    """Seconds of one message between workers that all talk at once: an empty all_to_all's over its messages."""
    session = Session(name="probe", task="sweep 0.01", shape=shape, rate=FAST, compute=0.0, ways=(), turns=0)
    said, problem = _carry_out(session, [], {}, lab)
    if problem or not said:
        raise RuntimeError(f"the probe failed: {problem}")
    return float(np.median([worker["probes"] for worker in said])) / (session.cluster.num_workers - 1)


def run(session: Session, lab: Lab, end: float) -> Found:
    """One session, and what it left, also of one that failed; a way that made it fail is left out in a second try.

    `end` is the monotonic time at which everything is to be over.
    """
    known = Known(session, lab.text, lab.latency)
    ways = [way for way in session.ways if way not in known.schedules or known.same_as(way) == way]
    slow = [way for way in ways if session.slowest and known.wire_seconds(way) > session.slowest]
    ways = [way for way in ways if way not in slow]
    found = Found(
        session=session,
        turns={},
        predicted={way: known.wire_seconds(way) for way in session.ways},
        mean_wire={way: known.wire_bytes(way, mean=True) for way in session.ways},
        shares={name: (one.worker, one.node, one.everyone) for name, one in known.shares.items()},
        same={way: known.same_as(way) for way in known.schedules if known.same_as(way) != way},
        notes=[] if session.judge or session.slowest else known.said(),
    )
    found.notes += [f"{session.name}: {way} is {same}" for way, same in found.same.items()]
    for way in slow:
        found.notes.append(f"{session.name}: {way} left out: {known.wire_seconds(way):.1f} s a step on the wire alone")
    for _ in range(2):
        left = end - time.monotonic() - TRANSFER_SECONDS
        if left < least_seconds(session):
            break
        known.session = replace(session, limit=min(session.limit, left))
        blamed = _attempt(known, ways, lab, found)
        ways = [way for way in ways if way not in blamed and not found.timed(way)]
        if not blamed or not ways:
            break
    return found


def _attempt(known: Known, ways: list[str], lab: Lab, found: Found) -> list[str]:
    """Run the ways; what they left goes to `found`. Returns those that are to blame for a failure."""
    said, problem = _carry_out(known.session, ways, known.schedules, lab)
    blamed = _collect(said, known.session, found)
    if problem:
        found.notes.append(f"{known.session.name}: {problem}")
    return blamed


def _carry_out(
    session: Session, ways: list[str], schedules: dict[str, Schedule], lab: Lab
) -> tuple[list[dict[str, Any]], str]:
    """What the workers said, and what went wrong with the job itself."""
    options: dict[str, Any] = {
        "seconds": session.limit,
        "ways": ways,
        "text": str(lab.text),
        "steps": session.steps,
        "turns": {way: min(FEW, session.turns) if way in session.few else session.turns for way in ways},
        "judge": session.judge,
        "target": session.target,
    }
    limit = 2 * session.limit + SET_UP_SECONDS
    job = lab.held.job(
        session.name, "tables", session.shape[1], task=session.task, compute=session.compute, limit=limit
    )
    folder = job.path
    paths = {way: str(folder / f"schedule-{index}.json") for index, way in enumerate(ways) if way in schedules}
    for way, path in paths.items():
        write_schedule(path, schedules[way])
    job = replace(job, options={**options, "schedules": paths})
    problem, over = "", threading.Event()
    lab.held.shape(FAST)
    shaper = threading.Thread(target=_shape_when_ready, args=(lab, session.rate, folder, over), daemon=True)
    shaper.start()
    try:
        lab.held.crew.run(job)
    except LabError as error:
        problem = str(error)
        lab.held.crew.restart()
    finally:
        over.set()
        shaper.join()
    files = [folder / f"tables-{rank:03d}.json" for rank in range(job.num_workers)]
    said = [json.loads(path.read_text()) for path in files if path.exists()]
    if len(said) < job.num_workers:
        problem = problem or f"{job.num_workers - len(said)} workers left nothing"
    if (kept := os.environ.get("LAB_KEEP")) and (problem or any(worker["failed"] for worker in said)):
        shutil.copytree(folder, f"{kept}/{folder.name}", dirs_exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    return said, problem


def _shape_when_ready(lab: Lab, rate: str, folder: Path, over: threading.Event) -> None:
    """Links are fast until the workers are ready for steps that are timed."""
    while not over.wait(0.02):
        if (folder / READY).exists():
            lab.held.shape(rate)
            (folder / SHAPED).touch()
            return


def _collect(said: list[dict[str, Any]], session: Session, found: Found) -> list[str]:
    """Turns that all workers finished."""
    blamed: list[str] = []
    for worker in said:
        for way, words in worker["failed"].items():
            name = worker.get("doing", "").split(", turn")[0].split(", first")[0] if way == "job" else way
            if name and name not in blamed:
                blamed.append(name)
                found.notes.append(f"{found.session.name}: {name} failed: {words}")
    if len(said) < session.cluster.num_workers:
        return blamed
    for way in said[0]["turns"]:
        of_workers = [worker["turns"].get(way, []) for worker in said]
        for turns in zip(*of_workers, strict=False):
            done, loss = turns[0][0], turns[0][4]
            begun, ended = min(turn[1] for turn in turns), max(turn[2] for turn in turns)
            nodes = turns[:: session.shape[1]]
            found.turns.setdefault(way, []).append(
                Turn(
                    done=done,
                    seconds=ended - begun if ended else 0.0,
                    nic_bytes=float(np.mean([turn[3] for turn in nodes])),
                    loss=loss,
                    trained=float(np.mean([turn[5] for turn in turns])),
                    busy=float(np.mean([turn[6] for turn in turns])),
                )
            )
    return blamed
