"""From what a cell's workers left behind to its numbers: speed, loss of the mean model, bytes, where the time went."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from benchmarks import kit
from benchmarks.lab.setting import Job
from benchmarks.lab.tasks import SEQUENCES, Clock, Samples, accuracy, evaluated, loss_of, make_model
from benchmarks.lab.worker import APART, HEADER


@dataclass(slots=True, kw_only=True)
class Measured:
    """One cell. `step_ms` is workers ÷ (steps per second of all together), so that free-running ones compare.

    The first step counts too: a cell has whole periods of every schedule then, as the simulator's rounds have. `curve`
    holds (steps per worker, seconds, training loss of the mean model); `nic_mb` what a node's NIC sent per step of all
    workers, in megabytes (mean over nodes). `steps` and `ended` are for whoever looks into a run; no table needs them.
    A step that was skipped counts as one, as it does in Hop's paper. Where a sum does not wait for all, a step is a
    gradient, and `rounds` says how many sums the workers took (mean). `accuracies` holds (seconds, share of the held
    out samples that the mean model tells right), `own_accuracy` the mean of the workers' own models at the end.
    """

    step_ms: float
    nic_mb: float
    steps: list[int] = field(default_factory=list)
    ended: str = ""
    curve: list[tuple[float, float, float]] = field(default_factory=list)
    rounds: float | None = None
    accuracies: list[tuple[float, float]] = field(default_factory=list)
    own_accuracy: float | None = None

    @classmethod
    def of_json(cls, members: dict[str, Any]) -> Measured:
        """Of what a file holds; older ones also say where the time went (`shares`)."""
        return cls(**{name: value for name, value in members.items() if name not in ("shares", "busy_ms")})

    def reached(self, target: float) -> tuple[float, ...] | None:
        """Steps and seconds at which the loss, interpolated between evaluations, first fell to the target."""
        return kit.reached(self.curve, target)


def read_cell(job: Job, samples: Samples) -> Measured:
    """Put a cell's files together."""
    said = []
    for rank in range(job.num_workers):
        path = job.path / f"worker-{rank:03d}.json"
        said.append(json.loads(path.read_text()) if path.exists() else {"rank": rank, "failed": "left no result"})
    # Whoever fails first ends the run for the others, whose words are then only "not ready" or "left".
    failed = sorted(
        (s["failed"] for s in said if "failed" in s), key=lambda words: words.startswith(("the others", "left"))
    )
    if failed:
        raise RuntimeError(failed[0])
    times = [np.array(worker["times"]) for worker in said]
    started = min(worker["started"] for worker in said)
    if min(len(t) for t in times) < 2:
        raise RuntimeError(f"a worker took only {min(len(t) for t in times)} steps in {job.limit:g} s")
    reached = [worker.get("reached", len(t)) for worker, t in zip(said, times, strict=True)]
    apart = any(worker.get("apart") for worker in said)
    speeds = [at / (t[-1, 2] - started) for at, t in zip(reached, times, strict=True)]
    all_steps = sum(reached)
    sent = [said[job.first_of(node)]["sent"] for node in range(job.num_nodes)]
    rounds = [worker["rounds"] for worker in said if "rounds" in worker]
    curve, accuracies, own = _curve(job, samples, started, apart=apart or bool(rounds))
    return Measured(
        step_ms=1000 * job.num_workers / sum(speeds),
        steps=reached,
        ended="time" if any(worker["ended"] == "time" for worker in said) else "steps",
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
    """The mean model's loss over time, and its accuracy where samples are held out; in the end also the workers' own.

    Workers that stay together are averaged at equal steps. Of free-running and differently paced ones, and of those
    that keep a gap or whose sums do not wait (`apart`), the mean at an instant takes everybody's newest snapshot; the
    instants are those at which half of the workers have the next one, or the next but `APART`.
    """
    model = make_model(job.task, samples, Clock(), job.seed).eval()
    size = 2 * sum(p.numel() for p in model.parameters())
    tracks = [_snapshots(job, rank, size) for rank in range(job.num_workers)]
    free = job.free_running or apart
    together = not free and len({tuple(step for _, step, _ in track) for track in tracks}) == 1
    least = min(len(track) for track in tracks)
    part = evaluated(samples, SEQUENCES) if job.task == "docstrings" else evaluated(samples)
    curve: Curve = []
    accuracies: list[tuple[float, float]] = []
    told = None if job.task == "hyperplane" else samples.held_out  # heights have no right or wrong
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
            loss = loss_of(job.task, model(part.inputs), part.labels)
        steps = float(np.mean([step for _, step, _ in chosen]))
        curve.append((steps, instant - started, float(loss)))
        if told is not None:
            accuracies.append((instant - started, accuracy(model, told)))
    return sorted(curve, key=lambda point: point[1]), sorted(accuracies), _own_accuracy(model, tracks, told)


def _own_accuracy(model: torch.nn.Module, tracks: list[list[Snapshot]], told: Samples | None) -> float | None:
    """The mean over the workers of what their last models tell right."""
    if told is None:
        return None
    found = []
    for track in tracks:
        torch.nn.utils.vector_to_parameters(track[-1][2].float(), model.parameters())
        found.append(accuracy(model, told))
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
