"""The planner on clusters, limits and times that nobody chose: no internal error, no false sentence, no broken limit.

    python -m benchmarks.planner.random_clusters --number 2000 --seed 0

Each job is drawn from (seed, number) alone, so that `--only NUMBER` repeats one. Every tenth is tiny and compared with
all schedules of at most two phases; every fiftieth is planned twice, every fortieth
compared with all forms, paces and lateness of what was measured. What is checked stands in `random_checks`. Exit
code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks.planner.random_checks import OVERRUN, Outcome, run
from benchmarks.planner.random_jobs import draw_job
from partreduce.planner.plan import load_searchers

RESULT = Path(__file__).resolve().parents[1] / "results" / "random_clusters.md"


def main() -> int:
    """Plan and check; print what is wrong as it comes, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="NUMBER")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--overrun", type=float, default=OVERRUN)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    load_searchers()
    numbers = range(options.first, options.first + options.number) if options.only is None else [options.only]
    outcomes: list[Outcome] = []
    failures = 0
    overruns: list[float] = []
    begun = time.monotonic()
    for number in numbers:
        if time.monotonic() - begun > 60 * options.minutes:
            break
        tiny = number % 10 == 0
        job = draw_job(options.seed, number, tiny=tiny)
        outcome = run(job, exhaust=tiny, again=number % 50 == 1, settings=number % 40 == 2, overrun=options.overrun)
        outcomes.append(outcome)
        if job.effort is None and job.time_limit is not None:
            overruns.append(outcome.late)
        for sentence in outcome.wrong:
            failures += 1
            print(f"{number}: {job.cluster} {job.objective}: {sentence}", flush=True)
        if len(outcomes) % 50 == 0:
            print(
                f"{len(outcomes)} jobs, {failures} failures, {time.monotonic() - begun:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    text = summary(outcomes, overruns, failures, options.seed, time.monotonic() - begun)
    print(text)
    if options.output is not None:
        options.output.write_text(text)
    return 1 if failures else 0


def summary(outcomes: list[Outcome], overruns: list[float], failures: int, seed: int, seconds: float) -> str:
    """The numbers as a short page."""
    kinds = Counter(outcome.kind for outcome in outcomes)
    rows = "\n".join(f"| {kind} | {count} |" for kind, count in sorted(kinds.items()))
    late = sorted(overruns) or [0.0]
    middle, rare = late[len(late) // 2], late[int(0.99 * (len(late) - 1))]
    command = f"python -m benchmarks.planner.random_clusters --number {len(outcomes)} --seed {seed}"
    return f"""# The planner on random clusters

`{command}`: {len(outcomes)} jobs in {seconds:.0f} s.

| answer | jobs |
|---|---|
{rows}

{failures} checks failed. {sum(outcome.bounded for outcome in outcomes)} recommendations carry a proved bound.

{len(overruns)} jobs had a time limit alone (0.05 to 0.6 s). In seconds of a core, half ended {middle:.2f} s after it or
sooner, 99 of 100 within {rare:.2f} s, the latest after {late[-1]:.2f} s; imports are not counted.
"""


if __name__ == "__main__":
    sys.exit(main())
