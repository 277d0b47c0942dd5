"""Time to loss on digits with 16 real worker processes, every schedule at its best learning rate of one grid.

    python -m benchmarks.digits.time_to_loss [--quick]

16 processes on this machine stand for 4 nodes of 4 workers over gloo and loopback; a step's computing is padded to
40 ms, so that 16 workers fit few cores. All schedules see the same start, batches and grid of learning rates. The best
learning rate is the one with the fewest seconds to the target; it is then repeated with two further seeds. Results are
written to benchmarks/results/time_to_loss.{json,md}.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import partreduce
from partreduce.demo.results import Result, read_result
from partreduce.demo.train import Plan

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results"
CLUSTER = "4x4"
TARGET = 0.1
GRID = (0.2, 0.4, 0.8)
SEEDS = (0, 1, 2)
STEPS = 160
EVERY = 8
PAD = 0.04
SCHEDULES: dict[str, tuple[str, dict[str, object]]] = {
    "All-Reduce": ("allreduce", {}),
    "Figure 10": ("prague-figure-10", {}),
    "node-then-all, 3": ("node-then-all", {"node_rounds": 3}),
    "node-then-all, 15": ("node-then-all", {"node_rounds": 15}),
}


def run(folder: Path, label: str, rate: float, seed: int, steps: int) -> Result:
    """One run in fresh processes."""
    name, parameters = SCHEDULES[label]
    schedule = partreduce.design(CLUSTER, using=name, **parameters)
    key = f"{schedule.name}-{rate}-{seed}"
    path = folder / f"{key}.json"
    partreduce.write_schedule(path, schedule)
    plan = Plan(
        schedules={key: str(path)}, folder=str(folder), num_nodes=4, steps=steps, every=EVERY, learning_rate=rate,
        seed=seed, pad=PAD,
    )  # fmt: skip
    plan.write(folder / "plan.json")
    command = [sys.executable, "-m", "partreduce.demo.train", str(folder / "plan.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{label}, learning rate {rate}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return read_result(plan.place(key), schedule, label)


def record(result: Result, rate: float, seed: int) -> dict[str, object]:
    """What is kept of a run."""
    reached = result.reached(TARGET)
    return {
        "schedule": result.name,
        "learning_rate": rate,
        "seed": seed,
        "steps_to_target": None if reached is None else reached[0],
        "seconds_to_target": None if reached is None else round(reached[1], 3),
        "ms_per_step": round(float(result.seconds[-1] / result.steps[-1]) * 1e3, 2),
        "last_loss": round(float(result.loss[-1]), 4),
        "test_accuracy": round(float(result.accuracy[-1]), 4),
        "megabytes_across_nodes": round(result.bytes_across / 1e6, 1),
        "load_average_before": round(os.getloadavg()[0], 1),
    }


def best_rate(runs: list[dict[str, object]], label: str) -> float | None:
    """The learning rate with the fewest seconds to the target."""
    hits = [r for r in runs if r["schedule"] == label and r["seed"] == SEEDS[0] and r["seconds_to_target"] is not None]
    return min(hits, key=lambda r: r["seconds_to_target"])["learning_rate"] if hits else None  # type: ignore[arg-type, return-value]


def table(runs: list[dict[str, object]]) -> str:
    """The Markdown table."""
    head = ["schedule", f"best rate of {list(GRID)}", f"steps to loss {TARGET:g}", f"seconds to loss {TARGET:g}"]
    head += ["speed-up", "ms per step", "test accuracy", "MB across nodes"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    base = None
    for label in SCHEDULES:
        rate = best_rate(runs, label)
        mine = [r for r in runs if r["schedule"] == label and r["learning_rate"] == rate]
        hits = [r for r in mine if r["seconds_to_target"] is not None]
        if not hits:
            lines.append(f"| {label} | none reached it | - | - | - | - | - | - |")
            continue
        seconds = [float(str(r["seconds_to_target"])) for r in hits]
        middle = statistics.median(seconds)
        base = base or middle

        def spread(key: str, hits: list[dict[str, object]] = hits) -> str:
            values = sorted(float(str(r[key])) for r in hits)
            return f"{statistics.median(values):g} [{values[0]:g}-{values[-1]:g}]"

        lines.append(
            f"| {label} | {rate:g} | {spread('steps_to_target')} | {spread('seconds_to_target')} | {base / middle:.2f} "
            f"| {spread('ms_per_step')} | {spread('test_accuracy')} | {hits[0]['megabytes_across_nodes']} |"
        )
    return "\n".join(lines) + "\n"


def write(runs: list[dict[str, object]], seconds: float) -> None:
    """Both result files."""
    RESULTS.mkdir(exist_ok=True)
    about = {
        "command": "python -m benchmarks.digits.time_to_loss",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "cluster": CLUSTER, "target_loss": TARGET, "grid": GRID, "steps": STEPS, "padded_compute_seconds": PAD,
        "seconds_in_all": round(seconds),
    }  # fmt: skip
    (RESULTS / "time_to_loss.json").write_text(json.dumps({"about": about, "runs": runs}, indent=1) + "\n")
    loads = [float(str(run["load_average_before"])) for run in runs]
    words = (
        f"# Time to loss on digits, 16 processes\n\n`{about['command']}`, {about['machine']}. 4 nodes of 4 workers "
        f"stand on one machine and loopback; computing is padded to {PAD * 1e3:g} ms a step. Loss is the training loss "
        f"of the mean model, measured every {EVERY} steps outside the clock. Medians [smallest-largest] of the seeds "
        "that reached the target at the best learning rate; speed-up is over All-Reduce at its own best rate. The "
        f"machine's load average before a run was {min(loads):g} to {max(loads):g}.\n\n"
    )
    (RESULTS / "time_to_loss.md").write_text(words + table(runs))


def main() -> None:
    """Grid first, then repetitions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="one learning rate, one seed, 32 steps: a check, no result"
    )
    quick = parser.parse_args().quick
    runs: list[dict[str, object]] = []
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        work = [(label, rate, SEEDS[0]) for rate in (GRID[1:2] if quick else GRID) for label in SCHEDULES]
        for label, rate, seed in work:
            runs.append(record(run(Path(folder), label, rate, seed, 32 if quick else STEPS), rate, seed))
            print(runs[-1], flush=True)
        for seed in () if quick else SEEDS[1:]:
            for label in SCHEDULES:
                rate = best_rate(runs, label)
                if rate is not None:
                    runs.append(record(run(Path(folder), label, rate, seed, STEPS), rate, seed))
                    print(runs[-1], flush=True)
    if quick:
        print(table(runs))
    else:
        write(runs, time.perf_counter() - started)
        print((RESULTS / "time_to_loss.md").read_text())


if __name__ == "__main__":
    main()
