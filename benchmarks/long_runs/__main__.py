"""Long runs: a thousand steps of every system on the same task, to a final loss and a share told right.

    python -m benchmarks.long_runs measure           # resumes what is there
    python -m benchmarks.long_runs theorem           # eager-SGD's Theorem 5.2 beside its runs of what is convex
    python -m benchmarks.long_runs write             # tables and pictures

All workers of a run train in one process: fixed phases in their order, everything else by its protocol in virtual time
(virtual.py). What a step takes is measured in the lab, by the same contestants under the same setting; a curve over
seconds is the curve over steps times that. `cases.toml` says what is run.
"""

from __future__ import annotations

import os
import sys
import time
from math import inf, isfinite
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json

from benchmarks import compact, kit
from benchmarks.long_runs.part import Part, parts
from partreduce.topo.strategies.partial import PartialAllReduce

Row = dict[str, Any]
RESULT = kit.RESULTS / "long_runs.json"
EVERY = 25
SHORT = 4
"""Rates are compared in runs of so much fewer steps, and not drawn."""


def run(part: Part, name: str, steps: int, rate: float, seed: int) -> Row:
    """One run: held-out loss, share told right, and training loss in the end, with the curve of the training loss."""
    begun = time.monotonic()
    learner, virtual = part.begun(name, steps, rate, seed)
    curve = [(0, learner.loss(learner.models.mean(0)))]
    for step in range(steps):
        virtual.advance(step)
        if (step + 1) % EVERY == 0:
            curve.append((step + 1, learner.loss(learner.models.mean(0))))
            if not curve[-1][1] < 2 * curve[0][1]:
                break
    loss, share = learner.held_out(learner.models.mean(0))
    row: Row = {"contestant": name, "steps": steps, "rate": rate, "seed": seed, "held out": loss, "right": share}
    row |= {"training": curve[-1][1], "virtual": virtual.seconds, "curve": curve}
    said = f"{name}, {steps} steps, rate {rate:g}, seed {seed}: loss {loss:.4f}, {share:.4f} right"
    said += f"; {time.monotonic() - begun:.0f} s, {time.process_time():.0f} of all"
    print(said, file=sys.stderr, flush=True)
    return row


def best(rows: list[Row], steps: int) -> float | None:
    """The rate with the least held-out loss of the short runs, the lowest of equals: those that learned nothing are.

    Losses are equal that are in two digits; what diverged has none.
    """
    found = {row["rate"]: row["held out"] for row in rows if row["steps"] == steps // SHORT}
    losses = {rate: float(f"{loss:.2g}") if isfinite(loss) else inf for rate, loss in found.items()}
    return min(losses, key=lambda rate: (losses[rate], rate), default=None)


def wanted(part: Part, rows: list[Row], seeds: list[int]) -> tuple[int, float, int] | None:
    """The next run of a contestant: short ones up and down the grid until the best lies between others, then seeds."""
    rates, short = sorted(part.rates), part.steps // SHORT
    have = {(row["steps"], row["rate"], row["seed"]) for row in rows}
    rate = best(rows, part.steps)
    if rate is None:
        return short, rates[len(rates) // 2], 0
    place = rates.index(rate)
    for near in (place + 1, place - 1):
        if 0 <= near < len(rates) and (short, rates[near], 0) not in have:
            return short, rates[near], 0
    return next(((part.steps, rate, seed) for seed in seeds if (part.steps, rate, seed) not in have), None)


def stored() -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    return found


def keep(name: str, row: Row) -> None:
    """Add a run; short ones go without their curves. Several processes may write by turns."""
    import fcntl

    with RESULT.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = stored()
        content.setdefault(name, []).append(row)
        RESULT.write_text(compact.text(content, digits=5))


def measure(name: str, part: Part, seeds: list[int], only: list[str]) -> None:
    for contestant in only or part.contestants:
        while True:
            rows = [row for row in stored().get(name, []) if row["contestant"] == contestant]
            following = wanted(part, rows, seeds)
            if following is None:
                break
            row = run(part, contestant, *following)
            if row["steps"] < part.steps:
                del row["curve"]
            keep(name, row)


def _theorem() -> None:
    """For every quorum of the convex part, seed by seed, at the rate of its long runs."""
    from benchmarks.long_runs.page import of_contestant
    from benchmarks.long_runs.theorem import CONVEX, evaluated

    part, content = parts()[CONVEX], stored()
    quorums = [
        name for name in part.contestants if isinstance(part.schedule_of(name)[0].strategy.sync, PartialAllReduce)
    ]
    runs = [run for name in quorums for run in of_contestant(part, content[CONVEX], name)]
    content["theorem"] = [evaluated(part, run["contestant"], run["rate"], run["seed"]) for run in runs]
    RESULT.write_text(compact.text(content, digits=5))


def main() -> int:
    arguments = kit.parser(__doc__)
    arguments.add_argument("what", choices=["measure", "theorem", "write"])
    arguments.add_argument("--parts", nargs="+", default=list(parts()))
    arguments.add_argument("--contestants", default="", help="names separated by semicolons")
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    chosen = arguments.parse_args()
    kit.one_thread()
    if chosen.what == "write":
        from benchmarks.long_runs import page

        page.write(parts(), stored())
        return 0
    if chosen.what == "theorem":
        _theorem()
        return 0
    for name in chosen.parts:
        measure(name, parts()[name], chosen.seeds, [one for one in chosen.contestants.split(";") if one])
    return 0


if __name__ == "__main__":
    sys.exit(main())
