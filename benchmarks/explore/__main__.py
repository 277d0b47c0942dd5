"""Explore the larger configurations of every protocol that decides something by messages.

    python -m benchmarks.explore [--all] [--only WORD] [--json FILE]

Prints a line per configuration as it goes: states, transitions, depth, states a second. Without --all the large ones
run and those of the covering arrays, in which every possible triple of circumstances stands; with it those of the tests
as well. Every property must hold, and every gap bound of Hop must be attained, or the script ends with exit code 1.
"""

from __future__ import annotations

import json
import platform
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.explore import (
    group_generator_array,
    group_generator_suite,
    hop_array,
    hop_suite,
    pairing,
    partial_array,
    partial_groups_suite,
    partial_suite,
    shards,
)
from benchmarks.kit import parser

if TYPE_CHECKING:
    from partreduce.verify.explore import Exploration

PROTOCOLS = ("Hop", "group generator", "AD-PSGD", "partial all-reduce", "quorum of groups", "asynchronous server")


def configurations(*, everything: bool) -> list[tuple[str, Any]]:
    """(protocol, configuration) of all that is explored."""
    hop: list[Any] = [*hop_suite.LARGE, *hop_array.FACTORS.triples()]
    generator: list[Any] = [
        *group_generator_suite.LARGE,
        group_generator_array.TWO_VOIDS,
        *group_generator_array.FACTORS.triples(),
    ]
    partial: list[Any] = [*partial_suite.LARGE, *partial_array.FACTORS.triples()]
    groups: list[Any] = [*partial_groups_suite.LARGE]
    servers: list[Any] = [*shards.LARGE]
    if everything:
        hop = [*hop_suite.SMALL, *hop_suite.MILLION, *hop_array.FACTORS.pairs(), *hop]
        generator = [
            *group_generator_suite.SMALL,
            *group_generator_suite.MILLION,
            *group_generator_array.FACTORS.pairs(),
            *generator,
        ]
        partial = [*partial_suite.SMALL, *partial_array.FACTORS.pairs(), *partial]
        groups = [*partial_groups_suite.SMALL, *groups]
        servers = [*shards.SMALL, *servers]
    of_each = zip(PROTOCOLS, (hop, generator, pairing.FACTORS.triples(), partial, groups, servers), strict=True)
    return [(protocol, configuration) for protocol, listed in of_each for configuration in listed]


def verdict(configuration: Any, result: Exploration) -> str:  # noqa: ANN401 - one of four classes of configurations
    """What the search says, in a word or two."""
    if not result.complete and all(finding.verdict != "fails" for finding in result.findings):
        return "cut"
    if not result.holds:
        return "FAILS"
    if isinstance(configuration, hop_suite.HopConfiguration) and not configuration.network.suspicions:
        return "holds, tight" if configuration.is_tight(result) else "FAILS: a bound is not attained"
    return "holds"


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--all", action="store_true", help="run the configurations of the tests as well")
    arguments.add_argument("--only", default="", help="those whose protocol or name has this in it")
    arguments.add_argument("--json", type=Path, help="write the table as JSON")
    options = arguments.parse_args()
    rows, total, failed = [], 0, False
    print(f"{'configuration':76s} {'states':>9s} {'transitions':>12s} {'depth':>5s} {'states/s':>9s}  verdict")
    for protocol, configuration in configurations(everything=options.all):
        name = f"{protocol}: {configuration.name}"
        if options.only not in name:
            continue
        print(f"{name:76s} ", end="", flush=True)
        result = configuration.run()
        word = verdict(configuration, result)
        failed |= not word.startswith("holds")
        total += result.states
        rate = result.states / result.seconds
        print(f"{result.states:9d} {result.transitions:12d} {result.depth:5d} {rate:9.0f}  {word}", flush=True)
        rows.append(
            {
                "protocol": protocol,
                "configuration": configuration.name,
                "properties": [finding.name for finding in result.findings],
                "states": result.states,
                "transitions": result.transitions,
                "depth": result.depth,
                "states_per_second": round(rate),
                "verdict": word,
            }
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{total} states in all, peak memory {peak:.0f} MiB, Python {platform.python_version()}")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "peak_mib": round(peak)}, indent=2) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
