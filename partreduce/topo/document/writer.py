"""Write documents atomically; schedules with one phase per line and without superfluous members."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from itertools import groupby
from pathlib import Path
from typing import Any

from partreduce.topo.argument_types import check_arguments
from partreduce.topo.document.phases import phase_text
from partreduce.topo.document.reader import STDOUT, descriptor_to_write, parse_json
from partreduce.topo.document.schedule import encodable, schedule_of
from partreduce.topo.errors import DocumentError, FileError, ScheduleError
from partreduce.topo.phase import Phase
from partreduce.topo.place import shown_path
from partreduce.topo.schedule import Schedule

_OPEN_KEYS = ("strategy", "hardware", "prices")
_LINE_KEYS = ("phases", "rounds", "nodes", "probes")


@check_arguments
def write_schedule(path: str | os.PathLike[str], schedule: Schedule) -> None:
    """Write a schedule file atomically: readers see the old file or the new one, never a part.

    Args:
        path: the file, or `-` for standard output.
        schedule: any Schedule.

    Raises:
        FileError: the file cannot be written; an older file at `path` is unchanged.
        ScheduleError: the format cannot express the schedule (a name of several lines, a fraction with more digits than
            the format allows, a certificate with integers beyond ±2**53).
    """
    write_file(path, schedule_text(schedule).encode())


def schedule_text(schedule: Schedule) -> str:
    """Return the text of a schedule file, one line per phase or round; raise ScheduleError as `write_schedule` does."""
    try:
        document = encodable(schedule)
        # All but the strategy is checked with the reader, which is cheap; strategies are written in a closed form.
        bare = {key: value for key, value in document.items() if key != "failure_plan"}
        envelope = json.dumps(bare | {"strategy": {"kind": "allreduce"}}).encode()
        schedule_of(parse_json(envelope, max_bytes=len(envelope)))
        return pretty(document)
    except (DocumentError, TypeError, ValueError) as error:
        raise ScheduleError(f"schedule {schedule.name[:40]!a}: cannot be written: {error}") from None


def pretty(document: dict[str, Any]) -> str:
    """Return a document as JSON text, one line for each key, phase, round, node and probe, with a final newline."""
    return _object(document, "") + "\n"


def _object(value: dict[str, Any], indent: str) -> str:
    deeper = indent + "  "
    lines = [f"{deeper}{json.dumps(key)}: {_member(key, item, deeper)}" for key, item in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"


def _member(key: str, value: object, indent: str) -> str:
    if key in _OPEN_KEYS and isinstance(value, dict):
        return _object(value, indent)
    if key in _LINE_KEYS and isinstance(value, list) and value:
        deeper, lines = indent + "  ", [_line(item) for item in value]
        if key == "phases":
            counted = ((line, len(list(equal))) for line, equal in groupby(lines))  # the reader repeats it
            lines = [line if n == 1 else f'{{"repeat": {n}, "phase": {line}}}' for line, n in counted]
        return "[\n" + ",\n".join(deeper + line for line in lines) + f"\n{indent}]"
    return _line(value)


def _line(value: object) -> str:
    return phase_text(value, spaced=True) if isinstance(value, Phase) else json.dumps(value, allow_nan=False)


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write bytes to a file atomically: to a temporary file in the same folder, flushed to the disk and then renamed.

    The umask decides the file mode. Links are followed. `-` (standard output), `/dev/fd/N` and targets that are not
    regular files (a FIFO) are written to directly. Raises FileError, or BrokenPipeError if a pipe's reader has closed.
    """
    connected = descriptor_to_write(path)
    target = Path(os.path.realpath(path))
    try:
        if connected is not None:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(connected, rest) :]
            return
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            with target.open("wb") as file:
                file.write(data)
            return
        replace_file(target, data)
    except BrokenPipeError:
        raise BrokenPipeError from None  # without its errno, which typer would report as an error of the command
    except (OSError, ValueError) as error:
        shown = "standard output" if connected == STDOUT else shown_path(path)
        raise FileError(f"{shown}: cannot be written: {getattr(error, 'strerror', None) or error}") from None


def check_without_place(path: str | os.PathLike[str]) -> None:
    """Raise FileError if an output path is a folder or lies in no existing one; called before long computations."""
    if descriptor_to_write(path) is None:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise FileError(f"{shown_path(path)}: cannot be written: {os.strerror(errno.EISDIR)}")
        if not target.parent.is_dir():
            problem = f"there is no folder {target.parent}; make it first"
            raise FileError(f"{shown_path(path)}: cannot be written: {problem}")


def replace_file(target: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file of mode `mode` (less the umask) under another name, then rename it; no process reads half of it."""
    temporary = target.parent / f".{target.name[:100]}.{secrets.token_hex(6)}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    with contextlib.suppress(OSError):  # some file systems cannot flush a directory; the file itself is safe
        directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
