"""The demonstration's stages: design, prove and export three schedules, then train under each and read the results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from partreduce.api import design
from partreduce.demo.results import Result, read_result
from partreduce.runtime.launcher.signals import format_end
from partreduce.topo.document.writer import write_file, write_schedule
from partreduce.topo.errors import FileError, UnavailableError
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.metrics import metrics
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.event_graph import cycle_time
from partreduce.verify.base import Proof
from partreduce.verify.prove import prove

if TYPE_CHECKING:
    from partreduce.demo.train import Plan

CHOICES: dict[str, tuple[str, dict[str, object]]] = {
    "All-Reduce": ("allreduce", {}),
    "Figure 10": ("prague-figure-10", {}),
    "node-then-all": ("node-then-all", {"node_rounds": 3}),
}
TARGET = 0.1
SCRIPT = "train_digits.py"
"""The example of a training script, `examples/train_digits.py`; a copy is put into the demonstration's folder."""
THIN = Hardware(inside=Link.of_bandwidth(10e9, 5e-6), nic=Link.of_bandwidth(1e9 / 8, 5e-5), model_bytes=100_000_000)
THIN_COMPUTE = ComputeTimes(base=0.2)
THIN_WORDS = (
    "predicted for a 100 MB model, 200 ms of computing per step and 1 Gbit/s between the nodes, every schedule in its "
    "fastest form (ring or hierarchical)"
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A designed, proved and exported schedule."""

    label: str
    schedule: Schedule
    proof: Proof
    path: Path

    @property
    def key(self) -> str:
        return self.path.stem

    def promise(self) -> str:
        """What the proof means to who trains: no deadlock, and when workers agree."""
        holding = {claim.claim for claim in self.proof.claims if claim.holds}
        period = self.schedule.mixing.period
        every = "after every step" if period == 1 else f"every {period} steps"
        shrinks = ceil(100 * (metrics(self.schedule).contraction.value or 0.0))
        agree = {
            "exact-consensus": f"all workers agree exactly {every}",
            "consensus": f"differences between workers shrink to {shrinks} % or less {every}",
        }
        said = ["no deadlock"] if "deadlock-free" in holding else []
        return "; ".join(said + [words for claim, words in agree.items() if claim in holding][:1])

    def predicted(self) -> float:
        """Seconds per step on a cluster with a thin link (see THIN_WORDS), in the form that suits the schedule best."""
        return min(
            cycle_time(self.schedule, THIN, THIN_COMPUTE, algorithm=algorithm).per_step
            for algorithm in AllReduceAlgorithm
        )


def make_folder(folder: Path) -> None:
    """Create the folder, and remove what an earlier demonstration measured there."""
    try:
        for part in ("schedules", "runs"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        for pattern in ("progress.*", "*/result-*.json", "*/trace*.json", "*/operations-*.json"):
            for old in (folder / "runs").glob(pattern):
                old.unlink()
    except OSError as error:
        raise FileError(f"{folder}: cannot be used: {error.strerror or error}") from None


def prepare(folder: Path, cluster: str) -> list[Candidate]:
    """Design, prove and export the three schedules with their certificates, and put a training script next to them."""
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
    """Run the plan in its own processes; `watch(name, step)` is called as it advances."""
    path, log, progress = folder / "plan.json", folder / "runs" / "output.txt", folder / "runs" / "progress.json"
    plan.write(path)
    with log.open("wb") as output:
        process = subprocess.Popen(_command(path), stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            while True:
                try:
                    process.wait(timeout=0.2)
                except subprocess.TimeoutExpired:
                    pass
                else:
                    break
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


def _command(plan: Path) -> list[str]:
    """Start the runs without looking for packages in the working directory, where a folder may shadow one of ours."""
    home = str(Path(__file__).resolve().parents[2])
    code = f"import sys; sys.path.append({home!r}); from partreduce.demo.train import main; sys.exit(main(sys.argv[1]))"
    return [sys.executable, "-P", "-c", code, str(plan)]


def results(plan: Plan, candidates: list[Candidate]) -> list[Result]:
    """What every run measured."""
    return [
        read_result([plan.place(c.key, turn) for turn in range(plan.turns)], c.schedule, c.label) for c in candidates
    ]


def conclusion(measured: list[Result], target: float) -> list[str]:
    """What is sure first: bytes and steps. Then seconds as the range of all turns, also where they decide nothing."""
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
    """Seconds of all turns, and how many times as fast each of them was as the same turn of the other."""
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
    """The smallest and the largest, or the one that there is."""
    low, high = f"{float(values.min()):.2f}", f"{float(values.max()):.2f}"
    return low if low == high else f"{low} to {high}"
