"""Checkpoint: all workers save together at the end of a round, and go on later as if nothing had happened.

A checkpoint is a folder `round-00000041` with one safetensors file for each worker and, once all of them are safe on
the disk, a manifest that names every file's SHA-256. A folder without a manifest does not count. Files are written
beside their place, flushed and renamed, so a crash at any moment leaves the checkpoint before. The folder may lie on a
shared file system or on each machine's own disk; every worker writes the manifest that it will need.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preduce.runtime.state.saved_state import StateFile, pack, unpack
from preduce.topo.document.canonical import schedule_sha256
from preduce.topo.document.reader import read_json
from preduce.topo.document.writer import write_file
from preduce.topo.errors import DocumentError, FileProblem, InputError, PreduceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preduce.runtime.optimizer import DistributedOptimizer

FORMAT, VERSION = "preduce.checkpoint", 1
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a run resumed from: the step and round of this worker's own clock, and what `extra` held."""

    folder: Path
    steps: int
    round: int
    num_workers: int
    extra: Any


def save_checkpoint(
    optimizer: DistributedOptimizer, directory: str | Path, *, extra: object = None, keep: int = 2
) -> Path:
    """Save this worker's part of the run; all workers call it after the same round. Returns the folder.

    Holds parameters, buffers, optimizer state, random states (torch, CUDA, NumPy, Python), the step count and what the
    strategy remembers. Needs memory for two copies of all that. Older checkpoints than the last `keep` are deleted.

    Args:
        optimizer: the run.
        directory: where checkpoints lie; made if it is missing.
        extra: anything JSON can hold, per worker: epoch, sampler, learning-rate scheduler, gradient scaler.
        keep: how many checkpoints stay.

    Raises:
        InputError: in the middle of a round, or `extra` is not JSON.
        FileProblem: a worker could not write; the same sentence on all of them, and the run may go on.
        PeerLostError: a worker is gone or at another round.
    """
    ending, meeting = optimizer.ending, optimizer.meeting
    ending.refuse_unless_running("save or load a checkpoint")
    run, round_, rank = optimizer.run, optimizer.round, optimizer.rank
    if optimizer.steps % run.pace:
        raise InputError(
            f"save_checkpoint: step {optimizer.steps} lies inside a round of {run.pace} steps; save after the last one"
        )
    if keep < 1:
        raise InputError(f"keep: is {keep}; at least 1 checkpoint stays")
    run.reducer.heartbeat.gather("save_checkpoint()", round_)
    meeting.together("checkpoint", round_)
    ending.guard(optimizer.runner.settle)
    folder = Path(directory) / f"round-{round_:08d}"
    try:
        data = pack(_state_file(optimizer), extra)
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / _file_of(rank), data)
        report = {"sha256": hashlib.sha256(data).hexdigest(), "steps": optimizer.steps}
        del data
    except (PreduceError, OSError) as error:
        report = {"problem": f"worker {rank}: {error}"}
    reports = meeting.exchange("checkpoint saved", round_, report)
    problem = next((text for entry in reports if (text := entry.get("problem")) is not None), None)
    if problem is not None:
        raise FileProblem(f"checkpoint of round {round_}: {problem}")
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "schedule": optimizer.schedule.name,
        "schedule_sha256": schedule_sha256(optimizer.schedule),
        "model_sha256": _model_sha256(optimizer),
        "num_workers": optimizer.num_workers,
        "round": round_,
        "workers": reports,
    }
    write_file(folder / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    _prune(Path(directory), keep, rank)
    return folder


def load_checkpoint(
    optimizer: DistributedOptimizer, directory: str | Path, *, other_run: bool = False
) -> Resumed | None:
    """Resume from the newest checkpoint that every worker can read; None if there is none. All workers call it.

    Static and all-reduce schedules then continue bit for bit. With `other_run` the number of workers or the schedule
    may differ: every worker starts from the mean of all saved models and buffers at step 0 of the new schedule, with
    fresh optimizer state; this needs all files on worker 0's file system.

    Raises:
        InputError: the checkpoint belongs to another schedule, model or number of workers.
        DocumentError: a manifest or file that is damaged in a way that its SHA-256 does not catch.
        PeerLostError: a worker is gone.
    """
    ending, meeting = optimizer.ending, optimizer.meeting
    ending.refuse_unless_running("save or load a checkpoint")
    number = meeting.next_number("load_checkpoint")
    rounds = _loadable(Path(directory), None if other_run else optimizer.rank)
    lists = meeting.exchange("checkpoint loadable", number, {"rounds": rounds})
    # Only worker 0 reads when the runs differ.
    common = set(lists[0]["rounds"]) if other_run else set.intersection(*(set(entry["rounds"]) for entry in lists))
    if not common:
        return None
    folder = Path(directory) / f"round-{max(common):08d}"
    if other_run:
        return _load_mean(optimizer, number, folder)
    manifest = _manifest(folder)
    _refuse_other_run(optimizer, manifest, folder)
    tensors, facts = unpack(_read(folder / _file_of(optimizer.rank)), folder)
    ending.guard(optimizer.runner.drain)
    _state_file(optimizer).restore(tensors, facts)
    optimizer.stepper.steps = steps = int(facts["steps"])
    ending.guard(lambda: optimizer.runner.resume(steps, optimizer.round))
    return Resumed(folder, steps, int(manifest["round"]), int(manifest["num_workers"]), facts["extra"])


def _load_mean(optimizer: DistributedOptimizer, number: int, folder: Path) -> Resumed:
    """Worker 0 reads and averages all files; the others get the result from it."""
    optimizer.ending.guard(optimizer.runner.drain)
    facts: dict[str, Any] = {}
    if optimizer.rank == 0:
        try:
            manifest = _manifest(folder)
            if manifest["model_sha256"] != _model_sha256(optimizer):
                raise InputError(f"{folder}: was saved from another model")
            total = int(manifest["num_workers"])
            _state_file(optimizer).restore_mean(folder / _file_of(rank) for rank in range(total))
            facts = {"num_workers": total, "round": manifest["round"], "steps": manifest["workers"][0]["steps"]}
        except (PreduceError, OSError) as error:
            facts = {"problem": str(error)}
    told = optimizer.meeting.exchange("checkpoint mean", number, facts)[0]
    if "problem" in told:
        raise InputError(f"load_checkpoint: worker 0: {told['problem']}")
    optimizer.meeting.broadcast()
    optimizer.stepper.steps = 0
    return Resumed(folder, int(told["steps"]), int(told["round"]), int(told["num_workers"]), None)


def _state_file(optimizer: DistributedOptimizer) -> StateFile:
    """What is saved of this worker."""
    return StateFile(optimizer.run.flat, optimizer.optimizer, optimizer.runner, optimizer.steps)


def _model_sha256(optimizer: DistributedOptimizer) -> str:
    """Over names, shapes and dtypes."""
    return hashlib.sha256("\n".join(optimizer.run.flat.layout()).encode()).hexdigest()


def _file_of(rank: int) -> str:
    return f"worker-{rank:05d}.safetensors"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileProblem(f"{path}: cannot be read: {error.strerror}") from None


def _manifest(folder: Path) -> dict[str, Any]:
    """A manifest, refused if it is not one.

    Raises:
        DocumentError: as said.
        FileProblem: it cannot be read.
    """
    place = folder / MANIFEST
    manifest = read_json(place, MAX_MANIFEST_BYTES)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
        raise DocumentError("format", f"is not {FORMAT!r} version {VERSION}", str(place))
    workers = manifest.get("workers")
    if (
        not all(isinstance(manifest.get(key), str) for key in ("schedule", "schedule_sha256", "model_sha256"))
        or not all(type(manifest.get(key)) is int for key in ("num_workers", "round"))
        or not isinstance(workers, list)
        or len(workers) != manifest["num_workers"]
        or not all(isinstance(entry, dict) and isinstance(entry.get("sha256"), str) for entry in workers)
    ):
        raise DocumentError("workers", "is not what save_checkpoint writes", str(place))
    return manifest


def _loadable(directory: Path, rank: int | None) -> list[int]:
    """The rounds whose manifest is there and whose files (one worker's, or all) have the SHA-256 it names; newest 3."""
    rounds: list[int] = []
    for folder in sorted(directory.glob("round-*"), reverse=True):
        with contextlib.suppress(PreduceError, ValueError):
            workers = _manifest(folder)["workers"]
            wanted = range(len(workers)) if rank is None else [rank] if rank < len(workers) else []
            # A run of another size still sees the checkpoint, so that it is refused and not silently ignored.
            if all(
                hashlib.sha256(_read(folder / _file_of(one))).hexdigest() == workers[one]["sha256"] for one in wanted
            ):
                rounds.append(int(folder.name.removeprefix("round-")))
        if len(rounds) == 3:
            break
    return rounds


def _refuse_other_run(optimizer: DistributedOptimizer, manifest: Mapping[str, Any], folder: Path) -> None:
    way_out = "pass other_run=True to start from the mean model under this schedule"
    if manifest["num_workers"] != optimizer.num_workers:
        raise InputError(
            f"{folder}: was saved by {manifest['num_workers']} workers and this run has {optimizer.num_workers}; "
            f"{way_out}"
        )
    mine = schedule_sha256(optimizer.schedule)
    if manifest["schedule_sha256"] != mine:
        raise InputError(
            f"{folder}: was saved under schedule {manifest['schedule']!r} (sha256 {manifest['schedule_sha256'][:16]}) "
            f"and this run has {optimizer.schedule.name!r} (sha256 {mine[:16]}); {way_out}"
        )
    if manifest["model_sha256"] != _model_sha256(optimizer):
        raise InputError(f"{folder}: was saved from another model (names, shapes or dtypes differ)")


def _prune(directory: Path, keep: int, rank: int) -> None:
    """Delete this worker's part of all but the newest complete checkpoints, the manifest first."""
    folders = sorted(directory.glob("round-*"), reverse=True)
    complete = [folder for folder in folders if (folder / MANIFEST).exists()]
    if len(complete) < keep:
        return
    oldest = complete[keep - 1]
    for folder in folders:
        if folder.name < oldest.name:
            with contextlib.suppress(OSError):
                (folder / MANIFEST).unlink(missing_ok=True)
                (folder / _file_of(rank)).unlink(missing_ok=True)
                if not any(folder.iterdir()):
                    shutil.rmtree(folder, ignore_errors=True)
