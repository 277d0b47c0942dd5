"""A paper's table of experiments in the lab, which its runner runs within the given minutes.

A paper (`LabPaper`) has parts with experiments in the lab (`experiments.toml`), and rows made of their results. To add
a row, name a contestant in an experiment, or a figure in `rows`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import kit
from benchmarks.lab.campaign import Cells, Experiment, run
from benchmarks.lab.setting import Setting, settings
from benchmarks.papers.rows import RESULTS, Curve, Results, Row

LISTED = kit.read_toml(Path(__file__).with_name("experiments.toml"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPaper:
    """A paper's experiments, and the functions that make rows of them.

    `parts` are the experiments, the most important first, all with the same number of nodes. `rows` and `curves` read
    the cells, `derived` follows from rows of several runs, `bars` names the figures to draw. `predicts`: links are
    measured first, and step times predicted from that. `labs` names runs of `make lab` whose cells in
    benchmarks/results/lab-NAME.json also make rows.
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
        """The experiments that can be run separately, by part."""
        paper = LISTED[self.name]
        return {
            part: [made for row in rows for made in _experiments(paper, row)] for part, rows in paper["parts"].items()
        }

    @property
    def settings(self) -> dict[str, Setting]:
        """The settings of its experiments by name."""
        return {made.setting.name: made.setting for made in self.experiments()}

    def experiments(self, only: str | None = None) -> list[Experiment]:
        return [made for part, listed in self.parts.items() if only in (None, part) for made in listed]

    def run(self, minutes: float, only: str | None = None) -> Results:
        """Run all experiments, or one part, as far as the time allows."""
        experiments = self.experiments(only)
        return self.results(run(self._named(only), experiments, minutes, by="papers", profile=self.predicts))

    def stored(self, only: str | None = None) -> Results:
        """Return the rows from stored results, even of a run that ended early."""
        if not self.labs:
            return self.results(Cells.read(self._named(only)))
        contents = [json.loads((RESULTS.parent / f"lab-{name}.json").read_text()) for name in self.labs]
        note = "from the cells of " + ", ".join(f"[lab-{name}](../lab-{name}.md)" for name in self.labs)
        return self.results(Cells(contents, notes=(note,)))

    def _named(self, only: str | None) -> str:
        return f"papers-{self.name}" if only is None else f"papers-{self.name}-{only}"

    def results(self, cells: Cells) -> Results:
        """Return everything that the results file holds of a run."""
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
    """Yield an experiment in each of a row's settings (the paper's own or the lab's) at each of its `rates`."""
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
