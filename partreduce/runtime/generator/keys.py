"""Keys of one job: a CURVE pair for the generator and one for the job's workers, made afresh for every job.

They travel in a file that only its owner can read, or in the environment that the launcher gives its children; never
through the store, which anybody who reaches its port can read.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from partreduce.topo.errors import FileError, InputError, MissingDependencyError
from partreduce.topo.extras import load

KEY_LENGTH = 40


@dataclass(frozen=True, slots=True)
class JobKeys:
    """`service_secret` is empty in what the workers get; all are Z85 texts of 40 characters."""

    service_public: str
    worker_public: str
    worker_secret: str
    service_secret: str = ""

    @classmethod
    def make(cls) -> JobKeys:
        """New keys.

        Raises:
            MissingDependencyError: pyzmq is absent or was built without CURVE.
        """
        zmq = load("zmq", "the group generator")
        if not zmq.has("curve"):
            raise MissingDependencyError("the group generator needs CURVE; this pyzmq was built without it")
        service_public, service_secret = (key.decode() for key in zmq.curve_keypair())
        worker_public, worker_secret = (key.decode() for key in zmq.curve_keypair())
        return cls(service_public, worker_public, worker_secret, service_secret)

    def for_workers(self) -> JobKeys:
        """What a worker needs, and no more."""
        return JobKeys(self.service_public, self.worker_public, self.worker_secret)

    def text(self) -> str:
        """As JSON, for a file or an environment variable."""
        return json.dumps({name: value for name, value in asdict(self).items() if value})

    @classmethod
    def parse(cls, text: str, source: str) -> JobKeys:
        """Read what `text` wrote.

        Raises:
            InputError: anything else; the text itself is not shown.
        """
        names = {"service_public", "worker_public", "worker_secret", "service_secret"}
        try:
            raw = json.loads(text)
            fits = isinstance(raw, dict) and set(raw) <= names and all(isinstance(v, str) for v in raw.values())
            keys = cls(**raw) if fits else None
        except (ValueError, TypeError, RecursionError):
            keys = None
        if keys is None or any(
            len(key) != KEY_LENGTH and (key or name != "service_secret") for name, key in asdict(keys).items()
        ):
            raise InputError(f"{source}: does not hold the keys of a job; let `partreduce generator` write them")
        return keys

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a file that only its owner can read.

        Raises:
            FileError: it cannot be written.
        """
        target = Path(path)
        # Beside its place, then renamed: half a key file would be taken for the keys of the job that is started next.
        beside = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(self.text())
            beside.replace(target)
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise FileError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> JobKeys:
        """Read a key file.

        Raises:
            FileError: it is absent, or others than its owner can read it.
            InputError: it does not hold keys.
        """
        try:
            with open(path, encoding="utf-8") as stream:  # noqa: PTH123 - the open file's mode is what counts
                mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
                text = stream.read(4096)
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"{path}: cannot be read as a key file: {error}") from None
        if mode & 0o077:
            raise FileError(f"{path}: others can read this key file (mode {mode:o}); run `chmod 600` on it")
        return cls.parse(text, str(path))

    @classmethod
    def read_input(cls) -> JobKeys:
        """Read what somebody writes to standard input.

        Raises:
            InputError: it does not hold keys.
        """
        return cls.parse(sys.stdin.read(4096), "standard input")
