"""The loss of a job that loses workers and gets some back, beside the same job undisturbed.

python -m benchmarks.goes_on      # about two minutes on two quiet cores; writes results/goes_on.md and .png

Sixteen real processes on one machine average in groups inside four pretended nodes and then all together. Four of them
kill themselves, one after the other; the launcher starts two again. What is drawn is the loss of the mean model of
whoever is a member, on all of the data.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import kit

WORKERS, STEPS, EVERY = 16, 240, 8
DEATHS = {5: 50, 6: 90, 9: 130, 12: 170}
"""The step in which a worker kills itself; the first two are started again."""

SCRIPT = """
import json, os, signal, sys, time
import torch
from sklearn.datasets import load_digits
from torch import nn
import partreduce

schedule, out = sys.argv[1:3]
deaths, steps, every = map(json.loads, sys.argv[3:6])
torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = partreduce.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.3), model, schedule, timeout=60)
dies = {} if os.environ.get("PARTREDUCE_RESTARTED") else {int(rank): step for rank, step in deaths.items()}
began = time.monotonic()
while optimizer.steps < steps:
    step = optimizer.steps
    if dies.get(optimizer.rank) == step:
        os.kill(os.getpid(), signal.SIGKILL)
    if step % every == 0:
        with optimizer.mean_model(), torch.no_grad():
            loss = nn.functional.cross_entropy(model(images), labels).item()
        if optimizer.rank == 0:
            with open(out, "a") as file:
                print(json.dumps([step, time.monotonic() - began, loss]), file=file)
    draw = torch.Generator().manual_seed(1000 * optimizer.rank + step)
    batch = torch.randint(len(images), (16,), generator=draw)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
    time.sleep(0.05)  # the rest of a step's computing: sixteen workers share a few cores
    optimizer.step()
optimizer.finish()
"""


def train(folder: Path, name: str, deaths: dict[int, int]) -> tuple[list[list[float]], list[str]]:
    """The curve of one run, as rows of step, seconds and loss, and what the launcher said of losses."""
    script, out = folder / "train.py", folder / f"{name}.jsonl"
    script.write_text(SCRIPT)
    cli = [sys.executable, "-m", "partreduce"]
    schedule = folder / "schedule.json"
    if not schedule.exists():
        design = [
            "design",
            "4x4",
            "--build",
            "node-then-all(node_rounds=3)",
            "--tolerate-failures",
            "1",
            "-o",
            str(schedule),
        ]
        subprocess.run([*cli, *design], check=True, stdout=subprocess.DEVNULL)
    options = ["--tolerate-failures", str(len(DEATHS)), "--max-restarts", "2"] if deaths else []
    command = [*cli, "run", "--schedule", str(schedule), *options, str(script), str(schedule), str(out)]
    run = subprocess.run(
        [*command, json.dumps(deaths), str(STEPS), str(EVERY)], capture_output=True, text=True, timeout=500, check=False
    )
    if run.returncode:
        raise SystemExit(f"goes_on: the run {name!r} ended with {run.returncode}: {run.stderr[-2000:]}")
    said = [line.removeprefix("partreduce: ") for line in run.stderr.splitlines() if line.startswith("partreduce: ")]
    return [json.loads(line) for line in out.read_text().splitlines()], said


def draw(curves: dict[str, list[list[float]]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    from partreduce.report.axes import quiet
    from partreduce.report.palette import style

    figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for place, (name, rows) in enumerate(curves.items()):
        shade = style(place)
        width = 1.2 if place else 5.0  # the curves lie on each other: the second is drawn into the first
        axis.plot([row[0] for row in rows], [row[2] for row in rows], color=shade.color, linewidth=width)
        axis.annotate(
            name, (rows[-1][0], rows[-1][2]), xytext=(4, 6 - 12 * place), textcoords="offset points", fontsize=8
        )
    for rank, step in DEATHS.items():
        axis.axvline(step, color="0.7", linewidth=0.8, zorder=0)
        axis.annotate(f"worker {rank} dies", (step, axis.get_ylim()[1]), rotation=90, va="top", ha="right", fontsize=7)
    axis.set_yscale("log")
    axis.set_xlim(0, STEPS * 1.25)
    quiet(axis, across="steps", up="loss of the mean model")
    figure.savefig(path, dpi=110)


def main() -> None:
    kit.parser(__doc__ or "").parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        whole, _ = train(folder, "undisturbed", {})
        broken, said = train(folder, "disturbed", DEATHS)
    draw({"undisturbed": whole, "4 lost, 2 back": broken}, kit.RESULTS / "goes_on.png")
    beside = {row[0]: row for row in broken}
    common = [row for row in whole if row[0] in beside and row[0] % 40 == 0]
    rows = [(int(step), f"{loss:.3f}", f"{beside[step][2]:.3f}") for step, _, loss in common]
    last = (int(whole[-1][0]), f"{whole[-1][2]:.3f}", f"{broken[-1][2]:.3f}")
    events = "\n".join(f"* {line}" for line in said if "continue together" in line)
    kit.write(
        kit.RESULTS / "goes_on.md",
        "A job that goes on",
        f"`{kit.command('goes_on')}`, {kit.machine()}. {WORKERS} processes, {STEPS} steps; loss of the mean model.",
        kit.table(("step", "undisturbed", "4 lost, 2 back"), [*rows, last]),
        "What the launcher said:",
        events,
        "![Loss over steps of both runs](goes_on.png)",
    )


if __name__ == "__main__":
    main()
