"""File names that mean an open descriptor: `-`, and `/dev/fd/N`, which is what a shell puts for `<(command)`.

Opening such a name again would be wrong: a pipe opened without blocking is empty before its writer has written, and its
resolved name (`pipe:[123]`) does not exist. What was connected on purpose is therefore read and written as it is.
"""

from __future__ import annotations

import os
import re

STDIN, STDOUT, STDERR = 0, 1, 2
_NAMED = {"/dev/stdin": STDIN, "/dev/stdout": STDOUT, "/dev/stderr": STDERR}
_NUMBERED = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,6})")


def descriptor_to_read(path: str | os.PathLike[str]) -> int | None:
    """The descriptor that a name to read from means; None for an ordinary file."""
    return _descriptor(path, STDIN)


def descriptor_to_write(path: str | os.PathLike[str]) -> int | None:
    """The descriptor that a name to write to means; None for an ordinary file."""
    return _descriptor(path, STDOUT)


def _descriptor(path: str | os.PathLike[str], standard: int) -> int | None:
    text = os.fsdecode(os.fspath(path))
    if text == "-":
        return standard
    if text in _NAMED:
        return _NAMED[text]
    match = _NUMBERED.fullmatch(text)
    return int(match[1]) if match else None


def read_descriptor(descriptor: int, most: int) -> bytes:
    """Up to `most` bytes, until the other side ends."""
    parts, missing = [], most
    while missing and (part := os.read(descriptor, min(missing, 2**20))):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def write_descriptor(descriptor: int, data: bytes) -> None:
    """All bytes."""
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except BrokenPipeError:
        raise BrokenPipeError from None  # without its number, by which typer would take it for an error of ours
