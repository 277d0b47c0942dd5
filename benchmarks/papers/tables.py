"""A session: several ways of exchanging tables side by side in the lab, what was measured, and what each should send.

What tables cost by our ways is the planner's own model (`partreduce.topo.timing.tables`); servers are sharded tables
without aggregation, for which each of a node's workers asks by itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import kit
from benchmarks.lab.crew import FAST, Lab
from benchmarks.papers.tables_worker import (
    BASELINES,
    BATCH,
    HOROVOD,
    READY,
    SHAPED,
    TF_PS_CUT,
    Batch,
    Language,
    LanguageData,
)
from partreduce.planner.tables import TableChoice
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Codec
from partreduce.topo.strategies.payload import Gradient, Payload, Placement, TablePlacement
from partreduce.topo.timing.tables import RowAccess, exchange

FREE = Hardware(nic=Link())


def touched(
    model: Language, batch: Callable[[int, int], Batch], shape: tuple[int, int], steps: Sequence[int] = range(4)
) -> dict[str, RowAccess]:
    """Count distinct rows of batches (step, worker) on (nodes, workers per node): of each table, means over steps."""
    num_nodes, size = shape
    sums: dict[str, list[float]] = {name: [0.0, 0.0, 0.0] for name in model.tables()}
    for step in steps:
        of_workers = [model.touched(batch(step, worker)) for worker in range(num_nodes * size)]
        for name, counted in sums.items():
            rows = [found[name] for found in of_workers]
            nodes = [torch.cat(rows[start : start + size]).unique() for start in range(0, len(rows), size)]
            counted[0] += sum(len(each) for each in rows) / len(rows)
            counted[1] += sum(len(each) for each in nodes) / num_nodes
            counted[2] += len(torch.cat(nodes).unique())
    return {
        name: RowAccess(*(amount / len(steps) / len(parameter) for amount in sums[name]))
        for name, parameter in model.tables().items()
    }


def routes_of(
    model: Language, way: Placement, *, aggregated: bool, gradient: str, codec: Codec = Codec.NONE
) -> Payload:
    tables = tuple(
        TablePlacement(parameter=name, rows=rows, columns=columns, way=way, gradient=Gradient(gradient), codec=codec)
        for name, (rows, columns) in ((name, parameter.shape) for name, parameter in model.tables().items())
    )
    return Payload(tables=tables, local_aggregation=aggregated)


def tables_bytes(routes: Payload, shares: dict[str, RowAccess], shape: tuple[int, int]) -> float:
    """What the busiest node's card sends in a step for the tables that go their own way."""
    cluster = Cluster.regular(*shape)
    return sum(
        exchange(route, shares[route.parameter], cluster, FREE, local_aggregation=routes.local_aggregation).nic_bytes
        for route in routes.apart
    )


def ring_bytes(num_bytes: float, shape: tuple[int, int]) -> float:
    """What a node's card sends for so many bytes that all workers average around a ring."""
    count = shape[0] * shape[1]
    return 2 * (count - 1) / count * num_bytes


def server_bytes(pieces: Sequence[int], shape: tuple[int, int]) -> tuple[float, float]:
    """What nodes' cards send where node i's first worker serves piece i to all and takes its gradients: mean, and most.

    A server answers each of the other nodes' workers; a node's workers send what other nodes serve.
    """
    num_nodes, size = shape
    outside = size * (num_nodes - 1)
    sent = [outside * piece + size * (sum(pieces) - piece) for piece in pieces]
    return sum(sent) / num_nodes, max(sent)


GATHER, GATHER_LOCAL = "gather", "gather + local aggregation"
HYBRID, HYBRID_LOCAL = "hybrid", "hybrid + local aggregation"
HYBRID_CODED = "hybrid + local aggregation, rows in float16"
PLANNED, COMPOSED = "planner's choice", "planner's choice, dense part by its own schedule"
COMPOSED_CODED = "planner's choice, dense part by its own schedule, rows in float16"
OURS = {
    GATHER: (Placement.GATHER, False, Codec.NONE),
    GATHER_LOCAL: (Placement.GATHER, True, Codec.NONE),
    HYBRID: (Placement.SHARDED, False, Codec.NONE),
    HYBRID_LOCAL: (Placement.SHARDED, True, Codec.NONE),
    HYBRID_CODED: (Placement.SHARDED, True, Codec.FLOAT16),
}
"""The way of all tables, whether workers of a node agree on rows first, and how rows are written."""
RATE, BYTES_PER_SECOND = "20mbit", 20e6 / 8
COMPUTE = 0.1
"""Seconds of a step that are slept in addition to what its real computing takes."""
LATENCY = 3e-4
"""Of a message between workers, for the planner: about what empty all_to_alls of 16 workers took for each."""
HANDLING = 6.8e-6
"""Seconds per row that a worker hands on, for the planner: 0.85e-6 of one core, which eight workers share."""
APPLYING = 1.2e-8
"""Seconds per byte that Adagrad visits, for the planner: 1.5e-9 of one core, eight workers to a core."""
SET_UP_SECONDS = 90.0
"""What a job may take before its first turn; then it ends between two turns when its limit is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """`turns` of so many `steps` by each way; with a `target` the loss is taken before every turn, outside the clock.

    A way that has reached the target takes no further turns.
    """

    name: str
    shape: tuple[int, int]
    ways: tuple[str, ...]
    turns: int = 3
    steps: int = 2
    limit: float = 150.0
    target: float | None = None

    @property
    def items(self) -> int:
        """Words that all workers read in a step."""
        return BATCH * self.shape[0] * self.shape[1]

    @property
    def cluster(self) -> Cluster:
        return Cluster.regular(*self.shape)


class Known:
    """What follows from a session before it is run: shares of touched rows, schedules, bytes."""

    def __init__(self, session: Session, text: Path) -> None:
        self.session, self.model = session, Language(sparse=True)
        self.shares = shares_of(session.shape, str(text))
        self.dense_bytes = 4 * sum(parameter.numel() for parameter in self.model.dense())
        self.schedules: dict[str, Schedule] = {}
        self.words: dict[str, str] = {}
        for way in session.ways:
            if way not in BASELINES:
                self._make(way)

    def _make(self, way: str) -> None:
        plain = Schedule(way, self.session.cluster, AllReduce())
        if way in OURS:
            self.schedules[way] = replace(plain, strategy=AllReduce(payload=self._routes(way)))
        elif way == PLANNED:
            chosen = self.chosen(plain)
            self.words[way] = "; ".join(chosen.reasons)
            self.schedules[way] = replace(plain, strategy=AllReduce(payload=chosen.routes))
        else:
            base, codecs = self._planned_dense_part, (Codec.NONE, Codec.FLOAT16)[: 1 + (way == COMPOSED_CODED)]
            chosen = self.chosen(base, codecs)
            strategy: Any = base.strategy
            rows = ", ".join(f"{route.parameter} {route.in_words}" for route in chosen.routes.tables)
            self.words[way] = f"the dense part by {base.name} ({strategy.kind}, {strategy.transport.codec}); {rows}"
            self.schedules[way] = Schedule(base.name, base.cluster, replace(strategy, payload=chosen.routes))

    def _routes(self, way: str) -> Payload:
        kind, aggregated, codec = OURS[way]
        return routes_of(self.model, kind, aggregated=aggregated, gradient="sparse", codec=codec)

    def chosen(self, schedule: Schedule, codecs: tuple[Codec, ...] = (Codec.NONE,)) -> TableChoice:
        """The planner's routes beside a strategy for everything else, rows in one of these codecs."""
        from partreduce.planner.tables import Table, choose_routes

        tables = [
            Table(parameter=name, rows=rows, columns=columns, touched=self.shares[name], gradient="sparse")
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
        nic, inside = Link.of_bandwidth(BYTES_PER_SECOND, LATENCY), Link.of_bandwidth(1e9, LATENCY)
        return Hardware(inside=inside, nic=nic, model_bytes=self.dense_bytes, compute=COMPUTE)

    @cached_property
    def _planned_dense_part(self) -> Schedule:
        """The planner's recommendation for all but the tables, codecs allowed; the tables' time is computing to it."""
        from partreduce import PlanRequest as Planned
        from partreduce.planner.plan import plan

        exchange = self.wire_bytes(HYBRID_LOCAL) / BYTES_PER_SECOND
        hardware = replace(self.hardware, compute=COMPUTE + exchange)
        algorithm = AllReduceAlgorithm.HIERARCHICAL if self.session.shape[1] > 1 else AllReduceAlgorithm.RING
        cluster = replace(self.session.cluster, hardware=hardware)
        found = plan(Planned(cluster=cluster, algorithm=algorithm, codec=None, fastest=True, time_limit=8.0))
        return replace(found.recommendation.schedule, certificate=None)

    def same_as(self, way: str) -> str:
        """The contestant whose routes a planned way has; itself where it has its own."""
        payload = self.schedules[way].strategy.payload
        for name, (_, aggregated, _) in OURS.items() if way == PLANNED else ():
            routes = self._routes(name)
            if self.session.shape[1] == 1 and not aggregated:
                routes = replace(routes, local_aggregation=payload.local_aggregation)
            if name in self.session.ways and payload == routes:
                return name
        return way

    def wire_bytes(self, way: str, *, mean: bool = False) -> float:
        """What the busiest node's card, or the mean one, sends in a step, without headers."""
        shape = self.session.shape
        if way in BASELINES:
            kind = Placement.GATHER if way == HOROVOD else Placement.SHARDED
            tables = tables_bytes(routes_of(self.model, kind, aggregated=False, gradient="sparse"), self.shares, shape)
            if way == HOROVOD:
                return tables + ring_bytes(self.dense_bytes, shape)
            sizes = [4 * parameter.numel() for parameter in self.model.dense()]
            pieces = [sum(sizes[place :: shape[0]]) for place in range(shape[0])]  # as baselines.Servers deals them
            if way == TF_PS_CUT:
                pieces = [sum(sizes) // shape[0]] * shape[0]
            return tables + server_bytes(pieces, shape)[0 if mean else 1]
        payload = self._routes(way) if way in OURS else self.schedules[way].strategy.payload
        named = {route.parameter for route in payload.apart}
        by_strategy = sum(4 * table.numel() for name, table in self.model.tables().items() if name not in named)
        rest = self.dense_bytes + by_strategy
        if way in (COMPOSED, COMPOSED_CODED):
            from partreduce.topo.timing.cost import communication

            sent = communication(self.schedules[way], self.hardware, model_bytes=rest)
            return tables_bytes(payload, self.shares, shape) + sent.nic_bytes_per_step
        return tables_bytes(payload, self.shares, shape) + ring_bytes(rest, shape)

    def wire_seconds(self, way: str) -> float:
        """A step in which only sleeping and the wire take time."""
        return COMPUTE + self.wire_bytes(way) / BYTES_PER_SECOND


@cache
def shares_of(shape: tuple[int, int], text: str) -> dict[str, RowAccess]:
    """Which shares of the tables workers, nodes and all touch in a step."""
    data = LanguageData(np.load(text, mmap_mode="r"))
    return touched(Language(sparse=True), lambda step, worker: data.batch(0, step, worker), shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Consecutive steps of one way: how many came before, seconds from the first worker's start to the last one's end,
    bytes out of a node's card (mean), and the loss before it where one was taken."""

    done: int
    seconds: float
    nic_bytes: float
    loss: float | None


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

    def reached(self, way: str, target: float) -> tuple[float, ...] | None:
        """Steps and seconds at which the loss, between judgments on a straight line, first fell to the target."""
        return kit.reached(self.curve(way), target)


def run(session: Session, lab: Lab, text: Path, seconds: float) -> Found:
    """One session, in so many seconds at most."""
    known = Known(session, text)
    same = {way: other for way in known.schedules if (other := known.same_as(way)) != way}
    ways = [way for way in session.ways if way not in same]
    limit = min(session.limit, seconds)
    job = lab.job(session.name, "tables", session.shape[1], compute=COMPUTE, limit=2 * limit + SET_UP_SECONDS)
    schedules = {
        way: str(job.path / f"schedule-{index}.json") for index, way in enumerate(ways) if way in known.schedules
    }
    for way, path in schedules.items():
        write_schedule(path, known.schedules[way])
    options = {"seconds": limit, "ways": ways, "schedules": schedules, "text": str(text)}
    options |= {"turns": session.turns, "steps": session.steps, "target": session.target}
    lab.shape(FAST)
    over = threading.Event()
    shaper = threading.Thread(target=_shape_when_ready, args=(lab, job.path, over), daemon=True)
    shaper.start()
    try:
        codes = lab.crew.run(replace(job, options=options))
    finally:
        over.set()
        shaper.join()
    if any(codes):
        raise RuntimeError((job.path / "node-0.log").read_text()[-2000:])
    said = [json.loads(path.read_text()) for path in sorted(job.path.glob("tables-*.json"))]
    return Found(
        session=session,
        turns={way: _turns([worker[way] for worker in said], session) for way in ways},
        predicted={way: known.wire_seconds(way) for way in session.ways},
        mean_wire={way: known.wire_bytes(way, mean=True) for way in session.ways},
        shares={name: (one.worker, one.node, one.everyone) for name, one in known.shares.items()},
        same=same,
        notes=[
            *(f"{session.name}: {way}: {words}" for way, words in known.words.items() if session.target is None),
            *(f"{session.name}: {way} is {other}" for way, other in same.items()),
        ],
    )


def _shape_when_ready(lab: Lab, folder: Path, over: threading.Event) -> None:
    """Links are fast until the workers are ready for steps that are timed."""
    while not over.wait(0.02):
        if (folder / READY).exists():
            lab.shape(RATE)
            (folder / SHAPED).touch()
            return


def _turns(of_workers: list[list[list[Any]]], session: Session) -> list[Turn]:
    """Each turn from the first worker's start to the last one's end."""
    found = []
    for turns in zip(*of_workers, strict=True):
        begun, ended = min(turn[1] for turn in turns), max(turn[2] for turn in turns)
        sent = float(np.mean([turn[3] for turn in turns[:: session.shape[1]]]))
        found.append(Turn(done=turns[0][0], seconds=ended - begun if ended else 0.0, nic_bytes=sent, loss=turns[0][4]))
    return found
