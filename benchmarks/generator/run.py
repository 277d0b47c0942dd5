"""Everything that is measured of the group generator, in one go.

    python -m benchmarks.generator.run [--runs 1000] [--rounds 100] [--repeat 3] [--output benchmarks/results/generator]

Writes OUTPUT.json and OUTPUT.md: randomised runs over a rough wire, kills of the service, latency with 16 and 64
clients, and the rules of the draw in virtual time. Ends with 1 if a group was lost, doubled or out of order.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.generator.kills import at_points, of_the_command
from benchmarks.generator.latency import all_latencies
from benchmarks.generator.rough_runs import many
from benchmarks.generator.virtual import table

ROOT = Path(__file__).resolve().parents[2]


def rough(runs: int) -> dict[str, Any]:
    """Randomised runs, shared out over two processes."""
    began, parts = time.monotonic(), [range(runs // 2), range(runs // 2, runs)]
    with ProcessPoolExecutor(2) as pool:
        groups = sum(pool.map(many, parts))
    return {"runs": runs, "groups": groups, "wrong": 0, "seconds": time.monotonic() - began}


PAGE = """# The group generator, measured

Written by `python -m benchmarks.generator.run`; do not edit.

{head}

**Rough wire.** {runs} randomised runs of 4 workers (15 % of the messages dropped, 15 % doubled, 30 % late), {groups}
groups: on every worker the executed order is the service's; none lost, none doubled. {seconds:.0f} s.

**Kills.** SIGKILL at {points} points of the loop: nothing lost, nothing doubled; `partreduce generator` was killed
{kills} times in one run ({killed_groups} groups). From the signal until the restarted service, known by its epoch,
answers a worker (goal: < 2 s; process start and imports included):

| killed | median, s | worst, s |
|---|---|---|
| at a point of the loop | {point_median:.2f} | {point_worst:.2f} |
| `partreduce generator` | {median:.2f} | {worst:.2f} |

**Latency** from the question to the answer with nothing to hide it behind; it includes waiting for the partner.

| clients | log | median, ms | 99th percentile, ms | requests per second |
|---|---|---|---|---|
{latency}

**Rules in virtual time.** 16 workers on 4 nodes, groups of 3; computing takes 1 (± 5 %), a group operation 0.07 inside
a node and 0.97 across nodes; one worker is slower by the factor. Waiting is for members that have not computed or are
still in an older group; delayed are requests that are not answered at once.

| slow | division | initiator | time/step | waiting/step | delayed | across/unit | steps: slow | its node | others |
|---|---|---|---|---|---|---|---|---|---|
{virtual}
"""


def words(result: dict[str, Any]) -> str:
    """The result as a page."""
    points, command = result["kills"]["points"], result["kills"]["command"]
    again, at_point = command["seconds_to_answer"], [row["seconds_to_answer"] for row in points]
    latency = [
        f"| {row['clients']} | {'on disk' if row['log'] else 'none'} | {row['median_ms']:.1f} | {row['p99_ms']:.0f} | "
        f"{row['requests_per_s']:.0f} |"
        for row in result["latency"]
    ]
    return PAGE.format(
        head="\n".join(f"* {key}: {value}" for key, value in result["head"].items()),
        **result["rough"],
        points=len(points),
        kills=command["kills"],
        killed_groups=command["groups"],
        point_median=statistics.median(at_point),
        point_worst=max(at_point),
        median=statistics.median(again),
        worst=max(again),
        latency="\n".join(latency),
        virtual="\n".join(map(rule_row, result["virtual"])),
    )


def rule_row(row: dict[str, Any]) -> str:
    """One line of the last table."""
    same = "" if row["steps_same_node"] is None else f"{row['steps_same_node']:.0f}"
    cells = [
        f"{row['slow']:g}",
        row["division"],
        row["initiator"],
        f"{row['time_per_step']:.2f}",
        f"{row['waiting_per_step']:.2f}",
        f"{100 * row['requests_delayed']:.0f} %",
        f"{row['groups_across_nodes_per_unit']:.2f}",
        ", ".join(map(str, row["steps_slow"])),
        same,
        f"{row['steps_other_nodes']:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "generator")
    options = parser.parse_args()
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False)
    load = os.getloadavg()[0]
    result: dict[str, Any] = {
        "head": {
            "commit": git.stdout.strip(),
            "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "machine": f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}",
            "load average at the start": f"{load:.1f}",
        }
    }
    try:
        result["latency"] = all_latencies(options.rounds, options.repeat)
        result["kills"] = {"points": at_points(), "command": of_the_command(options.kills)}
        result["rough"] = rough(options.runs)
    except AssertionError as error:
        print(f"wrong: {error}", flush=True)
        return 1
    result["virtual"] = table()
    for suffix, text in ((".json", json.dumps(result, indent=1) + "\n"), (".md", words(result))):
        options.output.with_suffix(suffix).write_text(text, encoding="utf-8")
    print(words(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
