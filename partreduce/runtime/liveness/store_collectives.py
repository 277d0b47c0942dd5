"""Gather texts from other workers through the store, failing early if one dies, and broadcast worker 0's decisions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from partreduce.runtime.liveness.wait_chain import format_workers
from partreduce.runtime.transport.store import Notes, Pauses, deaths_of
from partreduce.runtime.transport.waiting import Deadline
from partreduce.runtime.transport.worlds import World
from partreduce.topo.errors import InputError, PartreduceError, PeerFailedError, UnavailableError

LOOK_SECONDS = 0.2
ABSENT: dict[str, type[PartreduceError]] = {"PeerFailedError": PeerFailedError, "UnavailableError": UnavailableError}
"""Errors of worker 0, by name, that all workers raise as they are; any other becomes an InputError."""


def broadcast_decision(world: World, prefix: str, decide: Callable[[], Any], timeout: float, *, who: str) -> Any:  # noqa: ANN401 - JSON
    """Return worker 0's result of `decide()`, a JSON value, on all workers; a PartreduceError there is raised on all.

    Each decision needs a new `prefix` of keys in the store; `who` begins error messages; `timeout` is in seconds.
    """
    if world.rank == 0:
        try:
            answer = {"decision": decide()}
        except PartreduceError as error:
            answer = {"problem": str(error), "kind": type(error).__name__}
        Notes(world.store, prefix).write("says", json.dumps(answer))
    (text,) = gather_from_store(world, prefix, {"says": 0}, timeout, who=who)
    received = json.loads(text)
    if "problem" in received:
        raise ABSENT.get(received["kind"], InputError)(received["problem"])
    return received["decision"]


def gather_from_store(world: World, prefix: str, writers: Mapping[str, int], timeout: float, *, who: str) -> list[str]:
    """Return the texts that workers write to the store under `prefix`, in the order of `writers` (key → rank).

    `who` begins error messages. Raises PeerFailedError if a writer dies, UnavailableError after `timeout` seconds.
    """
    notes, deadline, look, pauses = Notes(world.store, prefix), Deadline(timeout), 0.0, Pauses()
    gathered: dict[str, str] = {}
    while missing := [key for key in writers if key not in gathered]:
        gathered |= {key: text for key in missing if (text := notes.read(key)) is not None}
        late = [rank for key, rank in writers.items() if key not in gathered]
        now = time.monotonic()
        if late and now > look:
            look = now + LOOK_SECONDS
            if (why := deaths_of(world.store, late)) is not None:
                raise PeerFailedError(f"{who}: {why}")
        if late and deadline.is_over:
            raise UnavailableError(f"{who}: {format_workers(late)} did not answer within {timeout:g} s")
        if late:
            pauses.sleep()
    return [gathered[key] for key in writers]
