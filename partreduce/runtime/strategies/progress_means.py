"""Strategies `static` and `allreduce` on parameters with a codec: only what workers added since a reference is sent.

Rounding parameters themselves loses each update that is smaller than their last digit, and adds noise of the size of
the parameters in every round. So all workers keep a reference r (see `averaging.reference`), equal bit for bit, and a
group of k members sums the codec of (x_i − r) / k: the decoded sum D has the same bits on all members, and

    mean = r + D,    x ← x + relaxation · (mean − x),    r ← mean    where the group is everybody.

Rounding then takes from a mean at most the codec's share of the largest x_i − r of a block, which is what steps (and
the spread that earlier rounds left) have added since the last mean over all. That is why the period of a schedule needs
a round of all (`StaticGroups.codec_unsupported_reason`). Any relaxation of that round will do: r need not be where
workers are, only the same for all and near them, and the mean that all decoded is both.

Which r an operation uses. Claim: when the operation of round k begins, each of its members holds the mean of the last
round of all before k (or the model of the start, where there was none since).

* Synchronous: every worker takes rounds in order, and the operation of a round begins after the commits of all earlier
  ones; r changes only in the commit of a round of all, which all workers take part in.
* Late: the operation of round k + 1 begins at the end of round k, right after the commit of round k's operation (the
  snapshot of round k + 1 has to contain that commit), and it is the only one in flight until its own commit. So at its
  beginning r holds means of rounds up to k, as in synchronous rounds, and r is still the same when it is committed: one
  array is enough, and no operation is decoded with another reference than the one that it was begun with.
* The start, and a load: the first round that begins without a reference begins with a copy of worker 0's parameters for
  all, which is sent unless all have it (see `averaging.common_start`). The optimizer's `load_state_dict` drops the
  operation in flight and the reference on every worker; a model that is loaded alone is refused, since the difference
  would travel as progress. `initial="keep"` is refused: models that began apart differ by much more than updates.

The version of r, the number of the start and the round of its mean, stands in the tag of each operation: workers with
different references end in a named error. The mean model and `finish` are exact and leave r alone; piggybacked tensors
(BatchNorm, optimizer state) travel as they are. With `where: across-nodes` groups inside one node send plain
parameters.
"""

from __future__ import annotations

import torch

from partreduce.runtime.averaging.common_start import alike_start, common_start
from partreduce.runtime.averaging.reduction import Reduction
from partreduce.runtime.averaging.reference import Reference
from partreduce.runtime.codecs import Codings
from partreduce.runtime.strategies.base import ADDS_PROGRESS, Run
from partreduce.runtime.strategies.group_means import INSIDE, GroupMeans
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Group
from partreduce.topo.strategies.axes import CodecScope
from partreduce.topo.strategies.base import Averaging


class ProgressMeans(GroupMeans):
    """Group means of parameters, of which only what was added since the reference is sent.

    Keeps one array of the parameters' size more than `GroupMeans`, late or not: two besides the parameters where rounds
    are synchronous (sums and reference), three late or step-normalized (and where the round began).
    """

    def __init__(self, run: Run, *, averaging: Averaging, is_delayed: bool) -> None:
        super().__init__(run, averaging=averaging, is_delayed=is_delayed)
        transport = run.schedule.strategy.transport
        self._nodes = run.schedule.cluster.node_of().tolist() if transport.where is CodecScope.ACROSS_NODES else None
        self._codings = Codings.of(transport, len(run.reducer.buckets))
        self._starts_made = 0
        self._is_of_all = False
        """Whether the operation under way was begun by all who are there then; who has failed since is no matter."""
        self.reference: Reference | None = None

    def harm_of_loading(self, round_: int, *, first: bool) -> str:
        """Whatever changes while there is a reference is a difference to it."""
        return super().harm_of_loading(round_, first=first) if self.reference is None else ADDS_PROGRESS

    def members_changed(self) -> None:
        """What roundings left over is of shards that others have now, and a sum that is repeated rounds again."""
        if self._codings is not None:
            self._codings.clear()

    def drain(self) -> str:
        """As `GroupMeans`; whatever comes next is measured from a new reference."""
        self.reference = None
        dropped = super().drain()
        if self._codings is not None:
            self._codings.clear()
        return dropped

    def state(self) -> dict[str, torch.Tensor]:
        """The reference, and with error feedback what roundings left over, once nothing is being rounded."""
        if self.reference is None:
            return {}
        self.settle()
        left = {} if self._codings is None else self._codings.state()
        return super().state() | self.reference.state() | left

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Put back what `state` gave.

        Raises:
            InputError: it is another strategy's.
        """
        inside = {name: tensor for name, tensor in state.items() if name.startswith(INSIDE)}
        left = {name: tensor for name, tensor in state.items() if name.startswith("feedback")}
        if bool(left) != (self._codings is not None and self.run.schedule.strategy.transport.error_feedback):
            raise InputError("load_checkpoint: the file and this run do not both have error feedback")
        if self._codings is not None:
            self._codings.load_state(left)
        rest = {name: tensor for name, tensor in state.items() if name not in inside and name not in left}
        self.reference = Reference.restored(rest, self.run.reducer.buckets, self.run.host)
        self._starts_made = self.reference.starts
        if inside:
            super().load_state(inside)

    def _begin_round(self, step: int, round_: int) -> None:
        if self.reference is None:
            self._starts_made += 1
            self.reference = self._common_start(step, round_)
        super()._begin_round(step, round_)

    def _common_start(self, step: int, round_: int) -> Reference:
        starts, reducer, host = self._starts_made, self.run.reducer, self.run.host
        if self.run.generations is None:
            return common_start(reducer, self.run.everyone, starts, step, round_, host=host)
        place = f"start {starts} of the {self.name}"
        return alike_start(reducer, self.run.generations.is_alike, place, starts, round_, host=host)

    def _start_sum(self, step: int, round_: int, group: Group) -> Reduction:
        codings = self._codings.of_buckets if self._codings is not None and self._is_coded(group) else None
        return self.run.reducer.begin(
            self.name, step, round_, group, lag=int(self.is_delayed), codings=codings, since=self._since(group)
        )

    def _since(self, group: Group) -> Reference | None:
        self._is_of_all = len(group.members) == len(self.others.members)
        return self.reference if self._is_measured(group) else None

    def _receive(self, index: int, sums: torch.Tensor, reduction: Reduction) -> None:
        """Make a mean of the sum of differences; the mean of everybody is the next reference."""
        reference = self.reference
        assert reference is not None, "taken when the first round began"
        mean = sums[: self.run.reducer.buckets[index].size]
        if reduction.since is not None:
            if self._is_of_all:
                self._moved(index, mean, reduction.ok)
            reference.complete(index, mean)
        if self._is_of_all:
            reference.take(index, mean, reduction.ok)
            reference.round = reduction.operation.round

    def _average_alone(self, round_: int) -> None:
        reference = self.reference
        assert reference is not None, "as above"
        with torch.no_grad():
            for index, bucket in enumerate(self.run.reducer.buckets):
                mean = bucket.flat - reference.arrays[index].here()
                self._moved(index, mean, None)
                reference.complete(index, mean)
                reference.take(index, mean, None)
                bucket.flat.copy_(mean)
        reference.round = round_

    def _moved(self, index: int, movement: torch.Tensor, ok: torch.Tensor | None) -> None:
        """Called with what all added to the reference on average, which becomes the next one when it is added."""

    def _is_measured(self, group: Group) -> bool:
        """Whether only what was added since the reference is sent."""
        return self._is_coded(group)

    def _is_coded(self, group: Group) -> bool:
        """Whether anything that this group sends is rounded."""
        return self._nodes is None or len({self._nodes[member] for member in group.members}) > 1
