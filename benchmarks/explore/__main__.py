"""Explore the larger configurations of every protocol that decides something by messages.

    python -m benchmarks.explore [--all] [--only WORD]

Prints a line per configuration: states, transitions, depth, states per second. Without --all it runs the large
configurations and the covering arrays, which contain every possible triple of factor levels; with it those of the tests
as well. Exit code 1 if a property fails, or if some gap bound of Hop is not attained.
"""

from __future__ import annotations

import platform
import resource
import sys

from benchmarks.explore import generator, hop, membership, pairing, partial, shards
from benchmarks.explore.explorer import Configuration, Exploration
from benchmarks.explore.reductions import Hop
from benchmarks.kit import parser

PROTOCOLS = {
    "Hop": (hop.SMALL, hop.LARGE, hop.FACTORS),
    "group generator": (generator.SMALL, generator.LARGE, generator.FACTORS),
    "AD-PSGD": ((), (), pairing.FACTORS),
    "partial collectives": (partial.SMALL, partial.LARGE, partial.FACTORS),
    "membership": (membership.SMALL, membership.LARGE, None),
    "asynchronous server": (shards.SMALL, shards.LARGE, None),
}  # fmt: skip
"""For each protocol the tests' configurations, the large ones, and a covering array."""


def configurations(*, everything: bool) -> list[tuple[str, Configuration]]:
    """Return (protocol, configuration) of all that is explored."""
    found = {}
    for protocol, (small, large, factors) in PROTOCOLS.items():
        pairs, triples = (factors.pairs(), factors.triples()) if factors else ((), ())
        listed = (*small, *pairs, *large, *triples) if everything else (*large, *triples)
        found.update({(protocol, configuration.name): configuration for configuration in listed})
    return [(protocol, configuration) for (protocol, _), configuration in found.items()]


def verdict(configuration: Configuration, result: Exploration) -> str:
    if not result.complete and all(finding.verdict != "fails" for finding in result.findings):
        return "cut"
    if not result.holds:
        return "FAILS"
    if isinstance(configuration.machine, Hop) and not configuration.network.suspicions:
        return "holds, tight" if hop.is_tight(configuration, result) else "FAILS: a bound is not attained"
    return "holds"


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--all", action="store_true", help="run the configurations of the tests as well")
    arguments.add_argument("--only", default="", help="those whose protocol or name has this in it")
    options = arguments.parse_args()
    total, failed = 0, False
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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{total} states in all, peak memory {peak:.0f} MiB, Python {platform.python_version()}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
