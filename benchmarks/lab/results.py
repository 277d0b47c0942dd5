"""A cell's numbers from its workers' files; tables of finished labs from nothing but their JSON files.

python -m benchmarks.lab.results [NAME …]      # write them again
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter

from benchmarks import kit
from benchmarks.kit import RESULTS, ROOT, parser
from benchmarks.lab.contestants import EVERY_STEP
from benchmarks.lab.setting import Job, Setting
from benchmarks.lab.tasks import SEQUENCES, Clock, Samples, accuracy, evaluation_samples, loss_of, make_model
from benchmarks.lab.worker import APART, HEADER
from partreduce.report.palette import INK, OKABE_ITO, quiet


@dataclass(slots=True, kw_only=True)
class CellResult:
    """The measurements of one cell.

    `step_ms` is workers ÷ (steps per second of all together), also for free-running ones. The first step counts too: a
    cell has whole periods of every schedule then, as the simulator's rounds have. `curve` holds (steps per worker,
    seconds, training loss of the mean model); `nic_mb` is what a node's NIC sent per step of all workers, in megabytes
    (mean over nodes). `steps` and `ended` are for inspection only. A skipped step counts as one, as in Hop's paper.
    With a quorum a step is a gradient, and `rounds` is the mean number of sums that workers took. `accuracies` holds
    (seconds, share of held-out samples that the mean model classifies correctly), `own_accuracy` the mean over the
    workers' own models at the end.
    """

    step_ms: float
    nic_mb: float
    steps: list[int] = field(default_factory=list)
    ended: str = ""
    curve: list[tuple[float, float, float]] = field(default_factory=list)
    rounds: float | None = None
    accuracies: list[tuple[float, float]] = field(default_factory=list)
    own_accuracy: float | None = None

    def reached(self, target: float) -> tuple[float, ...] | None:
        """Return steps and seconds at which the loss, interpolated between evaluations, first fell to the target."""
        return kit.loss_crossing(self.curve, target)


MEASUREMENTS = TypeAdapter(CellResult)
"""Reads a cell of a file; older files also say where the time went."""


def read_cell(job: Job, samples: Samples) -> CellResult:
    results = []
    for rank in range(job.num_workers):
        path = job.path / f"worker-{rank:03d}.json"
        results.append(json.loads(path.read_text()) if path.exists() else {"rank": rank, "failed": "left no result"})
    # Who fails first ends the run for the others, whose words are then only "not ready" or "left".
    failed = sorted(
        (s["failed"] for s in results if "failed" in s), key=lambda words: words.startswith(("the others", "left"))
    )
    if failed:
        raise RuntimeError(failed[0])
    times = [np.array(worker["times"]) for worker in results]
    started = min(worker["started"] for worker in results)
    if min(len(t) for t in times) < 2:
        raise RuntimeError(f"a worker took only {min(len(t) for t in times)} steps in {job.limit:g} s")
    reached = [worker.get("reached", len(t)) for worker, t in zip(results, times, strict=True)]
    apart = any(worker.get("apart") for worker in results)
    speeds = [at / (t[-1, 2] - started) for at, t in zip(reached, times, strict=True)]
    all_steps = sum(reached)
    sent = [results[job.first_of(node)]["sent"] for node in range(job.num_nodes)]
    rounds = [worker["rounds"] for worker in results if "rounds" in worker]
    curve, accuracies, own = _curve(job, samples, started, apart=apart or bool(rounds))
    return CellResult(
        step_ms=1000 * job.num_workers / sum(speeds),
        steps=reached,
        ended="time" if any(worker["ended"] == "time" for worker in results) else "steps",
        nic_mb=float(np.mean(sent)) / (all_steps / job.num_workers) / 1e6,
        curve=curve,
        rounds=float(np.mean(rounds)) if rounds else None,
        accuracies=accuracies,
        own_accuracy=own,
    )


Curve = list[tuple[float, float, float]]


def _curve(
    job: Job, samples: Samples, started: float, *, apart: bool
) -> tuple[Curve, list[tuple[float, float]], float | None]:
    """Return the mean model's losses over time, its accuracies on held-out samples, and the workers' own at the end.

    Workers at equal steps are averaged at these. Otherwise (`apart`: free-running or paced workers, iteration gaps,
    quorums) the mean at an instant takes every worker's newest snapshot, at instants when half of the workers have a
    new one.
    """
    model = make_model(job.setting.task, samples, Clock(), job.seed).eval()
    size = 2 * sum(p.numel() for p in model.parameters())
    tracks = [_snapshots(job, rank, size) for rank in range(job.num_workers)]
    free = job.free_running or apart
    together = not free and len({tuple(step for _, step, _ in track) for track in tracks}) == 1
    least = min(len(track) for track in tracks)
    part = evaluation_samples(samples, SEQUENCES) if job.setting.task == "docstrings" else evaluation_samples(samples)
    curve: Curve = []
    accuracies: list[tuple[float, float]] = []
    labels = None if job.setting.task == "hyperplane" else samples.held_out  # heights have no right or wrong
    count = least if together else sorted(len(track) for track in tracks)[len(tracks) // 2]
    for index in range(0, count, APART if apart else 1):
        if together:
            instant = max(track[index][0] for track in tracks)
            chosen = [track[index] for track in tracks]
        else:
            instant = float(np.median([track[index][0] for track in tracks if len(track) > index]))
            chosen = [[snap for snap in track if snap[0] <= instant or snap[1] == 0][-1] for track in tracks]
        mean = torch.stack([flat for _, _, flat in chosen]).float().mean(0)
        torch.nn.utils.vector_to_parameters(mean, model.parameters())
        with torch.no_grad():
            loss = loss_of(job.setting.task, model(part.inputs), part.labels)
        steps = float(np.mean([step for _, step, _ in chosen]))
        curve.append((steps, instant - started, float(loss)))
        if labels is not None:
            accuracies.append((instant - started, accuracy(model, labels)))
    return sorted(curve, key=lambda point: point[1]), sorted(accuracies), _own_accuracy(model, tracks, labels)


def _own_accuracy(model: torch.nn.Module, tracks: list[list[Snapshot]], labels: Samples | None) -> float | None:
    if labels is None:
        return None
    found = []
    for track in tracks:
        torch.nn.utils.vector_to_parameters(track[-1][2].float(), model.parameters())
        found.append(accuracy(model, labels))
    return float(np.mean(found))


Snapshot = tuple[float, int, torch.Tensor]


def _snapshots(job: Job, rank: int, size: int) -> list[Snapshot]:
    content = (job.path / f"snapshots-{rank:03d}.bin").read_bytes()
    found = []
    for start in range(0, len(content) - size - HEADER.size + 1, size + HEADER.size):
        seconds, step = HEADER.unpack_from(content, start)
        flat = torch.from_numpy(np.frombuffer(content, np.float16, size // 2, start + HEADER.size).copy())
        found.append((seconds, step, flat))
    return found


COLUMNS = (
    "contestant",
    "rate",
    "ms per step",
    "steps to target",
    "seconds to target",
    "× All-Reduce",
    "of the compute-only limit",
    "MB per NIC and step",
    "loss after {:.1f} s",
    "runs",
)


@dataclass(frozen=True, slots=True)
class Row:
    """All repetitions of one contestant in one setting."""

    contestant: str
    family: str
    cells: list[CellResult]
    target: float
    learning_rate: float | None = None

    @property
    def step_ms(self) -> float:
        return median(cell.step_ms for cell in self.cells)

    @property
    def nic_mb(self) -> float:
        return median(cell.nic_mb for cell in self.cells)

    def reached(self, which: int) -> list[float]:
        """Return steps (`which` 0) or seconds (1) to the target, of every repetition that reached it."""
        return [found[which] for cell in self.cells if (found := cell.reached(self.target)) is not None]

    def _middle(self, which: int) -> float | None:
        found = self.reached(which)
        return median(found) if 2 * len(found) > len(self.cells) else None

    @property
    def steps(self) -> float | None:
        return self._middle(0)

    @property
    def seconds(self) -> float | None:
        return self._middle(1)


def baseline(rows: list[Row]) -> Row | None:
    """Return the best contestant with exact averaging in every step, by seconds to the target."""
    reached = [row for row in rows if row.family == EVERY_STEP and row.seconds is not None]
    return min(reached, key=lambda row: row.seconds or 0.0) if reached else None


def fraction_of_limit(row: Row, rows: list[Row], setting: Setting, num_workers: int) -> float | None:
    """Return the time of All-Reduce's steps on a free network without waiting, over this row's seconds.

    All-Reduce's steps are the fewest of its forms, since those that overlap need more.
    """
    steps = [base.steps for base in rows if base.family == EVERY_STEP and base.steps is not None]
    if not steps or row.seconds is None:
        return None
    return min(steps) * setting.free_step(num_workers) / row.seconds


def block(rows: list[Row], setting: Setting, num_workers: int) -> str:
    base = baseline(rows)
    ends = min(cell.curve[-1][1] for row in rows for cell in row.cells if cell.curve)
    lines = []
    for row in rows:
        seconds, reached = row.seconds, row.reached(1)
        last_losses = [[loss for _, at, loss in cell.curve if at <= ends][-1] for cell in row.cells]
        ratio = "" if base is None or seconds is None else f"{base.seconds / seconds:.2f}"  # type: ignore[operator]
        share = fraction_of_limit(row, rows, setting, num_workers)
        mark = " (baseline)" if row is base else ""
        cells = [
            f"{row.contestant}{mark}",
            "" if row.learning_rate is None else f"{row.learning_rate:g}",
            kit.middle([cell.step_ms for cell in row.cells], ".0f"),
            "not reached" if row.steps is None else f"{row.steps:.0f}",
            "" if seconds is None else f"{seconds:.2f} [{min(reached):.1f}-{max(reached):.1f}]",
            ratio,
            "" if share is None else f"{share:.2f}",
            f"{row.nic_mb:.2f}",
            f"{median(last_losses):.3f}",
            f"{len(row.cells)}",
        ]
        lines.append(cells)
    return kit.table([column.format(ends) for column in COLUMNS], lines).rstrip("\n")


def document(head: dict[str, Any], blocks: dict[str, str], notes: list[str]) -> str:
    listed = "\n".join(f"* {key}: {value}" for key, value in head.items())
    parts = [part for name, text in blocks.items() for part in (f"## {name}", text)]
    if notes:
        parts += ["## Left out, failed, or to be known", "\n".join(f"* {note}" for note in notes)]
    return kit.page("The lab's results", "Written by `python -m benchmarks.lab.run`; do not edit.", listed, *parts)


PREDICTION = "Simulator against lab"
CELL = ("setting", "contestant")
MEASURED = ("step_ms", "nic_mb", "curve")


def write(folder: Path, name: str, content: dict[str, Any]) -> None:
    """Write `lab-NAME.json` with the data of the tables, and `lab-NAME.md`; the campaign keeps the rest in `raw/`."""
    content = keep_published(content)
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"lab-{name}"
    (folder / f"{stem}.json").write_text(kit.compact(content))
    (folder / f"{stem}.md").write_text(page(content))


def keep_published(content: dict[str, Any]) -> dict[str, Any]:
    """Return the parts that `page` reads, and the recommended schedules of older files."""
    cells, prediction = content["cells"], content["prediction"]
    return {
        **{key: content[key] for key in ("head", "measure", "settings", "notes", "recommendations") if key in content},
        "cells": [
            {**{key: cell[key] for key in CELL}, "measured": {key: cell["measured"][key] for key in MEASURED}}
            for cell in cells
        ],
        "prediction": prediction and {"words": prediction["words"]},
    }


def page(content: dict[str, Any]) -> str:
    count = content["measure"]["num_workers"]
    blocks = {setting.name: block(rows, setting, count) for setting, rows in rows_by_setting(content)}
    if content["prediction"]:
        blocks[PREDICTION] = content["prediction"]["words"]
    return document(content["head"], blocks, content["notes"])


def rows_by_setting(content: dict[str, Any]) -> list[tuple[Setting, list[Row]]]:
    """Return every measured setting with its rows, in the order of the contestants."""
    measure, found = content["measure"], []
    for fields in content["settings"]:
        setting = Setting.of_json(fields)
        cells: dict[str, list[CellResult]] = {}
        for cell in content["cells"]:
            if cell["setting"] == setting.name:
                cells.setdefault(cell["contestant"], []).append(MEASUREMENTS.validate_python(cell["measured"]))
        rates = measure["rates"].get(setting.name, {})
        rows = [
            Row(name, family, cells[name], measure["targets"][setting.name], rates.get(name))
            for name, family in measure["families"].items()
            if name in cells
        ]
        if rows:
            found.append((setting, rows))
    return found


FRONT = "lab-front"
"""Name of the results behind the README's picture."""
PICTURE = ROOT / "docs/pictures/loss-over-seconds.svg"
SHOWN = (
    ("DDP", "PyTorch DDP", OKABE_ITO[6], ":", (20.5, 1.02)),
    ("DDP, float16", "PyTorch DDP, fp16 hook", INK, "-.", (16.6, 0.0178)),
    ("torch averager 1/16", "PyTorch hierarchical averager", OKABE_ITO[1], "--", (16.6, 0.0138)),
    ("torch post-local SGD 32", "PyTorch post-local SGD", OKABE_ITO[5], "--", (16.6, 0.0107)),
    ("planner's recommendation", "partreduce, DiLoCo over nodes", OKABE_ITO[2], "-", (16.6, 0.0083)),
)
"""Contestant, label, line style, and position of the label."""


def front_rows() -> list[Row]:
    """Return the contestants that are drawn, in the order of `SHOWN`."""
    ((_, rows),) = rows_by_setting(json.loads((RESULTS / f"{FRONT}.json").read_text()))
    found = {row.contestant: row for row in rows}
    return [found[contestant] for contestant, *_ in SHOWN]


def draw_front(path: Path) -> None:
    """Draw every run of each contestant as its own line, with a mark where the averaged model was evaluated."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "partreduce"  # the same bytes each time
    figure = Figure(figsize=(6.2, 4.1), layout="constrained")
    axis = figure.subplots()
    rows = front_rows()
    for row, (_, label, color, dash, place) in zip(rows, SHOWN, strict=True):
        for cell in row.cells:
            seconds, losses = ([point[which] for point in cell.curve] for which in (1, 2))
            axis.plot(seconds, losses, dash, color=color, marker="o", markersize=2.5, linewidth=1.4)
        runs = "1 run" if len(row.cells) == 1 else f"{len(row.cells)} runs"
        axis.text(*place, f"{label}: {row.seconds:.1f} s ({runs})", color=color, weight="bold", fontsize=9.5)
    axis.axhline(rows[0].target, color=INK, linewidth=0.8)
    axis.text(50.5, rows[0].target * 1.05, f"target {rows[0].target:g}", color=INK, ha="right")
    axis.set(yscale="log", xlim=(0, 51), ylim=(0.007, 3.0))
    axis.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5, 1, 2], ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"])
    axis.minorticks_off()
    quiet(axis, across="seconds of training", up="training loss of the averaged model")
    axis.set_title("16 workers, 4 emulated nodes, 40 Mbit/s, 160 ms compute per step", color=INK, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=120)


def main(words: list[str], folder: Path = RESULTS) -> int:
    """Write the pages of the named labs, or of all; predictions are not computed again."""
    arguments = parser(__doc__)
    arguments.add_argument("names", nargs="*")
    arguments.add_argument("--front", type=Path, metavar="PICTURE", help=f"draw the README's picture, {PICTURE}")
    chosen = arguments.parse_args(words)
    if chosen.front is not None:
        draw_front(chosen.front)
        return 0
    for name in chosen.names or sorted(path.stem.removeprefix("lab-") for path in folder.glob("lab-*.json")):
        write(folder, name, json.loads((folder / f"lab-{name}.json").read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
