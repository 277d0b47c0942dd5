"""Campaign: all cells of one run of the lab, interleaved, within its time; then tables, plots and predictions."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.lab.contestants import RECOMMENDED, Contestant, contestants
from benchmarks.lab.crew import Lab, LabError
from benchmarks.lab.measure import Measured, read_cell
from benchmarks.lab.plan import Planner, Point, predicted
from benchmarks.lab.rehearse import best_rate, can_be_rehearsed, known_rates, rates_key, rehearse
from benchmarks.lab.results import write, write_everything
from benchmarks.lab.setting import GRID, MODEL_BYTES, TARGETS, Job, Setting
from benchmarks.lab.tasks import Samples, read_data, write_data
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.cluster import load_cluster
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.hardware import Hardware
from partreduce.topo.schedule import Schedule

TRAINED_WITH = ("task", "steps", "batch", "momentum", "weight_decay")
GUESS_SECONDS = 16.0
PROFILE_LIMIT = 120.0
SPARE_STEPS = 1.8
"""Steps that a cell takes first, over those that its contestant took in the rehearsal to a loss twice the lab's target.
A cell that ends before its loss and its limit is run again with twice the steps."""
SPARE_FREE = 2.6
"""The same where nobody waits: the workers' steps differ there, and the run ends by those of all together."""
SIMULATED = ("static", "allreduce", "neighbor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Contestants side by side in some settings, on (nodes, workers per node), or on nodes of `sizes`.

    Contestants run in the order of their names; without names the core ones do, or `everybody`. `steps` of each worker
    in a cell; without it as many as reach the loss, `target` or the task's own. `rate` is the learning rate of all;
    without it everybody's best of the rehearsal. `limit` seconds end a cell, and losses
    are taken `every` so many steps. `at_once`: all repetitions before the next experiment, because they are what
    matters most. `slow_again`: also contestants that usually run once are repeated. Where nothing is planned or
    predicted, its links need not be measured first (`profiled`).
    """

    settings: tuple[Setting, ...]
    shape: tuple[int, int]
    sizes: tuple[int, ...] = ()
    contestants: tuple[str, ...] = ()
    everybody: bool = False
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
    def setting(self) -> Setting:
        (setting,) = self.settings
        return setting

    @property
    def cluster(self) -> Cluster:
        return Cluster.parse(",".join(map(str, self.sizes))) if self.sizes else Cluster.regular(*self.shape)

    @property
    def is_timed(self) -> bool:
        """Whether the time of its steps means something: nobody sleeps in the others."""
        return all(setting.compute > 0 for setting in self.settings)


@dataclass(frozen=True, slots=True)
class Cell:
    """One finished cell."""

    setting: str
    contestant: str
    repetition: int
    load: float
    measured: Measured


class Campaign:
    """Runs cells and keeps what they measured."""

    def __init__(self, experiment: Experiment, lab: Lab, end: float) -> None:
        self.experiment, self.settings, self.lab, self.end = experiment, experiment.settings, lab, end
        self.cluster = experiment.cluster
        self.cells: list[Cell] = []
        self.notes: list[str] = []
        self.schedules: dict[tuple[str, str], Schedule] = {}
        self.profiles: dict[str, Cluster] = {}
        self.profile_errors: dict[str, Any] = {}
        self._samples: dict[str, Samples] = {}
        self._took: dict[tuple[str, str], float] = {}
        self._planner = Planner(self.profiles)
        self._rehearsed = {
            case: known_rates(case) for case in {s.case_of(self.cluster.num_workers) for s in self.settings}
        }
        self._everybody = {c.name: c for c in contestants(self._planner, self._planner.coded)}
        self.contestants = [self._everybody[name] for name in experiment.contestants] or [
            c for c in self._everybody.values() if not c.named_only and (c.core or experiment.everybody)
        ]

    def run(self, *, profile: bool) -> None:
        """Everything, until the time is spent; the links are measured first where they are to be."""
        self.prepare()
        for rate in dict.fromkeys(setting.rate for setting in self.settings if profile):
            self.profile(rate)
        plan = [(setting, self.fitting(setting)) for setting in self.settings]
        left_out = 0
        for repetition in range(self.experiment.repetitions):
            for setting, listed in plan:
                left_out += self.turn(setting, listed, repetition)
        if left_out:
            self.notes.append(f"{left_out} cells were left out because the time was spent")

    def prepare(self) -> None:
        for task in {setting.task for setting in self.settings}:
            if not self._data(task).exists():
                write_data(task, self._data(task))
            self._samples[task] = read_data(self._data(task))

    def _data(self, task: str) -> Path:
        return self.lab.scratch / f"{task}.npz"

    def turn(self, setting: Setting, listed: list[Contestant], repetition: int) -> int:
        """One repetition of a setting; how many of its cells were left out because the time was spent.

        Each repetition begins elsewhere, so that a drift of the machine's load hits all alike.
        """
        self.lab.shape(setting.rate)
        left_out, first = 0, repetition * len(listed) // self.experiment.repetitions
        for contestant in listed[first:] + listed[:first]:
            if repetition and contestant.once and not self.experiment.slow_again:
                continue
            expected = self._took.get((setting.name, contestant.name), GUESS_SECONDS)
            if time.monotonic() + expected > self.end:
                left_out += 1
            else:
                self._cell(setting, contestant, repetition)
        return left_out

    def profile(self, rate: str) -> None:
        """Measure the links at a rate from inside, for the planner and the simulator."""
        self.lab.shape(rate)
        job = self._job(self.settings[0], rate, "profile", options={"model_bytes": MODEL_BYTES["digits"]})
        try:
            self.lab.crew.run(job)
            self.profiles[rate] = load_cluster(str(job.path / "cluster.json"))
            self.profile_errors[rate] = json.loads((job.path / "errors.json").read_text())
            _say(f"profiled {rate}")
        except Exception as error:  # noqa: BLE001 - the lab goes on with nominal links and says so
            self.notes.append(f"profile at {rate}: failed ({error}); the planner used nominal links")

    def fitting(self, setting: Setting) -> list[Contestant]:
        """The contestants that have something to do in a setting, with their schedules made."""
        fitting = []
        for contestant in self.contestants:
            if contestant.once and setting.is_disturbed and not self.experiment.contestants:
                continue
            if contestant.make is not None:
                schedule = contestant.make(self.cluster, setting)
                if schedule is None:
                    continue
                self.schedules[setting.name, contestant.name] = schedule
            self._rehearse(setting, contestant)
            fitting.append(contestant)
        for key in (setting.name, f"{setting.name}, codec"):
            if key in self._planner.words:
                self.notes.append(f"{key}: the planner recommended {self._planner.words[key]}")
        return fitting

    def _job(self, setting: Setting, name: str, how: str, **more: Any) -> Job:  # noqa: ANN401 - fields of Job
        fields: dict[str, Any] = {
            **{name: getattr(setting, name) for name in TRAINED_WITH},
            **setting.lengths(),
            "data_file": str(self._data(setting.task)),
            "every": self.experiment.every,
            "limit": PROFILE_LIMIT,
            "sizes": self.experiment.sizes,
        }
        return self.lab.job(name, how, self.experiment.shape[1], **{**fields, **more})

    def _cell(self, setting: Setting, contestant: Contestant, repetition: int) -> None:
        """Run a contestant until its loss or the limit in seconds, which is the same for all."""
        begun, load, target = time.monotonic(), os.getloadavg()[0], self.target_of(setting)
        steps = self._steps(setting, contestant)
        try:
            measured = self._train(setting, contestant, repetition, steps)
            while not (self.experiment.steps or measured.reached(target) or measured.ended == "time"):
                steps *= 2
                measured = self._train(setting, contestant, repetition, steps)
        except (RuntimeError, OSError, LabError) as error:
            self.notes.append(f"{setting.name}, {contestant.name}, repetition {repetition}: failed: {error}")
            _say(f"{setting.name:22} {contestant.name:30} failed: {str(error)[:150]}")
            if isinstance(error, LabError):
                self.lab.crew.restart()
            return
        finally:
            self._took[setting.name, contestant.name] = time.monotonic() - begun
        self.cells.append(Cell(setting.name, contestant.name, repetition, load, measured))
        reached = measured.reached(target)
        words = "not reached" if reached is None else f"{reached[0]:5.1f} steps {reached[1]:6.2f} s"
        _say(
            f"{setting.name:22} {contestant.name:30} {measured.step_ms:7.1f} ms/step  {words:24} "
            f"{measured.nic_mb:6.2f} MB/NIC  loss {measured.curve[-1][2]:.3f}  load {load:.1f}  "
            f"{time.monotonic() - begun:.1f} s"
        )

    def _train(self, setting: Setting, contestant: Contestant, repetition: int, steps: int) -> Measured:
        """One run of so many steps, or until the limit."""
        job = self._job(
            setting,
            contestant.name,
            contestant.how,
            free_running=contestant.free_running,
            seed=repetition,
            steps=steps,
            learning_rate=self._rate(setting, contestant),
            options=contestant.options,
            limit=self.experiment.limit * (2 if contestant.once else 1),
        )
        schedule = self.schedules.get((setting.name, contestant.name))
        if schedule is not None:
            job = replace(job, schedule=str(job.path / "schedule.json"))
            write_schedule(job.path / "schedule.json", schedule)
        try:
            self.lab.crew.run(job)
            return read_cell(job, self._samples[setting.task])
        except (RuntimeError, OSError, LabError):
            if os.environ.get("LAB_KEEP"):
                shutil.copytree(job.path, os.environ["LAB_KEEP"] + f"/{job.path.name}", dirs_exist_ok=True)
            raise
        finally:
            shutil.rmtree(job.path, ignore_errors=True)

    def target_of(self, setting: Setting) -> float:
        return float(self.experiment.target or TARGETS[setting.task])

    def _rehearsal(self, setting: Setting, contestant: Contestant) -> tuple[Contestant, Schedule] | None:
        """Whose steps and rate are this contestant's, with the schedule; None for what has none to rehearse."""
        source = self._everybody.get(contestant.rehearsed_as, contestant)
        schedule = source.make(self.cluster, setting) if source.make else None
        return (source, schedule) if schedule is not None and can_be_rehearsed(schedule) else None

    def _rehearse(self, setting: Setting, contestant: Contestant) -> None:
        """Find the contestant's best rate where no rehearsal of its schedule is known."""
        found = self._rehearsal(setting, contestant)
        if self.experiment.rate is None and found and not self._by_rate(setting, contestant):
            case, (source, schedule) = setting.case_of(self.cluster.num_workers), found
            self._rehearsed[case][rates_key(*found)] = rehearse(
                source, schedule, task=setting.task, cluster=self.cluster
            )

    def _by_rate(self, setting: Setting, contestant: Contestant) -> dict[str, float | None]:
        """Steps to the target in the rehearsal, by rate."""
        found = self._rehearsal(setting, contestant)
        known = self._rehearsed[setting.case_of(self.cluster.num_workers)]
        return known.get(rates_key(*found), {}) if found else {}

    def _rate(self, setting: Setting, contestant: Contestant) -> float:
        """The contestant's best learning rate of the grid; the middle one where none reached the target."""
        rates = GRID[contestant.grid]
        if self.experiment.rate is not None:
            return self.experiment.rate
        return best_rate(self._by_rate(setting, contestant)) or rates[len(rates) // 2]

    def _steps(self, setting: Setting, contestant: Contestant) -> int:
        """Enough steps to reach the target, in whole periods of the schedule."""
        if self.experiment.steps:
            return self.experiment.steps
        expected = self._by_rate(setting, contestant).get(f"{self._rate(setting, contestant):g}")
        if expected is None:
            return setting.steps
        schedule = self.schedules.get((setting.name, contestant.name))
        fixed = schedule is not None and schedule.strategy.kind in SIMULATED
        whole = int(schedule.worker_steps().max()) * schedule.period if schedule is not None and fixed else 1
        return whole * ceil((SPARE_FREE if contestant.free_running else SPARE_STEPS) * expected / whole)

    def points(self) -> list[Point]:
        """The cells that the simulator can predict; hierarchical all-reduce runs the schedule of all-reduce."""
        from statistics import median

        from partreduce.schedulers.registry import build

        found = []
        for setting in self.settings:
            for contestant in self.contestants:
                schedule = self.schedules.get((setting.name, contestant.name))
                if contestant.how == "hierarchical":
                    schedule = build("allreduce", self.cluster)
                cells = [
                    cell.measured
                    for cell in self.cells
                    if cell.setting == setting.name and cell.contestant == contestant.name
                ]
                if schedule is not None and cells and is_simulated(schedule):
                    found.append(
                        Point(
                            contestant.name,
                            setting,
                            schedule,
                            contestant.algorithm,
                            median(cell.step_ms for cell in cells),
                            max(cells[0].steps),
                        )
                    )
        return found

    def write(self, folder: Path, name: str, provenance: dict[str, object]) -> None:
        content = self.content(provenance)
        write_everything(folder, name, content)
        write(folder, name, content)
        _say(f"written: {folder}/lab-{name}.json, .md, -*.png")

    def content(self, provenance: dict[str, object], *, predict: bool = True) -> dict[str, Any]:
        """All that was measured, as plain values; `predict` the step times, too, which takes a while."""
        return {
            "head": {**provenance, **self._head()},
            "measure": {
                "num_workers": self.cluster.num_workers,
                "targets": {setting.name: self.target_of(setting) for setting in self.settings},
                "families": {contestant.name: contestant.family for contestant in self.contestants},
                "rates": {s.name: {c.name: self._rate(s, c) for c in self.contestants} for s in self.settings},
            },
            "settings": [asdict(setting) for setting in self.settings],
            "cells": [asdict(cell) for cell in self.cells],
            "notes": self.notes,
            "profiles": self.profile_errors,
            "recommendations": {
                where: dump_schedule(made) for (where, name), made in self.schedules.items() if name == RECOMMENDED
            },
            "prediction": self._predicted() if predict else None,
        }

    def _head(self) -> dict[str, object]:
        """Under what conditions everything was measured."""
        asked = self.experiment
        grid = "; ".join(f"{', '.join(f'{rate:g}' for rate in rates)} ({name})" for name, rates in GRID.items())
        rate = f"the best of the grid {grid} in the rehearsal (benchmarks/lab/rates.json)"
        loads = [cell.load for cell in self.cells] or [0.0]
        return {
            "cluster": f"{asked.cluster}, one namespace per node, links shaped by tbf both ways",
            "task": "digits CNN, 548,074 parameters (2.19 MB), or where said a character model, 0.5 M parameters",
            "a step": "plain SGD, batch 16 per worker, computing padded by sleep: "
            + ", ".join(f"{s.name}: {1e3 * s.compute:g} ms" for s in self.settings),
            "rate": rate if asked.rate is None else f"{asked.rate:g} for all",
            "the wire": "; ".join(_wire(setting, *asked.shape) for setting in self.settings),
            "target": ", ".join(f"{s.name}: loss {self.target_of(s):g}" for s in self.settings),
            "load average when cells began": f"{min(loads):.1f} to {max(loads):.1f}, of which the lab is a part",
            "repetitions": f"up to {asked.repetitions}, of the slowest contestants 1; medians, [smallest-largest]",
        }

    def hardware(self) -> dict[str, Hardware]:
        """What was measured of the links, by setting."""
        return {s.name: self._planner.hardware(s) for s in self.settings if s.rate in self.profiles}

    def _predicted(self) -> dict[str, Any] | None:
        try:
            return predicted(self.points(), self.hardware())
        except Exception as error:  # noqa: BLE001 - what was measured is worth more than a prediction of it
            self.notes.append(f"the prediction failed: {type(error).__name__}: {error}")
            return None


def is_simulated(schedule: Schedule) -> bool:
    """Whether the prediction's stages know what it does: fixed rounds, in which everybody meets."""
    return schedule.strategy.kind in SIMULATED and not schedule.strategy.protocol


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}", flush=True)


def _wire(setting: Setting, nodes: int, size: int) -> str:
    """The least that exact averaging can take, at the link's nominal rate, and what it therefore leaves to gain."""
    wire = setting.wire_seconds(nodes, size, MODEL_BYTES[setting.task])
    least = max(setting.compute, wire["hierarchical"])
    if not setting.compute:
        return f"{setting.name}: as fast as the machine is, and no step sleeps"
    return (
        f"{setting.name}: flat ring {1e3 * wire['flat ring']:.0f} ms, hierarchical {1e3 * wire['hierarchical']:.0f} ms "
        f"per step beside {1e3 * setting.compute:g} ms of computing; overlapped, without headers and slow workers, "
        f"that is {least / setting.compute:.1f} times a step that only computes"
    )
