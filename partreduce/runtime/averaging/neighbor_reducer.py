"""Run one round of neighbor averaging (D-PSGD) by point-to-point messages instead of an all-reduce.

Each worker exchanges whole arrays with its neighbors, then computes x_i ← w_ii · x_i + Σ_j w_ij · x_j in a fixed order
and commits the result like a group's mean. Buffers under the rule `first` are copied from the lowest rank among the
worker and its in-neighbors. One receive array of model size is needed per in-neighbor in the busiest round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import torch

from partreduce.runtime.averaging.bucket import Bucket, load_piggybacked
from partreduce.runtime.averaging.buffer_rules import BufferRule
from partreduce.runtime.averaging.gradients import Snapshot
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.averaging.reduction import Reduction
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.tags import TAG_LENGTH, Tail
from partreduce.runtime.transport.weights import unit_weights
from partreduce.runtime.transport.work import Work, in_thread
from partreduce.topo.phase import Group
from partreduce.topo.strategies.neighbor import NeighborAveraging


class Neighborhood:
    """The edges of worker `rank` in the strategy's round `index`: in-neighbors with weights, and out-neighbors.

    Both are in ascending order. `group` is the worker with all of them; None if it has none.
    """

    def __init__(self, strategy: NeighborAveraging, index: int, rank: int) -> None:
        edges = list(strategy.rounds[index].edges())
        self.sources: list[tuple[int, Fraction]] = [(s, w) for s, t, w in edges if t == rank]
        self.targets = sorted(t for s, t, _ in edges if s == rank)
        members = {rank, *self.targets, *(s for s, _ in self.sources)}
        self.group = Group(tuple(sorted(members))) if len(members) > 1 else None


class PeerReducer(Reducer):
    """Reducer like `base` that averages with neighbors; `neighborhoods` has this worker's edges by round."""

    sums_up = False

    def __init__(self, base: Reducer, neighborhoods: Sequence[Neighborhood]) -> None:
        super().__init__(base.world, base.buckets, base.recorder, base.heartbeat, key=base.key, timeout=base.timeout)
        self.checks = base.checks
        self.neighborhoods = tuple(neighborhoods)
        self._received: dict[tuple[int, int], list[torch.Tensor]] = {}  # receive arrays by (bucket, in-neighbor)

    def _near(self, round_: int) -> Neighborhood:
        return self.neighborhoods[round_ % len(self.neighborhoods)]

    def _line_of(self, group: Group, round_: int) -> tuple[str, Communicator, int]:  # noqa: ARG002 - as of groups
        return "neighbors", self.world.everyone(), len(self._near(round_).targets)

    def _start(self, reduction: Reduction, *, watched: bool = True) -> None:
        assert reduction.content.since is None, "neighbors send whole models"
        reduction.apart = "were in different rounds"
        near, everyone = self._near(reduction.operation.round), reduction.communicator
        self._look(reduction.operation, watched=watched)
        for index, bucket in enumerate(self.buckets):
            with self.stream():
                self._load(reduction, index, bucket, reduction.content.kept_of(index))
                side = reduction.sides.get(index)
                arrays = [reduction.arrays[index], *([] if side is None else [side])]
                received = [self._arrays(index, place, arrays) for place in range(len(near.sources))]
                # On CUDA an exchange may be aborted half-way, so tags follow in a separate exchange.
                for piece in [slice(0, 1), slice(1, 2)] if self.streams.runs_ahead else [slice(None)]:
                    sends = [(to, array) for to in near.targets for array in arrays[piece]]
                    pairs = zip(near.sources, received, strict=True)
                    receives = [(source, array) for (source, _), copies in pairs for array in copies[piece]]
                    reduction.works += everyone.exchange(sends, receives)
        if not self.streams.runs_ahead:
            reduction.works = [in_thread(_pop_each([*reduction.works]))]

    def _tags(self, reduction: Reduction, index: int) -> Sequence[torch.Tensor | Tail]:
        sources = self._near(reduction.operation.round).sources
        return [self._received[index, place][-1][-TAG_LENGTH:] for place in range(len(sources))]

    def _arrive(self, reduction: Reduction, index: int, checks: list[torch.Tensor]) -> None:
        """Replace x_i in bucket `index`'s scratch array by w_ii · x_i + Σ_j w_ij · x_j, for received arrays x_j.

        The commit on a GPU needs at least one tensor in `checks`; if there is none, one that is true is added.
        """
        near, length = self._near(reduction.operation.round), self.buckets[index].length
        mean = reduction.arrays[index][:length]
        copied = [one for one in self.buckets[index].piggybacked if one.rule is BufferRule.FIRST]
        with torch.no_grad():
            first = [one.view(mean).clone() for one in copied]
            if near.sources and near.sources[0][0] < self.world.rank:
                first = [one.view(self._received[index, 0][0]) for one in copied]
            own_weight, weights = unit_weights([weight for _, weight in near.sources], mean.dtype)
            mean.mul_(own_weight)
            for place, weight in enumerate(weights):
                mean.add_(self._received[index, place][0][:length], alpha=weight)
            for one, values in zip(copied, first, strict=True):
                one.view(mean).copy_(values)
        if self.streams.runs_ahead and not checks:  # a worker without in-neighbors has no tags to check
            checks.append(self.streams.upload([1], torch.float32) > 0)

    def _load(self, reduction: Reduction, index: int, bucket: Bucket, kept: Snapshot | None) -> None:
        scratch = reduction.arrays[index]
        values = bucket.flat if kept is None or kept.array is None else kept.array[: bucket.size]
        with torch.no_grad():
            scratch[: bucket.size].copy_(values)
            load_piggybacked(bucket, scratch, 1, is_first=True, rank=self.world.rank)
            if (tail := self.tail(bucket, scratch)) is None:
                reduction.sides[index] = self.streams.upload(reduction.tag, torch.float32)
            else:
                tail[-TAG_LENGTH:] = reduction.tag

    def _arrays(self, index: int, place: int, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if (index, place) not in self._received:
            self._received[index, place] = [torch.empty_like(array) for array in like]
        return self._received[index, place]


def _pop_each(works: list[Work]) -> Iterator[Work]:
    """Yield each work and drop the list's reference to it, so that its tensors are freed once it has been awaited."""
    while works:
        yield works.pop(0)
