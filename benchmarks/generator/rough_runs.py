"""Runs of four workers against a real service over a wire that drops, doubles and delays messages.

    python -m benchmarks.generator.rough_runs [--runs 1000] [--first 0]

After each run every worker's executed groups are compared with the service's order: none lost, none doubled. Prints the
seed of a run that fails, and ends with 1.
"""

from __future__ import annotations

import argparse
import sys

from helpers.generator_rig import check_orders, randomised_run


def many(seeds: range) -> int:
    """Run all seeds; the number of groups.

    Raises:
        AssertionError: a worker did not execute exactly its groups in order; the message names the seed.
    """
    groups = 0
    for seed in seeds:
        try:
            started, executed = randomised_run(seed)
            check_orders(started, executed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from None
        groups += len(started)
    return groups


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    try:
        groups = many(range(options.first, options.first + options.runs))
    except AssertionError as error:
        print(error, flush=True)
        return 1
    print(f"{options.runs} runs, {groups} groups: every worker executed exactly its groups, in order", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
