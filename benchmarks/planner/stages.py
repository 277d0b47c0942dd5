"""What each stage of the search is worth: the front and the recommendation with all of them, and with each left out.

    python -m benchmarks.planner.stages --rows FILE.json [--effort 10] [--seeds 0 1] [--only 3,3,2 ...] [--without ...]
    python -m benchmarks.planner.stages --rows FILE.json -o FILE.md

The first command plans and adds rows to FILE.json (those that are there already are not made again); the second writes
the table. A stage that is left out leaves its part of the effort to the others. Fronts are compared at budgets spread
over the range of communication: by how much the least consensus distance within a budget is above the least that any
run of the same problem found there, on average and at worst. The recommendation is compared by its predicted time to
the loss.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from partreduce.planner.job import Job
from partreduce.planner.plan import plan
from partreduce.schedulers.synthesis import alphabet_search, explicit_alphabet, front, refinement
from partreduce.schedulers.synthesis.alphabet_search import AlphabetSearch
from partreduce.schedulers.synthesis.annealing import Walk
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link

if TYPE_CHECKING:
    from collections.abc import Callable

EVEN = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9), model_bytes=552_000_000, compute=0.05)
HALVED = replace(EVEN, node_nic=((3, Link.of_bandwidth(2.5e9)),))
PROBLEMS = {
    "4x4": ("4x4", EVEN),
    "4x4 one NIC halved": ("4x4", HALVED),
    "5,3,1": ("5,3,1", EVEN),
    "3,3,2": ("3,3,2", EVEN),
    "7x6": ("7x6", EVEN),
    "2x8 with 8 rails": ("2x8", replace(EVEN, num_nics=8)),
    "1x9": ("1x9", EVEN),
    "1x16": ("1x16", EVEN),
}


def _nothing(*_: object, **__: object) -> None:
    return None


def _as_it_is(_: object, indices: object, *__: object) -> object:
    return indices


def _not_rearranged(_: object, __: object, indices: object, *___: object) -> object:
    return indices


Patches = list[tuple[object, str, "Callable[..., Any]"]]
STAGES: dict[str, Patches] = {
    "hints": [(AlphabetSearch, "_start_from_hints", _nothing)],
    "compositions by dynamic programming": [(alphabet_search, "sketch_front", lambda *_, **__: {})],
    "compositions by CP-SAT": [(alphabet_search, "compositions", lambda *_, **__: [])],
    "phases by CP-SAT": [(explicit_alphabet, "chosen_phases", lambda *_, **__: iter(()))],
    "whole alphabet": [(front, "WHOLE_SHARE", 0.0)],  # type: ignore[list-item]
    "windows built anew": [(alphabet_search, "rebuild", _as_it_is), (refinement, "rebuild", _as_it_is)],
    "annealing": [(Walk, "anneal", _nothing)],
    "refinement": [(front, "WHOLE_SHARE", 1.0)],  # type: ignore[list-item]
    "refinement: recomposing": [(refinement._Refinement, "recompose", _nothing)],  # noqa: SLF001 - what is left out
    "refinement: rearranging": [(refinement._Refinement, "reorder", _not_rearranged)],  # noqa: SLF001
    "refinement: local search": [(refinement.LocalSearch, "improve", _nothing)],
    "refinement: windows and annealing": [(refinement._Refinement, "shuffle", _nothing)],  # noqa: SLF001
}


def run(problem: str, without: str, *, effort: float, seed: int) -> dict[str, Any]:
    """The front as (communication, consensus distance), and the recommendation."""
    shape, hardware = PROBLEMS[problem]
    job = Job(cluster=replace(Cluster.parse(shape), hardware=hardware), effort=effort, seed=seed)
    with ExitStack() as stack:
        for owner, name, stand_in in STAGES.get(without, []):
            stack.enter_context(patch.object(owner, name, stand_in))
        found = plan(job)
    lockstep = [one for one in found.options if not one.late and one.consensus_distance.value is not None]
    points = sorted((one.communication, float(one.consensus_distance.value or 0.0)) for one in lockstep)
    kept: list[tuple[float, float]] = []
    for point in points:
        if not kept or point[1] < kept[-1][1]:
            kept.append(point)
    return {
        "problem": problem,
        "without": without,
        "seed": seed,
        "effort": effort,
        "front": kept,
        "recommendation": found.recommendation.name,
        "time_to_loss": found.recommendation.time,
    }


def least(front_: list[list[float]], budgets: np.ndarray) -> np.ndarray:
    """The least consensus distance within each budget, shape (budgets,)."""
    costs, values = np.array(front_).T
    return np.array([values[costs <= budget * (1 + 1e-9)].min(initial=np.inf) for budget in budgets])


def table(rows: list[dict[str, Any]]) -> list[str]:
    """One line a stage: what leaving it out costs, over all problems and seeds."""
    excess: dict[str, list[tuple[str, float, float, float]]] = defaultdict(list)
    for problem in PROBLEMS:
        own = [row for row in rows if row["problem"] == problem]
        if not own:
            continue
        most = max(cost for row in own for cost, value in row["front"] if value > 1e-9)
        budgets = most / np.geomspace(1.02, 16, 24)
        best = np.min([least(row["front"], budgets) for row in own], axis=0)
        for row in own:
            ratios = (least(row["front"], budgets) / best)[np.isfinite(best)] - 1
            excess[row["without"]].append((problem, float(np.mean(ratios)), float(np.max(ratios)), row["time_to_loss"]))
    full = {}
    for problem, *_, time in excess[""]:
        full.setdefault(problem, time)
    lines = [
        "| left out | consensus distance above the best, mean | worst | worst at | its time to a loss, mean | worst |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("", *STAGES):
        if not excess[name]:
            continue
        worst = max(excess[name], key=lambda one: one[2])
        times = [time / full[problem] - 1 for problem, *_, time in excess[name]]
        lines.append(
            f"| {name or 'nothing'} | {mean(one[1] for one in excess[name]):.2%} | {worst[2]:.1%} | {worst[0]} | "
            f"{mean(times):+.2%} | {max(times):+.2%} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--effort", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", default=list(PROBLEMS))
    parser.add_argument("--without", nargs="+", default=["", *STAGES])
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows = json.loads(options.rows.read_text(encoding="utf-8")) if options.rows.exists() else []
    if options.output is not None:
        options.output.write_text("\n".join(table(rows)) + "\n", encoding="utf-8")
        return
    known = {(row["problem"], row["without"], row["seed"], row["effort"]) for row in rows}
    for problem in options.only:
        for seed in options.seeds:
            for without in options.without:
                if (problem, without, seed, options.effort) in known:
                    continue
                rows.append(run(problem, without, effort=options.effort, seed=seed))
                options.rows.write_text(json.dumps(rows) + "\n", encoding="utf-8")
                print(
                    problem,
                    seed,
                    without or "everything",
                    rows[-1]["recommendation"],
                    rows[-1]["time_to_loss"],
                    flush=True,
                )


if __name__ == "__main__":
    main()
