"""Runs of four workers against a real service over a wire that drops, doubles and delays messages.

    python benchmarks/generator/rough_runs.py [--runs 1000] [--first 0]

After each run every worker's executed groups are compared with the service's order: none lost, none doubled. Prints the
seed of a run that fails, and ends with 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "runtime")]

from generator_rig import check_orders, randomised_run  # noqa: E402 - stands beside the tests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    began, groups = time.monotonic(), 0
    for seed in range(options.first, options.first + options.runs):
        try:
            started, executed = randomised_run(seed)
            check_orders(started, executed)
        except AssertionError as error:
            print(f"seed {seed}: {error}", flush=True)
            return 1
        groups += len(started)
        if (seed + 1) % 100 == 0:
            print(f"{seed + 1 - options.first} runs, {groups} groups, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{options.runs} runs, {groups} groups: every worker executed exactly its groups, in order", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
