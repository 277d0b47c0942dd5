"""Write-ahead log: what the generator was told, on disk before anybody hears the answer.

A record is a length, a checksum of the length, a checksum of the content, and the content. A last record that was not
written to its end is cut off, because nobody was answered on its account; damage anywhere else is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

from partreduce.topo.errors import FileError, UnavailableError

MAGIC = b"partreduce.generator.log 2\n"
HEAD = struct.Struct(">III")
MAX_RECORD = 64 * 2**20


class Log:
    """An open log, locked against a second service. `records` are the contents found when it was opened.

    Raises:
        UnavailableError: another service has it open.
        FileError: it is damaged, is no log, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FileError(f"{self.path}: cannot be opened as the generator's log: {error.strerror}") from None
        try:
            self._lock()
            self.records = self._read()
        except BaseException:
            os.close(self._file)
            raise

    def append(self, contents: Iterable[bytes]) -> None:
        """Write records and wait until the disk has them.

        Raises:
            FileError: the disk is full or failed; nothing may be answered then.
        """
        data = b"".join(_framed(content) for content in contents)
        if not data:
            return
        try:
            _write(self._file, data)
            os.fdatasync(self._file)
        except OSError as error:
            raise FileError(f"{self.path}: cannot be written: {error.strerror}") from None

    def replace(self, contents: Iterable[bytes]) -> None:
        """Put a new log into the old one's place at once: either is there after a crash, never a mixture."""
        temporary = self.path.with_name(self.path.name + ".new")
        try:
            fresh = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            _write(fresh, MAGIC + b"".join(_framed(content) for content in contents))
            os.fsync(fresh)
            fcntl.flock(fresh, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.rename(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
        except OSError as error:
            raise FileError(f"{self.path}: cannot be rewritten: {error.strerror}") from None
        os.close(self._file)
        self._file = fresh

    def size(self) -> int:
        return os.fstat(self._file).st_size

    def close(self) -> None:
        """Let another service have it."""
        with contextlib.suppress(OSError):
            os.close(self._file)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UnavailableError(f"{self.path}: another group generator has this log open; stop it first") from None
        if os.fstat(self._file).st_ino != self.path.stat().st_ino:  # replaced between opening and locking
            raise UnavailableError(f"{self.path}: another group generator has just rewritten this log; start again")

    def _read(self) -> list[bytes]:
        os.lseek(self._file, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._file), "rb") as stream:
            data = stream.read()
        if len(data) < len(MAGIC) and MAGIC.startswith(data):
            os.ftruncate(self._file, 0)
            os.lseek(self._file, 0, os.SEEK_SET)
            _write(self._file, MAGIC)
            os.fsync(self._file)
            return []
        if not data.startswith(MAGIC):
            raise FileError(f"{self.path}: is not a group generator's log")
        records, place = [], len(MAGIC)
        while place < len(data):
            content = _record_at(data, place)
            if content is None:
                if not _is_torn(data, place):
                    raise FileError(
                        f"{self.path}: the record at byte {place} is damaged; groups may have been handed out on its "
                        "account, so the job cannot go on from this log"
                    )
                os.ftruncate(self._file, place)
                os.fsync(self._file)
                break
            records.append(content)
            place += HEAD.size + len(content)
        os.lseek(self._file, 0, os.SEEK_END)
        return records


def _framed(content: bytes) -> bytes:
    length = struct.pack(">I", len(content))
    return HEAD.pack(len(content), zlib.crc32(length), zlib.crc32(content)) + content


def _record_at(data: bytes, place: int) -> bytes | None:
    if place + HEAD.size > len(data):
        return None
    length, check, sum_ = HEAD.unpack_from(data, place)
    content = data[place + HEAD.size : place + HEAD.size + length]
    if zlib.crc32(data[place : place + 4]) != check or len(content) < length or zlib.crc32(content) != sum_:
        return None
    return content


def _is_torn(data: bytes, place: int) -> bool:
    """Whether a bad record can be an append that a crash cut off: it ends early, or in zeros of unwritten blocks."""
    rest = data[place:]
    if len(rest) < HEAD.size or not rest.strip(b"\0"):
        return True
    length, check, _ = HEAD.unpack_from(rest)
    if zlib.crc32(rest[:4]) != check or length > MAX_RECORD:
        return False
    end = HEAD.size + length
    return len(rest) < end or (len(rest) == end and rest.endswith(b"\0"))


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
