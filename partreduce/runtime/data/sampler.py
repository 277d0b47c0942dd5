"""Deal a data set so that all workers end an epoch at the same round, for any steps per round."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch

from partreduce.runtime.elastic.support import schedule_for_present_nodes
from partreduce.runtime.schedule_file import read_schedule
from partreduce.runtime.transport.rendezvous import place
from partreduce.topo.argument_types import check_arguments
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.payload import round_ends

Batch = TypeVar("Batch")
Members = tuple[int, ...]
Views = Sequence[tuple[int, Members]]
"""Who is a member after which turn, in order; the first is of all, before round 0. A round has one turn or several."""


def assign_samples(
    order: Sequence[int], views: Views, worker_steps: Sequence[int], per_step: int, start: int, *, turns: int = 1
) -> Iterator[tuple[int, dict[int, list[int]]]]:
    """(round, samples by worker) of each round of an epoch that begins with round `start`.

    The order of the epoch is dealt round by round to who is a member, by rank and steps per round. In the round from
    which the members of a new view average, a failed worker's samples go back to the front, since no worker has seen
    them in an average; who joins takes those of its steps from there: of one, or where fragments have turns in the
    round of all that are left of it. From the next round on all that is left is dealt to the new members. So every
    sample is in one average, and none in two, but for what does not fill a last round of all members, and for fragments
    that had had their turn when a worker failed. Where fewer are left than one that joins needs, it takes of the
    epoch's first ones again: the others wait for it.
    """
    rest, round_ = deque(order), start
    members = next(members for after, members in reversed(views) if after < start * turns)
    coming = deque((*divmod(after, turns), members) for after, members in views if after >= start * turns)
    while len(rest) >= per_step * sum(worker_steps[worker] for worker in members):
        hands = {worker: _take(rest, per_step * worker_steps[worker]) for worker in members}
        while coming and coming[0][0] == round_:
            _, turn, members = coming.popleft()
            for worker in sorted(hands.keys() - set(members), reverse=True):
                rest.extendleft(reversed(hands.pop(worker)))
            for worker in sorted(set(members) - hands.keys()):
                count = per_step * (worker_steps[worker] - round_ends(turns, worker_steps[worker])[turn] + 1)
                hands[worker] = _take(rest, min(count, len(rest)))
                hands[worker] += order[: count - len(hands[worker])]
        yield round_, hands
        round_ += 1


def _take(rest: deque[int], count: int) -> list[int]:
    return [rest.popleft() for _ in range(count)]


def by_steps_per_round(loader: Iterable[Batch], schedule: Schedule, rank: int) -> Iterable[Batch]:
    """What a worker takes of a loader that is as long as all others': p batches for each P of it, in whole rounds.

    A worker takes p steps a round, and P is the largest p of all workers. All is taken where all take equally many, and
    where a RoundSampler has dealt in this proportion.
    """
    steps_per_round, most = int(schedule.worker_steps()[rank]), int(max(schedule.worker_steps()))
    if sampler_of(loader) is not None or all(each == most for each in schedule.worker_steps()):
        return loader
    if isinstance(loader, Sized):
        return islice(loader, len(loader) // most * steps_per_round)
    return (batch for batches in zip(*[iter(loader)] * most, strict=False) for batch in batches[:steps_per_round])


def sampler_of(loader: object) -> RoundSampler | None:
    """The RoundSampler that deals a loader's samples, if one does."""
    batches = getattr(loader, "batch_sampler", None)  # which may have no length, and so no truth value
    sampler = getattr(loader if batches is None else batches, "sampler", None)
    return sampler if isinstance(sampler, RoundSampler) else None


class RoundSampler(torch.utils.data.Sampler[int]):
    """Indices of this worker's samples; give it to a DataLoader with the same `batch_size` and `drop_last=True`.

    A worker that takes p steps per round takes p batches a round, so its share is proportional to p. Shares are
    disjoint; what does not fill a round of all workers is left out, other samples in each epoch. Call `set_epoch`
    before each epoch.

    Where a run continues after losses, `optimizer.batches(loader)` has it deal what is left of the epoch again, to
    those who are left, or have joined (see `assign_samples`).

    Args:
        data: the data set, or its length.
        schedule: gives steps per round and number of workers.
        batch_size: samples per worker in one backward pass.
        accumulate: backward passes per optimizer step (gradient accumulation).
        shuffle: a new order for each epoch, the same on all workers; else every epoch has the order of the data.
        seed: of the order.
        rank: this worker; from the launcher by default.

    Raises:
        InputError: less data than one round needs, or numbers below 1.
    """

    @check_arguments
    def __init__(
        self,
        data: Sized | int,
        schedule: Schedule | str | Path,
        batch_size: int,
        *,
        accumulate: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
    ) -> None:
        self.schedule = schedule_for_present_nodes(read_schedule(schedule))
        self.size = data if isinstance(data, int) else len(data)
        self.rank = place()[0] if rank is None else rank
        if batch_size < 1 or accumulate < 1:
            raise InputError(f"batch_size {batch_size}, accumulate {accumulate}: both are at least 1")
        if not 0 <= self.rank < self.schedule.num_workers:
            raise InputError(f"rank: is {self.rank}; schedule {self.schedule.name!r} has ranks 0..{self._last}")
        self.per_step, self.shuffle, self.seed = batch_size * accumulate, shuffle, seed
        self.accumulate = accumulate
        self._worker_steps = [int(steps_per_round) for steps_per_round in self.schedule.worker_steps()]
        self.per_round = self.per_step * sum(self._worker_steps)
        self.num_rounds = self.size // self.per_round
        """Rounds of an epoch, equal on all workers."""
        if self.num_rounds == 0:
            raise InputError(
                f"data: has {self.size} samples and one round of all workers takes {self.per_round}; lower batch_size"
            )
        self._epoch, self._skip = 0, 0
        self._views: Views = ()
        self._turns = 1
        self._from = self._steps = 0

    @property
    def num_steps(self) -> int:
        """Optimizer steps of this worker in an epoch."""
        return self.num_rounds * self._worker_steps[self.rank]

    @property
    def _last(self) -> int:
        return self.schedule.num_workers - 1

    def set_epoch(self, epoch: int, *, skip_steps: int = 0) -> None:
        """Choose the epoch's order; after resuming in mid-epoch leave out the steps that were already taken.

        Raises:
            InputError: more steps than an epoch has.
        """
        if not 0 <= skip_steps <= self.num_steps:
            raise InputError(f"skip_steps: is {skip_steps}; an epoch of this worker has {self.num_steps} steps")
        self._epoch, self._skip = epoch, skip_steps

    @property
    def epoch(self) -> int:
        """The epoch that was chosen last."""
        return self._epoch

    def follow(self, views: Views, start: int, steps: int, *, turns: int = 1) -> None:
        """Deal to the members of the run's views, in an epoch that began with round `start`, from step `steps` on."""
        self._turns = turns
        self._views, self._from, self._steps = views, start, steps

    def resume(self, steps: int) -> int:
        """Continue after `steps` optimizer steps of the run (`optimizer.steps`); returns the epoch to continue with."""
        epoch, taken = divmod(steps, self.num_steps)
        self.set_epoch(epoch, skip_steps=taken)
        return epoch

    def __len__(self) -> int:
        """Samples of this worker in (the rest of) the epoch."""
        if self._views:
            return sum(1 for _ in self)
        return (self.num_steps - self._skip) * self.per_step

    def __iter__(self) -> Iterator[int]:
        """This worker's indices, round by round."""
        if self.shuffle:
            generator = torch.Generator().manual_seed(hash((self.seed, self._epoch)) % 2**63)
            order = torch.randperm(self.size, generator=generator)
        else:
            order = torch.arange(self.size)
        if self._views:
            yield from self._dealt(order.tolist())
            return
        rounds = order[: self.num_rounds * self.per_round].view(self.num_rounds, self.per_round)
        start = self.per_step * sum(self._worker_steps[: self.rank])
        mine = rounds[:, start : start + self.per_step * self._worker_steps[self.rank]].reshape(-1)
        yield from mine[self._skip * self.per_step :].tolist()

    def _dealt(self, order: list[int]) -> Iterator[int]:
        """This worker's indices from where it is; of a round in which it joins, it has those of its steps only."""
        steps_per_round = self._worker_steps[self.rank]
        for round_, hands in assign_samples(
            order, self._views, self._worker_steps, self.per_step, self._from, turns=self._turns
        ):
            left = min(steps_per_round, (round_ + 1) * steps_per_round - self._steps)
            if left > 0:
                yield from hands.get(self.rank, [])[-left * self.per_step :]
