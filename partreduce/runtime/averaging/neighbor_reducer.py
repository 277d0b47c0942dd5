"""Run one round of weighted averaging by point-to-point messages instead of a group reduction.

Each worker sends its whole scratch array (parameters, piggybacked tensors, tag) to its out-neighbors and receives one
from each in-neighbor; x_i ← w_ii · x_i + Σ_j w_ij · x_j is then formed in the scratch array, in one order, and
committed as a group's mean would be. Copied buffers are those of the lowest rank among a worker's in-neighbors and
itself. Costs one receive array of model size for every in-neighbor of the busiest round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import torch

from partreduce.runtime.averaging.bucket import Bucket, load_piggybacked
from partreduce.runtime.averaging.buffer_rules import BufferRule
from partreduce.runtime.averaging.gradients import Snapshot
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.averaging.reduction import Reduction
from partreduce.runtime.averaging.reference import Reference
from partreduce.runtime.codecs import Coding
from partreduce.runtime.liveness.settings import Settings
from partreduce.runtime.transport.tags import TAG_LENGTH, agreement, sums_agree, tag_of
from partreduce.runtime.transport.weights import unit_weights
from partreduce.runtime.transport.work import Work, in_thread
from partreduce.topo.phase import Group
from partreduce.topo.strategies.neighbor import NeighborAveraging

APART = "its members were in different rounds at the same time (their tags differ)"


class Neighborhood:
    """Whom one worker hears and tells in a round: in-neighbors with weights, out-neighbors, both ascending."""

    def __init__(self, strategy: NeighborAveraging, index: int, rank: int) -> None:
        edges = list(strategy.rounds[index].edges())
        self.sources: list[tuple[int, Fraction]] = [(s, w) for s, t, w in edges if t == rank]
        self.targets = sorted(t for s, t, _ in edges if s == rank)
        members = {rank, *self.targets, *(s for s, _ in self.sources)}
        self.group = Group(tuple(sorted(members))) if len(members) > 1 else None


class PeerReducer(Reducer):
    """A `Reducer` whose operation is a round of weighted averaging; a thread of its own waits for gloo."""

    def __init__(self, base: Reducer, neighborhoods: Sequence[Neighborhood]) -> None:
        super().__init__(base.world, base.buckets, base.recorder, base.heartbeat, key=base.key, timeout=base.timeout)
        self.checks = base.checks
        self.neighborhoods = tuple(neighborhoods)
        self._received: dict[tuple[int, int], list[torch.Tensor]] = {}

    def _start(
        self,
        reduction: Reduction,
        *,
        gradients: bool = False,
        kept: Sequence[Snapshot] = (),
        divisor: int | None = None,
        codings: Sequence[Coding] | None = None,
        watched: bool = True,
    ) -> None:
        assert isinstance(reduction, PeerReduction), "announced by this class"
        assert not gradients, "neighbors average parameters"
        assert divisor is None, "by their weights"
        assert codings is None, "models are not rounded"
        near, everyone = reduction.neighborhood, reduction.communicator
        self._look(reduction.operation, watched=watched)
        for index, bucket in enumerate(self.buckets):
            with self.stream(bucket.device):
                self._load(reduction, index, bucket, kept[index] if kept else None)
                side = reduction.sides.get(index)
                arrays = [reduction.arrays[index], *([] if side is None else [side])]
                heard = [self._arrays(reduction, place, arrays, index) for place in range(len(near.sources))]
                # Where an exchange may be aborted half-way the tags follow in a separate one.
                pieces = [slice(0, 1), slice(1, 2)] if self.streams.runs_ahead else [slice(None)]
                for piece in pieces:
                    sends = [(to, array) for to in near.targets for array in arrays[piece]]
                    receives = [
                        (source, array)
                        for (source, _), copies in zip(near.sources, heard, strict=True)
                        for array in copies[piece]
                    ]
                    reduction.works += everyone.exchange(sends, receives)
        self._fills_first()
        if not self.streams.runs_ahead:
            reduction.works = [in_thread(_pop_each([*reduction.works]))]

    def _complete(self, reduction: Reduction, given_up: Callable[[], str | None] | None = None) -> None:
        """Wait for the neighbors' arrays, check their tags and form the weighted mean in the scratch arrays."""
        assert isinstance(reduction, PeerReduction), "begun by this class"
        near = reduction.neighborhood
        for work in reduction.works:
            self.wait_for(work, reduction.operation, given_up)
        reduction.works.clear()
        checks: list[torch.Tensor] = []
        agree, streams = True, self.streams
        for index, bucket in enumerate(self.buckets):
            with self.stream(bucket.device):
                for place in range(len(near.sources)):
                    tags = reduction.heard[index, place][-1][-TAG_LENGTH:]
                    if streams.runs_ahead:
                        checks.append(agreement(tags, reduction.tag, 1, streams.upload))
                    else:
                        agree = sums_agree(tags, reduction.tag, 1) and agree
                self._combine(reduction, index, bucket.length)
                if streams.runs_ahead and not checks:  # a worker that only sends has nothing to judge
                    checks.append(streams.upload([1], torch.float32) > 0)
        self._judge(reduction, agree, checks)

    def _announce(
        self,
        kind: str,
        step: int,
        round_: int,
        group: Group,
        *,
        lag: int = 0,
        since: Reference | None = None,
        settings: Settings = (),
        num_bytes: int | None = None,
    ) -> PeerReduction:
        assert since is None, "neighbors send models whole"
        assert not settings, "and no gradients"
        self._check_after_abort()
        near = self.neighborhoods[round_ % len(self.neighborhoods)]
        if num_bytes is None:
            num_bytes = sum(bucket.num_bytes for bucket in self.buckets) * len(near.targets)
        operation = self.recorder.begin(kind, step, round_, group.members, num_bytes, lag=lag)
        self.heartbeat.doing(operation.entered)
        tag = tag_of(self.key, kind, round_, "neighbors")
        reduction = PeerReduction(self.world.everyone(), group, operation, tag, self.buckets)
        reduction.neighborhood, reduction.heard = near, {}
        return reduction

    def _load(self, reduction: Reduction, index: int, bucket: Bucket, kept: Snapshot | None) -> None:
        scratch = reduction.arrays[index]
        values = bucket.flat if kept is None or kept.array is None else kept.array[: bucket.size]
        with torch.no_grad():
            scratch[: bucket.size].copy_(values)
            load_piggybacked(bucket, scratch, 1, is_first=True, rank=self.world.rank)
            if self.streams.runs_ahead or not bucket.exact:
                reduction.sides[index] = self.streams.upload(reduction.tag, torch.float32)
            else:
                bucket.tail_of(scratch)[-TAG_LENGTH:] = reduction.tag

    def _arrays(
        self, reduction: PeerReduction, place: int, like: Sequence[torch.Tensor], index: int
    ) -> list[torch.Tensor]:
        """Where the arrays of one in-neighbor go; kept from round to round."""
        if (index, place) not in self._received:
            self._received[index, place] = [torch.empty_like(array) for array in like]
        arrays = reduction.heard[index, place] = self._received[index, place]
        return arrays

    def _combine(self, reduction: PeerReduction, index: int, length: int) -> None:
        near = reduction.neighborhood
        mean = reduction.arrays[index][:length]
        copied = [one for one in self.buckets[index].piggybacked if one.rule is BufferRule.FIRST]
        with torch.no_grad():
            first = [one.view(mean).clone() for one in copied]
            if near.sources and near.sources[0][0] < self.world.rank:
                first = [one.view(reduction.heard[index, 0][0]) for one in copied]
            own_weight, weights = unit_weights([weight for _, weight in near.sources], mean.dtype)
            mean.mul_(own_weight)
            for place, weight in enumerate(weights):
                mean.add_(reduction.heard[index, place][0][:length], alpha=weight)
            for one, values in zip(copied, first, strict=True):
                one.view(mean).copy_(values)


class PeerReduction(Reduction):
    """A running exchange."""

    neighborhood: Neighborhood
    heard: dict[tuple[int, int], list[torch.Tensor]]
    """By bucket and place of the in-neighbor."""

    def complaint(self) -> str:
        return APART


def _pop_each(works: list[Work]) -> Iterator[Work]:
    """Each work, of which nothing is kept once it has been waited for."""
    while works:
        yield works.pop(0)
