"""docs/faults.md: what the campaigns found, kind by fault, from the rows in benchmarks/results/faults.json."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import compact
from benchmarks.faults.injectors import FAULTS
from benchmarks.faults.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.faults.cell import Outcome

HOME = Path(__file__).resolve().parents[2]
RESULTS = HOME / "benchmarks/results/faults.json"
PAGE = HOME / "docs/faults.md"
BEGIN = "<!-- written by benchmarks/faults/table.py; do not edit below -->"


def add_results(outcomes: Iterable[Outcome], seed: int) -> None:
    """Append a campaign's cells to those that are kept."""
    content: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"campaigns": [], "cells": []}
    rows = [row_of(outcome) for outcome in outcomes]
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False, cwd=HOME).stdout.strip()
    content["campaigns"].append({"seed": seed, "commit": commit, "faults": len(rows)})
    content["cells"] += rows
    RESULTS.write_text(compact.text(content))


def row_of(outcome: Outcome) -> dict[str, Any]:
    """What is kept of a cell."""
    return {
        "cell": outcome.cell.name,
        "ended": outcome.ended,
        "seconds": [round(seconds, 3) for seconds in outcome.detection.values()],
        "violations": [violation[:200] for violation in outcome.violations],
    }


def write_page() -> None:
    """Write the part of the page that is counted."""
    head = PAGE.read_text().split(BEGIN)[0]
    PAGE.write_text(head + BEGIN + "\n\n" + page(json.loads(RESULTS.read_text())))


def page(content: dict[str, Any]) -> str:
    """The tables and the list of violations."""
    cells = content["cells"]
    bad = [cell for cell in cells if cell["violations"]]
    campaigns = ", ".join(f"seed {c['seed']} at {c['commit']} ({c['faults']})" for c in content["campaigns"])
    lines = [
        f"{len(cells)} faults fired, {len(bad)} cells with a violation. Campaigns: {campaigns}.",
        "",
        "## Fault by fault",
        "",
        "Seconds from the fault to a survivor's own report; a run that goes on, or is ended by its launcher, has none.",
        "",
        "| fault | launcher | number | finished | reported | ended by the launcher | violations | seconds p50 | p99 |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for (fault, launcher), listed in _by(cells, 1, 2).items():
        lines.append(f"| {fault} | {launcher} | {_counts(listed)} | {_seconds(listed)} |")
    lines += ["", "## Kind by fault", "", "Number of faults; in brackets those with a violation.", ""]
    lines += _matrix(cells)
    lines += ["", "## Violations", ""]
    lines += [f"* `{cell['cell']}`: {'; '.join(cell['violations'])[:300]}".replace("|", "\\|") for cell in bad] or [
        "None."
    ]
    return "\n".join(lines) + "\n"


def _violation(cell: dict[str, Any]) -> str:
    return f"* `{cell['cell']}`: {'; '.join(cell['violations'])}"


def _by(cells: list[dict[str, Any]], *places: int) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Cells by parts of their names, in the order of FAULTS and KINDS."""
    order = [*KINDS, *FAULTS, "run", "torchrun", "by hand", "nodes"]
    grouped: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for cell in cells:
        parts = cell["cell"].split("/")
        grouped[tuple(parts[place] for place in places)].append(cell)
    return dict(sorted(grouped.items(), key=lambda entry: [order.index(part) for part in entry[0]]))


def _counts(cells: list[dict[str, Any]]) -> str:
    ended = [cell["ended"] for cell in cells]
    bad = sum(bool(cell["violations"]) for cell in cells)
    return f"{len(cells)} | {ended.count('finished')} | {ended.count('named error')} | {ended.count('ended')} | {bad}"


def _seconds(cells: list[dict[str, Any]]) -> str:
    seconds = [value for cell in cells for value in cell["seconds"]]
    if not seconds:
        return "– | –"
    return f"{np.percentile(seconds, 50):.2f} | {np.percentile(seconds, 99):.2f}"


def _matrix(cells: list[dict[str, Any]]) -> list[str]:
    grouped = _by(cells, 0, 1)
    faults = [fault for fault in FAULTS if any(key[1] == fault for key in grouped)]
    kinds = [kind for kind in KINDS if any(key[0] == kind for key in grouped)]
    lines = ["| | " + " | ".join(kinds) + " |", "|---|" + "---:|" * len(kinds)]
    for fault in faults:
        entries = []
        for kind in kinds:
            listed = grouped.get((kind, fault), [])
            bad = sum(bool(cell["violations"]) for cell in listed)
            entries.append((str(len(listed)) + (f" ({bad})" if bad else "")) if listed else "")
        lines.append(f"| {fault} | " + " | ".join(entries) + " |")
    return lines
