"""Warn once when workers see the same batches, or data in different orders, which no loss would show.

Where every worker draws its batches with one seed from the whole data, all do the work of one. They begin with equal
models, so equal batches give equal gradients, bit for bit, and different ones do not. In its first step each worker
proposes a fingerprint of its own gradients in the run's store; the last of those whose gradients are the proposed ones
says so, if these are all. What `shard_dataset()` has dealt is compared by sketches in the same way. Nobody waits for
anybody, and later steps pay nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

from partreduce.runtime.data.sketches import take_dealt
from partreduce.runtime.transport.store import Notes
from partreduce.runtime.transport.torch_api import Store
from partreduce.runtime.user_warning import warn_user

FEWEST_NUMBERS = 16
"""Different batches may agree in fewer gradients by chance, where data are signs or small counts."""
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class DuplicateDataCheck:
    """One worker's part of the comparison; `key` is the run's, `num_workers` how many compare."""

    def __init__(self, store: Store, key: str, num_workers: int) -> None:
        self._notes, self._num_workers = Notes(store, f"alike/{key}"), num_workers

    def look(self, gradients: Iterable[torch.Tensor | None]) -> bool:
        """Before gradients are averaged; whether they said enough, so that nobody need look again."""
        self._look_at_dealt()
        mine = fingerprint(gradients)
        if not mine:
            return False
        if self._notes.propose("first", mine) == mine and self._notes.count("alike", 1) == self._num_workers:
            warn_user(
                f"partreduce: all {self._num_workers} workers have the same gradients in their first step, so they "
                "train on the same batches, and do no more than one worker; give each a part of its own, as "
                "partreduce.shard_dataset(data) does, or, if the script averages gradients itself, leave that to the "
                "schedule"
            )
        return True

    def _look_at_dealt(self) -> None:
        """Say once in a run that data lay in another order on this worker than where they were noted first."""
        for place, mine in take_dealt().items():
            differs = self._notes.propose(f"dealt {place}", mine) != mine
            if differs and self._notes.count("dealt apart", 1) == 1:
                warn_user(
                    f"partreduce.shard_dataset: was given a {place.rpartition(',')[0]} that differ, or lie in "
                    "another order, "
                    "from worker to worker, so some come to several workers and some to none; give it the same on all: "
                    "shuffle and split with one seed, sort names of files, or shuffle what it returns"
                )


def fingerprint(gradients: Iterable[torch.Tensor | None]) -> str:
    """A hash of dense gradients' bits; empty where they are too few, or tell nothing because one is not finite."""
    sums, sizes = [], []
    for gradient in gradients:
        if gradient is None or gradient.layout is not torch.strided or not gradient.is_floating_point():
            continue
        numbers = gradient.detach().contiguous() + 0.0  # one zero only
        sums.append(numbers.view(BITS[numbers.element_size()]).sum(dtype=torch.int64))
        sizes.append(numbers.isfinite().all() * numbers.count_nonzero() - (~numbers.isfinite()).any().long())
    if not sums:
        return ""
    known: list[list[int]] = torch.stack([torch.stack(sums), torch.stack(sizes)]).tolist()
    if min(known[1]) < 0 or sum(known[1]) < FEWEST_NUMBERS:
        return ""
    return hashlib.sha256(repr(known).encode()).hexdigest()
