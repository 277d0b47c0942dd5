"""Notes: small texts that the workers of a run leave for one another in its store.

The run-time calls the store here and nowhere else; only torch itself does, too, when groups connect. Every call has a
deadline (see `store_line`), and a store that is gone raises StoreLostError.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from partreduce.runtime.transport.store_line import line_to, processes_of, root_store
from partreduce.runtime.transport.torch_api import Store
from partreduce.runtime.transport.waiting import Deadline
from partreduce.topo.errors import UnavailableError

Answer = TypeVar("Answer")

DEATHS = "partreduce/dead"
"""Below all prefixes the launcher notes here how a worker ended, by rank."""
STAGES = "partreduce/stage"
"""Below all prefixes a worker notes here how far it has come, by rank, for the launcher to name when it dies."""
NOT_STARTED = "has not started a round"
"""What a worker says first; between that and its next sign it may do many rounds."""
MEMBERSHIP = "partreduce/membership"
"""Below all prefixes workers vote here and read who continues after failures (see `launcher.views`)."""
JOINED, LEFT, RELEASED, NEWS, OPEN, JOIN, ANSWER = "joined", "left", "released", "news", "open", "join", "answer"
"""There, too: the launcher asks for what workers have measured, they answer, and what it has planned from that."""
LAST_WORDS_SECONDS = 0.2
"""How long what a worker said last may come after its death."""
CHANGES = "changes"
"""Counts, under DEATHS, what workers and launcher noted of failures: who waits looks closer when it has grown."""
POLL_SECONDS, LONGEST_POLL_SECONDS = 0.002, 0.02
SHARE = 8
"""What a worker waits for is noticed at most this part of the wait too late (see `Pauses`)."""


class Pauses:
    """Between questions of one wait to the store: the longer it waits the longer they are.

    All workers wait for the launcher at one time, on cores that they share with it and with those that they wait for.
    """

    def __init__(self) -> None:
        self._start = time.monotonic()

    def sleep(self) -> None:
        waited = time.monotonic() - self._start
        time.sleep(min(LONGEST_POLL_SECONDS, max(POLL_SECONDS, waited / SHARE)))


class Notes:
    """The notes of one purpose: all their keys begin with `prefix`.

    With `own_server` the store's server is this process's own, and is asked without a thread between.
    """

    def __init__(self, store: Store, prefix: str, *, own_server: bool = False) -> None:
        self._store, self._prefix = store, prefix
        known = None if own_server else line_to(store)
        # The line speaks to the bare server, so the prefixes of the store that was given stand in its keys.
        self.line = None if known is None else known[0]
        self._keys_begin = prefix if known is None else known[1] + prefix

    def write(self, key: str, text: str) -> None:
        place = self.place(key)
        self._ask(lambda store: store.set(place, text))

    def read(self, key: str) -> str | None:
        """A note if it is there; never waits for it."""
        place = self.place(key)
        return self._ask(lambda store: store.get(place).decode() if store.check([place]) else None)

    def read_all(self, keys: Sequence[str]) -> list[str] | None:
        """These notes if all of them are there; two questions to the store, however many they are."""
        places = [self.place(key) for key in keys]

        def read(store: Store) -> list[str] | None:
            bare: Any = store  # torch's stubs lack both
            if not store.check(places):
                return None
            found = bare.multi_get(places) if bare.has_extended_api() else [store.get(place) for place in places]
            return [text.decode() for text in found]

        return self._ask(read)

    def wait_for(self, key: str) -> str:
        """A note that is there or is sure to come.

        Raises:
            UnavailableError: it did not come within the store's timeout.
        """
        bare: Any = self._store  # torch's stubs lack its timeout
        limit = bare.timeout.total_seconds() if self.line is None else self.line.timeout
        deadline, pauses = Deadline(limit), Pauses()
        while (text := self.read(key)) is None:
            if deadline.is_over:
                raise UnavailableError(f"store: nobody left the note {self.place(key)!r} within {limit:g} s")
            pauses.sleep()
        return text

    def has(self, *keys: str) -> bool:
        """Whether all these notes are there; one question to the store."""
        places = [self.place(key) for key in keys]
        return self._ask(lambda store: store.check(places))

    def remove(self, key: str) -> None:
        place = self.place(key)
        self._ask(lambda store: store.delete_key(place))

    def count(self, key: str, increase: int = 0) -> int:
        """A counter that all workers share, after this increase."""
        place = self.place(key)
        return self._ask(lambda store: store.add(place, increase))

    def propose(self, key: str, text: str) -> str:
        """The text that was proposed first under this key, by this worker or by another."""
        place = self.place(key)
        return self._ask(lambda store: store.compare_set(place, "", text).decode())

    @property
    def problem(self) -> str | None:
        """Why the store is gone, as a sentence; None while nothing is known against it."""
        line = self.line
        return None if line is None or line.problem is None else str(line.error())

    def place(self, key: str) -> str:
        """Where a note lies in the bare store, as far as the prefixes are known."""
        return f"{self._keys_begin}/{key}"

    def _ask(self, action: Callable[[Store], Answer]) -> Answer:
        return action(self._store) if self.line is None else self.line.ask(action)


class Deaths(Notes):
    """What the launcher noted of the deaths of the workers that meet in a store."""

    def __init__(self, store: Store) -> None:
        super().__init__(root_store(store), DEATHS)
        self._workers = store

    def of(self, worker: int) -> str | None:
        """How a worker died, as the rest of a clause; a replica of several processes is gone with any of them."""
        processes = processes_of(self._workers, worker)
        deaths = ((rank, self.read(str(rank))) for rank in processes)
        named = (death if processes == [worker] else f"(its rank {rank}) {death}" for rank, death in deaths if death)
        return next(named, None)


def deaths_of(store: Store, members: Iterable[int]) -> str | None:
    """What the launcher noted of the death of one of these workers, as a clause; None if nothing."""
    notes = Deaths(store)
    return next((f"worker {rank} {death}" for rank in members if (death := notes.of(rank)) is not None), None)


def publish_stage(store: Store, rank: int, stage: str, beat: str = "") -> None:
    """Say how far this worker has come, as a clause that follows "while it", and where its heartbeat is found.

    Torch's store answers no `set`; a question after it is answered when the note is there, so that not even a kill at
    the next instant loses it.
    """
    notes, process = Notes(root_store(store), STAGES), str(processes_of(store, rank)[0])
    notes.write(process, json.dumps([stage, beat]))
    notes.has(process)


def read_stage(store: Store, rank: int) -> str:
    """For the launcher, which serves the store: how far a worker had come, as the end of a sentence."""
    notes, deadline = Notes(store, STAGES, own_server=True), time.monotonic() + LAST_WORDS_SECONDS
    while (noted := notes.read(str(rank))) is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)  # torch's store answers no `set`: a note may still be on its way from a dead worker
    if noted is None:
        return "before it reached the store of the run (in imports, or before its optimizer was wrapped)"
    stage, place = json.loads(noted)
    sign = json.loads(store.get(place))[1] if place and store.check([place]) else NOT_STARTED
    return f"while it {stage}" + ("" if sign == NOT_STARTED else f"; its last sign: {sign}")
