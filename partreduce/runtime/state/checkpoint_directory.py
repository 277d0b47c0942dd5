"""Find the complete checkpoints in a directory, the newest one, and those that a run may delete.

A manifest contains a number, one more than the highest that any worker saw, and a lineage: an ID that a run shares with
the runs that it resumed from and those that resume from it. A run deletes only checkpoints of its lineage.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partreduce.topo.document.reader import read_json
from partreduce.topo.errors import DocumentError, FileError, InputError, PartreduceError

FORMAT, VERSION = "partreduce.checkpoint", 2  # from version 1 only the models can be loaded
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 64 * 2**20
NAME = re.compile(r"round-\d{8,}(-\d+)?")


class NewerFormatError(DocumentError):
    """Raised for a manifest that a later version of partreduce wrote."""


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """One worker's report on a checkpoint: `problem` says why it cannot be loaded, empty if it can.

    `number` is the checkpoint's, counted in its directory, −1 if unknown; `newer` says that a later version wrote it.
    """

    name: str
    number: int = -1
    problem: str = ""
    newer: bool = False


def file_of(rank: int) -> str:
    """Return the file name of a worker's part of a checkpoint."""
    return f"worker-{rank:05d}.safetensors"


def folders(directory: Path) -> list[Path]:
    """Return the folders of all checkpoints, complete or not. Raises FileError for an unreadable directory."""
    try:
        inside = list(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileError(f"{directory}: cannot be read: {error.strerror}") from None
    return [folder for folder in sorted(inside) if NAME.fullmatch(folder.name)]


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's manifest. Raises FileError if it cannot be read, DocumentError for wrong content."""
    place = folder / MANIFEST
    manifest = read_json(place, MAX_MANIFEST_BYTES)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DocumentError("format", f"is not {FORMAT!r}", str(place))
    version = manifest.get("version")
    if type(version) is int and version > VERSION:
        raise NewerFormatError(
            "version", f"is {version}, newer than {VERSION}, which this partreduce reads", str(place)
        )
    workers = manifest.get("workers")
    if (
        type(version) is not int
        or not 1 <= version <= VERSION
        or not all(isinstance(manifest.get(key), str) for key in ("schedule", "schedule_sha256", "model_sha256"))
        or not isinstance(manifest.get("lineage"), str)
        or not all(
            type(number := manifest.get(key)) is int and least <= number < 2**53
            for key, least in (("num_workers", 1), ("round", 0), ("number", 1))
        )
        or not isinstance(workers, list)
        or len(workers) != manifest["num_workers"]
        or not all(entry is None or _is_entry(entry) for entry in workers)
        or not any(workers)
    ):
        raise DocumentError("workers", "is not what save_checkpoint writes", str(place))
    return manifest


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("sha256"), str):
        return False
    steps = entry.get("steps")
    return type(steps) is int and 0 <= steps < 2**53


def source_of(manifest: Mapping[str, Any], rank: int) -> int:
    """Return the rank whose file worker `rank` loads: its own, or the first one if it had failed before the save."""
    workers = manifest["workers"]
    if rank < len(workers) and workers[rank] is not None:
        return rank
    return next(other for other, entry in enumerate(workers) if entry is not None)


def list_checkpoints(directory: Path) -> list[CheckpointReport]:
    """Report on the checkpoints that have a manifest; only the manifests are read (see `damage`)."""
    seen: list[CheckpointReport] = []
    for folder in folders(directory):
        if not os.path.lexists(folder / MANIFEST):
            continue
        try:
            seen.append(CheckpointReport(folder.name, read_manifest(folder)["number"]))
        except PartreduceError as error:
            seen.append(CheckpointReport(folder.name, problem=str(error), newer=isinstance(error, NewerFormatError)))
    return seen


def damage(folder: Path, rank: int | None) -> str:
    """Return why a worker's file, or any file if `rank` is None, cannot be loaded; empty if it can."""
    try:
        manifest = read_manifest(folder)
    except PartreduceError as error:
        return str(error)
    workers = manifest["workers"]
    wanted = [other for other, entry in enumerate(workers) if entry is not None]
    if rank is not None:
        # A run of another size still lists the checkpoint, so that loading raises an error instead of ignoring it.
        wanted = [source_of(manifest, rank)] if rank < len(workers) else []
    for other in wanted:
        path = folder / file_of(other)
        try:
            if hashlib.sha256(read_bytes(path)).hexdigest() != workers[other]["sha256"]:
                return f"{path}: is damaged: its SHA-256 is not the one in {MANIFEST}"
        except FileError as error:
            return str(error)
    return ""


def newest_common(
    directory: Path, reports: Sequence[Mapping[str, Any]], ranks: Sequence[int]
) -> tuple[str | None, str]:
    """Return the name of the newest checkpoint that all `ranks` can load, and a warning about damaged newer ones.

    The name is None if there is no checkpoint, the warning empty if none is damaged. `reports` has, for each rank, what
    it has `seen` (CheckpointReports as dicts), or a `problem`. Raises FileError for a problem or if all are damaged,
    InputError if a later version wrote one.
    """
    problem = next((f"worker {r}: {p}" for r, e in zip(ranks, reports, strict=True) if (p := e.get("problem"))), None)
    if problem is not None:
        raise FileError(f"load_checkpoint: {problem}")
    by_rank = {
        rank: {entry["name"]: CheckpointReport(**entry) for entry in report["seen"]}
        for rank, report in zip(ranks, reports, strict=True)
    }
    numbers = {one.name: one.number for seen in by_rank.values() for one in seen.values()}
    whole = [name for name in numbers if all(name in seen and not seen[name].problem for seen in by_rank.values())]
    best = max(whole, key=lambda name: (numbers[name], name), default=None)
    instead = "to start afresh" if best is None else f"to resume from {best}"
    for seen in by_rank.values():
        for one in seen.values():
            if one.newer:
                raise InputError(f"load_checkpoint: {one.problem}; upgrade partreduce, or move it away {instead}")
    broken = [
        _why(directory, name, by_rank)
        for name in sorted(numbers, reverse=True)
        if name not in whole and (best is None or not 0 <= numbers[name] < numbers[best])
    ]
    if best is None and broken:
        raise FileError(f"load_checkpoint: {broken[0]}; no older one can be used instead: move it away {instead}")
    return best, f"load_checkpoint: {'; '.join(broken)}; resumed from {best} instead" if broken else ""


def _why(directory: Path, name: str, by_rank: Mapping[int, Mapping[str, CheckpointReport]]) -> str:
    for rank, seen in by_rank.items():
        if name in seen and seen[name].problem:
            return f"worker {rank}: {seen[name].problem}"
    missing = next(rank for rank, seen in by_rank.items() if name not in seen)
    return f"{directory / name}: worker {missing} does not have it"


def save_status(directory: Path, plain: str) -> dict[str, Any]:
    """Return what this worker sees before a save: `highest` checkpoint number (0 without one), and `taken`.

    `taken` says whether a complete checkpoint already has the folder name `plain`.
    """
    highest = 0
    with contextlib.suppress(FileError):
        for folder in folders(directory):
            with contextlib.suppress(PartreduceError):
                highest = max(highest, int(read_manifest(folder)["number"]))
    return {"highest": highest, "taken": os.path.lexists(directory / plain / MANIFEST)}


def checkpoints_to_delete(directory: Path, lineage: str, rank: int, *, keep: int, written: str) -> list[Path]:
    """Return this lineage's folders to delete after checkpoint `written` was saved, so that `keep` complete ones stay.

    They include incomplete ones in which worker `rank` has a file.
    """
    whole: list[tuple[int, Path]] = []
    unfinished: list[Path] = []
    with contextlib.suppress(FileError):
        for folder in folders(directory):
            if folder.name == written:
                continue
            if os.path.lexists(folder / MANIFEST):
                with contextlib.suppress(PartreduceError):
                    manifest = read_manifest(folder)
                    if manifest["lineage"] == lineage:
                        whole.append((manifest["number"], folder))
            elif _lineage_in(folder / file_of(rank)) == lineage:
                unfinished.append(folder)
    whole.sort(reverse=True)
    return [folder for _, folder in whole[keep - 1 :]] + unfinished


def _lineage_in(path: Path) -> str | None:
    """Return the lineage (ID of a run and its predecessors) in the header of a worker's file; None without one."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length < MAX_HEADER_BYTES else {}
        lineage = header["__metadata__"]["lineage"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return lineage if isinstance(lineage, str) else None


def delete(superfluous_folders: Sequence[Path], rank: int) -> None:
    """Delete the manifest and this worker's file in each folder; ignore what cannot be deleted."""
    for folder in superfluous_folders:
        with contextlib.suppress(OSError):
            (folder / MANIFEST).unlink(missing_ok=True)
            (folder / file_of(rank)).unlink(missing_ok=True)
            folder.rmdir()  # fails while other workers' files are there


def read_bytes(path: Path) -> bytes:
    """Return the content of a file. Raises FileError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from None
