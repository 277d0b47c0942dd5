"""What CP-SAT's schedules are worth to the search: the least consensus distance with them and without, at equal effort.

    python -m benchmarks.planner.decided search [--effort 3] [--seeds 0 1 2] [--only NAME ...]
    python -m benchmarks.planner.decided proofs

`search` prints a row per cluster and limit; without them the whole effort goes to the listed phases. `proofs` prints
what the model itself proves of periods of so many phases: its bound, and what is scored exactly.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from unittest.mock import patch

from partreduce.schedulers.synthesis import Limits, Problem, front, synthesise
from partreduce.schedulers.synthesis.clock import MANY_SECONDS, Clock
from partreduce.schedulers.synthesis.partitions import PartitionCosts
from partreduce.schedulers.synthesis.schedule_model import ScheduleModel, by_digits, groups_of, schedule_of
from partreduce.topo import figures
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link, Switch

EVEN = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9), model_bytes=552_000_000, compute=0.05)
HALVED = replace(EVEN, node_nic=((3, Link.of_bandwidth(2.5e9)),))
SLOW = replace(EVEN, slowdown=((5, 4.0),))
THIN = replace(EVEN, switches=(Switch((0, 1), Link.of_bandwidth(1e9)),))
PROBLEMS = {
    "5,3,1, groups of 2": ("5,3,1", EVEN, {"max_group": 2}),
    "1x9, groups of 3": ("1x9", EVEN, {"max_group": 3}),
    "1x16, groups of 4": ("1x16", EVEN, {"max_group": 4}),
    "4x4 one NIC halved, groups of 4, 2 phases": ("4x4", HALVED, {"max_group": 4, "max_distinct_phases": 2}),
    "4x4 a worker 4× slow, groups of 4": ("4x4", SLOW, {"max_group": 4}),
    "4x4 one thin uplink, groups of 4": ("4x4", THIN, {"max_group": 4}),
    "2x8 with 8 rails, groups of 2": ("2x8", replace(EVEN, num_nics=8), {"max_group": 2}),
    "7x6, groups of 3": ("7x6", EVEN, {"max_group": 3}),
}
PROVED = (
    ("1x8", 2, 3),
    ("1x9", 3, 2),
    ("5,3,1", 3, 2),
    ("5,3,1", 2, 3),
    ("3,3,2", 4, 2),
    ("1x16", 4, 2),
    ("4x4", 4, 2),
)


def problem_of(shape: str, hardware: Hardware, limits: dict[str, int]) -> Problem:
    return Problem(cluster=replace(Cluster.parse(shape), hardware=hardware), limits=Limits(**limits))


def search(names: list[str], effort: float, seeds: list[int]) -> None:
    print("| cluster, limit | with | without | CPU seconds with | without |\n|---|---|---|---|---|")
    for name in names:
        found: dict[bool, list[str]] = {True: [], False: []}
        seconds = {True: 0.0, False: 0.0}
        for seed in seeds:
            for used in (True, False):
                begun = time.process_time()
                with patch.object(front, "_decided", front._decided if used else lambda *_: []):  # noqa: SLF001
                    answer = synthesise(problem_of(*PROBLEMS[name]), effort=effort, seed=seed)
                seconds[used] += time.process_time() - begun
                best = answer.best
                found[used].append(answer.status.value if best is None else f"{best.consensus_distance:.4f}")
        row = [name, *(", ".join(found[used]) for used in (True, False))]
        row += [f"{seconds[used] / len(seeds):.1f}" for used in (True, False)]
        print(f"| {' | '.join(row)} |", flush=True)


def proofs() -> None:
    print(
        "| cluster | groups of at most | phases | status | bound | found | CPU seconds |\n|---|---|---|---|---|---|---|"
    )
    for shape, largest, num_phases in PROVED:
        problem, begun = problem_of(shape, EVEN, {"max_group": largest}), time.process_time()
        groups, _ = groups_of(problem)
        model = ScheduleModel(problem, groups, PartitionCosts(problem))
        clock = Clock(seconds=MANY_SECONDS, effort=60.0)
        start = by_digits(model.num_workers, model.largest, num_phases)
        decision = model.decide(num_phases, clock=clock, until=clock.limit, seed=0, work=10.0, hint=start)
        found = [float(figures.consensus_distance(schedule_of(problem, one))) for one in (decision.phases, start)]
        seconds = time.process_time() - begun
        row = (shape, largest, num_phases, decision.status.value, f"{decision.bound:.4f}", f"{min(found):.4f}")
        print(f"| {' | '.join(map(str, row))} | {seconds:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("search", "proofs"))
    parser.add_argument("--effort", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    options = parser.parse_args()
    if options.what == "search":
        search(options.only, options.effort, options.seeds)
    else:
        proofs()


if __name__ == "__main__":
    main()
