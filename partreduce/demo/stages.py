"""The stages of the demonstration: design, prove and export three schedules, train under each, read the results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from partreduce.api import design
from partreduce.report.traces import bytes_across, is_training, operations
from partreduce.runtime.launcher.signals import format_end
from partreduce.topo.document.writer import write_file, write_schedule
from partreduce.topo.errors import FileError, UnavailableError
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.event_graph import cycle_time
from partreduce.verify.base import Proof
from partreduce.verify.prove import prove

if TYPE_CHECKING:
    from partreduce.demo.train import Plan

TRAIN_IMAGES = 1438
TEST_IMAGES = 359


@dataclass(frozen=True, slots=True)
class Result:
    """The measurements of all runs (turns) of one schedule.

    After the `steps` [evaluations], `loss` and `accuracy` [evaluations] of the mean model were measured. `seconds`
    [turns, evaluations] is the training time of the slowest worker until then, without evaluations. `bytes_across`
    counts the bytes between nodes in all steps of a run.
    """

    name: str
    steps: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]
    loss: npt.NDArray[np.float64]
    accuracy: npt.NDArray[np.float64]
    bytes_across: float

    def reached(self, target: float) -> tuple[int, npt.NDArray[np.float64]] | None:
        """Return (step, seconds [turns]) of the first evaluation with a loss of at most `target`; None without one."""
        hits = np.flatnonzero(self.loss <= target)
        return (int(self.steps[hits[0]]), self.seconds[:, hits[0]]) if len(hits) else None

    @property
    def bytes_per_step(self) -> float:
        return self.bytes_across / float(self.steps[-1])


def _read_turn(folder: Path, schedule: Schedule, name: str) -> Result:
    try:
        parts = [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]
        if len(parts) != schedule.num_workers:
            raise FileError(f"{folder}: holds results of {len(parts)} workers, not of {schedule.num_workers}")
        curves = [part["curve"] for part in parts]
        steps = np.array([point["step"] for point in curves[0]])
        column = {
            key: np.array([[p[key] for p in curve] for curve in curves]) for key in ("seconds", "loss_sum", "right")
        }
        network = schedule.cluster, schedule.strategy.transport
        across = sum(bytes_across(event, *network) for event in operations(folder) if is_training(event))
    except (OSError, ValueError, KeyError) as error:
        raise FileError(f"{folder}: the results of the run cannot be read ({error})") from None
    return Result(
        name,
        steps,
        column["seconds"].max(axis=0)[np.newaxis],
        column["loss_sum"].sum(axis=0) / TRAIN_IMAGES,
        column["right"].sum(axis=0) / TEST_IMAGES,
        across,
    )


CHOICES: dict[str, tuple[str, dict[str, object]]] = {
    "All-Reduce": ("allreduce", {}),
    "Figure 10": ("prague-figure-10", {}),
    "node-then-all": ("node-then-all", {"node_rounds": 3}),
}
TARGET = 0.1
SCRIPT = "train_digits.py"
"""An example of a training script, `examples/train_digits.py`; a copy is put into the demonstration's folder."""
THIN = Hardware(inside=Link.of_bandwidth(10e9, 5e-6), nic=Link.of_bandwidth(1e9 / 8, 5e-5), model_bytes=100_000_000)
THIN_COMPUTE = ComputeTimes(base=0.2)
THIN_WORDS = (
    "predicted for a 100 MB model, 200 ms of computing per step and 1 Gbit/s between the nodes, every schedule in its "
    "fastest form (ring or hierarchical)"
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule of the demonstration, with its proof and the path of its file."""

    label: str
    schedule: Schedule
    proof: Proof
    path: Path

    @property
    def key(self) -> str:
        return self.path.stem

    def predicted(self) -> float:
        """Predict the seconds per step on a slow network (`THIN_WORDS`), with the faster all-reduce algorithm."""
        return min(
            cycle_time(self.schedule, THIN, THIN_COMPUTE, algorithm=algorithm).per_step
            for algorithm in AllReduceAlgorithm
        )


def make_folder(folder: Path) -> None:
    """Create the demonstration's folder, and delete results of an earlier demonstration in it. Raises FileError."""
    try:
        for part in ("schedules", "runs"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        for pattern in ("progress.*", "*/result-*.json", "*/trace*.json", "*/operations-*.json"):
            for old in (folder / "runs").glob(pattern):
                old.unlink()
    except OSError as error:
        raise FileError(f"{folder}: cannot be used: {error.strerror or error}") from None


def prepare(folder: Path, cluster: str) -> list[Candidate]:
    """Design and prove three schedules for `cluster` (as "2x4"); write them, certificates and a script to `folder`."""
    write_file(folder / SCRIPT, Path(__file__).with_name(SCRIPT).read_bytes())
    candidates = []
    for label, (name, parameters) in CHOICES.items():
        schedule = design(cluster, build=name, **parameters)
        proof = prove(schedule).require()
        path = folder / "schedules" / f"{name}.json"
        write_schedule(path, schedule)
        text = json.dumps(dict(proof.certificate), sort_keys=True) + "\n"
        write_file(path.with_suffix(".certificate.json"), text.encode())
        candidates.append(Candidate(label, schedule, proof, path))
    return candidates


def train(plan: Plan, folder: Path, watch: Callable[[str, int], None]) -> None:
    """Run the training plan in child processes, and call `watch(schedule name, step)` as a run advances.

    `step` counts the steps of all turns. The plan and the output of the processes are written to `folder`. Raises
    UnavailableError if a run fails.
    """
    path, log, progress = folder / "plan.json", folder / "runs" / "output.txt", folder / "runs" / "progress.json"
    plan.write(path)
    # Packages are not imported from the working directory, where a folder could shadow one of partreduce's.
    home = str(Path(__file__).resolve().parents[2])
    code = f"import sys; sys.path.append({home!r}); from partreduce.demo.train import main; sys.exit(main(sys.argv[1]))"
    command = [sys.executable, "-P", "-c", code, str(path)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.2)
                if progress.exists():
                    state = json.loads(progress.read_text())
                    watch(state["name"], state["step"])
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode:
        raise UnavailableError(f"training {format_end(process.returncode)}; what the workers said is in {log}")
    for name in plan.schedules:
        watch(name, plan.steps * plan.turns)


def results(plan: Plan, candidates: list[Candidate]) -> list[Result]:
    """Read the results of all runs, one Result per schedule.

    `seconds` has all turns (one run of every schedule each); losses and bytes are those of the first turn.
    """
    found = []
    for one in candidates:
        turns = [_read_turn(plan.place(one.key, turn), one.schedule, one.label) for turn in range(plan.turns)]
        found.append(replace(turns[0], seconds=np.concatenate([turn.seconds for turn in turns])))
    return found


def conclusion(measured: list[Result], target: float) -> list[str]:
    """Compare each schedule with the first one in a sentence: bytes and steps to the target loss, then seconds."""
    base = measured[0]
    reference = base.reached(target)
    lines = []
    for result in measured[1:]:
        reached = result.reached(target)
        if reached is None or reference is None:
            lost = result.name if reached is None else base.name
            lines.append(f"{lost} did not reach a loss of {target:g} in {int(base.steps[-1])} steps; train longer.")
            continue
        fewer = base.bytes_per_step / max(1.0, result.bytes_per_step)
        to_loss = fewer * reference[0] / reached[0]
        lines.append(
            f"{result.name} sends {fewer:.1f} times fewer bytes across nodes per step than {base.name}. It reached a "
            f"loss of {target:g} in {reached[0]} steps ({base.name}: {reference[0]}), with {to_loss:.1f} times fewer "
            f"bytes. {_format_speed(base.name, reference[1], reached[1])}"
        )
    return lines


def _format_speed(base: str, reference: npt.NDArray[np.float64], seconds: npt.NDArray[np.float64]) -> str:
    """Return a sentence with a schedule's `seconds` in all turns, and its speedups over the schedule named `base`.

    `reference` are the seconds of `base` in the same turns.
    """
    ratios = reference / seconds
    low, high = float(ratios.min()), float(ratios.max())
    if low > 1:
        verdict = f"{low:.2f} to {high:.2f} times as fast"
    elif high < 1:
        verdict = f"{1 / high:.2f} to {1 / low:.2f} times as slow"
    else:
        verdict = f"{low:.2f} to {high:.2f} times as fast, so seconds decide nothing"
    turns = "one turn" if len(seconds) == 1 else f"{len(seconds)} turns"
    return f"On this machine it took {span(seconds)} s in {turns} ({base}: {span(reference)} s): {verdict}."


def span(values: npt.NDArray[np.float64]) -> str:
    """Format the range of `values` with two decimals, such as `1.20 to 1.35`, or the one value."""
    low, high = f"{float(values.min()):.2f}", f"{float(values.max()):.2f}"
    return low if low == high else f"{low} to {high}"
