"""From what a cell's workers left behind to its numbers: speed, loss of the mean model, bytes, where the time went."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import kit
from benchmarks.lab.setting import Job
from benchmarks.lab.tasks import SEQUENCES, Clock, Samples, accuracy, evaluated, loss_of, make_model
from benchmarks.lab.worker import APART, HEADER


@dataclass(slots=True, kw_only=True)
class Measured:
    """One cell. `step_ms` is workers ÷ (steps per second of all together), so that free-running ones compare.

    The first step counts too: a cell has whole periods of every schedule then, as the simulator's rounds have. `curve`
    holds (steps per worker, seconds, training loss of the mean model); `shares` the mean seconds per step that a worker
    computed, waited for others, and communicated; `nic_mb` what a node's NIC sent per step of all workers, in megabytes
    (mean over nodes); `busy_ms` the processor time of a step in all threads of a worker (mean over those that say it).
    `steps`, `ended` and `busy_ms` are for whoever looks into a run; no table needs them, and published files have none.
    A step that was skipped counts as one, as it does in Hop's paper. Where a sum does not wait for all, a step is a
    gradient, and `rounds` says how many sums the workers took (mean). `accuracies` holds (seconds, share of the held
    out samples that the mean model tells right), `own_accuracy` the mean of the workers' own models at the end.
    """

    step_ms: float
    nic_mb: float
    shares: dict[str, float]
    steps: list[int] = field(default_factory=list)
    ended: str = ""
    busy_ms: float | None = None
    curve: list[tuple[float, float, float]] = field(default_factory=list)
    rounds: float | None = None
    accuracies: list[tuple[float, float]] = field(default_factory=list)
    own_accuracy: float | None = None

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
    busy = [worker["busy"] / len(worker["times"]) for worker in said if "busy" in worker]
    sent = [said[job.first_of(node)]["sent"] for node in range(job.num_nodes)]
    rounds = [worker["rounds"] for worker in said if "rounds" in worker]
    curve, accuracies, own = _curve(job, samples, started, apart=apart or bool(rounds))
    return Measured(
        step_ms=1000 * job.num_workers / sum(speeds),
        steps=reached,
        ended="time" if any(worker["ended"] == "time" for worker in said) else "steps",
        nic_mb=float(np.mean(sent)) / (all_steps / job.num_workers) / 1e6,
        shares=_shares(job, times, apart=apart),
        busy_ms=1000 * float(np.mean(busy)) if busy else None,
        curve=curve,
        rounds=float(np.mean(rounds)) if rounds else None,
        accuracies=accuracies,
        own_accuracy=own,
    )


def _shares(job: Job, times: list[npt.NDArray[np.float64]], *, apart: bool) -> dict[str, float]:
    """Seconds per step, mean over workers: computing, waiting for a member of the group, communicating.

    A group operation that has not all its members yet is waiting; afterwards it is communication. Without a trace
    (torch's own baselines) the two stay together as `blocked`, and so they do where workers go on by themselves.
    """
    count = sum(len(t) for t in times)
    computing = sum(float((t[:, 1] - t[:, 0]).sum()) for t in times) / count
    blocked = sum(float((t[:, 2] - t[:, 1]).sum()) for t in times) / count
    operations = _operations(job)
    if not operations or job.free_running or apart:
        return {"compute": computing, "blocked": blocked}
    complete: dict[tuple[str, int], float] = {}
    for name, round_, _, start, _ in operations:
        complete[name, round_] = max(complete.get((name, round_), 0.0), start)
    waiting = 0.0
    by_rank: dict[int, list[tuple[float, float]]] = {}
    for name, round_, rank, _, end in operations:
        by_rank.setdefault(rank, []).append((complete[name, round_], end))
    for rank, t in enumerate(times):
        mine = sorted(by_rank.get(rank, []), key=lambda pair: pair[1])
        ends = np.array([end for _, end in mine])
        for computed, done in t[:, 1:]:
            place = int(np.searchsorted(ends, computed))
            if place < len(mine):
                waiting += max(0.0, min(mine[place][0], done) - computed)
    waiting /= count
    return {"compute": computing, "wait": waiting, "communicate": blocked - waiting}


def _operations(job: Job) -> list[tuple[str, int, int, float, float]]:
    """(kind and members, round, rank, start, end) of every traced group operation, on the workers' common clock."""
    import time

    shift = time.monotonic() - time.time()
    found = []
    for path in sorted(job.path.glob("trace-[0-9]*.json")):
        for event in json.loads(path.read_text())["traceEvents"]:
            if event.get("cat") == "communication":
                start = event["ts"] / 1e6 + shift
                end = start + event["dur"] / 1e6
                found.append((event["name"], event["args"]["round"], event["pid"], start, end))
    return found


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
