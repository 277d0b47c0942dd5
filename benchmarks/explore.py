"""Explore the larger configurations of Hop's worker: states, transitions, depth, states a second, peak memory.

    python -m benchmarks.explore [--all] [--json FILE] [--trace FILE.svg]

Without --all only the large ones run; with it those of the tests as well. Every property must hold and every gap bound
must be attained, or the script ends with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import sys
from pathlib import Path

from preduce.schedulers.protocols.hop import Hop, HopSetting
from preduce.verify.explore import Network, explore
from preduce.verify.pairing import shortest_deadlock
from preduce.verify.properties.suite import LARGE, MILLION, SMALL, both_ways


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="run the configurations of the tests as well")
    parser.add_argument("--json", type=Path, help="write the table as JSON")
    parser.add_argument("--trace", type=Path, help="draw the deadlock of skipping without staleness here")
    options = parser.parse_args()
    rows, total, failed = [], 0, False
    print(f"{'configuration':72s} {'states':>9s} {'transitions':>12s} {'depth':>5s} {'states/s':>9s}  verdict")
    for configuration in (*SMALL, *MILLION, *LARGE) if options.all else LARGE:
        found = configuration.run()
        tight = configuration.is_tight(found)
        verdict = "holds, tight" if found.holds and tight else ("cut" if not found.complete else "FAILS")
        failed |= not (found.holds and tight)
        total += found.states
        rate = found.states / found.seconds
        sizes = f"{found.states:9d} {found.transitions:12d} {found.depth:5d} {rate:9.0f}"
        print(f"{configuration.name:72s} {sizes}  {verdict}", flush=True)
        properties = [finding.name for finding in found.findings]
        rows.append(
            {
                "configuration": configuration.name,
                "properties": properties,
                "states": found.states,
                "transitions": found.transitions,
                "depth": found.depth,
                "states_per_second": round(rate),
                "verdict": verdict,
            }
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{total} states in all, peak memory {peak:.0f} MiB, Python {platform.python_version()}")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "peak_mib": round(peak)}, indent=2) + "\n", encoding="utf-8")
    if options.trace:
        _draw(options.trace)
    return int(failed)


def _draw(path: Path) -> None:
    from preduce.report.gaps import draw_trace

    skipping = explore(Hop(both_ways(3), HopSetting(max_ig=3, max_jump=3)), network=Network())
    trace = skipping.findings[0].trace
    assert trace is not None
    draw_trace(trace, path, title="Skipping without staleness: an update that never comes")
    deadlock = shortest_deadlock(3)
    assert deadlock is not None
    other = path.with_name(f"{path.stem}-adpsgd{path.suffix}")
    draw_trace(deadlock, other, title="AD-PSGD on an odd cycle: everybody waits for the next")


if __name__ == "__main__":
    sys.exit(main())
