"""docs/papers.md and the table of the README, written from benchmarks/results/papers/*.json and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.papers.pictures import bar_names, draw, names
from benchmarks.papers.registry import PAPERS, Paper
from benchmarks.papers.rows import RESULTS, read

if TYPE_CHECKING:
    from benchmarks.papers.rows import Results, Row

HOME = Path(__file__).resolve().parents[2]
PAGE = HOME / "docs/papers.md"
README = HOME / "README.md"
BEGIN = "<!-- written by benchmarks/papers/page.py; do not edit below -->"
TABLE_BEGINS, TABLE_ENDS = "<!-- papers: written by benchmarks/papers/page.py -->", "<!-- papers end -->"
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
    """Both, and the pictures, from the files in the folder."""
    results = {paper.name: read(paper.name, folder) for paper in PAPERS}
    for found in results.values():
        draw(found, folder)
    head = PAGE.read_text().split(BEGIN)[0]
    PAGE.write_text(f"{head}{BEGIN}\n\n{page(results)}")
    before, _, rest = README.read_text().partition(TABLE_BEGINS)
    after = rest.partition(TABLE_ENDS)[2]
    README.write_text(f"{before}{TABLE_BEGINS}\n{summary(results)}\n{TABLE_ENDS}{after}")


def page(results: dict[str, Results]) -> str:
    """Every paper with its tables, in the order of the registry."""
    parts = []
    for paper in PAPERS:
        found = results[paper.name]
        parts += [f"## {paper.title}", ""]
        if not found.rows:
            parts += [f"{paper.claim} Here: {NOT_YET}.", ""]
            continue
        parts += [f"{paper.claim} Measured at commit {found.commit}, where a row names no other.", ""]
        parts += [table(found), ""]
        drawn = {**bar_names(found), **names(found)}
        parts += [f"![{plot}](../benchmarks/results/papers/{name})\n" for plot, name in drawn.items()]
        if found.notes:
            parts += ["How the runs went:", "", *[f"* {note}" for note in found.notes], ""]
    return "\n".join(parts).rstrip() + "\n"


def table(found: Results) -> str:
    """One paper, figure by figure: paper, measured with its ends, runs, why they differ."""
    lines = []
    for figure in dict.fromkeys(row.figure for row in found.rows):
        rows = [row for row in found.rows if row.figure == figure]
        predicted = any(row.predicted is not None for row in rows)
        columns = ["setting", "paper", "measured [low–high]", *(["predicted"] if predicted else []), "runs"]
        lines += [f"### {figure}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for row in rows:
            commit = f" (at {row.commit})" if row.commit and row.commit != found.commit else ""
            cells = [row.setting + commit, printed(row), measured(row)]
            if predicted:
                cells.append("" if row.predicted is None else _number(row.predicted, row.unit) + SHORT[row.unit])
            lines.append(f"| {' | '.join([*cells, str(row.runs)])} |")
        if figure in found.why:
            lines += ["", f"Why they differ: {found.why[figure]}"]
        lines.append("")
    return "\n".join(lines).rstrip()


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


def summary(results: dict[str, Results]) -> str:
    """The README's table: the rows by which each paper is known."""
    lines = ["| paper | figure | paper says | measured here [low–high] | runs |", "|---|---|---|---|---|"]
    for paper in PAPERS:
        rows = {row.key: row for row in results[paper.name].rows}
        shown = [rows[key] for key in paper.headlines if key in rows]
        if not shown:
            lines.append(f"| {paper.title} | {_of(paper)} | | {NOT_YET} | |")
        for index, row in enumerate(shown):
            name = paper.title if index == 0 else ""
            what = f"{row.figure}: {row.setting}"
            lines.append(f"| {name} | {what} | {printed(row)} | {measured(row)} | {row.runs} |")
    return "\n".join(lines)


def _of(paper: Paper) -> str:
    return paper.claim.rstrip(".")


def _number(value: float, unit: str) -> str:
    """Three significant digits, four of a loss; whole numbers from 100 on."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.4g}" if unit == "loss" else f"{value:.3g}"


def text(found: Results) -> str:
    """What the command prints after a run: the tables alone."""
    return table(found) if found.rows else f"{found.paper}: {NOT_YET}"
