"""What form, lateness and steps of a round add to the planner's recommendations: the same questions before and after.

    python -m benchmarks.planner.axes --rows FILE.json [--time-limit 10] [--only default ...]
    python -m benchmarks.planner.axes --rows AFTER.json --before BEFORE.json -o FILE.md

The first command answers every question and writes the recommendations; it asks nothing that an older planner does not
know, so that it can be run against one. The second writes both side by side. The questions are the worked example, the
job of `partreduce design 4x4`, 8 nodes with a rail for each of 8 workers, and five clusters of bandwidths drawn at
random (NIC 1 to 32 GB/s, inside 1 to 20 times that), 552 MB and 50 ms of computing per step but for the second,
shuffled data.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from partreduce import Job, plan
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link

EVEN = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9), model_bytes=552_000_000, compute=0.05)
SHAPES = (("4x4", 1), ("8x4", 1), ("3,3,2", 1), ("2x8", 4), ("6x2", 2))
DRAW = 712
HEAD = [
    "cluster",
    "before: recommendation",
    "ms to a loss",
    "after: recommendation",
    "ms to a loss",
    "less time",
    "fastest of all",
    "gain told",
]


def questions() -> dict[str, tuple[str, Hardware]]:
    """Shape and hardware by name."""
    asked = {
        "worked example, 4x4": ("4x4", EVEN),
        "default, 4x4 of 100 MB": ("4x4", replace(EVEN, model_bytes=100_000_000)),
        "8x8 with 8 rails": ("8x8", replace(EVEN, num_nics=8)),
    }
    rng = np.random.default_rng(DRAW)
    for shape, rails in SHAPES:
        nic = 1e9 * 32 ** rng.uniform()
        inside = nic * 20 ** rng.uniform()
        links = replace(EVEN, nic=Link.of_bandwidth(nic), inside=Link.of_bandwidth(inside), num_nics=rails)
        words = f"{shape}, {inside / 1e9:.1f} and {nic / 1e9:.1f} GB/s" + (f", {rails} rails" if rails > 1 else "")
        asked[words] = (shape, links)
    return asked


def answered(shape: str, hardware: Hardware, time_limit: float) -> dict[str, Any]:
    """The recommendation of one question and what the planner says it gains."""
    clock, work = time.monotonic(), time.process_time()
    found = plan(Job(cluster=replace(Cluster.parse(shape), hardware=hardware), time_limit=time_limit))
    recommendation, document = found.recommendation, found.to_json()
    return {
        "recommendation": recommendation.name,
        "period": recommendation.period,
        "step_seconds": recommendation.step_seconds,
        "steps_ratio": recommendation.steps_ratio,
        "time": recommendation.time,
        "gain": document.get("gain"),
        "fastest": min(option.time for option in found.options),
        "seconds": round(time.monotonic() - clock, 1),
        "cpu_seconds": round(time.process_time() - work, 1),
    }


def told(row: dict[str, Any]) -> str:
    """The gain over the best plain alternative as the planner tells it."""
    gain = row["gain"]
    if not gain or gain["gain"] is None:
        return "-"
    if gain["gain"] == 1:
        return "it is the best plain one"
    words = f"{gain['gain']:.2f}x ({gain['low']:.2f} to {gain['high']:.2f}) over {gain['alternative']}"
    return words if gain["distinguishable"] else f"{words}: not distinguishable"


def markdown(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Both side by side."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    for name, new in after["rows"].items():
        old = before["rows"][name]
        cells = [name, f"{old['recommendation']}, period {old['period']}", f"{1e3 * old['time']:.2f}"]
        cells += [f"{new['recommendation']}, period {new['period']}", f"{1e3 * new['time']:.2f}"]
        cells += [f"{1 - new['time'] / old['time']:.0%}", f"{1e3 * new['fastest']:.2f}", told(new)]
        lines.append(f"| {' | '.join(cells)} |")
    spent = [sum(row["cpu_seconds"] for row in side["rows"].values()) for side in (before, after)]
    return "\n".join(lines) + (
        "\n\n*ms to a loss*: milliseconds per step × predicted steps over All-Reduce's, each side by its own planner; "
        "*fastest*: the least among all options after; where the recommendation is simpler, they cannot be told apart. "
        "Inside and NIC bandwidths are drawn at random in the last five. CPU seconds of all answers at --time-limit "
        f"{after['time_limit']:g} on a loaded machine: {spent[0]:.0f} before, {spent[1]:.0f} after.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", type=Path, required=True, help="where the recommendations are written, or read with --before"
    )
    parser.add_argument("--before", type=Path, help="rows of an older planner; nothing is asked then")
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="questions whose name begins so")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parents[1] / "results" / "axes.md")
    options = parser.parse_args()
    if options.before is not None:
        rows = [json.loads(path.read_text()) for path in (options.before, options.rows)]
        about = "`python -m benchmarks.planner.axes`, before and after these axes belonged to every candidate."
        options.output.write_text(f"# Form, lateness and steps of a round\n\n{about}\n\n{markdown(*rows)}")
        print(f"wrote {options.output}")
        return
    found: dict[str, Any] = {}
    for name, (shape, hardware) in questions().items():
        if options.only and not name.startswith(tuple(options.only)):
            continue
        found[name] = answered(shape, hardware, options.time_limit)
        print(name, found[name], flush=True)
        options.rows.write_text(json.dumps({"time_limit": options.time_limit, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
