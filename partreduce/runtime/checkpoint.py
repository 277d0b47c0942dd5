"""Save a checkpoint of all workers in the same round, and resume a run from it.

A checkpoint is a folder `round-00000041` with one safetensors file per worker. Once all files are on disk, a manifest
with the SHA-256 of each file follows; a folder without a manifest is ignored. Each file is written under a temporary
name, flushed and renamed, so a crash at any moment leaves the previous checkpoint intact. The folder may be on a shared
file system or on each machine's own disk: every worker writes the manifest. If another checkpoint of that round exists
already, the new folder's name ends in a number, `round-00000041-7`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from partreduce.runtime.elastic.support import is_planned
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.runtime.sharding.table_state import reader, redistribute
from partreduce.runtime.state import checkpoint_directory, sharded_checkpoint
from partreduce.runtime.state.checkpoint_directory import FORMAT, MANIFEST, VERSION, file_of, read_bytes, read_manifest
from partreduce.runtime.state.saved_state import StateFile, decode_keys, encode_keys, naming, pack, unpack
from partreduce.runtime.torch_defaults import in_default_modes
from partreduce.runtime.user_warning import warn_user
from partreduce.topo.argument_types import check_type
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.document.writer import write_file
from partreduce.topo.errors import FileError, InputError, PartreduceError


@dataclass(frozen=True, slots=True)
class Resumed:
    """Result of `load_checkpoint`: the checkpoint that a run resumed from.

    `steps` and `round` are those of the checkpoint, where this worker continues (at step 0 with `allow_different_run`),
    `num_workers` is how many workers saved it, and `extra` what the script passed to `save_checkpoint`.
    """

    folder: Path
    steps: int
    round: int
    num_workers: int
    extra: Any


@in_default_modes
def save_checkpoint(
    optimizer: DistributedOptimizer, directory: str | Path, *, extra: object = None, keep: int = 2
) -> Path:
    """Save a checkpoint of the run; all workers call it in the same round.

    Each worker writes its parameters, buffers, optimizer state, random states (torch, CUDA, NumPy, Python), step count
    and the state of its strategy, and needs memory for two copies of these. The newest `keep` checkpoints of this run
    and of the runs that it resumed from are kept, and older ones deleted; checkpoints of other runs are never deleted.
    After failures the remaining workers save, and on resuming a failed worker's replacement loads the first worker's
    state. A restarted worker that has not reached its first step saves nothing.

    Args:
        optimizer: the DistributedOptimizer of the run.
        directory: the folder of all checkpoints; created if it is missing.
        extra: this worker's further state, as JSON: epoch, sampler, learning-rate scheduler, gradient scaler.
        keep: number of checkpoints to keep, at least 1.

    Returns:
        The checkpoint's folder, equal on all workers.

    Raises:
        InputError: called inside a round, from which this schedule cannot continue; or workers call in different
            rounds; or `extra` is not JSON; or `keep` is below 1.
        FileError: a worker could not write; all workers raise it with the same text, and the run may continue.
        PeerFailedError: a worker is gone or does not call it.
    """
    directory = _checked_arguments("save_checkpoint", optimizer, directory)
    ending = optimizer.ending
    ending.check_unless_running("save or load a checkpoint")
    if optimizer.engine.is_behind:
        return directory
    run = optimizer.run
    optimizer.engine.guard.meeting()
    if optimizer.steps % run.steps_per_round and not run.traits.saves_inside_rounds:
        last = (optimizer.round + 1) * run.steps_per_round
        raise InputError(
            f"save_checkpoint: step {optimizer.steps} lies inside a round of {run.steps_per_round} steps, which this "
            f"schedule cannot continue from; call it where optimizer.steps % {run.steps_per_round} == 0, next at step "
            f"{last}"
        )
    check_type("save_checkpoint: keep", keep, int)
    if keep < 1:
        raise InputError(f"keep: is {keep}; at least 1 checkpoint stays")
    ending.guard(lambda: optimizer.engine.pause("save_checkpoint()"))
    with _gathering(optimizer, "save_checkpoint()") as members:
        saved = _saved_shards if optimizer.run.flat.sharders.shards else _save
        return saved(optimizer, directory, extra, keep, members)


def _save(optimizer: DistributedOptimizer, directory: Path, extra: object, keep: int, members: tuple[int, ...]) -> Path:
    ending, meeting = optimizer.ending, optimizer.meeting
    round_, rank = optimizer.round, optimizer.rank
    name = f"round-{round_:08d}"
    mine = {"round": round_, "lineage": meeting.lineage or secrets.token_hex(8)}
    gathered = meeting.exchange("checkpoint", mine | checkpoint_directory.save_status(directory, name), members)
    _check_other_rounds(gathered)
    number = 1 + max(int(entry["highest"]) for entry in gathered)
    meeting.lineage = lineage = str(gathered[0]["lineage"])
    if any(entry["taken"] for entry in gathered):
        name = f"{name}-{number}"
    folder = directory / name
    older = checkpoint_directory.checkpoints_to_delete(directory, lineage, rank, keep=keep, written=name)
    ending.guard(optimizer.runner.settle)
    try:
        data = pack(StateFile(optimizer.engine), encode_keys(extra), lineage)
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / file_of(rank), data)
        report = {"sha256": hashlib.sha256(data).hexdigest(), "steps": optimizer.steps}
        del data
    except (PartreduceError, OSError) as error:
        report = {"problem": f"worker {rank}: {error}"}
    reports = meeting.exchange("checkpoint saved", report, members)
    _check_problems(reports, round_)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "schedule": optimizer.schedule.name,
        "schedule_sha256": schedule_sha256(optimizer.schedule),
        "model_sha256": _model_sha256(optimizer),
        "num_workers": optimizer.num_workers,
        "round": round_,
        "number": number,
        "lineage": lineage,
        "workers": [dict(zip(members, reports, strict=True)).get(one) for one in range(optimizer.num_workers)],
    }
    try:
        write_file(folder / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
        report = {}
    except (PartreduceError, OSError) as error:
        report = {"problem": f"worker {rank}: {error}"}
    _check_problems(meeting.exchange("checkpoint complete", report, members), round_)
    checkpoint_directory.delete(older, rank)
    return folder


def _saved_shards(
    optimizer: DistributedOptimizer, directory: Path, extra: object, keep: int, members: tuple[int, ...]
) -> Path:
    ending, meeting, round_ = optimizer.ending, optimizer.meeting, optimizer.round
    folder = directory / f"round-{round_:08d}"
    _check_other_rounds(meeting.exchange("checkpoint", {"round": round_}, members))
    ending.guard(optimizer.runner.settle)
    tensors, facts = StateFile(optimizer.engine).collect()
    earlier = [name for name in meeting.earlier if name != folder.name]
    deleted = earlier[: 1 - keep or None]
    meeting.earlier = [*earlier[len(deleted) :], folder.name]
    facts |= {"extra": encode_keys(extra), "earlier": meeting.earlier, "schedule": optimizer.schedule.name}
    facts |= {"schedule_sha256": schedule_sha256(optimizer.schedule), "num_workers": optimizer.num_workers}
    try:
        sharded_checkpoint.save(folder, optimizer.rank, optimizer.run.flat, tensors, facts)
        report = {}
    except InputError:
        raise
    except PartreduceError as error:
        report = {"problem": f"worker {optimizer.rank}: {error}"}
    _check_problems(meeting.exchange("checkpoint saved", report, members), round_)
    for name in deleted:
        sharded_checkpoint.delete(directory / name, optimizer.rank, optimizer.run.flat)
    return folder


def _check_other_rounds(gathered: Sequence[Mapping[str, Any]]) -> None:
    if len(rounds := sorted({int(entry["round"]) for entry in gathered})) > 1:
        raise InputError(
            f"save_checkpoint: workers came after {', '.join(map(str, rounds))} rounds; all call it after the same one"
        )


def _check_problems(reports: Sequence[Mapping[str, Any]], round_: int) -> None:
    if (problem := next((text for entry in reports if (text := entry.get("problem")) is not None), None)) is not None:
        raise FileError(f"checkpoint of round {round_}: {problem}")


@contextlib.contextmanager
def _gathering(optimizer: DistributedOptimizer, place: str) -> Iterator[tuple[int, ...]]:
    with optimizer.run.reducer.heartbeat.gathering(place, optimizer.round):
        yield optimizer.ending.guard(lambda: optimizer.runner.membership.gathered(place))


@in_default_modes
def load_checkpoint(
    optimizer: DistributedOptimizer, directory: str | Path, *, allow_different_run: bool = False
) -> Resumed | None:
    """Resume from the newest checkpoint that all workers can read; all workers call it.

    Static and all-reduce schedules then continue bit for bit. With `allow_different_run` the number of workers or the
    schedule may differ: every worker starts from the mean of all saved models and buffers at step 0 of the new
    schedule, with new optimizer state; only rows of sharded tables keep their state, if the optimizer has the same
    class and options. This needs all files on worker 0's file system. If a checkpoint is damaged, an older one is
    loaded, with a warning.

    Args:
        optimizer: the DistributedOptimizer of the run, before its first step or between two rounds.
        directory: where `save_checkpoint` wrote.
        allow_different_run: accept a checkpoint of another number of workers or another schedule.

    Returns:
        The checkpoint that was loaded; None if there is none, or if this worker has joined a running job and got its
        state from there.

    Raises:
        InputError: the checkpoint belongs to another model, or to another schedule or number of workers that is not
            part of this schedule's failure plan; or it has a newer format; or members changed since it was saved; or
            the model is sharded, with `allow_different_run`.
        FileError: there are checkpoints, but none that all workers can read; the message names one and the cause.
        DocumentError: a file has the right SHA-256 but is no checkpoint file.
        PeerFailedError: a worker is gone.
    """
    directory = _checked_arguments("load_checkpoint", optimizer, directory)
    optimizer.ending.check_unless_running("save or load a checkpoint")
    optimizer.engine.guard.asks_for_checkpoint = True
    if optimizer.engine.is_behind:
        return None
    optimizer.ending.guard(lambda: optimizer.engine.pause("load_checkpoint()"))
    with _gathering(optimizer, "load_checkpoint()") as members:
        if optimizer.run.flat.sharders.shards:
            return _loaded_shards(optimizer, directory, members, allow_different_run=allow_different_run)
        return _load(optimizer, directory, members, allow_different_run=allow_different_run)


def _checked_arguments(who: str, optimizer: DistributedOptimizer, directory: str | Path) -> Path:
    if not hasattr(optimizer, "ending"):
        raise InputError(f"{who}: optimizer is a {type(optimizer).__name__}; pass the DistributedOptimizer first")
    if not isinstance(directory, (str, os.PathLike)) or "\0" in str(directory):
        raise InputError(f"{who}: directory is {str(directory)[:80]!r}, a {type(directory).__name__}; pass a path")
    return Path(directory)


def _load(
    optimizer: DistributedOptimizer, directory: Path, members: tuple[int, ...], *, allow_different_run: bool
) -> Resumed | None:
    ending, meeting = optimizer.ending, optimizer.meeting
    name, passed_over = _newest_loadable(optimizer, directory, members, allow_different_run=allow_different_run)
    if passed_over and optimizer.rank == members[0]:
        warn_user(passed_over, RuntimeWarning)
    if name is None:
        return None
    folder = directory / name
    membership = optimizer.runner.membership
    if allow_different_run:
        membership.check_to_go_back(0)
        return _load_mean(optimizer, folder, members)
    manifest = read_manifest(folder)
    _check_other_run(optimizer, manifest, folder)
    membership.check_to_go_back(int(manifest["round"]))
    source = checkpoint_directory.source_of(manifest, optimizer.rank)
    tensors, facts = unpack(read_bytes(folder / file_of(source)), folder)
    ending.guard(optimizer.runner.drain)
    with naming("load_checkpoint"):
        kept = StateFile(optimizer.engine).restore(tensors, facts, own_random_states=source == optimizer.rank)
    # A worker with another number of steps per round gives only the round, not this worker's step inside it.
    at_pace = source == optimizer.rank or (
        source < optimizer.num_workers
        and optimizer.schedule.steps_per_round_of(source) == optimizer.run.steps_per_round
    )
    steps = int(facts["steps"]) if at_pace else int(manifest["round"]) * optimizer.run.steps_per_round
    optimizer.engine.continue_from(steps)
    meeting.lineage = manifest["lineage"]
    with naming("load_checkpoint"):
        ending.guard(lambda: optimizer.runner.load(kept, steps))
    return Resumed(folder, steps, int(manifest["round"]), int(manifest["num_workers"]), decode_keys(facts["extra"]))


def _newest_loadable(
    optimizer: DistributedOptimizer, directory: Path, members: tuple[int, ...], *, allow_different_run: bool
) -> tuple[str | None, str]:
    """Return the name of the newest checkpoint that all members can load, and a warning, as `newest_common` does.

    Files are hashed only of a checkpoint that would be loaded, newest first, until one is intact on all members.
    """
    try:
        seen = checkpoint_directory.list_checkpoints(directory)
        mine: dict[str, object] = {"seen": [asdict(one) for one in seen]}
    except PartreduceError as error:
        mine = {"problem": str(error)}
    # Only the first worker reads when the runs differ.
    readers = members[:1] if allow_different_run else members
    rank = None if allow_different_run else optimizer.rank
    reports = optimizer.meeting.exchange("checkpoints", mine, members)[: len(readers)]
    while True:
        name, passed_over = checkpoint_directory.newest_common(directory, reports, readers)
        if name is None:
            return name, passed_over
        problem = checkpoint_directory.damage(directory / name, rank) if optimizer.rank in readers else ""
        found = optimizer.meeting.exchange(f"checkpoint {name}", {"problem": problem}, members)[: len(readers)]
        if not any(one["problem"] for one in found):
            return name, passed_over
        for report, one in zip(reports, found, strict=True):
            next(entry for entry in report["seen"] if entry["name"] == name).update(one)


def _loaded_shards(
    optimizer: DistributedOptimizer, directory: Path, members: tuple[int, ...], *, allow_different_run: bool
) -> Resumed | None:
    if allow_different_run:
        raise InputError(
            "load_checkpoint: allow_different_run=True would take the mean of whole models, and these are sharded; "
            "load one replica's folder by torch.distributed.checkpoint before you wrap"
        )
    folder = sharded_checkpoint.newest(directory, optimizer.rank)
    if folder is None:
        return None
    flat = optimizer.run.flat
    try:
        tensors, facts, same = sharded_checkpoint.load(folder, optimizer.rank, flat, optimizer.optimizer)
        _check_other_run(optimizer, facts | {"model_sha256": _model_sha256(optimizer)}, folder)
        report: dict[str, str] = {}
    except PartreduceError as error:
        report = {"problem": str(error)}
    reports = sharded_checkpoint.all_gather_json(report)
    if problem := next((text for one in reports if (text := one.get("problem"))), None):
        raise InputError(problem)
    optimizer.ending.guard(optimizer.runner.drain)
    flat.sharders.reshard()
    with naming("load_checkpoint"):
        kept = StateFile(optimizer.engine).restore(tensors, facts, own_random_states=same)
    optimizer.engine.continue_from(int(facts["steps"]))
    optimizer.meeting.earlier = facts["earlier"]
    optimizer.meeting.exchange("checkpoint loaded", {}, members)
    with naming("load_checkpoint"):
        optimizer.ending.guard(lambda: optimizer.runner.load(kept, optimizer.steps))
    extra = decode_keys(facts["extra"]) if same else None
    return Resumed(folder, optimizer.steps, optimizer.round, int(facts["num_workers"]), extra)


def _load_mean(optimizer: DistributedOptimizer, folder: Path, members: Sequence[int]) -> Resumed:
    """Start from the mean of all saved models, which the first member reads and broadcasts; see `load_checkpoint`."""
    if lost := optimizer.ending.guard(optimizer.runner.drain):
        warn_user(lost)
    facts: dict[str, Any] = {}
    if optimizer.rank == members[0]:
        try:
            manifest = read_manifest(folder)
            if manifest["model_sha256"] != _model_sha256(optimizer):
                raise InputError(f"{folder}: was saved from another model")
            there = [rank for rank, entry in enumerate(manifest["workers"]) if entry is not None]
            saved = StateFile(optimizer.engine).restore_mean(folder / file_of(rank) for rank in there)
            facts = {"num_workers": manifest["num_workers"], "round": manifest["round"], "there": there}
            facts["tables"] = saved
            facts["steps"] = manifest["workers"][there[0]]["steps"]
        except (PartreduceError, OSError) as error:
            facts = {"problem": str(error)}
    answer = optimizer.meeting.exchange("checkpoint mean", facts, members)[0]
    if "problem" in answer:
        raise InputError(f"load_checkpoint: worker {members[0]}: {answer['problem']}")
    optimizer.meeting.broadcast(members)
    if tables := optimizer.run.tables:
        tables.broadcast()
        redistribute(tables, optimizer.optimizer, answer["tables"], answer["there"], reader(folder, file_of, unpack))
    optimizer.engine.continue_from(0)
    return Resumed(folder, int(answer["steps"]), int(answer["round"]), int(answer["num_workers"]), None)


def _model_sha256(optimizer: DistributedOptimizer) -> str:
    return hashlib.sha256("\n".join(optimizer.run.flat.layout()).encode()).hexdigest()


def _check_other_run(optimizer: DistributedOptimizer, manifest: Mapping[str, Any], folder: Path) -> None:
    way_out = "pass allow_different_run=True to start from the mean model under this schedule"
    if manifest.get("version", VERSION) < VERSION:
        raise InputError(
            f"{folder}: was saved by an earlier partreduce, which named what strategies keep otherwise; {way_out}"
        )
    num_workers, sha256 = manifest["num_workers"], manifest["schedule_sha256"]
    mine = schedule_sha256(optimizer.schedule)
    is_same = (num_workers, sha256) == (optimizer.num_workers, mine)
    if not is_same and not optimizer.run.alone:
        is_same = is_planned(optimizer.planned, num_workers, sha256)
    if not is_same and num_workers != optimizer.num_workers:
        raise InputError(
            f"{folder}: was saved by {num_workers} workers and this run has {optimizer.num_workers}; {way_out}"
        )
    if not is_same:
        raise InputError(
            f"{folder}: was saved under schedule {manifest['schedule']!r} (sha256 {sha256[:16]}) "
            f"and this run has {optimizer.schedule.name!r} (sha256 {mine[:16]}); {way_out}"
        )
    if manifest["model_sha256"] != _model_sha256(optimizer):
        raise InputError(f"{folder}: was saved from another model (names, shapes or dtypes differ)")
