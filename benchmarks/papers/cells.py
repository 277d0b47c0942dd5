"""Runs a paper's experiments within the minutes given: the first in the list first, then repetitions.

A paper is a table (`LabPaper`): parts with experiments in the lab (`experiments.toml`), what is measured apart from
them, and figures that are made of both. To add a row, name a contestant in an experiment, or a figure in `rows`.
"""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.lab.campaign import Campaign, Experiment, prediction_of
from benchmarks.lab.campaign import run as run_all
from benchmarks.lab.contestants import SERVER, named
from benchmarks.lab.crew import NoLabError, provenance
from benchmarks.lab.results import Row as Contestant
from benchmarks.lab.results import listed
from benchmarks.lab.setting import Job, Setting, StepLengths, settings
from benchmarks.lab.tasks import Batches, samples_of
from benchmarks.papers.rows import RESULTS, Curve, Results, Row
from partreduce.schedulers.simulator.simulate import simulate
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import PartreduceError
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.partial import PartialAllReduce
from partreduce.topo.timing.compute import ComputeTimes

__all__ = ["Apart", "Cells", "Experiment", "Kept", "LabPaper", "NoLabError", "run"]


Blocks = dict[str, dict[str, Contestant]]

RAW = RESULTS.parent / "raw"
LISTED = tomllib.loads(Path(__file__).with_name("experiments.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Cells:
    """What a run of experiments left: the lab's content of each setting, and predictions over all of them."""

    contents: list[dict[str, Any]]
    prediction: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()

    def blocks(self) -> dict[str, list[Contestant]]:
        """The rows of the lab's own table, by setting; several experiments may have run in one."""
        found: dict[str, list[Contestant]] = {}
        for content in self.contents:
            for setting, rows in listed(content):
                found.setdefault(setting.name, []).extend(rows)
        return found

    def by_contestant(self) -> Blocks:
        """The same rows by setting and contestant."""
        return {where: _at_best_rates(block) for where, block in self.blocks().items()}

    def predictions(self) -> dict[tuple[str, str], float]:
        """Milliseconds per step by (setting, contestant), from the profile alone."""
        found = (self.prediction or {}).get("points", [])
        return {(p["setting"], p["contestant"]): p["predicted"] for p in found}

    @property
    def commit(self) -> str:
        """Where it was measured; several, where runs were joined."""
        said = [commit for content in self.contents for commit in content["head"]["commit"].split("; ")]
        return " ".join(dict.fromkeys(said))

    def write(self, name: str) -> None:
        RAW.mkdir(parents=True, exist_ok=True)
        content = {"contents": self.contents, "prediction": self.prediction, "notes": self.notes}
        (RAW / f"papers-{name}.json").write_text(json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, name: str) -> Cells:
        content = json.loads((RAW / f"papers-{name}.json").read_text())
        return cls(content["contents"], content["prediction"], tuple(content["notes"]))


@dataclass(slots=True)
class Kept:
    """What was measured apart from the lab's cells: plain values, and notes on how it went, in a file outside git."""

    path: Path
    commit: str
    found: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {"commit": self.commit, "found": self.found, "notes": self.notes}
        self.path.write_text(json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Kept:
        content = json.loads(path.read_text())
        return cls(path, content["commit"], content["found"], content["notes"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Parts of a paper that are no cells of the lab.

    `measure(minutes, part, kept)` adds to what is kept and writes it as it goes; of everything it gets `share` of the
    minutes, `most` at most.
    """

    parts: tuple[str, ...]
    measure: Callable[[float, str | None, Kept], None]
    rows: Callable[[Kept], Iterable[Row]]
    curves: Callable[[Kept], Iterable[Curve]] = lambda _: ()
    share: float = 1.0
    most: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPaper:
    """A paper's experiments, and how rows are made of them.

    Its `parts` are cells of the lab, the most important first; all of them have one number of nodes. `rows` and
    `curves` say what the cells say, `derived` what follows from rows of several runs, `bars` which figures are drawn.
    `predicts`: the links are measured first, and step times predicted from that. `kept` gives cells that other runs
    left.
    """

    name: str
    rows: Callable[[Cells], Iterable[Row]] = lambda _: ()
    curves: Callable[[Cells], Iterable[Curve]] = lambda _: ()
    derived: Callable[[Results], Iterable[Row]] = lambda _: ()
    apart: Apart | None = None
    bars: tuple[str, ...] = ()
    predicts: bool = False
    kept: Callable[[], Cells] | None = None

    @property
    def parts(self) -> dict[str, list[Experiment]]:
        """What can be run by itself, as `experiments.toml` lists it."""
        paper = LISTED.get(self.name, {"parts": {}})
        return {
            part: [made for row in rows for made in _experiments(paper, row)] for part, rows in paper["parts"].items()
        }

    @property
    def settings(self) -> dict[str, Setting]:
        """Those that its experiments run in, by name."""
        return {made.setting.name: made.setting for made in self.experiments()}

    def experiments(self, only: str | None = None) -> list[Experiment]:
        return [made for part, listed in self.parts.items() if only in (None, part) for made in listed]

    def run(self, minutes: float, only: str | None = None) -> Results:
        """What the time is enough for, of everything or of one part."""
        end, kept = time.monotonic() + 60 * minutes, None
        if self.apart is not None and only in (None, *self.apart.parts):
            kept = Kept(self._beside(only), str(provenance("papers")["commit"]))
            own = min(self.apart.share * minutes, self.apart.most) if only is None else minutes
            try:
                self.apart.measure(own, only, kept)
            finally:
                kept.write()
        asked = self.experiments(only)
        if not asked:
            return self.results(None, kept)
        try:
            left = (end - time.monotonic()) / 60
            cells = run(self._named(only), asked, left, profile=self.predicts, predict=self.predicts)
        except NoLabError as reason:
            if kept is None:
                raise
            kept.notes.append(f"what the lab is for was not measured: {reason}")
            cells = None
        return self.results(cells, kept)

    def stored(self, only: str | None = None) -> Results:
        """The same rows from what this machine keeps, also of a run that was ended early."""
        if self.kept is not None:
            return self.results(self.kept())
        kept = Kept.read(self._beside(only)) if self._beside(only).exists() else None
        there = (RAW / f"papers-{self._named(only)}.json").exists()
        return self.results(Cells.read(self._named(only)) if there or kept is None else None, kept)

    def _named(self, only: str | None) -> str:
        return self.name if only is None else f"{self.name}-{only}"

    def _beside(self, only: str | None) -> Path:
        return RAW / f"papers-{self._named(only)}-apart.json"

    def results(self, cells: Cells | None, kept: Kept | None = None) -> Results:
        """All that the file keeps of a run: what was measured apart comes first."""
        rows: list[Row] = []
        curves: list[Curve] = []
        notes: list[str] = []
        if self.apart is not None and kept is not None:
            rows, curves, notes = [*self.apart.rows(kept)], [*self.apart.curves(kept)], list(kept.notes)
        if cells is not None:
            rows += self.rows(cells)
            curves += self.curves(cells)
            notes += cells.notes
        figures = {row.figure for row in rows}
        return Results(
            paper=self.name,
            commit=cells.commit if cells is not None else kept.commit if kept is not None else "",
            rows=tuple(rows),
            notes=tuple(notes),
            curves=tuple(curves),
            bars=tuple(figure for figure in self.bars if figure in figures),
        )


def _at_best_rates(block: list[Contestant]) -> dict[str, Contestant]:
    """By contestant the run that reached the loss in the fewest seconds; the last one, where none did."""

    def took(row: Contestant) -> float:
        return inf if row.seconds is None else row.seconds

    best: dict[str, Contestant] = {}
    for row in block:
        if row.contestant not in best or took(row) <= took(best[row.contestant]):
            best[row.contestant] = row
    return best


def _experiments(paper: dict[str, Any], row: dict[str, Any]) -> Iterator[Experiment]:
    """One in each of a row's settings, which are the paper's own or have names in the lab, at each of its `rates`."""
    fields = {**paper.get("common", {}), **row}
    names, listed = fields.pop("settings"), fields["contestants"]
    fields["contestants"] = tuple(paper["lists"][listed] if isinstance(listed, str) else listed)
    fields["shape"], fields["sizes"] = tuple(fields["shape"]), tuple(fields.get("sizes", ()))
    rates = fields.pop("rates", [fields.pop("rate", None)])
    for name in names:
        own = paper.get("settings", {}).get(name)
        setting = settings(fields["shape"][0] * fields["shape"][1])[name] if own is None else None
        for rate in rates:
            yield Experiment(setting=setting or Setting.of_json({"name": name, **own}), rate=rate, **fields)


def run(
    name: str, experiments: Sequence[Experiment], minutes: float, *, profile: bool = True, predict: bool = True
) -> Cells:
    """What the time is enough for; written after each turn, so that `Cells.read` finds it whatever ends the run."""
    cells = Cells([])

    def keep(campaigns: list[Campaign], notes: list[str], is_over: bool) -> None:
        nonlocal cells
        measured = [campaign for campaign in campaigns if campaign.cells]
        contents = [campaign.content(provenance("papers")) for campaign in measured]
        said = [note for content in contents for note in content["notes"]] + notes
        prediction = prediction_of(measured, said) if predict and is_over else None
        cells = Cells(contents, prediction, tuple(said))
        cells.write(name)

    run_all(experiments, minutes, keep, profile=profile)
    return cells


FREE = Link(0.0, 1e-15)
"""A link that takes no time worth a name."""


def step_ms(
    name: str, setting: Setting, shape: tuple[int, int], steps: int, runs: int, *, after: int = 0
) -> float | None:
    """Milliseconds per step as the lab counts them, the mean of its repetitions; None where the engine cannot say.

    Where sums do not wait for all, a step is a gradient. The first steps, up to `after`, are left out.
    """
    found = [of_run(name, setting, shape, steps, repetition, after) for repetition in range(runs)]
    known = [ms for ms in found if ms is not None]
    return sum(known) / len(known) if known else None


@cache
def of_run(  # noqa: PLR0917 - one call each, and a cache's
    name: str, setting: Setting, shape: tuple[int, int], steps: int, repetition: int, after: int
) -> float | None:
    """Virtual time knows no server; where only computing takes time, a synchronous one is an all-reduce."""
    make = named("flat ring" if name == SERVER else name, lambda *_: None).make
    schedule = make(Cluster.regular(*shape), setting) if make is not None else None
    if schedule is None or schedule.strategy.kind == "dynamic_groups":
        return None
    by_quorum = isinstance(schedule.strategy.sync, PartialAllReduce)
    trace = step_seconds(setting, shape, 6 * steps if by_quorum else steps, repetition)
    try:
        if by_quorum:
            return 1e3 * _seconds_of(schedule, trace, steps) / steps
        timeline = simulate(
            schedule, Hardware(nic=FREE), compute=ComputeTimes(trace=trace), num_rounds=steps, model_bytes=1
        )
    except PartreduceError:
        return None
    begun = timeline.finish[after - 1] if after else 0.0  # (num_workers,)
    return 1e3 * schedule.num_workers / float(((steps - after) / (timeline.finish[-1] - begun)).sum())


def step_seconds(setting: Setting, shape: tuple[int, int], steps: int, repetition: int) -> npt.NDArray[np.float64]:
    """How long the lab's workers compute, shape (steps, workers), with the batches that they draw."""
    count = shape[0] * shape[1]
    lengths = [StepLengths(setting, count, rank, repetition) for rank in range(count)]
    seconds = np.array([[worker(step) for worker in lengths] for step in range(steps)])
    if setting.task != "docstrings":
        return seconds
    size = {"num_nodes": shape[0], "workers_per_node": shape[1]}
    job = Job(task=setting.task, batch=setting.batch, seed=repetition, **size)
    batches = [Batches(job, rank, samples_of(setting.task)) for rank in range(count)]
    return np.array(seconds * [[worker.draw()[1] for worker in batches] for _ in range(steps)])


def _seconds_of(schedule: Schedule, trace: npt.NDArray[np.float64], steps: int) -> float:
    """When so many gradients of every worker, on average, are in sums."""
    wanted, num_rounds = steps * schedule.num_workers, steps
    while True:
        timeline = simulate(
            schedule, Hardware(nic=FREE), compute=ComputeTimes(trace=trace), num_rounds=num_rounds, model_bytes=1
        )
        assert timeline.observed is not None
        record = timeline.observed.quorum
        assert record is not None
        there = np.cumsum(record.gradients.sum(axis=1))  # gradients in the sums so far
        if there[-1] >= wanted:
            return float(record.summed[1, np.searchsorted(there, wanted)])
        num_rounds *= 2
