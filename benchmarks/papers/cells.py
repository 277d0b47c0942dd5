"""Runs a paper's experiments in the lab within the minutes given: the first in the list first, then repetitions."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.lab.campaign import Campaign
from benchmarks.lab.crew import Crew
from benchmarks.lab.network import Network, why_not
from benchmarks.lab.predict import predicted
from benchmarks.lab.results import listed
from benchmarks.lab.run import leave_on_a_signal, machine
from benchmarks.papers.rows import RESULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.lab.setting import Setting
    from benchmarks.lab.table import Row as Contestant

RAW = RESULTS.parent / "raw"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Contestants side by side in one setting, on (nodes, workers per node).

    `steps` of each worker in a cell; without it as many as reach the loss, `target` or the task's own. `rate` is the
    learning rate of all; without it everybody's best of the rehearsal. `limit` seconds end a cell. `at_once`: all
    repetitions before the next experiment, because they are what matters most.
    """

    setting: Setting
    shape: tuple[int, int]
    contestants: tuple[str, ...]
    steps: int | None = None
    target: float | None = None
    rate: float | None = None
    limit: float = 75.0
    repetitions: int = 3
    at_once: bool = False

    @property
    def is_timed(self) -> bool:
        """Whether the time of its steps means something: nobody sleeps in the others."""
        return self.setting.compute > 0


@dataclass(frozen=True, slots=True)
class Cells:
    """What a run of experiments left: the lab's content of each setting, and predictions over all of them."""

    contents: list[dict[str, Any]]
    prediction: dict[str, Any] | None
    notes: tuple[str, ...] = ()

    def blocks(self) -> dict[str, list[Contestant]]:
        """The rows of the lab's own table, by setting; several experiments may have run in one."""
        found: dict[str, list[Contestant]] = {}
        for content in self.contents:
            for setting, rows in listed(content):
                found.setdefault(setting.name, []).extend(rows)
        return found

    def by_contestant(self) -> dict[str, dict[str, Contestant]]:
        """The same rows by setting and contestant."""
        return {where: {row.contestant: row for row in block} for where, block in self.blocks().items()}

    def predictions(self, which: str = "from_profile") -> dict[tuple[str, str], float]:
        """Milliseconds per step by (setting, contestant), from the profile alone or, `points`, from the fit."""
        found = (self.prediction or {}).get(which, [])
        return {(p["setting"], p["contestant"]): p["predicted"] for p in found if not p["calibrated"]}

    @property
    def commit(self) -> str:
        """Where it was measured."""
        return str(self.contents[0]["head"]["commit"]) if self.contents else ""

    def write(self, name: str) -> None:
        """Everything, outside git."""
        RAW.mkdir(parents=True, exist_ok=True)
        content = {"contents": self.contents, "prediction": self.prediction, "notes": self.notes}
        (RAW / f"papers-{name}.json").write_text(json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, name: str) -> Cells:
        """What `write` kept on this machine."""
        content = json.loads((RAW / f"papers-{name}.json").read_text())
        return cls(content["contents"], content["prediction"], tuple(content["notes"]))


class NoLabError(Exception):
    """This machine cannot hold the lab; the message says why."""


def run(
    name: str, experiments: Sequence[Experiment], minutes: float, *, profile: bool = True, predict: bool = True
) -> Cells:
    """Everybody's first repetition in the order of the list, then everybody's second, until the time is spent.

    What is measured is written after each turn, so that `Cells.read` finds it whatever ends the run.

    Raises:
        NoLabError: as said.
    """
    if (reason := why_not()) is not None:
        raise NoLabError(reason)
    num_nodes = max(experiment.shape[0] for experiment in experiments)
    assert {experiment.shape[0] for experiment in experiments} == {num_nodes}, "one network for all"
    end = time.monotonic() + 60 * minutes
    scratch = Path(tempfile.mkdtemp(prefix="partreduce-papers-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    leave_on_a_signal()
    campaigns: list[Campaign] = []
    notes: tuple[str, ...] = ()
    try:
        with Network(num_nodes, "1gbit") as network, Crew(network, scratch) as crew:
            campaigns = [_campaign(experiment, network, crew, scratch, end) for experiment in experiments]

            def keep() -> None:
                _collected(experiments, campaigns, (), predict=False).write(name)

            try:
                notes = _rounds(experiments, campaigns, keep, profile=profile)
            finally:  # what was measured is kept, also when the lab's machinery fails
                cells = _collected(experiments, campaigns, notes, predict=predict)
                cells.write(name)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        shutil.rmtree(scratch, ignore_errors=True)
    return cells


def _campaign(experiment: Experiment, network: Network, crew: Crew, scratch: Path, end: float) -> Campaign:
    chosen = argparse.Namespace(
        nodes=experiment.shape[0],
        workers_per_node=experiment.shape[1],
        contestants=";".join(experiment.contestants),
        settings=experiment.setting.name,
        repetitions=experiment.repetitions,
        minutes=(end - time.monotonic()) / 60,
        steps=experiment.steps,
        limit=experiment.limit,
        target=experiment.target,
        rate=experiment.rate,
        full=False,
        no_profile=True,
        name="",
    )
    return Campaign(chosen, [experiment.setting], network, crew, scratch)


def _rounds(
    experiments: Sequence[Experiment], campaigns: list[Campaign], keep: Callable[[], None], *, profile: bool
) -> tuple[str, ...]:
    """All repetitions; how many cells were left out."""
    profiled: dict[tuple[tuple[int, int], str], Campaign] = {}
    prepared: dict[int, list[Any]] = {}
    left_out = 0
    turns = [
        (0 if e.at_once else turn, index, turn) for index, e in enumerate(experiments) for turn in range(e.repetitions)
    ]
    for _, index, repetition in sorted(turns):
        experiment, campaign = experiments[index], campaigns[index]
        if time.monotonic() > campaign.end:
            left_out += len(experiment.contestants)
            continue
        if index not in prepared:
            campaign.prepare()
            key = experiment.shape, experiment.setting.rate
            if profile and experiment.is_timed and key not in profiled:
                campaign.profile(experiment.setting.rate)
            campaign.profiles.update(profiled.setdefault(key, campaign).profiles)
            prepared[index] = campaign.fitting(experiment.setting)
        left_out += campaign.turn(experiment.setting, prepared[index], repetition)
        keep()
    return (f"{left_out} cells were left out because the time was spent",) if left_out else ()


def _collected(
    experiments: Sequence[Experiment], campaigns: list[Campaign], notes: tuple[str, ...], *, predict: bool
) -> Cells:
    pairs = [(each, campaign) for each, campaign in zip(experiments, campaigns, strict=True) if campaign.cells]
    measured = [campaign for _, campaign in pairs]
    contents = [campaign.content(machine(), predict=predict) for campaign in measured]
    said = [note for content in contents for note in content["notes"]]
    if not predict:
        return Cells(contents, None, (*said, *notes))
    profiles = {name: hardware for campaign in measured for name, hardware in campaign.hardware().items()}
    points = [point for experiment, campaign in pairs if experiment.is_timed for point in campaign.points()]
    try:
        prediction = predicted(points, profiles)
    except Exception as error:  # noqa: BLE001 - what was measured is worth more than a prediction of it
        prediction = None
        said.append(f"the prediction failed: {type(error).__name__}: {error}")
    return Cells(contents, prediction, (*said, *notes))
