"""Certificates at scale: made by the vectorised prover, checked by the stand-alone checker, beside plain formulations.

    python -m benchmarks.scale.certificates [--workers 1000000] [--period 20] [--output FILE]

The explicit schedule averages random groups of 4, a new partition in every phase. The plain formulations of the
conflict check see the same phases in the same run: NumPy sorts the members, networkx builds the bipartite graph of
workers and groups and looks at degrees (one phase of it is timed and multiplied, because a million nodes take minutes).
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, Static
from partreduce.verify import Proof, prove
from partreduce.verify.certificate import certificate_bytes
from partreduce.verify.conflict_free import prove_conflict_free

CHECKER = Path(__file__).parents[2] / "verify" / "checker"


def timed(function: Callable[..., Any], *arguments: object) -> tuple[Any, float]:
    """The result, with processor seconds (of this process, or of a child that it starts): other load does not count."""
    before = _processor_seconds()
    result = function(*arguments)
    return result, round(_processor_seconds() - before, 3)


def _processor_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def random_groups(num_workers: int, period: int, size: int = 4) -> Schedule:
    rng = np.random.default_rng(1)
    phases = []
    for _ in range(period):
        labels = np.empty(num_workers, dtype=np.int64)
        labels[rng.permutation(num_workers)] = np.arange(num_workers) // size
        phases.append(Phase.from_labels(labels))
    return Schedule(
        "random-groups", Cluster.regular(num_workers // size, size), Static(phases=GroupPhases(tuple(phases)))
    )


def by_numpy(schedule: Schedule) -> bool:
    return all(len(np.unique(p.members)) == len(p.members) for p in schedule.steps())


def by_networkx(phase: Phase) -> bool:
    graph = nx.Graph()
    for index, group in enumerate(phase):
        graph.add_edges_from((worker, ("group", index)) for worker in group.members)
    return all(degree <= 1 for node, degree in graph.degree() if isinstance(node, int))


def check(folder: Path, schedule: Schedule, proof: Proof) -> dict[str, Any]:
    certificate = certificate_bytes(proof.certificate)
    (folder / "c.json").write_bytes(certificate)
    write_schedule(folder / "s.json", schedule)
    command = [sys.executable, "-I", "-S", str(CHECKER), "--max-bytes", str(10**9)]
    command += [str(folder / "c.json"), str(folder / "s.json")]
    result, seconds = timed(lambda: subprocess.run(command, capture_output=True, text=True, check=False))
    assert result.returncode == 0, result.stdout + result.stderr
    sizes = (folder / "s.json").stat().st_size, len(certificate)
    return {
        "claims": result.stdout.split("\n")[:-1],
        "seconds": seconds,
        "schedule_bytes": sizes[0],
        "certificate_bytes": sizes[1],
    }


def table(report: dict[str, Any]) -> str:
    """One row per figure, dotted where figures belong together."""
    lines = ["# Certificates of large schedules", "", "Written by `python -m benchmarks.scale.certificates`.", ""]
    lines += ["| figure | value |", "|---|---|"]
    for name, value in report.items():
        for part, inner in value.items() if isinstance(value, dict) else [("", value)]:
            words = "; ".join(inner) if isinstance(inner, list) else inner
            lines.append(f"| {name}{part and '.'}{part} | {words} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1_000_000)
    parser.add_argument("--period", type=int, default=20)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {
        "load": os.getloadavg()[0],
        "unit": "processor seconds",
        "workers": options.workers,
        "period": options.period,
        "python": sys.version.split()[0],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rule = build("prague-figure-10", Cluster.regular(options.workers // 4, 4))
        prove(rule)  # the sources of the group functions are read once per process
        proof, seconds = timed(prove, rule)
        report["rule"] = {"prove_seconds": seconds, **check(folder, rule, proof)}
        schedule, seconds = timed(random_groups, options.workers, options.period)
        report["build_seconds"] = seconds
        _, ours = timed(prove_conflict_free, schedule)
        fine, numpy = timed(by_numpy, schedule)
        assert fine
        fine, one = timed(by_networkx, schedule.phase(0))
        assert fine
        report["conflict_seconds"] = {
            "here": ours,
            "numpy": numpy,
            "networkx_one_phase_times_period": one * options.period,
        }
        proof, seconds = timed(prove, schedule)
        report["explicit"] = {"prove_seconds": seconds, **check(folder, schedule, proof)}
    report["peak_megabytes"] = {
        "prover": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "checker": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
    }
    text = json.dumps(report, indent=1)
    print(text)
    if options.output:
        options.output.with_suffix(".md").write_text(table(report))


if __name__ == "__main__":
    main()
