"""benchmarks/results/faults.md: what the campaigns found, kind by fault, from the rows in faults.json beside it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from benchmarks import kit
from benchmarks.faults.cell import Outcome
from benchmarks.faults.injectors import FAULTS
from benchmarks.faults.kinds import KINDS

RESULTS = kit.RESULTS / "faults.json"
PAGE = kit.RESULTS / "faults.md"


def add_results(outcomes: Iterable[Outcome], seed: int) -> None:
    """Add a campaign's cells to those that are kept, counted by kind, fault and launcher."""
    content: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"campaigns": [], "counts": {}}
    outcomes = list(outcomes)
    content["campaigns"].append({"seed": seed, "commit": kit.commit(), "faults": len(outcomes)})
    for outcome in outcomes:
        kind, fault, launcher, _ = outcome.cell.name.split("/")
        count = content["counts"].setdefault(
            f"{kind}/{fault}/{launcher}", {"number": 0, "ended": {}, "seconds": [], "violations": {}}
        )
        count["number"] += 1
        count["ended"][outcome.ended] = count["ended"].get(outcome.ended, 0) + 1
        count["seconds"] += [round(seconds, 2) for seconds in outcome.detection.values()]
        if outcome.violations:
            count["violations"][outcome.cell.name] = "; ".join(outcome.violations)[:300]
    RESULTS.write_text(kit.compact(content))


def write_page() -> None:
    """Write the page again from all that is kept."""
    PAGE.write_text(page(json.loads(RESULTS.read_text())))


def page(content: dict[str, Any]) -> str:
    """The whole page: the tables and the list of violations."""
    counts = content["counts"]
    bad = {name: text for count in counts.values() for name, text in count["violations"].items()}
    campaigns = ", ".join(f"seed {c['seed']} at {c['commit']} ({c['faults']})" for c in content["campaigns"])
    number = sum(count["number"] for count in counts.values())
    lines = [
        "# Faults that were tried",
        "",
        "`python -m benchmarks.faults.run --write`; [what is done, and asked](../faults/README.md).",
        "",
        f"{number} faults fired, {len(bad)} cells with a violation. Campaigns: {campaigns}.",
        "",
        "## Fault by fault",
        "",
        "Seconds from the fault to a survivor's own report; none where the run continues, or its launcher ends it.",
        "",
        "| fault | launcher | number | finished | reported | ended by the launcher | violations | seconds p50 | p99 |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for (fault, launcher), listed in _by(counts, 1, 2).items():
        lines.append(f"| {fault} | {launcher} | {_counts(listed)} | {_seconds(listed)} |")
    lines += ["", "## Kind by fault", "", "Number of faults; in brackets those with a violation.", ""]
    lines += _matrix(counts)
    lines += ["", "## Violations", ""]
    lines += [f"* `{name}`: {text}".replace("|", "\\|") for name, text in bad.items()] or ["None."]
    return "\n".join(lines) + "\n"


def _by(counts: dict[str, Any], *places: int) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Counts by parts of their names, in the order of FAULTS and KINDS."""
    order = [*KINDS, *FAULTS, "run", "nodes", "torchrun", "by hand"]
    grouped: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for name, count in counts.items():
        parts = name.split("/")
        grouped[tuple(parts[place] for place in places)].append(count)
    return dict(sorted(grouped.items(), key=lambda entry: [order.index(part) for part in entry[0]]))


def _number(listed: list[dict[str, Any]], ended: str | None = None) -> int:
    return sum(count["number"] if ended is None else count["ended"].get(ended, 0) for count in listed)


def _counts(listed: list[dict[str, Any]]) -> str:
    bad = sum(len(count["violations"]) for count in listed)
    ends = " | ".join(str(_number(listed, ended)) for ended in ("finished", "named error", "ended"))
    return f"{_number(listed)} | {ends} | {bad}"


def _seconds(listed: list[dict[str, Any]]) -> str:
    seconds = [value for count in listed for value in count["seconds"]]
    if not seconds:
        return "– | –"
    return f"{np.percentile(seconds, 50):.2f} | {np.percentile(seconds, 99):.2f}"


def _matrix(counts: dict[str, Any]) -> list[str]:
    grouped = _by(counts, 0, 1)
    faults = [fault for fault in FAULTS if any(key[1] == fault for key in grouped)]
    kinds = [kind for kind in KINDS if any(key[0] == kind for key in grouped)]
    lines = ["| | " + " | ".join(kinds) + " |", "|---|" + "---:|" * len(kinds)]
    for fault in faults:
        entries = []
        for kind in kinds:
            listed = grouped.get((kind, fault), [])
            bad = sum(len(count["violations"]) for count in listed)
            entries.append((str(_number(listed)) + (f" ({bad})" if bad else "")) if listed else "")
        lines.append(f"| {fault} | " + " | ".join(entries) + " |")
    return lines
