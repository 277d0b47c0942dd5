"""A paper's experiments in the lab, and the rows and curves that its figures are made of (`figures.toml`).

To add a row, name a contestant in an experiment (`experiments.toml`), or write a figure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import kit
from benchmarks.lab.campaign import Cells, Experiment, run
from benchmarks.lab.contestants import STANDARD, hop_name
from benchmarks.lab.plan import CLOSE, step_ms
from benchmarks.lab.results import CellResult, baseline
from benchmarks.lab.results import Row as Contestant
from benchmarks.lab.setting import Setting, settings
from benchmarks.papers.page import Paper
from benchmarks.papers.rows import RESULTS, Curve, Results, Row, ratio, share_of, value

EXPERIMENTS = kit.read_toml(Path(__file__).with_name("experiments.toml"))
FIGURES = kit.read_toml(Path(__file__).with_name("figures.toml"))
Block = Mapping[str, Contestant]
"""The contestants of one setting by name."""


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Makes a figure's rows of all cells in the settings `where`, one for each of the contestants `only`.

    `where` and `only` are patterns with `*`. A row says the contestant's `of` (`QUANTITIES`); with `over` how many
    times it is as fast as this contestant in the same setting, or, with `inverse`, how many times as long it takes.
    `over` may be `$best`, the best All-Reduce, or `$standard`, Hop's standard setting on the same graph; for
    contestants that are not Hop's it is the contestant itself. `over_where` is what the other's setting ends with
    instead of `drop`. The first `after` steps, in which workers are not yet held up, may be left out; `target` is a
    loss to reach instead of the experiment's.

    The row is called `setting`, in which `{where}` is the setting without `drop`. `paper` and `aim` are numbers or
    ranges, or tables of them by pattern of a setting or a contestant; the aim "paper" is what the paper printed.
    `predicted` is from the `profile` of the links, or in `virtual` time, where only computing takes time.
    """

    figure: str
    where: Sequence[str]
    only: Sequence[str] = ("*",)
    of: str = "seconds"
    unit: str = "times"
    over: str = ""
    over_where: str = ""
    inverse: bool = False
    after: int = 0
    target: float | None = None
    drop: str = ""
    setting: str = "{where}: {name}"
    paper: Any = None
    aim: Any = None
    predicted: str = ""

    def taken(self, row: Contestant, block: Block) -> list[float]:
        """Return the quantity, one number for each run that has it."""
        if self.target is not None:
            row = replace(row, target=self.target)
        return QUANTITIES[self.of](row, block, self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Makes a plot's curves of all contestants in the settings `where`, or of those in a `part` of the experiments.

    In `plot`, `{where}` is the setting. `accuracy` instead of the loss, `seeds` all runs instead of the first.
    """

    plot: str
    where: Sequence[str]
    part: str = ""
    accuracy: bool = False
    seeds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureTable:
    """The figures and plots of a paper, with its words for contestants and settings.

    `same_steps` says, in these words, whose steps to the loss are another's.
    """

    figures: Sequence[Figure]
    plots: Sequence[Plot]
    words: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    same_steps: dict[str, str] = field(default_factory=dict)

    def words_of(self, name: str) -> str:
        """Return a contestant's name in rows: the paper's, else its own without the family."""
        return self.words.get(name) or name.removeprefix("Hop ").removeprefix("eager ")


@cache
def table_of(paper: str) -> FigureTable:
    table = FIGURES[paper]
    plots = [Plot(**row) for row in table.get("plots", ())]
    return FigureTable(**{**table, "figures": [Figure(**row) for row in table["figures"]], "plots": plots})


@cache
def parts_of(paper: str) -> dict[str, list[Experiment]]:
    """Return a paper's experiments that can be run separately, by part; all have the same number of nodes."""
    table = EXPERIMENTS[paper]
    return {part: [made for row in rows for made in _experiments(table, row)] for part, rows in table["parts"].items()}


def _experiments(table: dict[str, Any], row: dict[str, Any]) -> Iterator[Experiment]:
    """Yield an experiment in each of a row's settings (the paper's own or the lab's) at each of its `rates`."""
    fields = {**table.get("common", {}), **row}
    names, contestants = fields.pop("settings"), fields["contestants"]
    fields["contestants"] = tuple(table["lists"][contestants] if isinstance(contestants, str) else contestants)
    fields["shape"], fields["sizes"] = tuple(fields["shape"]), tuple(fields.get("sizes", ()))
    rates = fields.pop("rates", [fields.pop("rate", None)])
    for name in names:
        own = table.get("settings", {}).get(name)
        setting = settings(fields["shape"][0] * fields["shape"][1])[name] if own is None else None
        for rate in rates:
            yield Experiment(setting=setting or Setting.of_json({"name": name, **own}), rate=rate, **fields)


def experiments_of(paper: str, only: str | None = None) -> list[Experiment]:
    return [made for part, listed in parts_of(paper).items() if only in (None, part) for made in listed]


def measure(paper: Paper, only: str | None, minutes: float) -> Results:
    """Run all experiments, or one part, as far as the time allows."""
    experiments = experiments_of(paper.name, only)
    return results(paper, run(_run_name(paper, only), experiments, minutes, by="papers", profile=paper.predicts))


def read_stored(paper: Paper, only: str | None = None) -> Results:
    """Return the rows from stored results, even of a run that ended early."""
    if not paper.labs:
        return results(paper, Cells.read(_run_name(paper, only)))
    contents = [json.loads((RESULTS.parent / f"lab-{name}.json").read_text()) for name in paper.labs]
    note = "from the cells of " + ", ".join(f"[lab-{name}](../lab-{name}.md)" for name in paper.labs)
    return results(paper, Cells(contents, notes=(note,)))


def _run_name(paper: Paper, only: str | None) -> str:
    return f"papers-{paper.name}" if only is None else f"papers-{paper.name}-{only}"


def results(paper: Paper, cells: Cells) -> Results:
    """Return everything that the results file holds of a run."""
    made = tuple(rows(paper.name, cells))
    figures = {row.figure for row in made}
    return Results(
        paper=paper.name,
        commit=cells.commit,
        rows=made,
        notes=cells.notes,
        curves=tuple(curves(paper.name, cells)),
        bars=tuple(figure for figure in paper.bars if figure in figures),
    )


def rows(paper: str, cells: Cells) -> Iterator[Row]:
    """Yield the rows that the cells alone give; `pipe_sgd.derive` returns the others."""
    blocks = cells.by_contestant()
    for figure in table_of(paper).figures:
        if figure.of == "cells":
            yield from _close(figure, cells)
        for where in (where for where in blocks if matches(where, figure.where)):
            yield from _rows(paper, figure, where, cells, blocks)


def _rows(paper: str, figure: Figure, where: str, cells: Cells, blocks: Mapping[str, Block]) -> Iterator[Row]:
    listed, block, place = table_of(paper), blocks[where], where.removesuffix(figure.drop)
    other_place = place + figure.over_where if figure.over_where else where
    for name, row in block.items():
        ours = figure.taken(row, block)
        if not matches(name, figure.only) or not ours:
            continue
        names = {"where": listed.places.get(place, place), "name": listed.words_of(name)}
        fields: dict[str, Any] = {"figure": figure.figure, "setting": figure.setting.format(**names)}
        printed = _find_value(figure.paper, where, name)
        fields |= {"paper": printed, "aim": printed if figure.aim == "paper" else _find_value(figure.aim, where, name)}
        at, runs = (where, name), len(row.cells)
        if not figure.over:
            if 2 * len(ours) > runs:
                yield value(ours, unit=figure.unit, predicted=_predict(paper, figure, at, runs, cells), **fields)
            continue
        other = _base(figure.over, name, block)
        base = blocks.get(other_place, {}).get(other)
        theirs = figure.taken(base, blocks[other_place]) if base is not None and base is not row else []
        if theirs:
            mine, others = (_predict(paper, figure, one, runs, cells) for one in (at, (other_place, other)))
            pair = (ours, theirs) if figure.inverse else (theirs, ours)
            virtual = (mine, others) if figure.inverse else (others, mine)
            predicted = virtual[0] / virtual[1] if virtual[0] and virtual[1] else None
            yield ratio(*pair, predicted=predicted, **fields)


def _close(figure: Figure, cells: Cells) -> Iterator[Row]:
    """Yield how many cells the simulator predicts within 15 % from the profile alone, if there are several settings."""
    found = (cells.prediction or {}).get("points", [])
    if len({point["setting"] for point in found}) > 1:
        close = [abs(p["predicted"] / p["measured"] - 1) <= CLOSE for p in found]
        yield share_of(close, figure=figure.figure, setting=figure.setting, aim=figure.aim)


def _base(over: str, name: str, block: Block) -> str:
    if over == "$best":
        found = baseline(list(block.values()))
        return "" if found is None else found.contestant
    if over == "$standard":
        return hop_name(name.removeprefix("Hop ").partition(", ")[0], STANDARD) if name.startswith("Hop ") else name
    return over


def _find_value(figure: Any, where: str, name: str) -> Any:
    """Return the number or range that a table, which may hold others, says for a setting and a contestant."""
    if isinstance(figure, dict):
        found = (
            inner for pattern, inner in figure.items() if fnmatchcase(where, pattern) or fnmatchcase(name, pattern)
        )
        return _find_value(next(found, None), where, name)
    return tuple(figure) if isinstance(figure, list) else figure


def _predict(paper: str, figure: Figure, at: tuple[str, str], runs: int, cells: Cells) -> float | None:
    """Return the predicted milliseconds per step of a contestant in a setting; None if it is not simulated."""
    if figure.predicted == "profile":
        return cells.predictions().get(at)
    made = next((one for one in experiments_of(paper) if one.setting.name == at[0]), None)
    if not figure.predicted or made is None or made.sizes:  # virtual time knows nodes of one size
        return None
    steps = EXPERIMENTS[paper].get("common", {}).get("steps", made.steps)
    return step_ms(at[1], made.setting, made.shape, steps, runs, after=figure.after)


def _ms(row: Contestant, _: Block, after: int) -> list[float]:
    """Return milliseconds per step; a cell that ran out of time may have none after the first steps."""
    if not after:
        return [cell.step_ms for cell in row.cells]
    late = [[point for point in cell.curve if point[0] >= after] for cell in row.cells]
    return [1e3 * (one[-1][1] - one[0][1]) / (one[-1][0] - one[0][0]) for one in late if len(one) > 1]


def _accuracy_in_time(row: Contestant, block: Block, _: int) -> list[float]:
    """Return the accuracies at the instant at which the fastest of the setting is through."""
    ends = [cell.accuracies[-1][0] for other in block.values() for cell in other.cells if cell.accuracies]
    return [[share for at, share in cell.accuracies if at <= min(ends)][-1] for cell in row.cells if cell.accuracies]


def _in_cells(of: Callable[[CellResult], float | None]) -> Callable[[Contestant, Block, int], list[float]]:
    return lambda row, *_: [found for cell in row.cells if (found := of(cell)) is not None]


QUANTITIES: dict[str, Callable[[Contestant, Block, int], list[float]]] = {
    "ms": _ms,
    "seconds": lambda row, *_: row.reached(1),
    "steps": lambda row, *_: row.reached(0),
    "last loss": _in_cells(lambda cell: cell.curve[-1][2]),
    "gradients in a sum": _in_cells(lambda cell: sum(cell.steps) / cell.rounds if cell.rounds else None),
    "accuracy": _in_cells(lambda cell: cell.accuracies[-1][1] if cell.accuracies else None),
    "own accuracy": _in_cells(lambda cell: cell.own_accuracy),
    "accuracy in time": _accuracy_in_time,
}


def curves(paper: str, cells: Cells) -> Iterator[Curve]:
    listed = table_of(paper)
    for (where, block), plot in ((shown, plot) for shown in cells.blocks().items() for plot in listed.plots):
        chosen = [made for made in parts_of(paper).get(plot.part, ()) if made.setting.name == where]
        competing = {name for made in chosen for name in made.contestants}
        title = plot.plot.format(where=where.replace("×", "x").replace(",", ""))
        for row in block if matches(where, plot.where) else ():
            if plot.part and row.contestant not in competing:
                continue
            for seed, cell in enumerate(row.cells if plot.seeds else row.cells[:1]):
                name = listed.words_of(row.contestant) + (f", seed {seed}" if plot.seeds else "")
                if plot.accuracy and cell.accuracies:
                    at, shares = zip(*cell.accuracies, strict=True)
                    yield Curve(plot=title, name=name, at=at, losses=shares)
                elif not plot.accuracy:
                    yield Curve.of_run(title, name, cell, with_steps=not plot.seeds)
