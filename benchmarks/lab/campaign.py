"""Campaigns: run the cells of experiments in the lab, interleaved, within the time, and keep the results.

A contestant trains with its best learning rate of a grid. `rates.json` holds, by its name and the hash of its schedule
(a name does not say what the planner recommends today), the steps that it took to a loss by rate. Missing entries are
measured first in a rehearsal, over fast links and without sleeping.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, inf
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import kit
from benchmarks.lab.contestants import Contestant, contestants
from benchmarks.lab.crew import FAST, Lab, LabError, provenance, standing
from benchmarks.lab.plan import Planner, simulated_ms, summarize
from benchmarks.lab.results import CellResult, Row, read_cell, rows_by_setting
from benchmarks.lab.setting import GRID, MODEL_BYTES, REHEARSED, TARGETS, Job, Setting
from benchmarks.lab.tasks import Samples, read_data, write_data
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.document.cluster import load_cluster
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.schedule import Schedule

GUESS_SECONDS = 16.0
PROFILE_LIMIT = 120.0
SPARE_STEPS = 1.8
"""A cell's number of steps, over those of the rehearsal to a loss of twice the lab's target.

A cell that ends before its loss and its time limit is run again with twice the steps.
"""
SPARE_FREE = 2.6
"""`SPARE_STEPS` for free-running workers, whose numbers of steps differ; the run ends by their total."""
SIMULATED = ("static", "allreduce", "neighbor")
REHEARSAL_LIMIT = 90.0
RATES = Path(__file__).with_name("rates.json")
ByRate = dict[str, float | None]


def rates_key(contestant: Contestant, schedule: Schedule) -> str:
    """Return the key of a contestant's steps in `rates.json`."""
    return f"{contestant.name} {schedule_sha256(Schedule(contestant.name, schedule.cluster, schedule.strategy))[:12]}"


def known_rates(case: str) -> dict[str, ByRate]:
    """Return the rehearsed steps of a case (setting.case_of), by `rates_key`."""
    found: dict[str, ByRate] = json.loads(RATES.read_text()).get(case, {}) if RATES.exists() else {}
    return found


def keep_rates(case: str, key: str, by_rate: ByRate) -> None:
    content = json.loads(RATES.read_text()) if RATES.exists() else {}
    content.setdefault(case, {})[key] = by_rate
    RATES.write_text(kit.compact(content))


def best_rate(by_rate: ByRate) -> float | None:
    """Return the rate with the fewest steps, None if none reached the target."""
    reached = {float(rate): steps for rate, steps in by_rate.items() if steps is not None}
    return min(reached, key=lambda rate: (reached[rate], rate)) if reached else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Contestants to compare in one setting, on (nodes, workers per node), or on nodes of `sizes`.

    Contestants run in the order of their names; without names the core ones do, or all (`all_contestants`). `steps` are
    those of each worker; None means as many as reach the loss, `target` or the task's own. `rate` is the learning rate
    of all; None means each one's best of the rehearsal. `limit` ends a cell after so many seconds; losses are measured
    every `every` steps. `at_once`: all repetitions run before the next experiment, as for the most important ones.
    `slow_again`: also contestants that usually run once are repeated. `profiled`: links are measured first, for plans
    and predictions.
    """

    setting: Setting
    shape: tuple[int, int]
    sizes: tuple[int, ...] = ()
    contestants: tuple[str, ...] = ()
    all_contestants: bool = False
    steps: int | None = None
    target: float | None = None
    rate: float | None = None
    limit: float = 75.0
    repetitions: int = 3
    every: int = 4
    at_once: bool = False
    slow_again: bool = False
    profiled: bool = True

    @property
    def cluster(self) -> Cluster:
        return Cluster.parse(",".join(map(str, self.sizes))) if self.sizes else Cluster.regular(*self.shape)

    @property
    def is_timed(self) -> bool:
        """Whether step times are meaningful: without compute time no worker sleeps."""
        return self.setting.compute > 0


@dataclass(frozen=True, slots=True)
class Cell:
    setting: str
    contestant: str
    load: float
    measured: CellResult


class Campaign:
    """Runs the cells of one experiment and keeps the measurements."""

    def __init__(self, experiment: Experiment, lab: Lab, end: float) -> None:
        self.experiment, self.setting, self.lab, self.end = experiment, experiment.setting, lab, end
        self.cluster = experiment.cluster
        self.cells: list[Cell] = []
        self.listed: list[Contestant] = []
        self.notes: list[str] = []
        self.schedules: dict[str, Schedule] = {}
        self.profiles: dict[str, Cluster] = {}
        self._samples: Samples | None = None
        self._took: dict[str, float] = {}
        self._planner = Planner(self.profiles)
        self._rehearsed = known_rates(self.setting.case_of(self.cluster.num_workers))
        self._all_contestants = {c.name: c for c in contestants(self._planner)}
        self.contestants = [self._all_contestants[name] for name in experiment.contestants] or [
            c for c in self._all_contestants.values() if not c.named_only and (c.core or experiment.all_contestants)
        ]

    def prepare(self) -> None:
        """Write the samples, list the contestants that apply, and make their schedules."""
        if not self._data.exists():
            write_data(self.setting.task, self._data)
        self._samples = read_data(self._data)
        for contestant in self.contestants:
            if contestant.once and self.setting.is_disturbed and not self.experiment.contestants:
                continue
            if contestant.make is not None:
                schedule = contestant.make(self.cluster, self.setting)
                if schedule is None:
                    continue
                self.schedules[contestant.name] = schedule
            self._rehearse(contestant)
            self.listed.append(contestant)
        self.notes += [f"{key}: the planner recommended {words}" for key, words in self._planner.words.items()]

    @property
    def _data(self) -> Path:
        return self.lab.scratch / f"{self.setting.task}.npz"

    def turn(self, repetition: int) -> int:
        """Run one repetition; return how many cells were left out for lack of time.

        Each repetition begins with another contestant, so that a drift of the machine's load affects all equally.
        """
        self.lab.shape(self.setting.rate)
        left_out, first = 0, repetition * len(self.listed) // self.experiment.repetitions
        for contestant in self.listed[first:] + self.listed[:first]:
            if repetition and contestant.once and not self.experiment.slow_again:
                continue
            if time.monotonic() + self._took.get(contestant.name, GUESS_SECONDS) > self.end:
                left_out += 1
            else:
                self._cell(contestant, repetition)
        return left_out

    def profile(self) -> None:
        """Measure the links by partreduce, for the planner and the simulator."""
        rate = self.setting.rate
        self.lab.shape(rate)
        job = self._job(rate, "profile", options={"model_bytes": MODEL_BYTES["digits"]})
        try:
            self.lab.crew.run(job)
            self.profiles[rate] = load_cluster(str(job.path / "cluster.json"))
            _log(f"profiled {rate}")
        except Exception as error:  # noqa: BLE001 - the lab continues with nominal links and says so
            self.notes.append(f"profile at {rate}: failed ({error}); the planner used nominal links")

    def _job(self, name: str, how: str, **more: Any) -> Job:
        fields: dict[str, Any] = {
            "setting": self.setting,
            "steps": self.setting.steps,
            "data_file": str(self._data),
            "every": self.experiment.every,
            "limit": PROFILE_LIMIT,
            "sizes": self.experiment.sizes,
        }
        return self.lab.job(name, how, self.experiment.shape[1], **{**fields, **more})

    def _cell(self, contestant: Contestant, repetition: int) -> None:
        """Run a contestant until its loss or the time limit, which is doubled for `once` contestants."""
        begun, load, target = time.monotonic(), os.getloadavg()[0], self.target
        steps, limit = self._steps(contestant), self.experiment.limit * (2 if contestant.once else 1)
        fields = {"seed": repetition, "learning_rate": self._rate(contestant), "limit": limit}
        schedule = self.schedules.get(contestant.name)
        try:
            measured = self._train(contestant, schedule, steps=steps, **fields)
            while not (self.experiment.steps or measured.reached(target) or measured.ended == "time"):
                steps *= 2
                measured = self._train(contestant, schedule, steps=steps, **fields)
        except (RuntimeError, OSError, LabError) as error:
            self._failed(f"{self.setting.name}, {contestant.name}, repetition {repetition}", error)
            return
        finally:
            self._took[contestant.name] = time.monotonic() - begun
        self.cells.append(Cell(self.setting.name, contestant.name, load, measured))
        reached = measured.reached(target)
        words = "not reached" if reached is None else f"{reached[0]:5.1f} steps {reached[1]:6.2f} s"
        _log(
            f"{self.setting.name:22} {contestant.name:30} {measured.step_ms:7.1f} ms/step  {words:24} "
            f"{measured.nic_mb:6.2f} MB/NIC  loss {measured.curve[-1][2]:.3f}  load {load:.1f}  "
            f"{time.monotonic() - begun:.1f} s"
        )

    def _failed(self, what: str, error: Exception) -> None:
        self.notes.append(f"{what}: failed: {error}")
        _log(f"{what}: failed: {str(error)[:150]}")
        if isinstance(error, LabError):
            self.lab.crew.restart()

    def _train(self, contestant: Contestant, schedule: Schedule | None, **fields: Any) -> CellResult:
        """Run once, for a number of steps or until the limit."""
        more = {"free_running": contestant.free_running, "options": contestant.options, **fields}
        job = self._job(contestant.name, contestant.how, **more)
        if schedule is not None:
            job = replace(job, schedule=str(job.path / "schedule.json"))
            write_schedule(job.path / "schedule.json", schedule)
        assert self._samples is not None
        try:
            self.lab.crew.run(job)
            return read_cell(job, self._samples)
        finally:
            shutil.rmtree(job.path, ignore_errors=True)

    @property
    def target(self) -> float:
        return float(self.experiment.target or TARGETS[self.setting.task])

    def _rehearsal(self, contestant: Contestant) -> tuple[Contestant, Schedule] | None:
        """Return the contestant whose steps and rate this one uses, with its schedule; None without a rehearsal."""
        source = self._all_contestants.get(contestant.twin, contestant)
        schedule = source.make(self.cluster, self.setting) if source.make else None
        return (source, schedule) if schedule is not None and not schedule.strategy.sync.protocol else None

    def _rehearse(self, contestant: Contestant) -> None:
        """Find the contestant's best rate inside the grid, training at rates that are not known for its schedule."""
        found = self._rehearsal(contestant)
        if self.experiment.rate is not None or found is None:
            return
        (target, most), by_rate, begun = REHEARSED[self.setting.task], dict(self._by_rate(contestant)), time.monotonic()
        best, tried = best_rate(by_rate), sorted(map(float, by_rate))
        if tried and best != tried[-1]:
            return
        self.lab.shape(FAST)
        for rate in (rate for rate in GRID[found[0].grid] if f"{rate:g}" not in by_rate):
            fields = {"setting": self.setting.without_sleep(), "learning_rate": rate, "limit": REHEARSAL_LIMIT}
            try:
                for steps in (most // 2, most):
                    reached = self._train(*found, steps=steps, **fields).reached(target)
                    by_rate[f"{rate:g}"] = None if reached is None else round(reached[0], 2)
                    if reached is not None:
                        break
            except (RuntimeError, OSError, LabError) as error:
                self._failed(f"the rehearsal of {found[0].name} at {rate:g}", error)
                return
            if (best_rate(by_rate) or 0.0) > rate:
                break  # a still smaller rate is slower yet
        _log(f"rehearsed {self.setting.task} {found[0].name:32} {by_rate}  {time.monotonic() - begun:.0f} s")
        key = rates_key(*found)
        self._rehearsed[key] = by_rate
        keep_rates(self.setting.case_of(self.cluster.num_workers), key, by_rate)

    def _by_rate(self, contestant: Contestant) -> dict[str, float | None]:
        """Return the steps to the target in the rehearsal, by rate."""
        found = self._rehearsal(contestant)
        return self._rehearsed.get(rates_key(*found), {}) if found else {}

    def _rate(self, contestant: Contestant) -> float:
        """Return the contestant's best learning rate; the middle of the grid if none reached the target."""
        rates = GRID[contestant.grid]
        if self.experiment.rate is not None:
            return self.experiment.rate
        return best_rate(self._by_rate(contestant)) or rates[len(rates) // 2]

    def _steps(self, contestant: Contestant) -> int:
        """Return enough steps to reach the target, in whole periods of the schedule."""
        if self.experiment.steps:
            return self.experiment.steps
        expected = self._by_rate(contestant).get(f"{self._rate(contestant):g}")
        if expected is None:
            return self.setting.steps
        schedule = self.schedules.get(contestant.name)
        fixed = schedule is not None and schedule.strategy.kind in SIMULATED
        whole = int(schedule.worker_steps().max()) * schedule.period if schedule is not None and fixed else 1
        return whole * ceil((SPARE_FREE if contestant.free_running else SPARE_STEPS) * expected / whole)

    def predictions(self) -> list[dict[str, Any]]:
        """Return step times of the cells that the simulator can predict, from the measured links alone."""
        found: list[dict[str, Any]] = []
        if not self.experiment.is_timed or self.setting.rate not in self.profiles:
            return found
        hardware = self._planner.hardware(self.setting)
        for contestant in self.contestants:
            schedule = self.schedules.get(contestant.name)
            if contestant.how == "hierarchical":
                schedule = build("allreduce", self.cluster)
            cells = [cell.measured for cell in self.cells if cell.contestant == contestant.name]
            # Fixed rounds in which all workers take part.
            if (
                schedule is not None
                and cells
                and schedule.strategy.kind in SIMULATED
                and not schedule.strategy.protocol
            ):
                ms = simulated_ms(self.setting, schedule, hardware, max(cells[0].steps), contestant.algorithm)
                named = {"contestant": contestant.name, "setting": self.setting.name}
                found.append({**named, "measured": median(cell.step_ms for cell in cells), "predicted": ms})
        return found

    def content(self, provenance: dict[str, object]) -> dict[str, Any]:
        """Return all measurements as plain values."""
        name = self.setting.name
        return {
            "head": {**provenance, **self._head()},
            "measure": {
                "num_workers": self.cluster.num_workers,
                "targets": {name: self.target},
                "families": {contestant.name: contestant.family for contestant in self.contestants},
                "rates": {name: {c.name: self._rate(c) for c in self.contestants}},
            },
            "settings": [asdict(self.setting)],
            "cells": [asdict(cell) for cell in self.cells],
            "notes": self.notes,
        }

    def _head(self) -> dict[str, object]:
        """Return the conditions of all measurements."""
        requested, setting = self.experiment, self.setting
        grid = "; ".join(f"{', '.join(f'{rate:g}' for rate in rates)} ({name})" for name, rates in GRID.items())
        rate = f"the best of the grid {grid} in the rehearsal (benchmarks/lab/rates.json)"
        loads = [cell.load for cell in self.cells] or [0.0]
        return {
            "cluster": f"{requested.cluster}, one namespace per node, links shaped by tbf both ways",
            "task": "digits CNN, 548,074 parameters (2.19 MB), or where said a character model, 0.5 M parameters",
            "a step": "plain SGD, batch 16 per worker, computing padded by sleep",
            "computing": f"{setting.name}: {1e3 * setting.compute:g} ms",
            "rate": rate if requested.rate is None else f"{requested.rate:g} for all",
            "the wire": _wire(setting, *requested.shape),
            "target": f"{setting.name}: loss {self.target:g}",
            "load average when cells began": f"{min(loads):.1f} to {max(loads):.1f}, of which the lab is a part",
            "repetitions": f"up to {requested.repetitions}, of the slowest contestants 1; medians, [smallest-largest]",
        }


Blocks = dict[str, dict[str, Row]]
RAW = kit.RESULTS / "raw"


@dataclass(frozen=True, slots=True)
class Cells:
    """The results of a run of experiments: the lab's content of each setting, and predictions over all of them."""

    contents: list[dict[str, Any]]
    prediction: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()

    def blocks(self) -> dict[str, list[Row]]:
        """Return the rows of the lab's table by setting, of all experiments."""
        found: dict[str, list[Row]] = {}
        for content in self.contents:
            for setting, rows in rows_by_setting(content):
                found.setdefault(setting.name, []).extend(rows)
        return found

    def by_contestant(self) -> Blocks:
        """Return the rows by setting and contestant; of several rates the one that reached the loss soonest."""

        def took(row: Row) -> float:
            return inf if row.seconds is None else row.seconds

        found: Blocks = {}
        for where, block in self.blocks().items():
            best = found.setdefault(where, {})
            for row in block:
                if row.contestant not in best or took(row) <= took(best[row.contestant]):
                    best[row.contestant] = row
        return found

    def predictions(self) -> dict[tuple[str, str], float]:
        """Return milliseconds per step by (setting, contestant), predicted from the profile alone."""
        found = (self.prediction or {}).get("points", [])
        return {(p["setting"], p["contestant"]): p["predicted"] for p in found}

    @property
    def commit(self) -> str:
        """The commit that measured, or several if runs were joined."""
        commits = [commit for content in self.contents for commit in content["head"]["commit"].split("; ")]
        return " ".join(dict.fromkeys(commits))

    def joined(self) -> dict[str, Any]:
        """Return the contents of several experiments on equal clusters as one, with a setting each."""
        contents, whole = self.contents, dict[str, Any](head={}, measure={})
        for key in dict.fromkeys(key for content in contents for key in content["head"]):
            whole["head"][key] = "; ".join(dict.fromkeys(str(content["head"][key]) for content in contents))
        for key, value in contents[0]["measure"].items():
            parts = [content["measure"][key] for content in contents]
            is_listed = isinstance(value, dict)
            whole["measure"][key] = {k: v for part in parts for k, v in part.items()} if is_listed else value
        for key in ("settings", "cells"):
            whole[key] = [one for content in contents for one in content[key]]
        return {**whole, "notes": list(self.notes), "prediction": self.prediction}

    @classmethod
    def read(cls, name: str) -> Cells:
        """Read what this machine keeps of a run, even if that ended early."""
        content = json.loads((RAW / f"{name}.json").read_text())
        return cls(content["contents"], content["prediction"], tuple(content["notes"]))

    def keep(self, name: str) -> None:
        RAW.mkdir(parents=True, exist_ok=True)
        (RAW / f"{name}.json").write_text(json.dumps(asdict(self), indent=1) + "\n")


def run(
    name: str,
    experiments: Sequence[Experiment],
    minutes: float,
    *,
    by: str,
    profile: bool,
    write: Callable[[Cells], object] = lambda _: None,
) -> Cells:
    """Run the first repetition of all experiments in order, then the second, until the time is over.

    With `profile` links are measured first, and step times predicted from that. Results are kept under the name after
    each turn and at the end, when they are also passed to `write`, however the run ends. `by` is the running module.
    """
    (num_nodes,) = {experiment.shape[0] for experiment in experiments}
    end, notes = time.monotonic() + 60 * minutes, list[str]()
    with standing(num_nodes) as lab:
        campaigns = [Campaign(experiment, lab, end) for experiment in experiments]
        try:
            for left_out in _turns(campaigns, profile=profile):
                notes[:] = [f"{left_out} cells were left out because the time was spent"] if left_out else []
                _cells_of(campaigns, notes, by).keep(name)
        finally:  # what was measured is kept, also when the lab's machinery fails
            prediction = prediction_of(campaigns, notes) if profile else None
            cells = replace(_cells_of(campaigns, notes, by), prediction=prediction)
            cells.keep(name)
            write(cells)
    return cells


def _cells_of(campaigns: Sequence[Campaign], notes: list[str], by: str) -> Cells:
    earlier = [note for campaign in campaigns for note in campaign.notes]
    measured = [campaign.content(provenance(by)) for campaign in campaigns if campaign.cells]
    return Cells(measured, notes=(*earlier, *notes))


def _turns(campaigns: Sequence[Campaign], *, profile: bool) -> Iterator[int]:
    """Run all repetitions; yield after each how many cells were left out so far."""
    profiled: dict[tuple[tuple[int, int], str], Campaign] = {}
    left_out, prepared = 0, set[int]()
    turns = sorted(
        (0 if campaign.experiment.at_once else turn, index, turn)
        for index, campaign in enumerate(campaigns)
        for turn in range(campaign.experiment.repetitions)
    )
    for _, index, repetition in turns:
        campaign = campaigns[index]
        experiment = campaign.experiment
        if time.monotonic() > campaign.end:
            left_out += len(experiment.contestants or campaign.contestants)
            continue
        if index not in prepared:
            key = experiment.shape, experiment.setting.rate
            if profile and experiment.profiled and experiment.is_timed and key not in profiled:
                campaign.profile()
            campaign.profiles.update(profiled.setdefault(key, campaign).profiles)
            campaign.prepare()
            prepared.add(index)
        left_out += campaign.turn(repetition)
        yield left_out
    yield left_out


def prediction_of(campaigns: Sequence[Campaign], notes: list[str]) -> dict[str, Any] | None:
    """Return the simulator's step times of all timed cells; None if it has none, or fails."""
    try:
        return summarize([point for campaign in campaigns for point in campaign.predictions()])
    except Exception as error:  # noqa: BLE001 - what was measured is worth more than a prediction of it
        notes.append(f"the prediction failed: {type(error).__name__}: {error}")
        return None


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}", flush=True)


def _wire(setting: Setting, nodes: int, size: int) -> str:
    """Return a sentence on the least time of exact averaging at the link's nominal rate, and on the possible gain."""
    if not setting.compute:
        return f"{setting.name}: as fast as the machine is, and no step sleeps"
    model_seconds = MODEL_BYTES[setting.task] * 8e-6 / setting.megabits
    flat, hierarchical = (2 * (parts - 1) / parts * model_seconds for parts in (nodes * size, nodes))
    return (
        f"{setting.name}: flat ring {1e3 * flat:.0f} ms, hierarchical {1e3 * hierarchical:.0f} ms "
        f"per step next to {1e3 * setting.compute:g} ms of computing; overlapped, without headers and slow workers, "
        f"that is {max(1.0, hierarchical / setting.compute):.1f} times a step that only computes"
    )
