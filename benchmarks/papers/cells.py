"""Runs a paper's experiments in the lab within the minutes given: the first in the list first, then repetitions.

A paper is a table: parts with their experiments, and figures that are made of the cells (`LabPaper`). To add a row,
name a contestant in an experiment, or a figure in `rows`.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.lab.campaign import Campaign, Experiment
from benchmarks.lab.predict import predicted
from benchmarks.lab.results import listed
from benchmarks.lab.standing import NoLabError, provenance, standing
from benchmarks.papers.rows import RESULTS, Curve, Results, Row

__all__ = ["Cells", "Experiment", "LabPaper", "NoLabError", "run"]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from benchmarks.lab.table import Row as Contestant

    Blocks = dict[str, dict[str, Contestant]]

RAW = RESULTS.parent / "raw"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPaper:
    """A paper whose experiments are cells of the lab.

    `parts` can be run by themselves, the most important first; all of them have one number of nodes. `rows` and
    `curves` say what the cells say, `why` by figure in what they differ from the paper, `bars` which figures are drawn.
    `profile`: the links are measured first, and step times predicted from that.
    """

    name: str
    parts: Mapping[str, Callable[[], list[Experiment]]]
    rows: Callable[[Cells], Iterable[Row]]
    why: Mapping[str, str]
    curves: Callable[[Cells], Iterable[Curve]] = lambda _: ()
    bars: tuple[str, ...] = ()
    profile: bool = False

    def experiments(self, only: str | None = None) -> list[Experiment]:
        """All of them, or those of one part."""
        return [made for part, make in self.parts.items() if only in (None, part) for made in make()]

    def run(self, minutes: float, only: str | None = None) -> Results:
        """What the time is enough for; of everything, or of one part.

        Raises:
            NoLabError: this machine cannot hold the lab.
        """
        asked = self.experiments(only)
        return self.results(run(self._kept(only), asked, minutes, profile=self.profile, predict=self.profile))

    def stored(self, only: str | None = None) -> Results:
        """The same rows from the cells that this machine keeps, also of a run that was ended early."""
        return self.results(Cells.read(self._kept(only)))

    def _kept(self, only: str | None) -> str:
        return self.name if only is None else f"{self.name}-{only}"

    def results(self, cells: Cells) -> Results:
        """All that the file keeps of a run."""
        made = tuple(self.rows(cells))
        figures = {row.figure for row in made}
        return Results(
            paper=self.name,
            commit=cells.commit,
            rows=made,
            why={figure: words for figure, words in self.why.items() if figure in figures},
            notes=cells.notes,
            curves=tuple(self.curves(cells)),
            bars=tuple(figure for figure in self.bars if figure in figures),
        )


def run(
    name: str, experiments: Sequence[Experiment], minutes: float, *, profile: bool = True, predict: bool = True
) -> Cells:
    """Everybody's first repetition in the order of the list, then everybody's second, until the time is spent.

    What is measured is written after each turn, so that `Cells.read` finds it whatever ends the run.

    Raises:
        NoLabError: this machine cannot hold the lab.
    """
    (num_nodes,) = {experiment.shape[0] for experiment in experiments}
    end = time.monotonic() + 60 * minutes
    notes: tuple[str, ...] = ()
    with standing(num_nodes) as lab:
        campaigns = [Campaign(experiment, lab, end) for experiment in experiments]
        try:
            for left_out in _turns(campaigns, profile=profile):
                notes = (f"{left_out} cells were left out because the time was spent",) if left_out else ()
                _collected(campaigns, (), predict=False).write(name)
        finally:  # what was measured is kept, also when the lab's machinery fails
            cells = _collected(campaigns, notes, predict=predict)
            cells.write(name)
    return cells


def _turns(campaigns: list[Campaign], *, profile: bool) -> Iterator[int]:
    """All repetitions; how many cells were left out so far, after each."""
    profiled: dict[tuple[tuple[int, int], str], Campaign] = {}
    prepared: dict[int, list[Any]] = {}
    left_out = 0
    turns = [
        (0 if campaign.experiment.at_once else turn, index, turn)
        for index, campaign in enumerate(campaigns)
        for turn in range(campaign.experiment.repetitions)
    ]
    for _, index, repetition in sorted(turns):
        campaign = campaigns[index]
        experiment, setting = campaign.experiment, campaign.experiment.setting
        if time.monotonic() > campaign.end:
            left_out += len(experiment.contestants)
            continue
        if index not in prepared:
            campaign.prepare()
            key = experiment.shape, setting.rate
            if profile and experiment.is_timed and key not in profiled:
                campaign.profile(setting.rate)
            campaign.profiles.update(profiled.setdefault(key, campaign).profiles)
            prepared[index] = campaign.fitting(setting)
        left_out += campaign.turn(setting, prepared[index], repetition)
        yield left_out
    yield left_out


def _collected(campaigns: list[Campaign], notes: tuple[str, ...], *, predict: bool) -> Cells:
    measured = [campaign for campaign in campaigns if campaign.cells]
    contents = [campaign.content(provenance(), predict=predict) for campaign in measured]
    said = [note for content in contents for note in content["notes"]]
    if not predict:
        return Cells(contents, None, (*said, *notes))
    profiles = {name: hardware for campaign in measured for name, hardware in campaign.hardware().items()}
    points = [point for campaign in measured if campaign.experiment.is_timed for point in campaign.points()]
    try:
        prediction = predicted(points, profiles)
    except Exception as error:  # noqa: BLE001 - what was measured is worth more than a prediction of it
        prediction = None
        said.append(f"the prediction failed: {type(error).__name__}: {error}")
    return Cells(contents, prediction, (*said, *notes))
