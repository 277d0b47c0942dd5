"""What one P-Reduce costs when its members share a node, and when they do not (the Prague paper's Figure 16).

    python -m benchmarks.lab.placement               # two link rates, about a minute, needs root

Groups of 2 to 16 of 16 workers on four nodes average one model while the others wait; the time is that of the slowest
member, from a common start. Writes benchmarks/results/placement.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

if TYPE_CHECKING:
    from benchmarks.lab.job import Job

GROUPS: dict[str, list[int]] = {
    "2, one node": [0, 1],
    "2, two nodes": [0, 4],
    "3, one node": [0, 1, 2],
    "3, three nodes": [0, 4, 8],
    "4, one node": [0, 1, 2, 3],
    "4, two nodes": [0, 1, 4, 5],
    "4, four nodes": [0, 4, 8, 12],
    "8, two nodes": [*range(8)],
    "8, four nodes": [0, 1, 4, 5, 8, 9, 12, 13],
    "16, four nodes": [*range(16)],
}
RATES = ("80mbit", "1gbit")
REPETITIONS = 7
MODEL = 548_074
LIMIT = 90.0


def measure(job: Job, node: int) -> None:
    """One worker: takes part in its groups and leaves its times in a file."""
    import torch

    import partreduce
    from benchmarks.lab.baselines import use_environment

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(LIMIT))
    rank, everyone = use_environment(job, node), range(job.num_workers)
    model, little = torch.ones(MODEL), torch.ones(1)
    times: dict[str, list[list[float]]] = {name: [] for name in GROUPS}
    for repetition in range(REPETITIONS + 1):
        for name, members in GROUPS.items():
            partreduce.p_reduce(little, everyone, timeout=60)
            if rank in members:
                start = time.monotonic()
                partreduce.p_reduce(model, members, timeout=60)
                if repetition:  # the first connects the group
                    times[name].append([start, time.monotonic()])
    partreduce.p_reduce(little, everyone, timeout=60)
    (job.path / f"placement-{rank:03d}.json").write_text(json.dumps(times))


def collected(folder: Path) -> dict[str, list[float]]:
    """Milliseconds of each repetition: from the last member's start to the last member's end."""
    said = [json.loads(path.read_text()) for path in sorted(folder.glob("placement-*.json"))]
    found = {}
    for name, members in GROUPS.items():
        rounds = zip(*(said[rank][name] for rank in members), strict=True)
        found[name] = [1e3 * (max(end for _, end in pairs) - max(start for start, _ in pairs)) for pairs in rounds]
    return found


def table(content: dict[str, Any]) -> str:
    """Medians with smallest and largest, as Markdown."""
    lines = ["# One P-Reduce, by the placement of its members", "", "Written by `benchmarks/lab/placement.py`.", ""]
    lines += [f"* {key}: {value}" for key, value in content["head"].items()]
    rates = list(content["ms"])
    lines += ["", f"| members | {' | '.join(f'{rate}, ms' for rate in rates)} |", "|---" * (len(rates) + 1) + "|"]
    for name in GROUPS:
        cells = (sorted(content["ms"][rate][name]) for rate in rates)
        words = (f"{median(ms):.0f} [{ms[0]:.0f}-{ms[-1]:.0f}]" for ms in cells)
        lines.append(f"| {name} | {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    from benchmarks.lab.crew import Crew
    from benchmarks.lab.job import Job
    from benchmarks.lab.network import Network, why_not
    from benchmarks.lab.run import RESULTS, machine

    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.parse_args()
    if (reason := why_not()) is not None:
        print(f"lab: skipped: {reason}")
        return 0
    scratch = Path(tempfile.mkdtemp(prefix="partreduce-placement-"))
    ms: dict[str, dict[str, list[float]]] = {}
    try:
        with Network(4, RATES[0]) as network, Crew(network, scratch) as crew:
            for rate in RATES:
                for node in range(4):
                    network.shape(node, rate)
                fields: dict[str, Any] = {"num_nodes": 4, "workers_per_node": 4, "address": "", "port": 0}
                job = Job(name=rate, folder=str(scratch / rate), how="placement", limit=LIMIT, **fields)
                if any(crew.run(job)):
                    print((scratch / rate / "node-0.log").read_text()[-2000:], file=sys.stderr)
                    return 1
                ms[rate] = collected(scratch / rate)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    content = {"head": {**machine(), "model": f"{4 * MODEL / 1e6:.2f} MB, 4 nodes of 4 workers"}, "ms": ms}
    (RESULTS / "placement.json").write_text(json.dumps(content, indent=1) + "\n")
    (RESULTS / "placement.md").write_text(table(content))
    print(table(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
