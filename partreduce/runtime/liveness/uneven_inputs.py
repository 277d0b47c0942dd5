"""Let workers with unequal amounts of data end at the same round, like `torch.distributed.algorithms.join`.

Inside `join` a worker declares each round in the store when it starts the round. A worker whose data has ended takes
part in every round that any worker declares, with its parameters unchanged (or a zero gradient), until all have ended.
"""

from __future__ import annotations

from collections.abc import Callable

from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.transport.store import Notes, Pauses
from partreduce.runtime.transport.torch_api import Store
from partreduce.runtime.transport.waiting import Wait
from partreduce.topo.errors import PeerFailedError, UnavailableError

BEHIND = (
    "a worker whose data ended does not come to that; call it behind `with optimizer.join():`, or before any data ends"
)


class UnevenInputs:
    """Record in the store of the workers that still have data inside `join`; it ends all loops at the same round.

    `size` is the number of workers, `key` names the optimizer, `timeout` limits each wait, in seconds.
    """

    def __init__(self, store: Store, rank: int, size: int, heartbeat: Heartbeat, *, key: str, timeout: float) -> None:
        self.rank, self.size, self.heartbeat = rank, size, heartbeat
        self._notes, self.timeout = Notes(store, f"uneven-inputs/{key}"), timeout
        self._declared = -1
        self.generation = 0  # number of ended `join` loops; equal on all workers

    def declare(self, round_: int) -> None:
        if round_ > self._declared:
            self._notes.write(f"{self.generation}/round/{round_}", "1")
            self._declared = round_

    def ended(self) -> None:
        self._notes.write(f"{self.generation}/ended/{self.rank}", "1")

    def close(self) -> None:
        """End the current loop, after all workers' data has ended, and prepare for the next one."""
        self.generation += 1
        self._declared = -1

    def another(self, round_: int, lost: Callable[[], frozenset[int]] | None = None) -> bool:
        """Wait until it is known whether any worker trains in round `round_`; return whether one does.

        If none does, the data of all have ended. `lost()` returns failed workers, which are not waited for; without it
        a failure raises PeerFailedError, and so does a worker that waits elsewhere for all. Raises UnavailableError
        after the timeout.
        """
        begun, ended = f"{self.generation}/round/{round_}", f"{self.generation}/ended"
        wait, known = Wait(self.heartbeat, range(self.size), self.timeout), frozenset[int]()
        pauses = Pauses()
        while True:
            gone = frozenset[int]() if lost is None else lost()
            if gone != known:  # after a vote, which may take long and delays all
                known = gone
                wait.renew()
            present = [rank for rank in range(self.size) if rank not in gone]
            needed = [f"{ended}/{rank}" for rank in present]
            all_ended = self._notes.has(*needed)
            continues = self._notes.has(begun)  # read last: a worker that has ended starts no round
            if (continues or all_ended) and lost is not None:
                # A lost worker may be alive and start a round while others check, so the first check decides for all.
                verdict = self._notes.propose(f"{self.generation}/verdict/{round_}", "on" if continues else "end")
                continues = verdict == "on"
            if continues:
                return True
            if all_ended:
                self.close()
                return False
            if wait.is_due():
                if lost is None:
                    self._check_if_gone(f"data ended before round {round_}")
                why = self.heartbeat.in_other_gathering(present, round_, BEHIND)
                # Read again: a worker that left after the round started, or after all ended, is not missing.
                if why is not None and not self._notes.has(begun) and not self._notes.has(*needed):
                    raise PeerFailedError(f"data ended before round {round_}: {why}")
            if wait.is_over():
                others = [rank for rank in range(self.size) if not self._notes.has(f"{ended}/{rank}")]
                late = self.heartbeat.describe_wait(others, None)
                self.heartbeat.check_without_store()
                raise UnavailableError(
                    f"data ended before round {round_}: for {self.timeout:g} s no worker began it and not all ended; "
                    f"this worker {late}"
                )
            pauses.sleep()

    def meet(self, round_: int, lost: Callable[[], frozenset[int]] | None = None) -> tuple[int, ...]:
        """Wait for all workers at the end of the run, and return the ranks present.

        `lost()` returns failed workers, which are not waited for. Raises PeerFailedError if a worker has not taken
        `round_` rounds, waits elsewhere for all, or fails and there is no `lost`; UnavailableError after the timeout.
        """
        self.heartbeat.finished(round_)
        waiting = [rank for rank in range(self.size) if rank != self.rank]
        self.heartbeat.doing(f"entered finish() after {round_} rounds", waiting)
        wait, known = Wait(self.heartbeat, waiting, self.timeout), frozenset[int]()
        pauses, absent = Pauses(), set[int]()
        while waiting:
            gone = frozenset[int]() if lost is None else lost()  # read first: a worker lost by now writes no later note
            if gone != known:  # as above
                known = gone
                wait.renew()
            for rank in list(waiting):
                text = self.heartbeat.read("finished", rank)
                if text is None:
                    if rank in gone:
                        absent.add(rank)
                        waiting.remove(rank)
                    continue
                if int(text) != round_:
                    raise PeerFailedError(
                        f"finish: this worker {self.rank} ended after {round_} rounds and worker {rank} after {text}: "
                        f"{self.heartbeat.unequal}"
                    )
                waiting.remove(rank)
            if waiting and wait.is_due():
                if lost is None:
                    self._check_if_gone("finish")
                if (why := self.heartbeat.in_other_gathering(waiting, round_)) is not None:
                    raise PeerFailedError(f"finish: {why}")
            if waiting and wait.is_over():
                late = self.heartbeat.in_other_gathering(waiting, round_) or self.heartbeat.describe_wait(waiting, None)
                self.heartbeat.check_without_store()
                way_out = self.heartbeat.survival_hint(late) or (
                    f": not all did finish within {self.timeout:g} s after this one: {self.heartbeat.advice_at_end}"
                )
                raise UnavailableError(f"finish: {late}{way_out}")
            if waiting:
                pauses.sleep()
        return tuple(rank for rank in range(self.size) if rank not in absent)

    def _check_if_gone(self, place: str) -> None:
        self.heartbeat.check_without_store()
        if (why := self.heartbeat.failure_reason(range(self.size))) is not None:
            raise PeerFailedError(f"{place}: {why}{self.heartbeat.survival_hint(why)}")
