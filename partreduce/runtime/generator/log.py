"""Write the group service's write-ahead log: each received message is on disk before it is answered."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from partreduce.topo.errors import FileError, UnavailableError

APPLICATION = 0x50524747
OLD_LOG = b"partreduce.generator.log"
LOG_ENDINGS = ("-wal", "-journal")  # suffixes of SQLite's files next to a log
PAGE_BYTES = 512
HEADER_BYTES, FRAME_BYTES = 32, 24 + PAGE_BYTES  # in SQLite's write-ahead file; a frame holds one page


class Log:
    """Write-ahead log of the messages that the group service received; locked against a second service.

    An SQLite database of one table in WAL mode, synced to disk after every batch; `records` are its rows when it was
    opened. SQLite drops records that a crash cut off; these were never answered. Any other damage raises FileError.
    SQLite detects neither a changed row nor a missing commit: so each row has a checksum of all rows up to it, and the
    WAL file is searched for commits that SQLite does not see.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self._ahead, self._checksum = Path(path), Path(f"{os.fspath(path)}-wal"), 0
        try:
            with contextlib.suppress(FileExistsError):  # only if new: closing it later would drop this process's locks
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            ahead = self._ahead.read_bytes() if self._ahead.exists() else b""
            self._database = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            why = getattr(error, "strerror", None) or error
            raise FileError(f"{self.path}: cannot be opened as the generator's log: {why}") from None
        try:
            self.records = self._read_lines(ahead)
        except (sqlite3.Error, UnicodeError) as error:  # a damaged name may be no text
            self.close()
            code = getattr(error, "sqlite_errorcode", None)
            if code == sqlite3.SQLITE_BUSY:
                text = f"{self.path}: another group generator has this log open; stop it first"
                raise UnavailableError(text) from None
            raise (self._foreign() if code == sqlite3.SQLITE_NOTADB else self._damage_error(str(error))) from None
        except BaseException:
            self.close()
            raise

    def append(self, contents: Iterable[bytes], *, instead: bool = False) -> None:
        """Write records and wait until they are on disk, all or none; with `instead` they replace all earlier ones."""
        rows, checksum = [], 0 if instead else self._checksum
        for content in contents:
            checksum = zlib.crc32(content, checksum)
            rows.append((checksum, content))
        try:
            self._ask("BEGIN")
            if instead:
                self._ask("DELETE FROM facts")
            self._database.executemany("INSERT INTO facts VALUES (?, ?)", rows)
            self._ask("COMMIT")
            if instead:
                self._ask("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._ask("ROLLBACK")
            raise FileError(f"{self.path}: cannot be written: {error}") from None
        self._checksum = checksum

    def size(self) -> int:
        """Return the number of bytes written since the log was opened or last replaced."""
        return self._ahead.stat().st_size

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._database.close()

    def _read_lines(self, ahead: bytes) -> list[bytes]:
        self._ask("PRAGMA locking_mode=EXCLUSIVE")
        ((application,),) = self._ask("PRAGMA application_id")
        is_new = application == 0 and not self._ask("SELECT name FROM sqlite_master")
        if not is_new and application != APPLICATION:
            raise self._foreign()
        for setting in (f"page_size={PAGE_BYTES}", "journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0"):
            self._ask(f"PRAGMA {setting}")
        ((_, frames, _),) = [(0, 0, 0)] if is_new else self._ask("PRAGMA wal_checkpoint(PASSIVE)")
        if _has_commit(ahead[HEADER_BYTES + frames * FRAME_BYTES :]):
            raise self._damage_error("a commit in its write-ahead file cannot be read")
        if is_new:
            table = "CREATE TABLE facts (checksum INTEGER NOT NULL, fact BLOB NOT NULL)"
            for statement in ("BEGIN", f"PRAGMA application_id={APPLICATION}", table, "COMMIT"):
                self._ask(statement)
        if (found := self._ask("PRAGMA integrity_check")) != [("ok",)]:
            raise self._damage_error(found[0][0].replace("\n", " "))
        records = []
        for number, (checksum, fact) in enumerate(self._ask("SELECT checksum, fact FROM facts ORDER BY rowid")):
            self._checksum = zlib.crc32(fact, self._checksum) if isinstance(fact, bytes) else -1
            if checksum != self._checksum:
                raise self._damage_error(f"record {number}")
            records.append(fact)
        self._ask("PRAGMA wal_checkpoint(TRUNCATE)")
        return records

    def _foreign(self) -> FileError:
        with self.path.open("rb") as stream:
            if stream.read(len(OLD_LOG)) != OLD_LOG:
                return FileError(f"{self.path}: is not a group generator's log")
        return FileError(
            f"{self.path}: is a log of an earlier version, which this one cannot read; end the job with the version "
            "that wrote it, or name a new log, which begins without groups"
        )

    def _damage_error(self, what: str) -> FileError:
        return FileError(
            f"{self.path}: is damaged ({what}); groups may have been handed out on account of what is lost, so the job "
            "cannot continue from this log"
        )

    def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        return self._database.execute(statement).fetchall()


def _has_commit(frames: bytes) -> bool:
    """Return whether the bytes `frames` of SQLite's WAL file contain the end of a commit; zeros are unwritten space."""
    whole = (frames[place : place + FRAME_BYTES] for place in range(0, len(frames) - FRAME_BYTES + 1, FRAME_BYTES))
    return any(any(frame[4:8]) and frame[-1] for frame in whole)
