"""Campaign: all cells of one run of the lab, interleaved, within its time; then tables, plots and predictions."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.lab.contestants import RECOMMENDED, Contestant, contestants
from benchmarks.lab.crew import Crew, LabError
from benchmarks.lab.head import head, target_of
from benchmarks.lab.job import Job
from benchmarks.lab.measure import Measured, read_cell
from benchmarks.lab.plan import Planner
from benchmarks.lab.predict import Point, predicted
from benchmarks.lab.rehearse import RATES, best_rate
from benchmarks.lab.results import write, write_everything
from benchmarks.lab.setting import GRID, MODEL_BYTES
from benchmarks.lab.tasks import Samples, read_data, write_data
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.cluster import load_cluster
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.document.writer import write_schedule

if TYPE_CHECKING:
    import argparse

    from benchmarks.lab.network import Network
    from benchmarks.lab.setting import Setting
    from partreduce.topo.hardware import Hardware
    from partreduce.topo.schedule import Schedule

GUESS_SECONDS = 16.0
PROFILE_LIMIT = 60.0
SPARE_STEPS = 1.8
"""Steps that a cell may take, over those that its contestant took in the rehearsal to a loss twice the lab's target."""
SPARE_FREE = 2.6
"""The same where nobody waits: the workers' steps differ there, and the run ends by those of all together."""
SIMULATED = ("static", "allreduce", "neighbor")


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

    def __init__(
        self, chosen: argparse.Namespace, listed: list[Setting], network: Network, crew: Crew, scratch: Path
    ) -> None:
        self.chosen, self.settings, self.network, self.crew, self.scratch = chosen, listed, network, crew, scratch
        self.cluster = Cluster.regular(chosen.nodes, chosen.workers_per_node)
        self.repetitions = chosen.repetitions or (3 if chosen.full else 2)
        self.end = time.monotonic() + 60 * (chosen.minutes or (60 if chosen.full else 9))
        self.cells: list[Cell] = []
        self.notes: list[str] = []
        self.schedules: dict[tuple[str, str], Schedule] = {}
        self.profiles: dict[str, Cluster] = {}
        self.profile_errors: dict[str, Any] = {}
        self._samples: dict[str, Samples] = {}
        self._took: dict[tuple[str, str], float] = {}
        self._planner = Planner(self.profiles)
        self._rehearsed = json.loads(RATES.read_text()) if RATES.exists() else {}
        wanted = chosen.contestants.split(";") if chosen.contestants else None
        self.contestants = [
            c
            for c in contestants(self._planner, self._planner.corrected, self._planner.coded)
            if (c.name in wanted if wanted else not c.named_only and (c.core or chosen.full or chosen.settings))
        ]

    def run(self) -> None:
        """Everything, until the time is spent."""
        self.prepare()
        plan = [(setting, self.fitting(setting)) for setting in self.settings]
        left_out = 0
        for repetition in range(self.repetitions):
            for setting, listed in plan:
                left_out += self.turn(setting, listed, repetition)
        if left_out:
            self.notes.append(f"{left_out} cells were left out because the time was spent")

    def prepare(self) -> None:
        """Write the tasks' data and measure the links, where they are to be measured."""
        for task in {setting.task for setting in self.settings}:
            if not (self.scratch / f"{task}.npz").exists():
                write_data(task, self.scratch / f"{task}.npz")
            self._samples[task] = read_data(self.scratch / f"{task}.npz")
        if not self.chosen.no_profile:
            for rate in dict.fromkeys(setting.rate for setting in self.settings):
                self.profile(rate)

    def turn(self, setting: Setting, listed: list[Contestant], repetition: int) -> int:
        """One repetition of a setting; how many of its cells were left out because the time was spent.

        Each repetition begins elsewhere, so that a drift of the machine's load hits all alike.
        """
        self._shape(setting.rate)
        left_out, first = 0, repetition * len(listed) // self.repetitions
        for contestant in listed[first:] + listed[:first]:
            if repetition and contestant.once:
                continue
            expected = self._took.get((setting.name, contestant.name), GUESS_SECONDS)
            if time.monotonic() + expected > self.end:
                left_out += 1
            else:
                self._cell(setting, contestant, repetition)
        return left_out

    def _shape(self, rate: str) -> None:
        for node in range(self.chosen.nodes):
            self.network.shape(node, rate)

    def profile(self, rate: str) -> None:
        """Measure the links at a rate from inside, for the planner and the simulator."""
        self._shape(rate)
        folder = self.scratch / f"profile-{self.chosen.workers_per_node}-{rate}"
        job = self._job(self.settings[0], folder, "profile", options={"model_bytes": MODEL_BYTES["digits"]})
        try:
            self.crew.run(job)
            self.profiles[rate] = load_cluster(str(folder / "cluster.json"))
            self.profile_errors[rate] = json.loads((folder / "errors.json").read_text())
            _say(f"profiled {rate}")
        except Exception as error:  # noqa: BLE001 - the lab goes on with nominal links and says so
            self.notes.append(f"profile at {rate}: failed ({error}); the planner used nominal links")

    def fitting(self, setting: Setting) -> list[Contestant]:
        """The contestants that have something to do in a setting, with their schedules made."""
        fitting = []
        for contestant in self.contestants:
            if setting.data not in contestant.on_data or (contestant.once and setting.is_disturbed):
                continue
            if contestant.make is not None:
                schedule = contestant.make(self.cluster, setting)
                if schedule is None:
                    continue
                self.schedules[setting.name, contestant.name] = schedule
            if why := contestant.why_not(self.schedules.get((setting.name, contestant.name))):
                self.notes.append(f"{setting.name}, {contestant.name}: left out: {why}")
                continue
            fitting.append(contestant)
        for key in (setting.name, f"{setting.name}, corrected", f"{setting.name}, codec"):
            if key in self._planner.words:
                self.notes.append(f"{key}: the planner recommended {self._planner.words[key]}")
        return fitting

    def _job(self, setting: Setting, folder: Path, how: str, **more: Any) -> Job:  # noqa: ANN401 - fields of Job
        folder.mkdir(parents=True, exist_ok=True)
        fields: dict[str, Any] = {
            "name": folder.name,
            "folder": str(folder),
            "how": how,
            "num_nodes": self.chosen.nodes,
            "workers_per_node": self.chosen.workers_per_node,
            "address": "",
            "port": 0,
            "task": setting.task,
            "data": setting.data,
            "data_file": str(self.scratch / f"{setting.task}.npz"),
            **setting.lengths(),
            "steps": setting.steps,
            "batch": setting.batch,
            "momentum": setting.momentum,
            "weight_decay": setting.weight_decay,
            "limit": PROFILE_LIMIT if how == "profile" else self.chosen.limit,
        }
        return Job(**{**fields, **more})

    def _cell(self, setting: Setting, contestant: Contestant, repetition: int) -> None:
        folder = Path(tempfile.mkdtemp(prefix="cell-", dir=self.scratch))
        begun, load = time.monotonic(), os.getloadavg()[0]
        schedule = self.schedules.get((setting.name, contestant.name))
        path = folder / "schedule.json"
        job = self._job(
            setting,
            folder,
            contestant.how,
            schedule=str(path) if schedule is not None else None,
            free_running=contestant.free_running,
            seed=repetition,
            steps=self._steps(setting, contestant),
            learning_rate=self._rate(setting, contestant),
            options=contestant.options,
            limit=self.chosen.limit * (2 if contestant.once else 1),
        )
        if schedule is not None:
            write_schedule(path, schedule)
        try:
            self.crew.run(job)
            measured = read_cell(job, self._samples[setting.task])
        except (RuntimeError, OSError, LabError) as error:
            self.notes.append(f"{setting.name}, {contestant.name}, repetition {repetition}: failed: {error}")
            _say(f"{setting.name:22} {contestant.name:30} failed: {str(error)[:150]}")
            if os.environ.get("LAB_KEEP"):
                shutil.copytree(folder, os.environ["LAB_KEEP"] + f"/{folder.name}", dirs_exist_ok=True)
            if isinstance(error, LabError):
                self.crew.restart()
            return
        finally:
            self._took[setting.name, contestant.name] = time.monotonic() - begun
            shutil.rmtree(folder, ignore_errors=True)
        self.cells.append(Cell(setting.name, contestant.name, repetition, load, measured))
        reached = measured.reached(target_of(setting, self.chosen.target))
        words = "not reached" if reached is None else f"{reached[0]:5.1f} steps {reached[1]:6.2f} s"
        _say(
            f"{setting.name:22} {contestant.name:30} {measured.step_ms:7.1f} ms/step  {words:24} "
            f"{measured.nic_mb:6.2f} MB/NIC  loss {measured.curve[-1][2]:.3f}  load {load:.1f}  "
            f"{time.monotonic() - begun:.1f} s"
        )

    def _by_rate(self, setting: Setting, contestant: Contestant) -> dict[str, float | None]:
        """Steps to the target in the rehearsal, by rate."""
        case = setting.case_of(self.cluster.num_workers)
        found: dict[str, float | None] = self._rehearsed.get(case, {}).get(contestant.rehearsed_as, {})
        return found

    def _rate(self, setting: Setting, contestant: Contestant) -> float:
        """The contestant's best learning rate of the grid; the middle one where none reached the target."""
        rates = GRID[contestant.grid]
        if self.chosen.rate is not None:
            return float(self.chosen.rate)
        return best_rate(self._by_rate(setting, contestant)) or rates[len(rates) // 2]

    def _steps(self, setting: Setting, contestant: Contestant) -> int:
        """Enough steps to reach the target, in whole periods of the schedule."""
        if self.chosen.steps:
            return int(self.chosen.steps)
        expected = self._by_rate(setting, contestant).get(f"{self._rate(setting, contestant):g}")
        if expected is None:
            return setting.steps
        schedule = self.schedules.get((setting.name, contestant.name))
        fixed = schedule is not None and schedule.strategy.kind in SIMULATED
        whole = int(schedule.paces().max()) * schedule.period if schedule is not None and fixed else 1
        return whole * ceil((SPARE_FREE if contestant.free_running else SPARE_STEPS) * expected / whole)

    def points(self) -> list[Point]:
        """The cells that the simulator can predict; hierarchical all-reduce runs all-reduce's schedule in its form."""
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
                            contestant.form,
                            median(cell.step_ms for cell in cells),
                            MODEL_BYTES[setting.task],
                            max(cells[0].steps),
                        )
                    )
        return found

    def write(self, folder: Path, machine: dict[str, object]) -> None:
        """JSON, Markdown and plots."""
        content = self.content(machine)
        write_everything(folder, self.chosen.name, content)
        write(folder, self.chosen.name, content)
        _say(f"written: {folder}/lab-{self.chosen.name}.json, .md, -*.png")

    def content(self, machine: dict[str, object], *, predict: bool = True) -> dict[str, Any]:
        """All that was measured, as plain values; `predict` the step times, too, which takes a while."""
        return {
            "head": {**machine, **head(self.chosen, self.settings, [c.load for c in self.cells], self.repetitions)},
            "measure": {
                "num_workers": self.cluster.num_workers,
                "targets": {setting.name: target_of(setting, self.chosen.target) for setting in self.settings},
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
