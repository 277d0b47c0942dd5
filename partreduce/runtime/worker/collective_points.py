"""Synchronize all workers between steps: wait for one another, exchange facts, start from one model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from partreduce.runtime.averaging.buffer_rules import AVERAGED
from partreduce.runtime.averaging.monitored_barrier import monitored_barrier
from partreduce.runtime.strategies.base import Run
from partreduce.runtime.transport.waiting import PeerGoneError
from partreduce.runtime.worker.shutdown import Ending
from partreduce.topo.errors import UnavailableError


class Meeting:
    """One worker's part in what all do together; a failure ends the run."""

    def __init__(self, run: Run, ending: Ending) -> None:
        self.run, self.ending = run, ending
        self.lineage = ""
        """Which checkpoints are of this run, once it has saved or resumed; equal on all workers."""
        self.earlier: list[str] = []
        """Of sharded models: the folders of this run's checkpoints that it has not deleted, the newest last."""

    def exchange(
        self, what: str, mine: Mapping[str, object], members: Sequence[int] | None = None
    ) -> list[dict[str, Any]]:
        """What every worker, or each of some, has to say of `what`, in the order of their ranks.

        Called inside `heartbeat.gathering`, once in each for a `what`.
        """
        return self.ending.guard(lambda: self._exchange(what, mine, members or self.run.everyone))

    def _exchange(self, what: str, mine: Mapping[str, object], members: Sequence[int]) -> list[dict[str, Any]]:
        reducer, engine = self.run.reducer, self.ending.engine
        reducer.flush()  # what a device has still to say of earlier operations, before anything is saved or replaced
        operation = reducer.recorder.begin(what, engine.steps, engine.round, tuple(members), 0)
        try:
            place = f"exchange/{reducer.heartbeat.gatherings}/{what}"
            said = monitored_barrier(reducer, place, operation, json.dumps(mine))
        except (PeerGoneError, UnavailableError) as error:
            raise reducer.failure(operation, error) from None
        reducer.recorder.end(operation)
        reducer.heartbeat.doing(f"finished {operation}")
        return [json.loads(said[rank]) for rank in members]

    def broadcast(self, members: Sequence[int] | None = None) -> None:
        """Copy the parameters and buffers of worker 0, or of the first of some, to all of them."""
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
            raw = part.contiguous()
            if raw.dtype not in AVERAGED:  # some of which no transport knows
                raw = raw.view(-1).view(torch.uint8)
            try:
                reducer.wait_for(everyone.broadcast(raw), operation)
            except (RuntimeError, PeerGoneError) as error:
                raise reducer.failure(operation, error) from None
            if raw.data_ptr() != part.data_ptr():
                part.copy_(raw.view(part.dtype).view(part.shape))
        reducer.recorder.end(operation)
        reducer.heartbeat.doing(f"finished {operation}")
