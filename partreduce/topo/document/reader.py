"""Strict reading of JSON: size, encoding and nesting are limited before parsing; ambiguous documents raise an error.

JSON parsers disagree on duplicate keys, huge numbers, NaN and lone surrogates. A document that one tool proves must not
be read differently by another, so each of these raises a DocumentError.
"""

from __future__ import annotations

import gc
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from partreduce.topo.errors import DocumentError, FileError
from partreduce.topo.place import child, format_value, shown_path

MAX_BYTES = 16 * 2**20
MAX_DEPTH = 32
MAX_FAULTS = 1000
MAX_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly; larger numbers are written as strings."""

STDIN, STDOUT, STDERR = 0, 1, 2
_NAMED = {"/dev/stdin": STDIN, "/dev/stdout": STDOUT, "/dev/stderr": STDERR}
_NUMBERED = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,6})")
_FILE_KINDS = (
    (stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
)  # fmt: skip
_CHUNK = 2**20
_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_HALF_OF_A_PAIR = re.compile("[\ud800-\udfff]")


def descriptor_to_read(path: str | os.PathLike[str], standard: int = STDIN) -> int | None:
    """Return the open file descriptor that a path names: N for `/dev/fd/N`, `standard` for `-`; None for other paths.

    Use the descriptor itself. To open it again by name fails for pipes: without blocking, a pipe is empty until its
    writer has written, and its resolved name (`pipe:[123]`) does not exist.
    """
    text = os.fsdecode(os.fspath(path))
    if text == "-":
        return standard
    if text in _NAMED:
        return _NAMED[text]
    match = _NUMBERED.fullmatch(text)
    return int(match[1]) if match else None


def descriptor_to_write(path: str | os.PathLike[str]) -> int | None:
    """Return the open file descriptor that an output path names: 1 for `-`, N for `/dev/fd/N`; None for other paths."""
    return descriptor_to_read(path, STDOUT)


def read_bytes(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """Read at most `max_bytes` from a regular file, a link to one, or a descriptor (`/dev/fd/N`, `-`).

    Raises:
        FileError: the file cannot be opened or read.
        DocumentError: the content is larger, or the path is a folder, FIFO, socket or device.
    """
    source, connected = shown_path(path), descriptor_to_read(path)
    try:
        # O_NONBLOCK: opening a FIFO without a writer would otherwise block forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) if connected is None else connected
    except (OSError, ValueError) as error:
        raise FileError(f"{source}: cannot be opened: {getattr(error, 'strerror', None) or error}") from None
    parts, missing = [], max_bytes + 1
    try:
        if connected is None:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                kind = next((name for test, name in _FILE_KINDS if test(status.st_mode)), "no regular file")
                raise DocumentError("", f"is {kind}; a document is a regular file", source)
            if status.st_size > max_bytes:
                _too_large(status.st_size, max_bytes, source)
        while missing and (part := os.read(descriptor, min(missing, _CHUNK))):
            parts.append(part)
            missing -= len(part)
    except OSError as error:
        raise FileError(f"{source}: cannot be read: {error.strerror or error}") from None
    finally:
        if connected is None:
            os.close(descriptor)
    if not missing:
        _too_large(max_bytes + 1, max_bytes, source)
    return b"".join(parts)


def _too_large(size: int, max_bytes: int, source: str) -> NoReturn:
    raise DocumentError(
        "document",
        f"is {size} bytes or more; the limit is {max_bytes} bytes; raise the limit if you trust the file",
        source,
    )


@contextmanager
def in_file(source: str) -> Iterator[None]:
    """Context manager: add the file name `source`, if not empty, to every DocumentError raised inside."""
    try:
        yield
    except DocumentError as error:
        raise DocumentError(error.place, error.problem, error.source or source) from None


def read_json(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> object:
    """Read and parse a JSON file; raise FileError if it cannot be read, DocumentError as `parse_json` does."""
    return parse_json(read_bytes(path, max_bytes), max_bytes=max_bytes, source=shown_path(path))


def parse_json(data: bytes, *, max_bytes: int = MAX_BYTES, source: str = "") -> object:
    """Parse one JSON document strictly: UTF-8, depth <= 32, no duplicate keys, no NaN, no |integer| >= 2**53.

    Raises DocumentError for any other content; its message names the file `source`. O(len(data)).
    """
    with in_file(source):
        text = decode(data, max_bytes=max_bytes)
        check_depth(data)
        return _parse(text, data, source)


def _parse(text: str, data: bytes, source: str) -> object:
    faults: list[_Fault] = []
    hooks = _Hooks(faults)
    long_numbers = _has_long_numbers(data)
    decoder = json.JSONDecoder(
        object_pairs_hook=hooks.pairs,
        parse_constant=hooks.constant,
        parse_int=hooks.integer if long_numbers else None,
        parse_float=hooks.number if long_numbers else None,
    )
    try:
        with collector_paused():
            value = decoder.decode(text)
    except _TooManyFaultsError:
        first = faults[0].problem
        raise DocumentError("document", f"has more than {MAX_FAULTS} faults; a value {first}") from None
    except json.JSONDecodeError as error:
        place = f"{error.lineno}:{error.colno}"
        reason = f"is not JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        problem = "ends too early" if error.pos >= len(text.rstrip()) else reason
        raise DocumentError(place, f"{problem}; {_way_out(source)}") from None
    if faults or _SURROGATE.search(data):
        for place, problem in _faults_in(value, ""):
            raise DocumentError(place or "document", problem)
    return value


def _way_out(source: str) -> str:
    """Return the remedy for a file that is not JSON, by the ending of its name `source` (.yaml, .yml, .py, other)."""
    if source.endswith((".yaml", ".yml")):
        return f"it looks like a cluster file; partreduce design {source} -o schedule.json makes a schedule for it"
    if source.endswith(".py"):
        example = f"partreduce verify {source}:NAME --cluster CLUSTER --period N"
        return f"it looks like a script; {example} verifies a function"
    return "the file may be cut off or hand-edited; write it again"


def decode(data: bytes, *, max_bytes: int = MAX_BYTES, source: str = "") -> str:
    """Decode UTF-8; raise DocumentError for other encodings, a byte-order mark, no text, or over `max_bytes`."""
    if len(data) > max_bytes:
        _too_large(len(data), max_bytes, source)
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise DocumentError("1:1", "starts with a byte-order mark; save it as UTF-8 without one", source)
    if not data or data.isspace():
        raise DocumentError("1:1", "is empty; the file may be cut off; write it again", source)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        where = line_column(data, error.start)
        raise DocumentError(where, "is not UTF-8; save the file in UTF-8", source) from None


def line_column(data: bytes, offset: int) -> str:
    """Return a byte offset as `line:column`, both counted from 1."""
    return f"{data.count(10, 0, offset) + 1}:{offset - data.rfind(10, 0, offset)}"


def check_depth(data: bytes) -> None:
    """Raise DocumentError for nesting deeper than 32, before the recursive parser runs. One vectorized pass."""
    # Blank escaped backslashes and quotes, keeping every offset: each remaining quote opens or closes a string.
    blank = data.replace(rb"\\", b"  ").replace(rb"\"", b"  ") if b"\\" in data else data
    depth, inside = 0, 0
    for start in range(0, len(blank), _CHUNK):
        chunk = np.frombuffer(blank, dtype=np.uint8, count=min(_CHUNK, len(blank) - start), offset=start)
        # Counting modulo 256 keeps the parity, which is all that is needed: odd means inside a string.
        quotes = np.cumsum(chunk == 34, dtype=np.uint8) + np.uint8(inside)
        lower = chunk | 32  # '[' and '{' differ in one bit, and so do ']' and '}'
        where = np.flatnonzero(((lower == 123) | (lower == 125)) & (quotes & 1 == 0))
        steps = np.cumsum(np.where(lower[where] == 123, 1, -1)) + depth
        if len(steps):
            if steps.max() > MAX_DEPTH:
                offset = start + int(where[int(np.argmax(steps > MAX_DEPTH))])
                problem = f"is nested deeper than {MAX_DEPTH} levels; no document of ours is"
                raise DocumentError(line_column(data, offset), problem)
            depth = int(steps[-1])
        inside = int(quotes[-1]) & 1


def _has_long_numbers(data: bytes) -> bool:
    """Whether a number in JSON text may be out of range, so that the parser must check each, which is slow."""
    same = data.translate(_DIGITS)
    return b"0" * 16 in same or b"e000" in same or b"e+000" in same


class _Fault(NamedTuple):
    """A placeholder in the parsed value for an invalid part; `_faults_in` finds its path afterwards."""

    problem: str


class _TooManyFaultsError(Exception):
    """Stops parsing once the document has `MAX_FAULTS` errors."""


@dataclass
class _Hooks:
    """Callbacks of the JSON decoder, which does not know paths: they put a `_Fault` into the value."""

    faults: list[_Fault]

    def _fault(self, problem: str) -> _Fault:
        if len(self.faults) == MAX_FAULTS:
            raise _TooManyFaultsError
        self.faults.append(_Fault(problem))
        return self.faults[-1]

    def pairs(self, pairs: list[tuple[str, object]]) -> object:
        value = dict(pairs)
        if len(value) != len(pairs):
            seen: set[str] = set()
            key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            return self._fault(f"has the key {format_value(key)} twice; keep one of them")
        return value

    def constant(self, text: str) -> object:
        return self._fault(f"is {text}; numbers are finite")

    def integer(self, text: str) -> object:
        if len(text) <= 17 and abs(int(text)) <= MAX_INTEGER:
            return int(text)
        shown = f"is {format_value(text)[1:-1]}, an integer beyond ±(2**53 − 1)"
        return self._fault(f"{shown}, others would round it: write a smaller one")

    def number(self, text: str) -> object:
        if math.isfinite(value := float(text)):
            return value
        return self._fault(f"is {format_value(text)[1:-1]}, which overflows; numbers are finite")


def _faults_in(value: object, place: str) -> Iterator[tuple[str, str]]:
    """Yield (path, problem) of every recorded error and every lone surrogate, in document order.

    The recursion is bounded by `check_depth`.
    """
    if isinstance(value, _Fault):
        yield place, value.problem
    elif isinstance(value, str):
        if _HALF_OF_A_PAIR.search(value):
            yield place, f"is {format_value(value)}, which holds half of a surrogate pair; it is not a text"
    elif isinstance(value, dict):
        for key, item in value.items():
            if _HALF_OF_A_PAIR.search(key):
                yield place, f"has the key {format_value(key)}, which holds half of a surrogate pair; it is not a text"
            yield from _faults_in(item, child(place, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if not isinstance(item, int | float):
                yield from _faults_in(item, child(place, index))


@contextmanager
def collector_paused() -> Iterator[None]:
    """Context manager: pause Python's garbage collector, which would scan millions of new objects again and again."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def is_file(text: str) -> bool:
    """Whether a text is the path of an existing file or folder, or `-` (standard input); never raises."""
    try:
        return text == "-" or Path(text).exists()
    except (OSError, ValueError):
        return False
