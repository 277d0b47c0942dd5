"""Gap distribution, throughput and memory of Hop's settings at 16, 256, 4,096 and 10,000 workers, on eight graphs.

    python -m benchmarks.gaps.scale                                    # all of it; results/gaps.{json,md,png}
    python -m benchmarks.gaps.scale --sizes 16 256 -o /tmp/gaps        # the small ones only, elsewhere
    python -m benchmarks.gaps.scale --redraw                           # table and picture of the stored rows again

In virtual time, where only computing takes time (a step takes 1), in the parallel order that the paper uses. Slowdowns:
each worker's step takes 6 times as long with probability 1/n (the paper's), the same with 1/16 whatever n, and one
worker that is always 4 times as slow. The protocol object runs wherever workers skip, and with 16 workers, which
average numbers as it says, so that it shows how long agreement takes under each setting; elsewhere runs the recursion
that has its times (`recursion`, equal by test).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from benchmarks.gaps.agreement import agreeing
from benchmarks.gaps.recursion import gap_times, record_of
from partreduce.runtime.virtual_time.predict import queue_arrays
from partreduce.runtime.virtual_time.simulate import simulate
from partreduce.schedulers.protocols.hop import hop_of
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import PartreduceError
from partreduce.topo.figures import contraction
from partreduce.topo.strategies.gap import Gap, Order, Skip
from partreduce.topo.timing.compute import ComputeTimes, RandomSlowdown

if TYPE_CHECKING:
    from partreduce.runtime.virtual_time.record import GapRecord
    from partreduce.topo.schedule import Schedule

RESULTS = Path(__file__).resolve().parents[1] / "results" / "gaps"
GRAPHS = ("ring", "ring-based", "double-ring", "torus", "random-regular", "hypercube", "exponential", "star")
LARGE = ("ring", "ring-based", "torus", "random-regular", "hypercube", "exponential")
"""Those whose contraction is known at thousands of workers."""
SETTINGS = {
    "standard": Gap(order=Order.PARALLEL),
    "tokens": Gap(max_ig=8, order=Order.PARALLEL),
    "backup 1": Gap(max_ig=8, backup=1, order=Order.PARALLEL),
    "staleness 5": Gap(max_ig=8, staleness=5, order=Order.PARALLEL),
    "backup 1, staleness 5": Gap(max_ig=8, backup=1, staleness=5, order=Order.PARALLEL),
    "backup 1, skip 10": Gap(max_ig=8, backup=1, skip=Skip(limit=10), order=Order.PARALLEL),
}
SLOWDOWNS = {
    "6x, p = 1/n": ComputeTimes(base=1.0, disturbance=RandomSlowdown(6.0)),
    "6x, p = 1/16": ComputeTimes(base=1.0, disturbance=RandomSlowdown(6.0, 1 / 16)),
    "one worker 4x": ComputeTimes(base=1.0, slowdown=((1, 4.0),)),
}
STEPS = {16: 150, 256: 100, 4096: 40, 10_000: 40}
SKIPPING = {256: ("ring-based", "torus", "exponential"), 4096: ("ring-based",), 10_000: ("ring-based",)}
SKIP_STEPS = {256: 60, 4096: 30, 10_000: 20}


def keeping(name: str, count: int, gap: Gap) -> Schedule | None:
    """A graph of the catalogue under a setting; None where it does not exist or the setting does not fit."""
    try:
        built = build(name, Cluster.regular(count // 4, 4))
        return replace(built, strategy=replace(built.strategy, when=gap))  # type: ignore[arg-type, call-arg]
    except PartreduceError:
        return None


def run(schedule: Schedule, compute: ComputeTimes, steps: int) -> tuple[GapRecord, float | None]:
    """What a run shows, and with 16 workers when they agree."""
    graph, gap, count = schedule.strategy.graphs[0], schedule.strategy.when, schedule.num_workers
    assert isinstance(gap, Gap)
    seconds = drawn(compute, count, steps)
    if count == min(STEPS):
        return agreeing(schedule, seconds)
    if gap.skip is None:
        return record_of(graph, gap, gap_times(graph, gap, seconds)), None
    observed = simulate(schedule, compute=compute, num_rounds=steps).observed
    assert observed is not None
    assert observed.gaps is not None
    return observed.gaps, None


def drawn(compute: ComputeTimes, count: int, steps: int) -> np.ndarray:
    """As `simulate` draws them for seed 0, shape (steps, count)."""
    rng = np.random.default_rng(0)
    return np.array([compute.step_seconds(count, step, rng)[0] for step in range(steps)])


def exists(name: str, count: int, setting: str, slowdown: str) -> bool:
    """Whether a cell tells something that others do not, and can be had in minutes."""
    if count == min(STEPS):
        return slowdown != "6x, p = 1/16"  # the same as 1/n there
    if SETTINGS[setting].skip is not None:
        return name in SKIPPING[count] and slowdown != "6x, p = 1/n"
    return (name in LARGE or count <= 256) and (setting != "tokens" or name == "exponential")


def row_of(name: str, count: int, setting: str, slowdown: str) -> dict[str, Any] | None:
    """One cell of the table; None where there is none."""
    gap, compute = SETTINGS[setting], SLOWDOWNS[slowdown]
    schedule = keeping(name, count, gap) if exists(name, count, setting, slowdown) else None
    if schedule is None:
        return None
    begun = time.process_time()
    steps = STEPS[count] if gap.skip is None else SKIP_STEPS.get(count, STEPS[count])
    record, agreed = run(schedule, compute, steps)
    shares, hop = record.distribution(60), hop_of(schedule.strategy.graphs[0], gap)
    # On the others all workers are alike.
    looked_at = range(0, count, max(1, count // 64)) if name in ("star", "random-regular", "double-ring") else range(1)
    quarter = steps // 4
    each = (record.finish[-1] - record.finish[quarter - 1]) / (steps - quarter)  # (count,)
    return {
        "graph": name,
        "workers": count,
        "setting": setting,
        "slowdown": slowdown,
        "degree": round(len(hop.graph.edges) / count, 2),
        "steps": steps,
        "step_seconds": round(float(count / (1 / each).sum()), 4),
        "gap_mean": round(float((np.arange(len(shares)) * shares).sum()), 3),
        "gap_90": int(np.searchsorted(np.cumsum(shares), 0.9)),
        "gap_most": record.largest_over_edges(),
        "pair_most": record.largest_over_pairs(),
        "skipped": round(float(record.skipped.sum() / record.finish.size), 4),
        "longest_queue": int(record.fill.max()),
        "queue_models": max(queue_arrays(hop, worker) for worker in looked_at),
        "contraction": contraction(build(name, Cluster.regular(count // 4, 4))).value,
        "agree_seconds": None if agreed is None else round(agreed, 2),
        "cpu_seconds": round(time.process_time() - begun, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, help="files PATH.json, PATH.md and PATH.png")
    parser.add_argument("--redraw", action="store_true", help="from the rows that are stored")
    chosen = parser.parse_args()
    stored = chosen.output.with_suffix(".json")
    rows: list[dict[str, Any]] = json.loads(stored.read_text()) if stored.exists() else []
    if not chosen.redraw:
        rows = [row for row in rows if row["workers"] not in chosen.sizes]
        for count in chosen.sizes:
            for slowdown in SLOWDOWNS:
                for name in GRAPHS:
                    for setting in SETTINGS:
                        if (row := row_of(name, count, setting, slowdown)) is not None:
                            rows.append(row)
                            print(json.dumps(row), flush=True)
            write(rows, stored)
    from benchmarks.gaps.pages import draw, page

    chosen.output.with_suffix(".md").write_text(page(rows))
    draw(rows, chosen.output.with_suffix(".png"))


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """One row a line, so that a change shows as one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
