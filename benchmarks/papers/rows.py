"""Rows of a paper's table, with the paper's and the lab's numbers, as values and as a JSON file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from benchmarks import kit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.lab.results import CellResult

RESULTS = kit.RESULTS / "papers"
UNITS = {
    "times": "×", "seconds": " s", "milliseconds": " ms", "steps": " steps", "per second": " / s", "megabytes": " MB",
    "loss": "", "share": "", "cells": "", "workers": "",
}  # fmt: skip
"""How each unit is written behind a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of a paper in one setting of the lab.

    `paper` is its printed number or range, None if it has none. `measured` is the median of `runs` runs, `low` and
    `high` their range; for a ratio the smallest and the largest that two of the runs give. `derived` marks seconds that
    were not measured: the steps to the loss in a run with the same mathematics times the seconds of a step. `predicted`
    is the simulator's number, `aim` this project's.
    """

    figure: str
    setting: str
    paper: float | tuple[float, float] | None = None
    measured: float
    low: float
    high: float
    runs: int
    unit: str = "times"
    derived: bool = False
    predicted: float | None = None
    aim: float | None = None
    commit: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for impossible numbers or an unknown unit."""
        where = f"{self.figure}, {self.setting}"
        if self.runs < 1 or not self.low <= self.measured <= self.high:
            raise ValueError(f"{where}: {self.measured} of {self.runs} runs in [{self.low}, {self.high}]")
        if isinstance(self.paper, tuple) and not (len(self.paper) == 2 and self.paper[0] <= self.paper[1]):
            raise ValueError(f"{where}: paper: {self.paper} is no range")
        if self.unit not in UNITS:
            raise ValueError(f"{where}: unit {self.unit!r}; it is one of {', '.join(UNITS)}")

    @property
    def key(self) -> tuple[str, str]:
        return self.figure, self.setting

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set, and always `paper`."""
        always = ("paper", "figure", "setting", "measured", "low", "high", "runs", "unit")
        return {key: value for key, value in asdict(self).items() if key in always or value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Losses over steps or seconds (`at`) for the picture `plot`; `steps` are given in addition to seconds."""

    plot: str
    name: str
    at: tuple[float, ...]
    losses: tuple[float, ...]
    steps: tuple[float, ...] = ()

    @classmethod
    def of_run(cls, plot: str, name: str, cell: CellResult, *, with_steps: bool) -> Curve:
        """Return the loss of one run, over its seconds and, if asked, its steps."""
        steps, seconds, losses = zip(*cell.curve, strict=True)
        return cls(plot=plot, name=name, at=seconds, losses=losses, steps=steps if with_steps else ())

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "steps" or value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All rows of one paper, with explanations: `why` by figure, `notes` on the runs, and `curves`.

    `bars` names the figures to draw with a bar for each row.
    """

    paper: str
    commit: str = ""
    rows: tuple[Row, ...] = ()
    why: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    curves: tuple[Curve, ...] = ()
    bars: tuple[str, ...] = ()

    def merged(self, newer: Results) -> Results:
        """Return these results with rows, texts and curves of a newer run in place of older ones.

        Rows name the commit that measured them, unless it is the newest. Notes are kept while an older row is. Figures
        and their settings keep their order.
        """
        fresh = {row.key: row for row in newer.rows}
        commit = newer.commit or self.commit
        of = "" if commit == self.commit else self.commit
        kept = {row.key: replace(row, commit=row.commit or of) for row in self.rows} | fresh
        figures = list(dict.fromkeys(figure for figure, _ in kept))
        ordered = sorted(kept.values(), key=lambda row: figures.index(row.figure))
        some_older = any(row.key not in fresh for row in self.rows)
        notes = dict.fromkeys([*(self.notes if some_older else ()), *newer.notes])
        curves = {(curve.plot, curve.name): curve for curve in (*self.curves, *newer.curves)}
        return Results(
            paper=self.paper,
            commit=commit,
            rows=tuple(ordered),
            why={figure: words for figure, words in {**self.why, **newer.why}.items() if figure in figures},
            notes=tuple(notes),
            curves=tuple(curves.values()),
            bars=tuple(dict.fromkeys((*self.bars, *newer.bars))),
        )

    def to_text(self) -> str:
        content: dict[str, Any] = {"paper": self.paper, "commit": self.commit}
        content["rows"] = [row.to_json() for row in self.rows]
        content |= {"why": self.why, "notes": list(self.notes)}
        if self.bars:
            content["bars"] = list(self.bars)
        if self.curves:
            content["curves"] = [curve.to_json() for curve in self.curves]
        return kit.compact(content, digits=5)

    @classmethod
    def of_text(cls, text: str) -> Results:
        return TypeAdapter(cls).validate_json(text)


def read(name: str, folder: Path = RESULTS) -> Results:
    path = folder / f"{name}.json"
    return Results.of_text(path.read_text()) if path.exists() else Results(paper=name)


def add(newer: Results, folder: Path = RESULTS) -> Results:
    """Merge a run into the paper's file and return the result; a run without measurements changes nothing."""
    if not newer.rows and not newer.curves:
        return read(newer.paper, folder)
    folder.mkdir(parents=True, exist_ok=True)
    merged = read(newer.paper, folder).merged(newer)
    (folder / f"{newer.paper}.json").write_text(merged.to_text())
    return merged


def value(values: Sequence[float], **fields: Any) -> Row:
    """Return a row of repeated measurements."""
    return Row(measured=median(values), low=min(values), high=max(values), runs=len(values), **fields)


def share_of(those: Sequence[bool], **fields: Any) -> Row:
    share = sum(those) / len(those)
    return Row(measured=share, low=share, high=share, runs=len(those), unit="share", **fields)


def ratio(theirs: Sequence[float], ours: Sequence[float], **fields: Any) -> Row:
    """Return a row with the speedup of `ours` over `theirs`, both in seconds."""
    return Row(
        measured=median(theirs) / median(ours),
        low=min(theirs) / max(ours),
        high=max(theirs) / min(ours),
        runs=min(len(theirs), len(ours)),
        **fields,
    )
