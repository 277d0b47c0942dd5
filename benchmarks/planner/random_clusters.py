"""The planner on clusters, limits and times that nobody chose: no internal error, no false sentence, no broken limit.

    python -m benchmarks.planner.random_clusters --number 2000 --seed 0

Each job is drawn from (seed, number) alone, so that `--only NUMBER` repeats one. Every tenth is tiny and compared with
all schedules of at most two phases; every fiftieth is planned twice, every fortieth compared with all algorithms, steps
per round and delay of what was measured. What is checked stands in `random_checks`. Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.kit import command, machine, parser, table, write
from benchmarks.planner.random_checks import run
from benchmarks.planner.random_jobs import draw_job
from partreduce.planner.plan import load_searchers


def main() -> int:
    """Plan and check; print what is wrong as it comes, and a summary."""
    arguments = parser(__doc__)
    arguments.add_argument("--number", type=int, default=2000)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--only", type=int, metavar="NUMBER")
    arguments.add_argument("-o", "--output", type=Path)
    chosen = arguments.parse_args()
    load_searchers()
    outcomes, failures, late, begun = [], 0, [0.0], time.monotonic()
    for number in range(chosen.number) if chosen.only is None else [chosen.only]:
        tiny = number % 10 == 0
        job = draw_job(chosen.seed, number, tiny=tiny)
        outcome = run(job, exhaust=tiny, again=number % 50 == 1, settings=number % 40 == 2)
        outcomes.append(outcome)
        if job.effort is None and job.time_limit is not None:
            late.append(outcome.late)
        failures += len(outcome.wrong)
        for sentence in outcome.wrong:
            print(f"{number}: {job.cluster} {job.objective}: {sentence}", flush=True)
    middle, rare, latest = np.quantile(late, [0.5, 0.99, 1.0])
    write(
        chosen.output,
        "The planner on random clusters",
        f"`{command('planner.random_clusters')}`; {machine()}; {time.monotonic() - begun:.0f} s.",
        table(["answer", "jobs"], sorted(Counter(outcome.kind for outcome in outcomes).items())),
        f"{failures} checks failed.",
        f"{len(late) - 1} jobs had a time limit alone (0.05 to 0.6 s). In seconds of a core, half ended {middle:.2f} s "
        f"after it or sooner, 99 of 100 within {rare:.2f} s, the latest after {latest:.2f} s; imports are not counted.",
    )
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
