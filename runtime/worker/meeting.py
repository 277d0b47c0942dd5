"""Meeting: what all workers do together between steps: wait for one another, exchange facts, start from one model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from partreduce.runtime.strategies.base import Run
from partreduce.runtime.transport.notes import Notes
from partreduce.runtime.transport.waiting import GoneError
from partreduce.runtime.worker.ending import Ending
from partreduce.topo.phase import Group


class Meeting:
    """One worker's part in what all do together; a failure ends the run."""

    def __init__(self, run: Run, ending: Ending) -> None:
        self.run, self.ending = run, ending
        self._counts: Counter[str] = Counter()
        self.lineage = ""
        """Which checkpoints are of this run, once it has saved or resumed; equal on all workers."""

    def next_number(self, what: str) -> int:
        """How often this worker has come to `what`, this time included; equal on all workers that come alike."""
        self._counts[what] += 1
        return self._counts[what]

    def together(self, what: str, number: int, members: Sequence[int] | None = None) -> None:
        """Wait for all workers, or for some that are connected.

        Raises:
            PeerLostError: one is gone, or does something else.
        """
        everyone = Group(self.run.everyone if members is None else tuple(members))
        self.ending.guard(lambda: self.run.reducer.agree(what, number, everyone))

    def exchange(
        self, what: str, number: int, mine: Mapping[str, object], members: Sequence[int] | None = None
    ) -> list[dict[str, Any]]:
        """What every worker, or each of some, has to say in the `number`-th exchange about `what`, by rank.

        Raises:
            PeerLostError: a worker is gone, or does something else.
        """
        reducer = self.run.reducer
        notes = Notes(reducer.world.store, f"exchange/{reducer.key}/{what}/{number}")
        self.ending.guard(lambda: notes.write(str(self.run.rank), json.dumps(mine)))
        self.together(what, number, members)
        speakers = self.run.everyone if members is None else members
        said = self.ending.guard(lambda: [json.loads(notes.wait_for(str(rank))) for rank in speakers])
        self.together(f"{what} read", number, members)
        return said

    def broadcast(self, members: Sequence[int] | None = None) -> None:
        """Copy the parameters and buffers of worker 0, or of the first of some, to all of them.

        Raises:
            PeerLostError: a worker is gone.
        """
        self.ending.guard(lambda: self._broadcast(self.run.everyone if members is None else members))

    def _broadcast(self, members: Sequence[int]) -> None:
        if self.run.alone:
            return
        flat, reducer = self.run.flat, self.run.reducer
        everyone = reducer.world.communicator(members)
        tensors = [bucket.flat for bucket in flat.buckets if bucket.size] + flat.frozen + flat.buffers()
        num_bytes = sum(tensor.nbytes for tensor in tensors)
        # Before all rounds: who has got everything may wait for all elsewhere, or have finished, after none of them.
        operation = reducer.recorder.begin("initial broadcast", 0, 0, everyone.members, num_bytes, lag=1)
        for tensor in tensors:
            part = tensor.detach()
            raw = part.contiguous().view(torch.uint8) if part.dtype is torch.bool else part.contiguous()
            try:
                reducer.wait_for(everyone.broadcast(raw), operation)
            except (RuntimeError, GoneError) as error:
                raise reducer.failure(operation, error) from None
            if raw.data_ptr() != part.data_ptr():
                part.copy_(raw.view(part.dtype))
        reducer.recorder.end(operation)
        reducer.heartbeat.doing(f"finished {operation}")
