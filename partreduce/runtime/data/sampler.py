"""Distribute a data set over workers: a fixed shard per worker, or samples by rounds so that epochs end together.

If each worker shuffles with its own seed before `shard_dataset()`, some samples go to several workers and others to
none, which the loss does not show. Therefore the first step compares a few samples between workers.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from enum import StrEnum
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from partreduce.runtime.arguments import checked_choice, read_schedule
from partreduce.runtime.elastic.support import schedule_for_present_nodes
from partreduce.runtime.transport.rendezvous import place
from partreduce.topo.argument_types import check_arguments
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.payload import round_ends

Batch = TypeVar("Batch")
Members = tuple[int, ...]
Views = Sequence[tuple[int, Members]]  # (first average, members from then on), beginning with (-1, all workers)


def assign_samples(
    order: Sequence[int], views: Views, worker_steps: Sequence[int], per_step: int, start: int, *, turns: int = 1
) -> Iterator[tuple[int, dict[int, list[int]]]]:
    """Yield (round, sample indices by worker) for each round of an epoch that starts in round `start`.

    Each worker gets `per_step` samples per step, in `order`, so in proportion to its steps per round (`worker_steps`).
    `views` has (index of the first average, members from then on) for each change of members; a round has `turns`
    averages. If a worker fails in a round, its samples return to the front of the queue; a joining worker gets samples
    for its remaining steps in this round. Later rounds are divided among the new members. Every sample is used once,
    except those that do not fill a last round; if too few are left for a joining worker, it repeats the first ones.
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
    """Return p of every P batches of a loader: p is this worker's steps per round, P the most of any worker.

    Batches of a RoundSampler are divided this way already, and all returned.
    """
    steps_per_round, most = schedule.steps_per_round_of(rank), schedule.largest_steps_per_round
    if sampler_of(loader) is not None or schedule.has_one_steps_per_round:
        return loader
    # Every DataLoader is `Sized`, also one of an IterableDataset, whose `len` raises TypeError.
    with contextlib.suppress(TypeError):
        return islice(loader, len(cast("Sized", loader)) // most * steps_per_round)
    return (batch for batches in zip(*[iter(loader)] * most, strict=False) for batch in batches[:steps_per_round])


def sampler_of(loader: object) -> RoundSampler | None:
    """Return the RoundSampler that a DataLoader uses, or None."""
    batches = getattr(loader, "batch_sampler", None)  # compared with None, since it may lack a length
    sampler = getattr(loader if batches is None else batches, "sampler", None)
    return sampler if isinstance(sampler, RoundSampler) else None


class RoundSampler(torch.utils.data.Sampler[int]):
    """Sampler of this worker's indices for a DataLoader with the same `batch_size` and `drop_last=True`.

    A worker that takes p steps per round gets p batches per round, so its share of the data is proportional to p.
    Shares are disjoint. Samples that do not fill a round of all workers are left out, different ones in each epoch.
    Call `set_epoch` before each epoch. After a failure that the run survives, `optimizer.batches(loader)` divides the
    rest of the epoch among the new members (see `assign_samples`).

    Args:
        data: the data set, or its length.
        schedule: gives steps per round and number of workers.
        batch_size: samples per worker in one backward pass.
        accumulate: backward passes per optimizer step (gradient accumulation).
        shuffle: use a new random order in each epoch, equal on all workers; otherwise the order of the data.
        seed: seed of the order.
        rank: this worker's rank; by default the launcher's.

    Raises:
        InputError: less data than one round needs, numbers below 1, or a `rank` that the schedule does not have.
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
            raise InputError(
                f"rank: is {self.rank}; schedule {self.schedule.name!r} has ranks 0..{self._last}; "
                "for ranks of sharded replicas use torch's DistributedSampler"
            )
        self.per_step, self.shuffle, self.seed = batch_size * accumulate, shuffle, seed
        self.accumulate = accumulate
        self._worker_steps = [int(steps_per_round) for steps_per_round in self.schedule.worker_steps()]
        self.per_round = self.per_step * sum(self._worker_steps)
        self.num_rounds = self.size // self.per_round  # rounds of an epoch, equal on all workers
        if self.num_rounds == 0:
            raise InputError(
                f"data: has {self.size} samples and one round of all workers takes {self.per_round}; lower batch_size"
            )
        self._epoch, self._skip = 0, 0
        self._resumed = (0, 0)  # epoch and the steps of it that were taken, as `resume` found them
        self._views: Views = ()
        self._turns = 1
        self._from = self._steps = 0

    @property
    def num_steps(self) -> int:
        """Number of optimizer steps that this worker takes per epoch."""
        return self.num_rounds * self._worker_steps[self.rank]

    @property
    def _last(self) -> int:
        return self.schedule.num_workers - 1

    def set_epoch(self, epoch: int, *, skip_steps: int | None = None) -> None:
        """Select the epoch's order; `skip_steps` skips steps already taken when a run resumes inside the epoch.

        None skips the steps that `resume` found, if it found this epoch, else none.

        Raises:
            InputError: `skip_steps` below 0, or more than an epoch has.
        """
        if skip_steps is None:
            resumed, taken = self._resumed
            skip_steps = taken if epoch == resumed else 0
        if not 0 <= skip_steps <= self.num_steps:
            raise InputError(f"skip_steps: is {skip_steps}; an epoch of this worker has {self.num_steps} steps")
        self._epoch, self._skip = epoch, skip_steps

    @property
    def epoch(self) -> int:
        """The epoch that `set_epoch` selected last."""
        return self._epoch

    def follow(self, views: Views, start: int, steps: int, *, turns: int = 1) -> None:
        """Assign the samples from step `steps` of the epoch on to changing members.

        For `views` and `turns` see `assign_samples`; `start` is the round in which the epoch started.
        """
        self._turns = turns
        self._views, self._from, self._steps = views, start, steps

    def resume(self, steps: int) -> int:
        """Continue after `steps` optimizer steps of the run; return the epoch to continue with."""
        self._resumed = epoch, taken = divmod(steps, self.num_steps)
        self.set_epoch(epoch, skip_steps=taken)
        return epoch

    def __len__(self) -> int:
        """Number of this worker's samples in the rest of the epoch."""
        if self._views:
            return sum(1 for _ in self)
        return (self.num_steps - self._skip) * self.per_step

    def __iter__(self) -> Iterator[int]:
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
        steps_per_round = self._worker_steps[self.rank]
        for round_, hands in assign_samples(
            order, self._views, self._worker_steps, self.per_step, self._from, turns=self._turns
        ):
            left = min(steps_per_round, (round_ + 1) * steps_per_round - self._steps)
            if left > 0:
                yield from hands.get(self.rank, [])[-left * self.per_step :]


Data = TypeVar("Data")


class ShardOrder(StrEnum):
    """How elements are assigned to workers: every n-th element (strided), or one range (contiguous)."""

    STRIDED = "strided"  # every n-th element, for independent samples

    CONTIGUOUS = "contiguous"  # one range, for a text, a recording or a time series


def shard_dataset(data: Data, *, order: ShardOrder | str | None = None) -> Data | torch.utils.data.Subset[object]:
    """Return this worker's part of a data set; all parts have equal length (up to n − 1 elements are left out).

    Tensors, arrays, lists and other sequences are sliced; a torch Dataset becomes a Subset. A `str` or `bytes` is a
    text and is always divided contiguously. Without a launcher all of the data is returned.

    Args:
        data: samples, or one long sequence.
        order: `strided` (default) takes every n-th element from this worker's rank on; shuffle first if neighbors are
            similar. `contiguous` takes one range, for sequences whose order matters. A one-dimensional integer array
            without `order` may be either, and causes a warning unless as many samples were sharded before.

    Returns:
        The same type as `data` if it can be sliced, else a Subset.

    Raises:
        InputError: data without length, order or slices of its type, or fewer elements than workers.
    """
    rank, num_workers = place()
    chosen = None if order is None else ShardOrder(checked_choice("order", order, ShardOrder))
    if num_workers == 1:
        return data
    _check_countable(data)
    sized: Sequence[object] = data  # type: ignore[assignment]
    each = len(sized) // num_workers
    if each == 0:
        raise InputError(f"shard_dataset: {len(sized)} elements are fewer than the {num_workers} workers")
    if chosen is None:
        chosen = ShardOrder.CONTIGUOUS if isinstance(data, (str, bytes, bytearray)) else ShardOrder.STRIDED
        _warn_of_sequence(data)
    record_fingerprint(data)
    if chosen is ShardOrder.STRIDED:
        places = slice(rank, each * num_workers, num_workers)
    else:
        places = slice(rank * each, (rank + 1) * each, 1)
    if isinstance(data, torch.utils.data.Dataset):
        return torch.utils.data.Subset(data, range(len(sized))[places])
    part: Data = sized[places]  # type: ignore[assignment]
    if type(part) is not type(data):
        raise InputError(
            f"shard_dataset: a slice of a {type(data).__name__} is a {type(part).__name__}; give tensors, arrays, "
            "lists or a torch Dataset"
        )
    return part


def _check_countable(data: object) -> None:
    """Raise InputError for data without a length, or with one that is not the number of samples."""
    kind = type(data).__name__
    if isinstance(data, torch.utils.data.DataLoader):
        raise InputError("shard_dataset: is given a DataLoader; shard the data set, then make a loader of the part")
    if isinstance(data, torch.utils.data.IterableDataset) or not hasattr(data, "__len__"):
        raise InputError(
            f"shard_dataset: a {kind} has no length; let each worker read every n-th element of it, for example with "
            "itertools.islice(data, rank, None, num_workers)"
        )
    if isinstance(data, dict) or not hasattr(data, "__getitem__"):
        raise InputError(f"shard_dataset: a {kind} has no order of samples; shard its values one by one")
    if getattr(data, "shape", None) == ():
        raise InputError(f"shard_dataset: the {kind} is a single number; give an array with one sample a row")


_dealt: set[int] = set()  # lengths of sharded sample arrays; integers of such a length are taken for labels


def _warn_of_sequence(data: Any) -> None:  # noqa: ANN401 - anything with a length
    """Warn that an integer array may be a text, of which every n-th token makes no sense; no error would follow."""
    if len(getattr(data, "shape", (0, 0))) != 1 or not _holds_integers(data):
        _dealt.add(len(data))
    elif len(data) not in _dealt:
        warnings.warn(
            f"partreduce.shard_dataset: takes every n-th of {len(data)} integers, which is right for labels and wrong "
            "for a text or another sequence; say order='strided' or order='contiguous'",
            stacklevel=3,
        )


def _holds_integers(data: Any) -> bool:  # noqa: ANN401 - a tensor or array
    kind = getattr(data, "dtype", None)
    if isinstance(kind, torch.dtype):
        return not kind.is_floating_point and not kind.is_complex and kind is not torch.bool
    return getattr(kind, "kind", "") in ("i", "u")


SKETCHED, SKETCHED_NUMBERS = 64, 8  # how many elements are hashed, and how many numbers of each
_sketches: dict[str, str] = {}  # fingerprints not compared yet, by type, length and number of the call


def record_fingerprint(data: Any) -> None:  # noqa: ANN401 - anything with a length
    """Store a hash of a data set's elements in their order, to compare between workers in the first step."""
    if sketch := sketch_of(data):
        place, turn = f"{type(data).__name__} of {len(data)} elements", 1
        while f"{place}, {turn}" in _sketches:
            turn += 1
        _sketches[f"{place}, {turn}"] = sketch


def pop_fingerprint() -> dict[str, str]:
    """Return the hashes of the data sets sharded since the last call, by type, length and number; forget them."""
    taken = dict(_sketches)
    _sketches.clear()
    return taken


def sketch_of(data: Any) -> str:  # noqa: ANN401 - anything with a length
    """Return a hash of some elements in order, to compare data sets; empty for a custom Dataset, which is not read."""
    if isinstance(data, Subset):
        return sketch_of(data.indices)
    if isinstance(data, TensorDataset):
        data = data.tensors[0]
    if isinstance(data, Dataset):
        return ""
    return sha256(repr(_plain(data, SKETCHED)).encode()).hexdigest()[:16]


def _plain(value: Any, most: int = SKETCHED_NUMBERS) -> object:  # noqa: ANN401 - an element of anything
    """Reduce a sample to a few plain values: numbers to three digits, paths to file names, as folders may differ."""
    if isinstance(value, str | bytes):
        return value[-200:].rsplit("/", 1)[-1] if isinstance(value, str) else value[-200:]
    if isinstance(value, float):
        return f"{value:.3g}"
    if value is None or isinstance(value, int):
        return value
    if hasattr(value, "tolist"):  # a tensor or an array
        if not getattr(value, "shape", ()):
            return _plain(value.tolist())
        if most == SKETCHED_NUMBERS and hasattr(value, "reshape"):
            value = value.reshape(-1)
    elif not isinstance(value, Sequence):
        return type(value).__name__
    at = getattr(value, "iloc", value)  # pandas would index by label
    return [_plain(at[place]) for place in range(0, len(value), max(1, len(value) // most))][:most]
