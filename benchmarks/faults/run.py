"""The fault campaign: every strategy kind under every fault, at random instants.

    make faults MINUTES=10
    python -m benchmarks.faults.run [--faults N] [--minutes M] [--seed S] [--cell KIND/FAULT/LAUNCHER/SEED …] [--write]

Begins no cell after N faults or M minutes. Prints a line for each cell and ends with 1 if anything was violated.
`--cell` runs a cell again, by the name in its line. `--write` adds what was run to
benchmarks/results/faults.json and writes faults.md from all of it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks import kit
from benchmarks.faults import verdicts
from benchmarks.faults.campaign import combinations, import_once, run_cells, what_is_left_out
from benchmarks.faults.cell import Cell, Outcome
from benchmarks.faults.table import add_results, write_page


def draw(seed: int, seconds: float, only: str) -> Iterator[Cell]:
    """Cells until the time is up: all combinations in random order, then once more."""
    chance, deadline = random.Random(seed), time.monotonic() + seconds
    listed = [combination for combination in combinations() if only in "/".join(combination)]
    while True:
        chance.shuffle(listed)
        for kind, fault, launcher in listed:
            if time.monotonic() > deadline:
                return
            yield Cell(kind, fault, launcher, chance.randrange(10**6))


def main() -> int:
    parser = kit.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--faults", type=int, default=sys.maxsize, help="that fire, at most; then none begins any more")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default="", help="a part of kind/fault/launcher")
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
    cells = map(Cell.of_name, options.cell) if options.cell else draw(seed, 60 * options.minutes, options.only)
    cells = (replace(cell, timeout=options.timeout) for cell in cells)
    cells = itertools.takewhile(lambda _: sum(outcome.fired for outcome in outcomes) < options.faults, cells)
    if not options.cell:
        print(f"seed {seed}", flush=True)
    import_once()
    begun = time.monotonic()

    def note(outcome: Outcome) -> None:
        outcomes.append(outcome)
        verdict = "; ".join(outcome.violations) or (outcome.ended if outcome.fired else "not fired")
        slowest = max(outcome.detection.values(), default=0.0)
        print(f"{outcome.cell.name}: {outcome.note}: {verdict} ({slowest:.2f} s)", flush=True)

    with contextlib.suppress(KeyboardInterrupt):  # what was run counts
        run_cells(cells, note, at_once=options.at_once)
    fired = [outcome for outcome in outcomes if outcome.fired]
    bad = [outcome for outcome in fired if outcome.violations]
    print(f"{len(outcomes)} cells in {(time.monotonic() - begun) / 60:.1f} minutes, load {os.getloadavg()[0]:.1f}")
    print(f"{len(fired)} faults ({len(outcomes) - len(fired)} cells in which none fired), {len(bad)} with a violation")
    if options.write:
        add_results(fired, seed)
        write_page()
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
