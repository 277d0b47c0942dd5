"""Write heartbeats and failure notes to the store, so that errors name a worker instead of a network address.

Each worker regularly writes what it does (its heartbeat), and once where it stopped and its first error; the launcher
writes which worker died and why. A worker that waits for others reads these notes, and stops waiting early, with a
reason, if a member of its group can no longer arrive.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from partreduce.runtime.liveness.keepalive_sockets import KeepaliveSockets, closed_notes
from partreduce.runtime.liveness.settings import Settings, difference
from partreduce.runtime.liveness.wait_chain import Sign, clause, format_workers, is_diagnosed
from partreduce.runtime.transport.store import CHANGES, NOT_STARTED, Deaths, Notes, Pauses
from partreduce.runtime.transport.torch_api import Store
from partreduce.runtime.transport.waiting import SignsOfLife, own_time
from partreduce.runtime.transport.work import Background
from partreduce.topo.errors import StoreLostError

Found = TypeVar("Found")
BEAT_SECONDS = 0.5
REASON_SECONDS = 2.0  # how long to wait for the reason of a worker that gave up
UNEQUAL = (
    "the workers' data lengths differ, so put the training loop into `with optimizer.join():`; or one left its loop "
    "early, so have all stop at the same step"
)
SURVIVABLE = ("was killed by signal", "ended without a word", "was lost with node", "gave no sign of life")
"""Phrases in descriptions of failures after which the other workers could continue."""
ALL_CALL = "all workers call {}, so take it out of any `if rank == 0`; or {}"
TOGETHER = (
    "all workers look up and save the rows of tables together, after finish(), too, so put none of that under `if rank "
    "== 0`; or " + UNEQUAL
)
EQUAL_STEPS = (
    "with averaged gradients models stay equal only where all take equal steps, so let schedulers see the same numbers "
    "on all workers (ReduceLROnPlateau the mean loss, say)"
)
MET = (
    "with a quorum all come to mean_model(), a checkpoint or a load after the same number of step() calls, and load a "
    "state of one such place; where the workers' data lengths differ, meet in finish() or at the end of `join()` alone"
)
SKIPPED = (
    "a worker that skips steps has their batches left when the others have ended; loop over "
    "`optimizer.batches(loader)`, and where the workers' data lengths differ, inside `with optimizer.join():`"
)
PACED = (
    "the schedule has workers take {} to {} steps a round; loop over `optimizer.batches(loader)`, which ends all of "
    "them at the same round, and where the workers' data lengths differ, inside `with optimizer.join():`"
)


class Heartbeat(SignsOfLife):
    """This worker's heartbeat and failure notes in the store, and access to other workers'; tolerates a lost store.

    A note is a text in the store; the heartbeat is a note that is written again and again and says what the worker
    does. A *gathering* is an operation of all workers outside the rounds, such as `mean_model()` or a checkpoint. An
    *exchange* is another operation of all workers that belongs to no round, such as a lookup in tables. Each worker
    counts both, and notes the gathering that it waits in, so that workers that wait elsewhere stop with a reason.

    `key` names the optimizer; with `beats` a thread writes the heartbeat every `BEAT_SECONDS`; `lifelines`, if given,
    are closed by `stop`; `worker_steps`, each worker's steps per round, decide which advice errors give;
    `way_to_continue` returns a hint for errors, how the run could have survived a failure.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        key: str,
        *,
        beats: bool,
        lifelines: KeepaliveSockets | None = None,
        worker_steps: Iterable[int] = (),
        way_to_continue: Callable[[], str] = str,
    ) -> None:
        self.rank = rank
        self._notes, self._deaths = Notes(store, f"heartbeat/{key}"), Deaths(store)
        self._closed, self._lifelines = closed_notes(store, key), lifelines
        different = sorted({int(steps_per_round) for steps_per_round in worker_steps})
        self.unequal = PACED.format(different[0], different[-1]) if len(different) > 1 else UNEQUAL
        """Advice for workers that end after different numbers of rounds."""
        self._together = ""  # advice inside an operation outside the rounds that all workers must call; else empty
        self.now: tuple[str | Callable[[], str], Iterable[int]] = NOT_STARTED, ()
        """This worker's activity and the ranks that it waits for; any thread may set them (see `doing`)."""
        self._way_to_continue = way_to_continue
        """Returns a hint for errors if the run could have survived the failure with another option."""
        self.line = self._notes.line
        self._changes = 0
        self.settled = 0
        """Number of noted failures and ends that the launcher's last decision includes; workers ignore these."""
        self._deadlines_of_reasons: dict[int, float] = {}
        self._stop = threading.Event()
        self.with_each: Callable[[], None] = lambda: None  # called after each heartbeat, in the heartbeat thread
        self._noted: set[str] = set()
        self._seen: dict[int, tuple[str, float]] = {}
        self.counts = (0, 0)
        """How many gatherings and exchanges this worker has entered; a joining worker copies another one's."""
        self._gathered = (0, "", "")
        """Last gathering: rounds completed before it, its name, and advice for errors about absent workers."""
        self._place = ""  # "gathering" or "exchange" inside one; else empty
        if beats:
            Background(self._beat, name="partreduce-heartbeat", stop=self._stop.set).start()

    @property
    def place(self) -> str:
        """This worker's heartbeat key in the store, with all prefixes; the launcher reads the heartbeat by it."""
        return self._notes.place(f"beat/{self.rank}")

    def doing(self, text: str | Callable[[], str], waits: Iterable[int] = ()) -> None:
        """Set this worker's activity (or a function that returns it) and the ranks that it waits for."""
        self.now = text, waits

    @property
    def gatherings(self) -> int:
        """Number of gatherings (operations of all workers outside the rounds) that this worker has entered."""
        return self.counts[0]

    @property
    def last(self) -> tuple[str, tuple[int, ...]]:
        text, waits = self.now
        return text if isinstance(text, str) else text(), tuple(rank for rank in waits if rank != self.rank)

    def note(self, kind: str, text: str) -> None:
        """Write a note about this worker, of kind `failed`, `explained`, `left` or `finished`; each kind only once."""
        if kind not in self._noted:
            self._noted.add(kind)
            self._try(lambda: self._notes.write(f"{kind}/{self.rank}", text))
            self._try(lambda: self._deaths.count(CHANGES, 1))

    def num_changes(self) -> int:
        """Return how many failures and ends of workers were noted since the last change of members (and a lost store).

        This is one query of the store; as long as the number is unchanged, no other note has to be read.
        """
        changes = self._try(lambda: self._deaths.count(CHANGES))
        if changes is not None:
            self._changes = changes
        return self._changes - self.settled + (self._deaths.problem is not None)

    def check_without_store(self) -> None:
        """Raise StoreLostError if the store is gone."""
        if (error := self.store_lost()) is not None:
            raise error

    def store_lost(self) -> StoreLostError | None:
        problem = self._notes.problem
        return None if problem is None else StoreLostError(problem)

    def gather(self, what: str, round_: int, advice: str | None = None) -> None:
        """Note that this worker waits for all others in `what`, an operation outside the rounds, after `round_` rounds.

        `advice` is for errors about workers that do not come. All workers count gatherings, and so know which are over.
        """
        self.counts = self.gatherings + 1, self.counts[1]
        self._note_exchanges()
        self._gathered = round_, what, advice or self._all_call(what)
        text = json.dumps([self.gatherings, *self._gathered])
        self._try(lambda: self._notes.write(f"gathering/{self.rank}", text))

    @contextlib.contextmanager
    def gathering(self, what: str, round_: int, advice: str | None = None) -> Iterator[None]:
        """Context of a gathering (see the class), such as a checkpoint; arguments as of `gather`, which it calls."""
        self.gather(what, round_, advice)
        with self._inside("gathering"):
            yield

    @contextlib.contextmanager
    def exchange(self) -> Iterator[None]:
        """Context of an exchange (see the class), such as a lookup in tables."""
        self.counts = self.gatherings, self.counts[1] + 1
        with self._inside("exchange"):
            yield

    def finished(self, round_: int) -> None:
        """Record that this worker has ended after `round_` rounds."""
        self._note_exchanges()
        self.note("finished", str(round_))

    @contextlib.contextmanager
    def _inside(self, place: str) -> Iterator[None]:
        before, self._place = self._place, place
        try:
            yield
        finally:
            self._place = before

    def _note_exchanges(self) -> None:
        """Write the number of exchanges entered, before a gathering or the end is noted, so that readers find both."""
        if exchanges := self.counts[1]:
            self._try(lambda: self._notes.write(f"exchanges/{self.rank}", str(exchanges)))

    def _has_been_here(self, rank: int) -> bool | None:
        """Return whether `rank` has entered the gathering or exchange that this worker is in; None outside of both."""
        if self._place == "gathering":
            return rank in self.gathered([rank])
        if self._place == "exchange":
            counted = self.read("exchanges", rank)
            return counted is not None and int(counted) >= self.counts[1]
        return None

    @contextlib.contextmanager
    def with_advice(self, advice: str) -> Iterator[None]:
        """In the context, let errors about a worker that has ended contain `advice`."""
        self._together = advice
        try:
            yield
        finally:
            self._together = ""

    def read(self, kind: str, rank: int) -> str | None:
        return self._get(self._notes, f"{kind}/{rank}")

    def record_failure(self, text: str) -> None:
        """Note this worker's failure, `text`, as the first of the run, unless another one was noted earlier."""
        mine = json.dumps([self.rank, text])
        self._try(lambda: self._notes.propose("first", mine))
        self._try(lambda: self._deaths.count(CHANGES, 1))

    def first_failure(self) -> str | None:
        """Return the error of the first failed worker, as a clause; None if none has failed, or this one was first."""
        stored = self._get(self._notes, "first")
        if stored is None:
            return None
        rank, text = json.loads(stored)
        return None if rank == self.rank else f"worker {rank} gave up first, with: {text}"

    def cause(self, members: Iterable[int], round_: int | None = None) -> str | None:
        """Return why one of `members` cannot take part, as a clause like `worker 3 was killed by signal 9`; else None.

        With `round_`, a member that ended after at most that many rounds counts too; inside a gathering or exchange,
        one that did not enter it. Of several reasons, a signal, an exception or a death comes before the run's first
        failure, and that before its consequences: exit codes, and workers that gave up.
        """
        others = [rank for rank in members if rank != self.rank]
        deaths = {rank: self._death(rank) for rank in others}
        for rank, death in deaths.items():
            if death is not None and "signal" in death:
                return f"worker {rank} {death}"
        for rank in others:
            if (left := self.read("left", rank)) is not None:
                return f"worker {rank} {left}"
            ended = self.read("finished", rank) if round_ is not None else None
            if ended is None or round_ is None:
                continue
            been = self._has_been_here(rank)
            if int(ended) <= round_ if been is None else not been:
                return f"worker {rank} finished after {ended} rounds{self._without(int(ended))}"
        for rank in others:
            if (closed := self._get(self._closed, str(rank))) is not None and self.read("failed", rank) is None:
                return f"worker {rank} {closed}"
        ended_ranks = (rank for rank, death in deaths.items() if death is not None)
        return self.first_failure() or next((f"worker {rank} {deaths[rank]}" for rank in ended_ranks), None)

    def _without(self, ended: int) -> str:
        reached, what, advice = self._gathered
        if self._place != "gathering" or ended < reached:
            return f": {self._together or self.advice_at_end}"
        return f", without {what}: {self._together or advice}"

    @property
    def advice_at_end(self) -> str:
        """Advice for an error about a `finish()` that not all workers call."""
        return self._all_call("finish()")

    def _all_call(self, what: str) -> str:
        return self.unequal if self.unequal in (MET, TOGETHER) else ALL_CALL.format(what, self.unequal)

    def survival_hint(self, why: str) -> str:
        """Return a hint how a run can survive the failure described by `why`, to end a sentence with; else empty."""
        return self._way_to_continue() if any(words in why for words in SURVIVABLE) else ""

    def not_in_gathering(self, members: Iterable[int], round_: int) -> str | None:
        """Return, as a clause for an error, which members are not in the gathering that this worker is in.

        If all are in it, or this worker is in none, return what `in_other_gathering` returns.
        """
        members = list(members)
        others = sorted(set(members) - self.gathered(members)) if self._place == "gathering" else []
        if not others:
            return self.in_other_gathering(members, round_)
        reached, what, advice = self._gathered
        return f"this worker {self.rank} is in {what} after {reached} rounds, {format_workers(others)} not: {advice}"

    def differing_settings(self, members: Iterable[int], step: int, settings: Settings) -> str | None:
        """Return, as a clause, which member has other hyperparameters than this worker's `settings`; None if none has.

        Called when workers' tags differ in the average of step `step`. Also None if members' notes do not arrive soon.
        """
        text = json.dumps(settings)
        self._try(lambda: self._notes.write(f"settings/{step}/{self.rank}", text))
        waiting, end = [rank for rank in members if rank != self.rank], time.monotonic() + REASON_SECONDS
        pauses = Pauses()
        while waiting and time.monotonic() < end and self._notes.problem is None:
            for rank in list(waiting):
                if (theirs := self.read(f"settings/{step}", rank)) is not None:
                    waiting.remove(rank)
                    if (found := difference(json.loads(text), json.loads(theirs))) is not None:
                        name, own, other = found
                        return f"worker {rank} has {name} {other} and worker {self.rank} {own}; {EQUAL_STEPS}"
            pauses.sleep()
        return None

    def in_other_gathering(self, members: Iterable[int], round_: int, way_out: str | None = None) -> str | None:
        """Return a clause about a member that waits in a gathering which this worker has not entered; else None.

        A member counts if it entered after at most `round_` rounds, and so does not come to round `round_`, in which
        this worker waits. Inside a gathering, a member in another one counts, too. `way_out` replaces the usual advice.
        """
        for rank in members:
            noted = self.read("gathering", rank) if rank != self.rank else None
            if noted is not None:
                number, reached, what, advice = json.loads(noted)
                if number > self.gatherings and reached <= round_ and not self._has_been_here(rank):
                    way_out = way_out or self._together or advice
                    return f"worker {rank} waits for all in {what} after {reached} rounds: {way_out}"
                mine = self._gathered[1]
                if self._place == "gathering" and number == self.gatherings and what != mine:
                    return (
                        f"worker {rank} is in {what} after {reached} rounds and this worker {self.rank} in {mine}: all "
                        "workers call the same in the same order, none of it under `if rank == 0`"
                    )
        return None

    def lost(self, members: Iterable[int]) -> frozenset[int]:
        return frozenset(
            rank
            for rank in members
            if rank != self.rank
            and (
                self._death(rank) is not None
                or self._get(self._closed, str(rank)) is not None
                or any(self.read(kind, rank) is not None for kind in ("left", "failed"))
            )
        )

    def gathered(self, members: Iterable[int]) -> frozenset[int]:
        """Return those of `members` that have entered the gathering that this worker entered last."""
        notes = {rank: self.read("gathering", rank) for rank in members}
        return frozenset(
            rank
            for rank, note in notes.items()
            if rank == self.rank or (note is not None and json.loads(note)[0] >= self.gatherings)
        )

    def failure_reason(self, members: Iterable[int], round_: int | None = None) -> str | None:
        """Return why a member can no longer take part, as a clause; None if no reason is known.

        Like `cause`, but members that gave up count, too; and if this worker has ended, members that have ended do not.
        """
        if (problem := self._notes.problem) is not None:
            return problem
        members = list(members)
        if "finished" in self._noted:
            round_ = None
        if (why := self.cause(members, round_)) is not None:
            return why
        failed = (rank for rank in members if rank != self.rank and self.read("failed", rank) is not None)
        rank = next(failed, None)
        if rank is None:
            return None
        # A worker gives up before it finds out why; wait for its reason, so that all name the same culprit.
        if time.monotonic() < self._deadlines_of_reasons.setdefault(rank, time.monotonic() + REASON_SECONDS):
            return None
        return f"worker {rank} {self.read('failed', rank)}"

    def last_heartbeat(self, rank: int) -> Sign:
        """Return a worker's last heartbeat, and for how many seconds this worker has seen no newer one."""
        beat = self._get(self._notes, f"beat/{rank}")
        if beat is None:
            return Sign("", (), None)
        now = own_time()
        known = self._seen.get(rank)
        if known is None or known[0] != beat:
            self._seen[rank] = known = (beat, now)
        _, text, waits = json.loads(beat)
        return Sign(str(text), tuple(waits), now - known[1])

    def watch(self, members: Iterable[int]) -> None:
        self.describe_wait(members, None)

    def describe_wait(self, members: Iterable[int], seconds: float | None) -> str:
        others = [rank for rank in members if rank != self.rank]
        text = clause(self.rank, others, self.last_heartbeat, seconds)
        return self._notes.problem or text  # if the store does not answer, every worker seems silent

    def is_diagnosed(self, members: Iterable[int]) -> bool:
        return is_diagnosed(self.rank, [rank for rank in members if rank != self.rank], self.last_heartbeat)

    def linger(self, size: int) -> None:
        """Keep this process, the store's host, alive until all `size` workers know why the run failed, at most 2 s."""
        end, pauses = time.monotonic() + REASON_SECONDS, Pauses()
        waiting = [rank for rank in range(size) if rank != self.rank]
        while waiting and time.monotonic() < end and self._notes.problem is None:
            waiting = [
                rank
                for rank in waiting
                if all(self.read(kind, rank) is None for kind in ("explained", "left", "finished"))
                and self._get(self._closed, str(rank)) is None
            ]
            pauses.sleep()

    def stop(self) -> None:
        self._stop.set()
        if self._lifelines is not None:
            self._lifelines.close()

    def _beat(self) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            beat = json.dumps([count, *self.last])
            try:
                self._notes.write(f"beat/{self.rank}", beat)
                self.with_each()
                self._notes.has(f"beat/{self.rank}")  # a frozen store accepts writes but never answers
            except (RuntimeError, StoreLostError):
                return
            self._stop.wait(BEAT_SECONDS)

    def _death(self, rank: int) -> str | None:
        return self._try(lambda: self._deaths.of(rank))

    def _get(self, notes: Notes, key: str) -> str | None:
        return self._try(lambda: notes.read(key))

    @staticmethod
    def _try(action: Callable[[], Found]) -> Found | None:
        """Return the result of a store operation; None if the store is lost, which only makes errors less precise."""
        try:
            return action()
        except (RuntimeError, StoreLostError):
            return None
