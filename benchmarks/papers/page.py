"""docs/papers.md and each paper's full tables, written from benchmarks/results/papers/*.json and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import kit
from benchmarks.papers.pictures import bar_names, draw, names
from benchmarks.papers.registry import PAPERS, Paper
from benchmarks.papers.rows import RESULTS, read

if TYPE_CHECKING:
    from benchmarks.papers.rows import Results, Row

PAGE = kit.ROOT / "docs/papers.md"
BEGIN = "<!-- written by benchmarks/papers/page.py; do not edit below -->"
SHORT = {
    "times": "×",
    "seconds": " s",
    "milliseconds": " ms",
    "steps": " steps",
    "loss": "",
    "share": "",
    "cells": "",
    "per second": " / s",
    "megabytes": " MB",
    "workers": "",
}
NOT_YET = "not yet"


def write(folder: Path = RESULTS) -> None:
    """The page, every paper's tables in `NAME.md`, and the pictures, from the files in the folder."""
    results = {paper.name: read(paper.name, folder) for paper in PAPERS}
    for paper in PAPERS:
        draw(results[paper.name], folder)
        (folder / f"{paper.name}.md").write_text(tables(paper, results[paper.name]))
    head = PAGE.read_text().split(BEGIN)[0]
    PAGE.write_text(f"{head}{BEGIN}\n\n{page(results)}")


def page(results: dict[str, Results]) -> str:
    """Of every paper the claim, the regime, the rows by which it is known, and what made ours differ."""
    return "\n".join(short(paper, results[paper.name]) for paper in PAPERS)


def short(paper: Paper, found: Results) -> str:
    rows = {row.key: row for row in found.rows}
    shown = [rows[key] for key in paper.headlines if key in rows]
    parts = [f"## {paper.title}", "", f"**Claim.** {paper.claim}", ""]
    if not shown:
        return "\n".join([*parts, f"Here: {NOT_YET}.", ""])
    parts += [f"**Measured here.** {paper.regime}", ""]
    lines = [[f"{row.figure}: {row.setting}", printed(row), measured(row), row.runs] for row in shown]
    parts += [kit.table(["figure", "paper", "measured [low–high]", "runs"], lines)]
    parts += [f"**Why they differ.** {paper.why}", ""]
    if paper.picture is not None:
        parts += [f"![{paper.title}](../benchmarks/results/papers/{paper.picture})", ""]
    parts += [f"[All {len(found.rows)} rows and pictures](../benchmarks/results/papers/{paper.name}.md)", ""]
    return "\n".join(parts)


def tables(paper: Paper, found: Results) -> str:
    """All that was measured of one paper, as a file beside its JSON."""
    parts = [f"# {paper.title}: all rows", "", "Written by `python -m benchmarks.papers --write`; do not edit.", ""]
    if not found.rows:
        return "\n".join([*parts, f"{paper.claim} Here: {NOT_YET}.", ""])
    parts += [f"{paper.claim} Measured at commit {found.commit}, where a row names no other.", "", table(found), ""]
    parts += [f"![{plot}]({name})\n" for plot, name in {**bar_names(found), **names(found)}.items()]
    if found.notes:
        parts += ["How the runs went:", "", *[f"* {note}" for note in found.notes], ""]
    return "\n".join(parts).rstrip() + "\n"


def table(found: Results) -> str:
    """One paper, figure by figure: paper, measured with its ends, runs, why they differ."""
    parts: list[str] = []
    for figure in dict.fromkeys(row.figure for row in found.rows):
        rows = [row for row in found.rows if row.figure == figure]
        predicted = any(row.predicted is not None for row in rows)
        columns = ["setting", "paper", "measured [low–high]", *(["predicted"] if predicted else []), "runs"]
        lines = []
        for row in rows:
            commit = f" (at {row.commit})" if row.commit and row.commit != found.commit else ""
            cells = [row.setting + commit, printed(row), measured(row)]
            if predicted:
                cells.append("" if row.predicted is None else _number(row.predicted, row.unit) + SHORT[row.unit])
            lines.append([*cells, row.runs])
        parts += [f"## {figure}", "", kit.table(columns, lines)]
        if figure in found.why:
            parts += [f"Why they differ: {found.why[figure]}", ""]
    return "\n".join(parts).rstrip()


def printed(row: Row) -> str:
    """What the paper printed, and the aim."""
    if row.paper is None:
        said = "–"
    elif isinstance(row.paper, tuple):
        said = f"{row.paper[0]:g}–{row.paper[1]:g}{SHORT[row.unit]}"
    else:
        said = f"{row.paper:g}{SHORT[row.unit]}"
    return said if row.aim is None else f"{said} (aim: {row.aim:g})"


def measured(row: Row) -> str:
    """The median with its ends; one run has none."""
    about = "≈ " if row.derived else ""
    low, high = _number(row.low, row.unit), _number(row.high, row.unit)
    ends = f" [{low}–{high}]" if low != high else ""
    return f"{about}{_number(row.measured, row.unit)}{SHORT[row.unit]}{ends}"


def _number(value: float, unit: str) -> str:
    """Three significant digits, four of a loss; whole numbers from 100 on."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.4g}" if unit == "loss" else f"{value:.3g}"
