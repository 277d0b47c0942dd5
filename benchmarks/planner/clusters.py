"""What the planner answers for regular, irregular and uneven clusters, and how much better than the catalogue.

    python -m benchmarks.planner.clusters [--time-limit 28] [--seed 0] [--only 3,3,2 ...]

552 MB, 10 GB/s inside a node, 5 GB/s NIC, 50 ms of computing per step. For every cluster: the size of the front, the
recommendation with its predicted step, the seconds it took, and the ratios to the best catalogue entry at equal
communication and at equal consensus distance, taken at the catalogue's own entries. Writes FILE.json and FILE.md.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from benchmarks.planner.comparison import RESULTS, TARGET, Answer, answer, machine, place_rows
from partreduce import Job
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link

EVEN = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9), model_bytes=552_000_000, compute=0.05)
UNEVEN = replace(EVEN, node_nic=((3, Link.of_bandwidth(2.5e9)),), slowdown=tuple((worker, 2.0) for worker in range(4)))
CLUSTERS = {
    "8x8": ("8x8", EVEN),
    "16x8": ("16x8", EVEN),
    "3,3,2": ("3,3,2", EVEN),
    "5,3": ("5,3", EVEN),
    "4x4, node 0 at half speed, NIC of node 3 halved": ("4x4", UNEVEN),
}
HEAD = [
    "cluster",
    "front",
    "recommendation",
    "step ms",
    "s (CPU)",
    "less consensus distance",
    "less communication",
    f"≥ {TARGET}x",
]


def row(name: str, found: Answer) -> str:
    chosen, proof = found.plan.recommendation, found.plan.proof
    distance = float(chosen.consensus_distance)
    figures = f"{1e3 * chosen.communication:.2f} ms, consensus distance {distance:.4f}, period {chosen.period}"
    cells = [
        name,
        str(len(found.plan.front)),
        f"{chosen.name}: {figures}, {chosen.status}, {proof.verdict}",
    ]
    cells += [f"{1e3 * chosen.step_seconds:.2f}", found.spent, found.most_consensus_distance.calmer()]
    cells += [found.most_communication.cheaper(), "yes" if found.meets_target else "no"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=28.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=list(CLUSTERS), metavar="CLUSTER")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "clusters")
    options = parser.parse_args()
    rows, fronts, loads, record = [], [], [], []
    for name, (shape, hardware) in CLUSTERS.items():
        if name not in options.only:
            continue
        cluster = replace(Cluster.parse(shape), hardware=hardware)
        found = answer(Job(cluster=cluster, time_limit=options.time_limit, seed=options.seed))
        loads.append(found.load)
        rows.append(row(name, found))
        fronts += [f"\n## {name}\n", *place_rows(found)]
        record.append({"cluster": name} | found.to_json())
        print(rows[-1], flush=True)
        write(options, rows, fronts, loads, record)
    if not rows:
        parser.error(f"--only: no such cluster; there are {'; '.join(CLUSTERS)}")
    print(f"wrote {options.output}.json and .md")


def write(
    options: argparse.Namespace, rows: list[str], fronts: list[str], loads: list[float], record: list[object]
) -> None:
    """Both files, after every cluster, so that a run that is stopped loses nothing."""
    about = (
        f"`python -m benchmarks.planner.clusters --time-limit {options.time_limit:g} --seed {options.seed}`; "
        f"{machine()}, shared, load average {min(loads):.1f} to {max(loads):.1f}. The large ratios are the best of the "
        'catalogue\'s own front; all of it stands below. "possible" is what the proved bound leaves open.'
    )
    table = "\n".join([f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD), *rows])
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.with_suffix(".json").write_text(json.dumps({"about": about, "clusters": record}, indent=1) + "\n")
    options.output.with_suffix(".md").write_text(
        f"# Clusters\n\n{about}\n\n{table}\n\nAt every entry of the catalogue's own front:\n" + "\n".join(fronts) + "\n"
    )


if __name__ == "__main__":
    main()
