"""Strategy `static` with a quorum: groups that take late members along (docs/theory/quorum-groups.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.strategies.base import ADDS_PROGRESS, Further, ParameterRunner, Run
from partreduce.runtime.strategies.quorum.driver import Payload
from partreduce.runtime.strategies.quorum.rounds import room_for
from partreduce.runtime.strategies.quorum.runner import QuorumRunner
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.needed_groups import member_sets
from partreduce.schedulers.protocols.partial import Partial, members_of
from partreduce.topo.phase import Group
from partreduce.topo.strategies.quorum import Quorum


@dataclass(slots=True, eq=False)
class Snapshot:
    """What a worker brings to a round, and later the sum of that round."""

    arrays: list[torch.Tensor]
    """Of each bucket its parameters; the first that carries exact numbers has room behind them, or one more array."""
    own: list[torch.Tensor]
    """The same, as they were brought."""


class Shadows(Payload[Snapshot]):
    """The shadow s of one worker, and c, by how much rounds changed it since the training last took it.

    What is asked for under the driver's lock copies the model once or a few times. Costs four arrays of model size,
    however many results wait.

    Args:
        buckets: of the model.
        room: numbers that a round needs besides.
        group_of: the group of a round, None where this worker rests.
    """

    def __init__(self, buckets: Sequence[Bucket], room: int, group_of: Callable[[int], Group | None]) -> None:
        super().__init__(buckets, room)
        self._group_of = group_of
        self._shadow = [_zeros(bucket) for bucket in buckets]
        self._changes = [_zeros(bucket) for bucket in buckets]
        arrays = [_zeros(bucket, room if index == self.carrier else 0) for index, bucket in enumerate(buckets)]
        if self.carrier == len(arrays):
            arrays.append(torch.zeros(room))
        self._snapshot = Snapshot(arrays, [_zeros(bucket) for bucket in buckets])
        self.keeps_model = False
        """Whether the model stays as it is when results are taken: another one is about to be loaded."""

    def publish(self) -> None:
        """What the training did becomes part of the shadow: s = x + c."""
        with torch.no_grad():
            for bucket, shadow, changes in zip(self.buckets, self._shadow, self._changes, strict=True):
                shadow.copy_(bucket.flat)
                shadow.add_(changes)

    def clear(self) -> None:
        """A new segment: the shadow is the model."""
        self.keeps_model = False
        for changes in self._changes:
            changes.zero_()
        self.publish()

    def depart(self) -> Snapshot:
        """Take the shadow along as it is. There is one round at a time, so one snapshot."""
        for shadow, array, own in zip(self._shadow, self._snapshot.arrays, self._snapshot.own, strict=False):
            array[: len(shadow)].copy_(shadow)
            own.copy_(shadow)
        return self._snapshot

    def keep(self, round_: int, arrived: Snapshot) -> None:
        """The sum of a round is there: s + t(m - b), exactly m where t is 1 and nothing was published meanwhile."""
        group = self._group_of(round_)
        if group is None:
            return
        for shadow, changes, array, own in zip(self._shadow, self._changes, arrived.arrays, arrived.own, strict=False):
            after = array[: len(shadow)].div_(len(group.members))
            if group.relax != 1:
                torch.lerp(own, after, float(group.relax), out=after)
            shadow.sub_(own).add_(after)
            changes.add_(after).sub_(own)

    def take(self, rounds: Sequence[int]) -> list[Snapshot]:  # noqa: ARG002 - as all that is summed
        """The training goes on with the shadow: x = s, c = 0. It has published before."""
        if not self.keeps_model:
            with torch.no_grad():
                for bucket, shadow, changes in zip(self.buckets, self._shadow, self._changes, strict=True):
                    bucket.flat.copy_(shadow)
                    changes.zero_()
        return []


def _zeros(bucket: Bucket, room: int = 0) -> torch.Tensor:
    return torch.zeros(bucket.size + room, dtype=bucket.dtype)


class QuorumGroups(QuorumRunner[Snapshot], ParameterRunner):
    """The end of a round publishes what its steps did, and goes on with the shadow once a new result is in it.

    Rounds that the worker was too late for count as its own, beside the one that it ended. Where all
    meet (a mean model, a checkpoint, the end), every worker publishes what it has and takes part in the rounds that
    others still need; then all models are their shadows, after the same round.

    Buffers such as BatchNorm's are averaged in the mean model and at the end; between these each worker keeps its own,
    as it does with the optimizer's state. Models are averaged in host memory, wherever they lie.
    """

    def __init__(self, when: Quorum, run: Run) -> None:
        schedule = run.schedule
        self._members = members_of(schedule)
        groups = member_sets(schedule, run.rank)
        largest = max([1, *map(len, groups)])
        self.shadows = Shadows(run.flat.buckets, room_for(largest), self._group)
        machine = Partial(when, schedule.num_workers, group_of=lambda worker, r: self._members(worker, self._first + r))
        self._first = 0
        """The schedule's round with which this segment began."""
        self._has_progress = False
        super().__init__(when, run, machine, self.shadows, groups)
        self.start()

    def _group(self, round_: int) -> Group | None:
        """This worker's group in a round of the segment."""
        return self.run.schedule.group_of(self.run.rank, self._first + round_)

    def line(self, round_: int) -> Communicator | None:
        group = self._group(round_)
        return None if group is None else self.communicators[group.members]

    def begin(self, step: int, round_: int, *, first: bool) -> None:  # noqa: ARG002 - the signature of all
        self.refuse_failure()
        self._open()
        self._has_progress = True

    def end_round(self, step: int, round_: int) -> Further:  # noqa: ARG002 - as above
        """Publish, wait for a result that is new, and go on with the shadow."""
        self.refuse_failure()
        return Further(self._call() - 1)

    def gather(self, *, apply: bool = True) -> int:
        """Publish what there is, and take part in the rounds that others need, until all have come here.

        Without `apply` another model may be there already: it is left as it is, and nothing of it published.
        """
        self.refuse_failure()
        self._open()
        rounds = 0
        self.shadows.keeps_model = not apply
        if self._has_progress and apply:
            rounds += self._call()
        self._has_progress = False
        return (rounds + self.end_segment(lambda _: None)) * self.run.pace

    def harm_of_loading(self, round_: int, *, first: bool) -> str:  # noqa: ARG002 - the signature of all
        """While a segment is open: what rounds changed in the shadow is added to the model."""
        return "" if self.driver.state is None else ADDS_PROGRESS

    def _open(self) -> None:
        if self.driver.state is None:
            self._first = self.run.progress.step // self.run.pace
            self.open()
            self.count_from_here()

    def _call(self) -> int:
        """Publish and take; the rounds by which that went further."""
        self._has_progress = False
        return self.call(self.shadows.publish).by
