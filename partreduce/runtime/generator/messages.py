"""Define the messages between workers and the group service, with strict parsing, and the job's key.

The key is random per job and is the secret of the service's `transport.endpoint`. It is in a file that only its owner
can read, or in the environment variables that the launcher passes to its children; never in the store, which any
process that reaches its port can read.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from partreduce.schedulers.protocols.group_generator import service as protocol
from partreduce.schedulers.protocols.group_generator.buffers import GroupBuffers, Outstanding
from partreduce.topo.document.writer import replace_file
from partreduce.topo.errors import FileError, InputError

KEY_BYTES = 32
SERVICE = -1  # rank of the group service at an endpoint
MAX_REQUEST_BYTES, MAX_REPLY_BYTES = 1024, 2**20
LEASE_SHARE = 0.75  # default lease / timeout of the run; a worker stopped for half the timeout is not evicted
MAX_NUMBER = 2**53
KINDS = (protocol.Grant, protocol.Alone, protocol.Later, protocol.Bye, protocol.Void, protocol.Evicted)
REPLIES: dict[str, type[protocol.Reply]] = {kind.__name__.lower(): kind for kind in KINDS}
ASK, ALIVE, GOODBYE = "ask", "alive", "goodbye"
REFUSED, LEASE = "refused ", "lease"
PER_WORKER = ("requests", "counts", "alone", "status", "waiting", "costs")


def new_key() -> str:
    """Return a new random key for a job."""
    return secrets.token_hex(KEY_BYTES)


def key_in(text: str, source: str) -> str:
    """Return the job's key in `text`, the text of the file or variable `source`. Raises InputError if it holds none."""
    if re.fullmatch(rf"[0-9a-f]{{{2 * KEY_BYTES}}}\s*", text) is None:
        raise InputError(f"{source}: does not hold the keys of a job; let `partreduce generator` write them")
    return text.strip()


def write_key(path: str | os.PathLike[str], key: str) -> None:
    """Write the key to a file that only its owner can read. Raises FileError if that fails."""
    try:
        replace_file(Path(path), key.encode(), mode=0o600)
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from None


def read_key(path: str | os.PathLike[str]) -> str:
    """Read the job's key from a file. Raises FileError if other users may read it, InputError if it holds no key."""
    try:
        with open(path, encoding="utf-8") as stream:  # noqa: PTH123 - the open file's mode is what counts
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            text = stream.read(4096)
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read as a key file: {error}") from None
    if mode & 0o077:
        raise FileError(f"{path}: others can read this key file (mode {mode:o}); run `chmod 600` on it")
    return key_in(text, str(path))


@dataclass(frozen=True, slots=True)
class FromWorker:
    """Message from a worker to the group service: a heartbeat, with the request that awaits an answer (`ask`), if any.

    `session` is a random number of the worker's process; `goodbye` says that the worker has ended; `patience` is the
    run's timeout in milliseconds (0: unknown).
    """

    rank: int
    session: int
    ask: protocol.Ask | None = None
    goodbye: bool = False
    patience: int = 0

    def packed(self) -> tuple[str, list[int]]:
        if self.ask is not None:
            return ASK, [self.session, self.patience, *plain_ask(self.ask)]
        return GOODBYE if self.goodbye else ALIVE, [self.session, self.patience]


def unpack_request(rank: int, kind: str, numbers: Sequence[int], num_workers: int) -> FromWorker:
    """Parse a worker's message of this `kind` (such as `ASK`), received from `rank`. Raises InputError if not valid."""
    if not 0 <= rank < num_workers:
        raise InputError(f"rank: is not a number in 0..{num_workers - 1}")
    if kind not in (ASK, ALIVE, GOODBYE) or len(numbers) < 2:
        raise InputError("message: is none that a worker sends")
    session, patience, *ask = numbers
    if not 0 <= session < MAX_NUMBER:
        raise InputError("session: is not a number that a process draws")
    if not 0 <= patience < MAX_NUMBER:
        raise InputError("patience: is not a number of milliseconds")
    if kind != ASK and not ask:
        return FromWorker(rank, session, goodbye=kind == GOODBYE, patience=patience)
    right = kind == ASK and len(ask) == 6 and all(-1 <= number < MAX_NUMBER for number in ask)
    if not right or ask[0] < 0 or ask[5] < 0 or not set(ask[2:5]) <= {0, 1}:
        raise InputError("ask: is not [request, done, last, failed, computed, cost]")
    return FromWorker(rank, session, ask_of(ask), patience=patience)


def plain_ask(ask: protocol.Ask) -> list[int]:
    """Encode a request as integers, without `salt`, a field that only the model checker uses."""
    return [ask.request, ask.done, int(ask.last), int(ask.failed), int(ask.computed), ask.cost]


def ask_of(numbers: Sequence[int]) -> protocol.Ask:
    """Decode a request that `plain_ask` encoded."""
    request, done, last, failed, computed, cost = numbers
    return protocol.Ask(request, done, bool(last), bool(failed), bool(computed), cost)


@dataclass(frozen=True, slots=True)
class Lease:
    """The service's answer to a heartbeat: the failed ranks, and `lease`, the ms of silence after which it evicts."""

    failed: tuple[int, ...]
    lease: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """The service's answer to an invalid message, with the reason."""

    why: str


def pack_reply(reply: protocol.Reply | Rejection | Lease) -> tuple[str, list[int]]:
    """Encode an answer of the service as (kind, integers)."""
    if isinstance(reply, Rejection):
        return REFUSED + reply.why[:200], []
    if isinstance(reply, Lease):
        return LEASE, [reply.lease, *reply.failed]
    numbers = [number for value in astuple(reply) for number in (value if isinstance(value, tuple) else (value,))]
    return type(reply).__name__.lower(), numbers


def unpack_reply(kind: str, numbers: Sequence[int]) -> protocol.Reply | Rejection | Lease:
    """Decode an answer of the service, named by its `kind` (`REPLIES`). Raises InputError if it is not valid."""
    if kind.startswith(REFUSED) and not numbers:
        return Rejection(kind.removeprefix(REFUSED)[:200])
    if kind == LEASE and numbers:
        return Lease(tuple(numbers[1:]), numbers[0])
    if kind not in REPLIES or not all(-1 <= number < MAX_NUMBER for number in numbers):
        raise InputError("reply: is none that the generator sends")
    make: Any = REPLIES[kind]
    single = len(fields(make)) - (make is protocol.Grant)
    if len(numbers) < single or (make is not protocol.Grant and len(numbers) > single):
        raise InputError("reply: has too few or too many numbers")
    reply: protocol.Reply = make(*numbers[:single], *([tuple(numbers[single:])] if make is protocol.Grant else []))
    return reply


def pack_state(state: protocol.GeneratorState) -> dict[str, Any]:
    """Encode the state of the service as a JSON object, for a log that begins with this state."""
    buffers = state.buffers
    names = [field.name for field in fields(state) if field.name not in ("buffers", "answers")]
    raw: dict[str, Any] = {name: getattr(state, name) for name in names}
    raw["answers"] = [None if answer is None else pack_reply(answer) for answer in state.answers]
    raw["groups"] = [[group.seq, group.members, group.active] for group in buffers.groups]
    return raw | {"queues": buffers.buffers, "locks": buffers.locks, "next_seq": buffers.next_seq}


def unpack_state(raw: dict[str, Any]) -> protocol.GeneratorState:
    """Decode a state that `pack_state` encoded; its checksum in the log was checked before."""
    groups = tuple(Outstanding(seq, tuple(members), tuple(active)) for seq, members, active in raw["groups"])
    buffers = GroupBuffers(groups, tuple(map(tuple, raw["queues"])), tuple(raw["locks"]), raw["next_seq"])
    answers: tuple[Any, ...] = tuple(None if answer is None else unpack_reply(*answer) for answer in raw["answers"])
    rest: dict[str, Any] = {name: tuple(raw[name]) for name in PER_WORKER}
    rest["known"] = tuple(map(tuple, raw["known"]))
    rest |= {name: raw[name] for name in ("generation", "draws", "apart")}
    return protocol.GeneratorState(buffers=buffers, answers=answers, **rest)
