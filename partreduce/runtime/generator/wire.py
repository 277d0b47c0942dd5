"""Messages of the group generator as bytes: small JSON objects, read strictly, because anybody may send anything."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from partreduce.schedulers.protocols.group_generator.buffers import GroupBuffers, Outstanding
from partreduce.schedulers.protocols.group_generator.service import (
    Alone,
    Ask,
    Bye,
    Fenced,
    GeneratorState,
    Grant,
    Later,
    Reply,
    Void,
)
from partreduce.topo.errors import InputError

MAX_REQUEST_BYTES = 1024
LEASE_SHARE = 0.75
"""The lease as a part of the run's timeout: who is stopped for half of that is not given up."""
MAX_NUMBER = 2**53
REPLIES: dict[str, type[Reply]] = {
    "grant": Grant,
    "alone": Alone,
    "later": Later,
    "bye": Bye,
    "void": Void,
    "fenced": Fenced,
}
PER_WORKER = ("requests", "counts", "alone", "status", "waiting", "costs")


@dataclass(frozen=True, slots=True)
class FromWorker:
    """What a worker sends: a sign of life, and the request that it waits on, if any.

    `patience` is its run's timeout in milliseconds, for which a worker of the run may be silent; 0 says nothing.
    """

    rank: int
    session: str
    ask: Ask | None = None
    goodbye: bool = False
    patience: int = 0


@dataclass(frozen=True, slots=True)
class Heard:
    """Answer to a sign of life: these workers were given up and take part in nothing any more.

    `lease` is for how many milliseconds the one who is answered may be silent.
    """

    lost: tuple[int, ...]
    lease: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer to a message that is not obeyed."""

    why: str


def pack_request(message: FromWorker) -> bytes:
    """As bytes."""
    raw: dict[str, Any] = {"rank": message.rank, "session": message.session}
    if message.ask is not None:
        raw["ask"] = plain_ask(message.ask)
    if message.goodbye:
        raw["goodbye"] = 1
    if message.patience:
        raw["patience"] = message.patience
    return json.dumps(raw, separators=(",", ":")).encode()


def unpack_request(data: bytes, num_workers: int) -> FromWorker:
    """Read a worker's message.

    Raises:
        InputError: anything that `pack_request` does not write.
    """
    raw = _object(data, {"rank", "session", "ask", "goodbye", "patience"})
    rank, session, ask, patience = raw.get("rank"), raw.get("session"), raw.get("ask"), raw.get("patience", 0)
    if type(rank) is not int or not 0 <= rank < num_workers:
        raise InputError(f"rank: is not a number in 0..{num_workers - 1}")
    if not isinstance(session, str) or not 1 <= len(session) <= 64 or not session.isalnum():
        raise InputError("session: is not a short word")
    if type(patience) is not int or not 0 <= patience < MAX_NUMBER:
        raise InputError("patience: is not a number of milliseconds")
    if ask is None:
        return FromWorker(rank, session, goodbye="goodbye" in raw, patience=patience)
    right = isinstance(ask, list) and len(ask) == 6 and all(type(n) is int and -1 <= n < MAX_NUMBER for n in ask)
    if not right or ask[0] < 0 or ask[5] < 0 or not set(ask[2:5]) <= {0, 1}:
        raise InputError("ask: is not [request, done, last, failed, computed, cost]")
    return FromWorker(rank, session, ask_of(ask), patience=patience)


def plain_ask(ask: Ask) -> list[int]:
    """A request as numbers; its salt is the explorer's alone."""
    return [ask.request, ask.done, int(ask.last), int(ask.failed), int(ask.computed), ask.cost]


def ask_of(numbers: list[int]) -> Ask:
    """The request of numbers that `plain_ask` wrote."""
    request, done, last, failed, computed, cost = numbers
    return Ask(request, done, bool(last), bool(failed), bool(computed), cost)


def pack_reply(reply: Reply | Refused | Heard) -> bytes:
    """As bytes."""
    if isinstance(reply, Heard):
        return json.dumps({"lost": reply.lost, "lease": reply.lease}, separators=(",", ":")).encode()
    if isinstance(reply, Refused):
        return json.dumps({"refused": reply.why[:200]}).encode()
    return json.dumps(_plain_reply(reply), separators=(",", ":")).encode()


def unpack_reply(data: bytes) -> Reply | Refused | Heard:
    """Read the generator's message.

    Raises:
        InputError: anything that `pack_reply` does not write.
    """
    raw = _object(data, {*REPLIES, "refused", "lost", "lease"})
    lost, lease = raw.get("lost"), raw.get("lease")
    if len(raw) == 2 and isinstance(lost, list) and type(lease) is int and all(type(rank) is int for rank in lost):
        return Heard(tuple(lost), lease)
    if set(raw) == {"refused"} and isinstance(raw["refused"], str):
        return Refused(raw["refused"][:200])
    return _reply(raw)


def pack_state(state: GeneratorState) -> dict[str, Any]:
    """A state as a JSON object, for the log's first record."""
    buffers = state.buffers
    names = [f.name for f in fields(state) if f.name not in ("buffers", "answers")]
    raw: dict[str, Any] = {name: getattr(state, name) for name in names}
    raw["answers"] = [None if answer is None else _plain_reply(answer) for answer in state.answers]
    raw["groups"] = [[group.seq, group.members, group.active] for group in buffers.groups]
    return raw | {"queues": buffers.buffers, "locks": buffers.locks, "next_seq": buffers.next_seq}


def unpack_state(raw: dict[str, Any]) -> GeneratorState:
    """The state of a JSON object that `pack_state` wrote (the log's checksum has vouched for it)."""
    groups = tuple(Outstanding(seq, tuple(members), tuple(active)) for seq, members, active in raw["groups"])
    buffers = GroupBuffers(groups, tuple(map(tuple, raw["queues"])), tuple(raw["locks"]), raw["next_seq"])
    answers: tuple[Any, ...] = tuple(None if answer is None else _reply(answer) for answer in raw["answers"])
    rest: dict[str, Any] = {name: tuple(raw[name]) for name in PER_WORKER}
    rest["known"] = tuple(map(tuple, raw["known"]))
    rest |= {name: raw[name] for name in ("generation", "draws", "apart")}
    return GeneratorState(buffers=buffers, answers=answers, **rest)


def _plain_reply(reply: Reply) -> dict[str, Any]:
    name = next(name for name, kind in REPLIES.items() if type(reply) is kind)
    return {name: [getattr(reply, f.name) for f in fields(reply)]}


def _reply(raw: dict[str, Any]) -> Reply:
    name, values = next(iter(raw.items()))
    kind = REPLIES.get(name)
    if kind is None or len(raw) != 1 or not isinstance(values, list) or len(values) != len(fields(kind)):
        raise InputError("reply: is none that the generator sends")
    numbers = [v for value in values for v in (value if isinstance(value, list) else [value])]
    if not all(type(n) is int and -1 <= n < MAX_NUMBER for n in numbers):
        raise InputError("reply: holds something that is not a number")
    make: Any = kind
    reply: Reply = make(*(tuple(value) if isinstance(value, list) else value for value in values))
    return reply


def _object(data: bytes, known: set[str]) -> dict[str, Any]:
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError("message: is not JSON") from None
    if not isinstance(raw, dict) or not raw or not set(raw) <= known:
        raise InputError("message: is not an object with known keys")
    return raw
