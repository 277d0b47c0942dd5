"""Heartbeat: what workers leave in the store for one another, so that an error names a worker and not an address.

Each worker notes now and then what it does (a heartbeat), where it stopped, and what went wrong first; the launcher
notes which worker died of what. A worker that waits for others reads those notes and gives up early, with a reason,
when a member of its group can no longer come.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

from preduce.runtime.transport.notes import DEATHS, Notes, root_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from preduce.runtime.transport.torch_api import Store

BEAT_SECONDS = 0.5
UNEQUAL = "the workers' data lengths differ; put the training loop into `with optimizer.join():`"
SILENCE_SECONDS = 1.2
"""A worker whose heartbeat stood still this long is reported as giving no sign of life."""


class Heartbeat:
    """What one worker notes for the others and reads of theirs; every method tolerates a store that is gone."""

    def __init__(self, store: Store, rank: int, key: str, *, beats: bool) -> None:
        self.rank = rank
        self._notes, self._deaths = Notes(store, f"heartbeat/{key}"), Notes(root_store(store), DEATHS)
        self._doing = "has not started a round"
        self._stop = threading.Event()
        self._noted: set[str] = set()
        self._seen: dict[int, tuple[str, float]] = {}
        self._gatherings = 0
        if beats:
            threading.Thread(target=self._beat, name="preduce-heartbeat", daemon=True).start()

    def doing(self, text: str) -> None:
        """Say what this worker does now; the next heartbeat carries it."""
        self._doing = text

    def note(self, kind: str, text: str) -> None:
        """Leave a note of this worker: `failed`, `left`, `finished`; the first of a kind stays."""
        if kind not in self._noted:
            self._noted.add(kind)
            self._try(lambda: self._notes.write(f"{kind}/{self.rank}", text))

    def gather(self, what: str, round_: int) -> None:
        """Say that this worker now waits for all others, in `what`, after `round_` rounds.

        All workers count their gatherings alike, so one that waits for this worker in a group's operation knows by the
        number whether this gathering is over or can never begin.
        """
        self._gatherings += 1
        text = json.dumps([self._gatherings, round_, what])
        self._try(lambda: self._notes.write(f"gathering/{self.rank}", text))

    def read(self, kind: str, rank: int) -> str | None:
        """Another worker's note, if it left one."""
        return self._get(self._notes, f"{kind}/{rank}")

    def record_failure(self, text: str) -> None:
        """Keep this worker's failure as the run's first, unless somebody was earlier."""
        mine = json.dumps([self.rank, text])
        self._try(lambda: self._notes.propose("first", mine))

    def first_failure(self) -> str | None:
        """What the first worker that failed said, as a clause; None if none did, or this one was it."""
        stored = self._get(self._notes, "first")
        if stored is None:
            return None
        rank, text = json.loads(stored)
        return None if rank == self.rank else f"worker {rank} gave up first, with: {text}"

    def cause(self, members: Iterable[int], round_: int | None = None) -> str | None:
        """Why a member cannot take part, as a clause such as `worker 3 was killed by signal 9`; None if not known.

        With `round_` also members that ended after fewer rounds count. Causes come before consequences: a signal or an
        exception of a member before the first failure of the run, and that before exit codes, which follow from it.
        """
        others = [rank for rank in members if rank != self.rank]
        deaths = {rank: self._get(self._deaths, str(rank)) for rank in others}
        for rank, death in deaths.items():
            if death is not None and "signal" in death:
                return f"worker {rank} {death}"
        for rank in others:
            if (left := self.read("left", rank)) is not None:
                return f"worker {rank} {left}"
            ended = self.read("finished", rank) if round_ is not None else None
            if ended is not None and round_ is not None and int(ended) <= round_:
                return f"worker {rank} finished after {ended} rounds: {UNEQUAL}"
        ended_ranks = (rank for rank, death in deaths.items() if death is not None)
        return self.first_failure() or next((f"worker {rank} {deaths[rank]}" for rank in ended_ranks), None)

    def elsewhere(self, members: Iterable[int], round_: int) -> str | None:
        """Which member waits for all at a place that this worker, still in `round_`, has not come to, as a clause.

        Such a member never comes to a collective of that round. (It may still answer messages from a side thread.)
        """
        for rank in members:
            noted = self.read("gathering", rank) if rank != self.rank else None
            if noted is not None:
                number, reached, what = json.loads(noted)
                if number > self._gatherings and reached <= round_:
                    return f"worker {rank} waits for all in {what} after {reached} rounds: {UNEQUAL}"
        return None

    def lost(self, members: Iterable[int]) -> frozenset[int]:
        """The members that left a note, or of which the launcher did, that they can no longer take part in anything."""
        return frozenset(
            rank
            for rank in members
            if rank != self.rank
            and (
                self._get(self._deaths, str(rank)) is not None
                or any(self.read(kind, rank) is not None for kind in ("left", "failed"))
            )
        )

    def gathered(self, members: Iterable[int]) -> frozenset[int]:
        """The members that have come to this worker's present gathering."""
        notes = {rank: self.read("gathering", rank) for rank in members}
        return frozenset(
            rank
            for rank, note in notes.items()
            if rank == self.rank or (note is not None and json.loads(note)[0] >= self._gatherings)
        )

    def gone(self, members: Iterable[int], round_: int | None = None) -> str | None:
        """As `cause`, and also members that gave up themselves."""
        members = list(members)
        if (why := self.cause(members, round_)) is not None:
            return why
        given_up = (rank for rank in members if rank != self.rank and self.read("failed", rank) is not None)
        rank = next(given_up, None)
        return None if rank is None else f"worker {rank} {self.read('failed', rank)}"

    def last_seen(self, rank: int) -> str:
        """What a worker did last and whether it still gives signs of life, as a clause."""
        beat = self._get(self._notes, f"beat/{rank}")
        if beat is None:
            return "gave no sign of life"
        now = time.monotonic()
        known = self._seen.get(rank)
        if known is None or known[0] != beat:
            self._seen[rank] = (beat, now)
            silent = 0.0
        else:
            silent = now - known[1]
        text = str(json.loads(beat)[1])
        return text + (f" and gave no sign of life for {silent:.1f} s" if silent > SILENCE_SECONDS else "")

    def stop(self) -> None:
        """End the heartbeat."""
        self._stop.set()

    def _beat(self) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            beat = json.dumps([count, self._doing])
            try:
                self._notes.write(f"beat/{self.rank}", beat)
            except RuntimeError:
                return
            self._stop.wait(BEAT_SECONDS)

    def _get(self, notes: Notes, key: str) -> str | None:
        text: str | None = self._try(lambda: notes.read(key))
        return text

    @staticmethod
    def _try(action: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the action returns
        """The store is a convenience here: without it errors are less precise, and nothing else changes."""
        try:
            return action()
        except RuntimeError:
            return None
