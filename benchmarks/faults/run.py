"""The fault campaign: every strategy kind under every fault, at random instants.

    make faults MINUTES=10
    python -m benchmarks.faults.run [--minutes M] [--seed S] [--cell KIND/FAULT/LAUNCHER/SEED …] [--write]

Begins no cell after M minutes. Prints a line for each cell and ends with 1 if anything was violated.
`--cell` runs a cell again, by the name in its line. `--write` adds what was run to
benchmarks/results/faults.json and writes faults.md from all of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import kit
from benchmarks.faults import verdicts
from benchmarks.faults.campaign import combinations, import_once, run_cells, what_is_left_out
from benchmarks.faults.injectors import FAULTS
from benchmarks.faults.kinds import KINDS
from benchmarks.faults.running import Cell, Outcome

RESULTS, PAGE = kit.RESULTS / "faults.json", kit.RESULTS / "faults.md"
ENDED = ("finished", "named error", "ended")
HEAD = (
    *("fault", "launcher", "number", "finished", "reported", "ended by the launcher", "violations"),
    *("seconds p50", "p99"),
)


def draw(seed: int, seconds: float) -> Iterator[Cell]:
    """Yield cells until the time is over: all combinations in random order, again and again."""
    chance, deadline = random.Random(seed), time.monotonic() + seconds
    listed = combinations()
    while True:
        chance.shuffle(listed)
        for kind, fault, launcher in listed:
            if time.monotonic() > deadline:
                return
            yield Cell(kind, fault, launcher, chance.randrange(10**6))


def add_results(outcomes: Iterable[Outcome], seed: int) -> None:
    """Add a campaign's cells to the results file, counted by kind, fault and launcher, and write the page."""
    content: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"campaigns": [], "counts": {}}
    outcomes = list(outcomes)
    content["campaigns"].append({"seed": seed, "commit": kit.commit(), "faults": len(outcomes)})
    for outcome in outcomes:
        name = outcome.cell.name
        new = {"number": 0, "ended": {}, "seconds": [], "violations": {}}
        count = content["counts"].setdefault(name.rpartition("/")[0], new)
        count["number"] += 1
        count["ended"][outcome.ended] = count["ended"].get(outcome.ended, 0) + 1
        count["seconds"] += [round(seconds, 2) for seconds in outcome.detection.values()]
        if outcome.violations:
            count["violations"][name] = "; ".join(outcome.violations)[:300]
    RESULTS.write_text(kit.compact(content))
    PAGE.write_text(page(content))


def page(content: dict[str, Any]) -> str:
    counts = content["counts"]
    bad = {name: text for count in counts.values() for name, text in count["violations"].items()}
    campaigns = ", ".join(f"seed {c['seed']} at {c['commit']} ({c['faults']})" for c in content["campaigns"])
    rows: list[list[object]] = []
    for (fault, launcher), listed in _by(counts, 1, 2).items():
        seconds = [value for count in listed for value in count["seconds"]]
        percentiles = [f"{np.percentile(seconds, q):.2f}" for q in (50, 99)] if seconds else ["–", "–"]
        ends = [_sum(listed, ended) for ended in ENDED]
        rows.append([fault, launcher, _sum(listed), *ends, _violations(listed), *percentiles])
    grouped = _by(counts, 0, 1)
    kinds = [kind for kind in KINDS if any(key[0] == kind for key in grouped)]
    by_kind = []
    for fault in (fault for fault in FAULTS if any(key[1] == fault for key in grouped)):
        cells = [grouped.get((kind, fault), []) for kind in kinds]
        by_kind.append([fault, *(f"{_sum(c)} ({v})" if (v := _violations(c)) else _sum(c) or "" for c in cells)])
    violations = "\n".join(f"* `{name}`: {text}".replace("|", "\\|") for name, text in bad.items())
    return kit.page(
        "Faults that were tried",
        "`python -m benchmarks.faults.run --write`; [what is done, and asked](../faults/README.md).",
        f"{_sum(counts.values())} faults fired, {len(bad)} cells with a violation. Campaigns: {campaigns}.",
        "## Fault by fault",
        "Seconds from the fault to a survivor's own report; none where the run continues, or its launcher ends it.",
        kit.table(HEAD, rows),
        "## Kind by fault",
        "Number of faults; in brackets those with a violation.",
        kit.table(["", *kinds], by_kind),
        "## Violations",
        violations or "None.",
    )


def _by(counts: dict[str, Any], *places: int) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Return counts grouped by parts of their keys, in the order of FAULTS and KINDS."""
    order = [*KINDS, *FAULTS, "run", "nodes", "torchrun", "by hand"]
    grouped: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for name, count in counts.items():
        parts = name.split("/")
        grouped[tuple(parts[place] for place in places)].append(count)
    return dict(sorted(grouped.items(), key=lambda entry: [order.index(part) for part in entry[0]]))


def _violations(listed: list[dict[str, Any]]) -> int:
    return sum(len(count["violations"]) for count in listed)


def _sum(listed: Iterable[dict[str, Any]], ended: str | None = None) -> int:
    return sum(count["number"] if ended is None else count["ended"].get(ended, 0) for count in listed)


def main() -> int:
    parser = kit.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--cell", action="append", default=[], help="run these and nothing else")
    parser.add_argument("--at-once", type=int, default=8, help="cells side by side, as far as processors are idle")
    parser.add_argument("--timeout", type=float, default=Cell.timeout, help="of the runs, in seconds")
    parser.add_argument("--slack", type=float, help="seconds beyond the timeout within which a run has to end")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.slack is not None:
        verdicts.SLACK_SECONDS = options.slack
    outcomes: list[Outcome] = []
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    for reason in what_is_left_out():
        print(f"left out: {reason}")
    cells = map(Cell.of_name, options.cell) if options.cell else draw(seed, 60 * options.minutes)
    cells = (replace(cell, timeout=options.timeout) for cell in cells)
    if not options.cell:
        print(f"seed {seed}", flush=True)
    import_once()
    begun = time.monotonic()

    def note(outcome: Outcome) -> None:
        outcomes.append(outcome)
        verdict = "; ".join(outcome.violations) or (outcome.ended if outcome.fired else "not fired")
        slowest = max(outcome.detection.values(), default=0.0)
        print(f"{outcome.cell.name}: {outcome.note}: {verdict} ({slowest:.2f} s)", flush=True)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # namespaces and processes end with the campaign
    with contextlib.suppress(KeyboardInterrupt):  # what was run counts
        run_cells(cells, note, at_once=options.at_once)
    fired = [outcome for outcome in outcomes if outcome.fired]
    bad = [outcome for outcome in fired if outcome.violations]
    print(f"{len(outcomes)} cells in {(time.monotonic() - begun) / 60:.1f} minutes, load {os.getloadavg()[0]:.1f}")
    print(f"{len(fired)} faults ({len(outcomes) - len(fired)} cells in which none fired), {len(bad)} with a violation")
    if options.write:
        add_results(fired, seed)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
