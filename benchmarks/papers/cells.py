"""Runs a paper's experiments within the minutes given: the first in the list first, then repetitions.

A paper is a table (`LabPaper`): parts with experiments in the lab (`experiments.toml`), and figures that are made of
them. To add a row, name a contestant in an experiment, or a figure in `rows`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from benchmarks import kit
from benchmarks.lab.campaign import Campaign, Experiment, prediction_of
from benchmarks.lab.campaign import run as run_all
from benchmarks.lab.crew import provenance
from benchmarks.lab.results import Row as Contestant
from benchmarks.lab.results import rows_by_setting
from benchmarks.lab.setting import Setting, settings
from benchmarks.papers.rows import RESULTS, Curve, Results, Row

Blocks = dict[str, dict[str, Contestant]]
RAW = RESULTS.parent / "raw"
LISTED = kit.read_toml(Path(__file__).with_name("experiments.toml"))


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
            for setting, rows in rows_by_setting(content):
                found.setdefault(setting.name, []).extend(rows)
        return found

    def by_contestant(self) -> Blocks:
        """The same rows by setting and contestant: of several rates the run that reached the loss in fewest seconds."""

        def took(row: Contestant) -> float:
            return inf if row.seconds is None else row.seconds

        found: Blocks = {}
        for where, block in self.blocks().items():
            best = found.setdefault(where, {})
            for row in block:
                if row.contestant not in best or took(row) <= took(best[row.contestant]):
                    best[row.contestant] = row
        return found

    def predictions(self) -> dict[tuple[str, str], float]:
        """Milliseconds per step by (setting, contestant), from the profile alone."""
        found = (self.prediction or {}).get("points", [])
        return {(p["setting"], p["contestant"]): p["predicted"] for p in found}

    @property
    def commit(self) -> str:
        """Where it was measured; several, where runs were joined."""
        said = [commit for content in self.contents for commit in content["head"]["commit"].split("; ")]
        return " ".join(dict.fromkeys(said))

    @classmethod
    def read(cls, name: str) -> Cells:
        content = json.loads((RAW / f"papers-{name}.json").read_text())
        return cls(content["contents"], content["prediction"], tuple(content["notes"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPaper:
    """A paper's experiments, and how rows are made of them.

    Its `parts` are cells of the lab, the most important first; all of them have one number of nodes. `rows` and
    `curves` say what the cells say, `derived` what follows from rows of several runs, `bars` which figures are drawn.
    `predicts`: the links are measured first, and step times predicted from that. `labs` names the runs of `make lab`
    whose cells are kept in benchmarks/results/lab-NAME.json and make rows, too.
    """

    name: str
    rows: Callable[[Cells], Iterable[Row]]
    curves: Callable[[Cells], Iterable[Curve]] = lambda _: ()
    derived: Callable[[Results], Iterable[Row]] = lambda _: ()
    bars: tuple[str, ...] = ()
    predicts: bool = False
    labs: tuple[str, ...] = ()

    @property
    def parts(self) -> dict[str, list[Experiment]]:
        """What can be run by itself, as `experiments.toml` lists it."""
        paper = LISTED[self.name]
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
        return self.results(run(self._named(only), self.experiments(only), minutes, predict=self.predicts))

    def stored(self, only: str | None = None) -> Results:
        """The same rows from what this machine keeps, also of a run that was ended early."""
        if not self.labs:
            return self.results(Cells.read(self._named(only)))
        contents = [json.loads((RESULTS.parent / f"lab-{name}.json").read_text()) for name in self.labs]
        note = "from the cells of " + ", ".join(f"[lab-{name}](../lab-{name}.md)" for name in self.labs)
        return self.results(Cells(contents, notes=(note,)))

    def _named(self, only: str | None) -> str:
        return self.name if only is None else f"{self.name}-{only}"

    def results(self, cells: Cells) -> Results:
        """All that the file keeps of a run."""
        rows = tuple(self.rows(cells))
        figures = {row.figure for row in rows}
        return Results(
            paper=self.name,
            commit=cells.commit,
            rows=rows,
            notes=cells.notes,
            curves=tuple(self.curves(cells)),
            bars=tuple(figure for figure in self.bars if figure in figures),
        )


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


def run(name: str, experiments: Sequence[Experiment], minutes: float, *, predict: bool) -> Cells:
    """What the time is enough for; written after each turn, so that `Cells.read` finds it whatever ends the run."""
    cells = Cells([])

    def keep(campaigns: list[Campaign], notes: list[str], is_over: bool) -> None:
        nonlocal cells
        measured = [campaign for campaign in campaigns if campaign.cells]
        contents = [campaign.content(provenance("papers")) for campaign in measured]
        said = [note for content in contents for note in content["notes"]] + notes
        prediction = prediction_of(measured, said) if predict and is_over else None
        cells = Cells(contents, prediction, tuple(said))
        RAW.mkdir(parents=True, exist_ok=True)
        kept = {"contents": contents, "prediction": prediction, "notes": said}
        (RAW / f"papers-{name}.json").write_text(json.dumps(kept, indent=1) + "\n")

    run_all(experiments, minutes, keep, profile=predict)
    return cells
