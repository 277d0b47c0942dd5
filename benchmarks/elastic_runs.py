"""Elastic runs: the loss of one in which workers fail and join, and the timeline of one failure and one join.

python -m benchmarks.elastic_runs      # about two minutes on two quiet cores; writes results/elastic_runs.md

The loss: sixteen processes on one machine average inside four simulated nodes and then all together. Four of them kill
themselves, one after the other; the launcher restarts two. The curve is the loss of the members' mean model, on all of
the data, compared with the same run without failures. The timeline: four processes average gradients in each step; one
is killed from outside, and restarted by the launcher. Each worker writes down when it computes, averages, and passes
from one phase of the membership protocol to the next.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import kit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORKERS, STEPS, EVERY = 16, 240, 8
DEATHS = {5: 50, 6: 90, 9: 130, 12: 170}
"""The step in which a worker kills itself; the first two are restarted."""
CURVE, TIMELINE = kit.RESULTS / "elastic_runs.png", kit.ROOT / "docs/pictures/fault-tolerance.png"
VICTIM = 2
BEFORE, AFTER = 0.09, 0.12
"""Seconds of the timeline before the kill, and after the first step of the worker that joins."""
LIMIT = 60.0
COMPUTES = "computes"
PHASES = {"RUN": "averages, or waits", "VOTE": "votes", "REBUILD": "connects again", "OUTSIDE": "restarts"}
"""The phases of the membership protocol, as the picture names them."""

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

TRACED = """
import json, os, sys, time
from pathlib import Path
import torch
from torch import nn
import partreduce
from partreduce.schedulers.protocols.membership.machine import Membership

schedule, folder = sys.argv[1], Path(sys.argv[2])
file = open(folder / f"{os.environ['RANK']}.jsonl", "a", buffering=1)
decide, phase = Membership.step, "RUN"

def noted(self, process, state, event):
    global phase
    after, actions = decide(self, process, state, event)
    if after.phase.name != phase:
        phase = after.phase.name
        print(json.dumps([phase, time.monotonic()]), file=file)
    return after, actions

Membership.step = noted
if os.environ.get("PARTREDUCE_RESTARTED"):
    print(json.dumps(["OUTSIDE", time.monotonic()]), file=file)
    time.sleep(0.3)  # as one that loads its data: else it may join by the vote that the others hold
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = partreduce.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, schedule, timeout=60)
torch.manual_seed(optimizer.rank)
print(json.dumps(["pid", os.getpid()]), file=file)
while not (folder / f"stop-{optimizer.steps}").exists():
    begun = time.monotonic()
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    time.sleep(0.03)
    computed = time.monotonic()
    print(json.dumps(["computed", begun, computed]), file=file)
    optimizer.step()
    print(json.dumps(["step", begun, computed, time.monotonic()]), file=file)
optimizer.finish()
"""


def design(path: Path, *words: str) -> Path:
    command = [sys.executable, "-m", "partreduce", "design", *words, "-o", str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


def run(schedule: Path, options: Sequence[str], script: str, *arguments: object) -> list[str]:
    """The command of a run of this script, whose arguments begin with the schedule."""
    path = schedule.with_name("train.py")
    path.write_text(script)
    command = [sys.executable, "-m", "partreduce", "run", "--schedule", str(schedule), *options]
    return [*command, str(path), str(schedule), *map(str, arguments)]


def train(folder: Path, name: str, deaths: dict[int, int]) -> tuple[list[list[float]], list[str]]:
    """The curve of one run, as rows of step, seconds and loss, and what the launcher said of failures."""
    out, schedule = folder / f"{name}.jsonl", folder / "schedule.json"
    if not schedule.exists():
        design(schedule, "4x4", "--build", "node-then-all(node_rounds=3)", "--tolerate-failures", "1")
    options = ["--tolerate-failures", str(len(DEATHS)), "--max-restarts", "2"] if deaths else []
    command = run(schedule, options, SCRIPT, out, json.dumps(deaths), STEPS, EVERY)
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    if done.returncode:
        raise SystemExit(f"elastic_runs: the run {name!r} ended with {done.returncode}: {done.stderr[-2000:]}")
    said = [line.removeprefix("partreduce: ") for line in done.stderr.splitlines() if line.startswith("partreduce: ")]
    return [json.loads(line) for line in out.read_text().splitlines()], said


def draw_curves(curves: dict[str, list[list[float]]], path: Path) -> None:
    from partreduce.report.palette import quiet, style

    figure = _figure(3.6)
    axis = figure.subplots()
    for place, (name, rows) in enumerate(curves.items()):
        shade = style(place)
        width = 1.2 if place else 5.0  # the curves lie on each other: the second is drawn into the first
        axis.plot([row[0] for row in rows], [row[2] for row in rows], color=shade.color, linewidth=width)
        axis.annotate(
            name, (rows[-1][0], rows[-1][2]), xytext=(4, 6 - 12 * place), textcoords="offset points", fontsize=8
        )
    for rank, step in DEATHS.items():
        axis.axvline(step, color="0.7", linewidth=0.8, zorder=0)
        axis.annotate(f"worker {rank} fails", (step, axis.get_ylim()[1]), rotation=90, va="top", ha="right", fontsize=7)
    axis.set_yscale("log")
    axis.set_xlim(0, STEPS * 1.25)
    quiet(axis, across="steps", up="loss of the mean model")
    figure.savefig(path, dpi=110)


@dataclass(frozen=True)
class Watched:
    """A run of four workers of which one was killed and has joined; seconds since the kill."""

    steps: list[list[tuple[float, float, float]]]
    """Of each worker: when each step began, had computed, and ended."""
    phases: list[list[tuple[float, str]]]
    """Of each worker: when it entered which phase of the membership protocol."""

    def marks(self, since: float) -> dict[str, float]:
        """What the survivors did first after an instant: when one noticed, one knew the view, all had ended a step."""
        others = [rank for rank in range(4) if rank != VICTIM]

        def entered(phase: str) -> list[float]:
            times = ([at for at, word in self.phases[rank] if word == phase and at > since] for rank in others)
            return [found[0] for found in times]

        connected = max(entered("RUN"))
        ends = (min(end for _, _, end in self.steps[rank] if end > connected) for rank in others)
        return {"noticed": min(entered("VOTE")), "decided": min(entered("REBUILD")), "connected": connected,
                "next step": max(ends)}  # fmt: skip

    def spans(self, rank: int) -> Iterator[tuple[str, float, float]]:
        """What a worker did from when to when."""
        changes = [instant for instant, _ in self.phases[rank]]
        for begun, computed, end in self.steps[rank]:
            yield COMPUTES, begun, computed
            places = [computed, *(instant for instant in changes if computed < instant < end), end]
            for since, until in itertools.pairwise(places):
                yield self._phase(rank, since), since, until
        if rank == VICTIM:
            first = next(begun for begun, _, _ in self.steps[rank] if begun > 0)
            places = [instant for instant in changes if 0 < instant < first] + [first]
            for since, until in itertools.pairwise(places):
                yield self._phase(rank, since), since, until

    def _phase(self, rank: int, instant: float) -> str:
        now = [phase for since, phase in self.phases[rank] if since <= instant]
        return PHASES[now[-1] if now else "RUN"]


def watch(folder: Path) -> Watched:
    """Kill one of four workers and wait until it has joined."""
    schedule = design(folder / "traced.json", "1x4", "--build", "allreduce")
    options = ["--threads", "1", "--tolerate-failures", "1", "--max-restarts", "1"]
    command = run(schedule, options, TRACED, folder)
    with (folder / "said.txt").open("wb") as said, subprocess.Popen(command, stdout=said, stderr=said) as launcher:
        try:
            _until(lambda: all(len(_rows(folder, rank, "step")) > 20 for rank in range(4)))
            time.sleep(0.5)
            pids = _rows(folder, VICTIM, "pid")
            killed = time.monotonic()
            os.kill(pids[-1][1], signal.SIGKILL)
            time.sleep(0.02)
            taken, last = len(_rows(folder, VICTIM, "step")), _rows(folder, VICTIM, "computed")[-1]
            _until(lambda: len(_rows(folder, VICTIM, "step")) > taken + 8)
        except SystemExit:
            print((folder / "said.txt").read_text()[-4000:], flush=True)
            raise
        finally:
            launcher.send_signal(signal.SIGTERM)
    steps = [[tuple(at - killed for at in row[1:]) for row in _rows(folder, rank, "step")] for rank in range(4)]
    begun, computed = (at - killed for at in last[1:])
    ended = steps[VICTIM][taken - 1][2]
    steps[VICTIM].insert(taken, (begun, computed, 0.0) if computed > ended else (ended, 0.0, 0.0))
    phases = [[(row[1] - killed, row[0]) for row in _rows(folder, rank) if row[0] in PHASES] for rank in range(4)]
    return Watched(steps, phases)


def _rows(folder: Path, rank: int, word: str = "") -> list[list[Any]]:
    """What a worker has written, or those lines of it that begin with a word."""
    path = folder / f"{rank}.jsonl"
    lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return [row for row in map(json.loads, lines) if not word or row[0] == word]


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not done():
        if time.monotonic() > deadline:
            raise SystemExit(f"elastic_runs: the traced run did not come that far within {LIMIT:g} s")
        time.sleep(0.02)


def draw_timeline(watched: Watched, path: Path) -> None:
    """Two rows of panels on one scale: the failure and the join."""
    from matplotlib.patches import Patch

    from partreduce.report.palette import ALARM, COMMUNICATE, COMPUTE, FRAME, INK, OKABE_ITO

    colors = dict(zip(PHASES.values(), (COMMUNICATE, OKABE_ITO[3], OKABE_ITO[2], FRAME), strict=True))
    colors = {COMPUTES: COMPUTE} | colors
    figure = _figure(5.6)
    killed, joins = figure.subplots(2, 1)
    marks = {killed: watched.marks(0.0)}
    marks[joins] = watched.marks(marks[killed]["next step"])
    start = {axis: min(found.values()) for axis, found in marks.items()} | {killed: 0.0}
    width = BEFORE + AFTER + max(max(found.values()) - start[axis] for axis, found in marks.items())
    for axis, title in {killed: f"Worker {VICTIM} is killed", joins: f"Worker {VICTIM} joins"}.items():
        first = start[axis] - BEFORE
        for rank in range(4):
            for what, since, until in watched.spans(rank):
                if until > first and since < first + width:
                    axis.broken_barh(
                        [(1e3 * since, 1e3 * (until - since))], (rank + 0.12, 0.76), facecolors=colors[what],
                        edgecolor="white", linewidth=0.5,
                    )  # fmt: skip
        labels = [("kill", 0.0)] * (axis is killed) + list(marks[axis].items())
        for height, (name, instant) in zip(range(len(labels), 0, -1), labels, strict=True):
            look = {"color": INK if instant else ALARM}
            axis.axvline(1e3 * instant, ymax=(4 + 0.7 * height) / 7.8, linestyle="--" if instant else "-", **look)
            axis.annotate(
                f"{name}: {1e3 * instant:.0f} ms", (1e3 * instant, 0.3 - 0.7 * height), xytext=(3, 0),
                textcoords="offset points", fontsize=10, **look,
            )  # fmt: skip
        axis.set_xlim(1e3 * first, 1e3 * (first + width))
        axis.set_ylim(4, -3.8)
        axis.set_yticks([rank + 0.5 for rank in range(4)], [f"worker {rank}" for rank in range(4)], fontsize=10)
        axis.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
        for side in ("top", "right", "left"):
            axis.spines[side].set_visible(False)
        axis.tick_params(axis="y", length=0)
    joins.set_xlabel("milliseconds since the kill", fontsize=10, color=INK)
    figure.legend(
        handles=[Patch(facecolor=color, label=name) for name, color in colors.items()], loc="outside lower center",
        ncols=len(colors), fontsize=10, frameon=False, handlelength=1.2, columnspacing=1.2,
    )  # fmt: skip
    figure.savefig(path, dpi=120)


def _figure(height: float) -> Figure:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt.figure(figsize=(7, height), layout="constrained")


def main() -> None:
    options = kit.parser(__doc__ or "")
    options.add_argument("--only", choices=["loss", "timeline"], help="draw this picture and write no page")
    chosen = options.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if chosen.only != "loss":
            watched = watch(folder)
            draw_timeline(watched, TIMELINE)
        if chosen.only == "timeline":
            return
        whole, _ = train(folder, "undisturbed", {})
        broken, said = train(folder, "disturbed", DEATHS)
    draw_curves({"without failures": whole, "4 failed, 2 joined": broken}, CURVE)
    if chosen.only == "loss":
        return
    other = {row[0]: row for row in broken}
    common = [row for row in whole if row[0] in other and row[0] % 40 == 0]
    rows = [(int(step), f"{loss:.3f}", f"{other[step][2]:.3f}") for step, _, loss in common]
    last = (int(whole[-1][0]), f"{whole[-1][2]:.3f}", f"{broken[-1][2]:.3f}")
    kit.write(
        kit.RESULTS / "elastic_runs.md",
        "Elastic runs",
        f"`{kit.command('elastic_runs').strip()}`, {kit.machine()}. {WORKERS} processes, {STEPS} steps; loss of "
        "the mean model.",
        kit.table(("step", "without failures", "4 failed, 2 joined"), [*rows, last]),
        "What the launcher said:",
        "\n".join(f"* {line}" for line in said if "continue together" in line),
        f"![Loss over steps of both runs]({CURVE.name})",
        "Another run, of four processes that average gradients in each step: one is killed, restarted, and joins.",
        "![Timeline of a failure and a join](../../docs/pictures/fault-tolerance.png)",
    )


if __name__ == "__main__":
    main()
