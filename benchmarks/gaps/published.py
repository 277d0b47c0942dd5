"""What physics leaves of Hop's figures: 16 workers in virtual time, where only computing takes time.

    python -m benchmarks.gaps.published -o benchmarks/results/gaps-published.md

Step times under the paper's random slowdown (6 times as long with probability 1/n) and with one worker 4 times as slow,
in both orders, and the ratios of `standard` to every setting. Random cells are the mean over seeds with their standard
deviation. Nothing is left out at the start, as a short run in the lab has it; in long runs standard takes 5 % longer,
since it takes some dozens of steps until waiting has spread.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from partreduce.runtime.virtual_time.simulate import simulate
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.strategies.gap import Gap, Order, Skip
from partreduce.topo.timing.compute import ComputeTimes, RandomSlowdown

CLUSTER = Cluster.regular(4, 4)
GRAPHS = ("ring", "ring-based", "double-ring")
SIXFOLD = ComputeTimes(base=1.0, disturbance=RandomSlowdown(6.0))
SLOW = ComputeTimes(base=1.0, slowdown=((3, 4.0),))
SETTINGS = (
    ("backup 1", Gap(max_ig=8, backup=1)),
    ("s = 5", Gap(max_ig=8, staleness=5)),
    ("backup 1, s = 5", Gap(max_ig=8, backup=1, staleness=5)),
    ("backup 1, s = 5, skip 10", Gap(max_ig=8, backup=1, staleness=5, skip=Skip(limit=10))),
)
SKIPS = (
    ("standard", Gap()),
    ("backup 1, skip 2", Gap(max_ig=8, backup=1, skip=Skip(limit=2))),
    ("backup 1, skip 10", Gap(max_ig=8, backup=1, skip=Skip(limit=10))),
    ("the same with max_ig 2", Gap(max_ig=2, backup=1, skip=Skip(limit=10))),
)


def step_seconds(
    name: str, gap: Gap | None, compute: ComputeTimes, *, steps: int = 60, seed: int = 0, warm_up: int = 0
) -> float:
    """Seconds per step of a graph of the catalogue, or of another schedule of it where `gap` is None."""
    schedule = build(name, CLUSTER)
    if gap is not None:
        schedule = replace(schedule, strategy=replace(schedule.strategy, when=gap))  # type: ignore[arg-type, call-arg]
    return simulate(schedule, compute=compute, num_rounds=steps, seed=seed).per_step(warm_up=warm_up)


def table(seeds: int) -> str:
    """Both tables, as Markdown."""
    lines = ["# What physics leaves of Hop's figures", "", *(__doc__ or "").strip().splitlines()[4:], ""]
    for order in (Order.PARALLEL, Order.SERIAL):
        lines += [f"## Random slowdown, {order} order", "", f"| setting | {' | '.join(GRAPHS)} |", "|---|---|---|---|"]
        standard = {name: _seeds(name, Gap(order=order), seeds) for name in GRAPHS}
        lines.append("| standard: seconds | " + " | ".join(_said(standard[name]) for name in GRAPHS) + " |")
        for called, gap in SETTINGS:
            ratios = [standard[name] / _seeds(name, replace(gap, order=order), seeds) for name in GRAPHS]
            lines.append(f"| {called}: times as fast | " + " | ".join(map(_said, ratios)) + " |")
        ceiling = [f"{standard[name].mean() / 1.3125:.2f}" for name in GRAPHS]
        lines += ["| nobody ever waits: times as fast | " + " | ".join(ceiling) + " |", ""]
    everybody = np.array([step_seconds("allreduce", None, SIXFOLD, seed=seed) for seed in range(seeds)])
    lines += [f"All-reduce takes {_said(everybody)} seconds; a step takes 1 + 5/16 = 1.3125 where nobody waits.", ""]
    lines += ["## One worker 4 times as slow, parallel order, ring-based graph", ""]
    lines += ["| setting | 60 steps | 300 steps, the first 100 left out |", "|---|---|---|"]
    for called, gap in SKIPS:
        parallel = replace(gap, order=Order.PARALLEL)
        short = step_seconds("ring-based", parallel, SLOW)
        long = step_seconds("ring-based", parallel, SLOW, steps=300, warm_up=100)
        lines.append(f"| {called} | {short:.2f} | {long:.2f} |")
    return "\n".join(lines) + "\n"


def _seeds(name: str, gap: Gap, seeds: int) -> np.ndarray:
    return np.array([step_seconds(name, gap, SIXFOLD, seed=seed) for seed in range(seeds)])


def _said(values: np.ndarray) -> str:
    return f"{values.mean():.2f} ± {values.std(ddof=1):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="a Markdown file")
    parser.add_argument("--seeds", type=int, default=6)
    chosen = parser.parse_args()
    text = table(chosen.seeds)
    print(text)
    if chosen.output is not None:
        chosen.output.write_text(text)


if __name__ == "__main__":
    main()
