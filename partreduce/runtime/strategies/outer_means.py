"""Outer steps (DiLoCo): an outer optimizer takes what workers moved on average as its gradient.

Where all workers meet, the outer parameters a of `topo.strategies.outer` are the reference of `ProgressMeans`: equal on
all, bit for bit, and what is summed is x_i - a, plain or by a codec. So a step makes equal outer parameters and momenta
out of equal ones, and the movement is not rounded to the last digit of the parameters.
"""

from __future__ import annotations

import torch

from partreduce.runtime.averaging.reduction import Reduction
from partreduce.runtime.averaging.reference import Kept
from partreduce.runtime.strategies.base import ADDS_PROGRESS, Run
from partreduce.runtime.strategies.group_means import INSIDE, GroupMeans
from partreduce.runtime.strategies.progress_means import ProgressMeans
from partreduce.topo.errors import InputError
from partreduce.topo.metrics.outer_steps import check_unstable
from partreduce.topo.phase import Group
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.strategies.outer import OuterStep


class OuterMeans(ProgressMeans):
    """Group means of parameters, and outer steps where the group is everybody, from one set of outer parameters.

    Keeps two arrays of the parameters' size more than `GroupMeans`: the outer parameters and, unless it is 0, the
    momentum.
    """

    measures_from_start = True

    carries_state = True

    def __init__(self, outer: OuterStep, run: Run, *, averaging: Averaging) -> None:
        super().__init__(run, averaging=averaging, is_delayed=False)
        self.outer = OuterSteps(outer, run)

    def begin(self, step: int, round_: int, *, first: bool) -> None:
        """As `GroupMeans`; a run that was loaded inside a round begins there."""
        super().begin(step, round_, first=first or self.reference is None)

    def drain(self) -> str:
        """As `ProgressMeans`; whatever comes next begins without momentum."""
        self.outer.rest()
        return super().drain()

    def state(self) -> dict[str, torch.Tensor]:
        """Anchor and momentum."""
        return {} if self.reference is None else super().state() | self.outer.state()

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        super().load_state({name: tensor for name, tensor in state.items() if name not in self.outer.momenta})
        self.outer.load(state)

    def _is_measured(self, group: Group) -> bool:
        return super()._is_measured(group) or self._is_of_all

    def _moved(self, index: int, movement: torch.Tensor, ok: torch.Tensor | None) -> None:
        self.outer.step(index, movement, ok)


class OwnOuterParams(GroupMeans):
    """Outer steps of every group: each member from its own outer parameters, its model after its last round.

    Keeps as many arrays as `OuterMeans`, and sends whole models, as `GroupMeans` does.
    """

    measures_from_start = True

    carries_state = True

    def __init__(self, outer: OuterStep, run: Run, *, averaging: Averaging) -> None:
        super().__init__(run, averaging=averaging, is_delayed=False)
        check_unstable(run.schedule)
        self.outer = OuterSteps(outer, run)
        self.outer_params: list[Kept] = []

    def begin(self, step: int, round_: int, *, first: bool) -> None:
        """As `GroupMeans`; a run begins with its model as outer parameters, also where it is loaded inside a round."""
        super().begin(step, round_, first=first or not self.outer_params)

    def harm_of_loading(self, round_: int, *, first: bool) -> str:
        return ADDS_PROGRESS if self.outer_params else super().harm_of_loading(round_, first=first)

    def drain(self) -> str:
        """As `GroupMeans`; whatever comes next begins with its model as the outer parameters, without momentum."""
        self.outer_params = []
        self.outer.rest()
        return super().drain()

    def state(self) -> dict[str, torch.Tensor]:
        """Outer parameters and momentum of this worker."""
        momenta = self.outer.state()
        outer_params = {f"outer_params/{index}": kept.values for index, kept in enumerate(self.outer_params)}
        return outer_params and outer_params | momenta | super().state()

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        buckets = self.run.flat.buckets
        names = [f"outer_params/{index}" for index in range(len(buckets))]
        inside = {name: tensor for name, tensor in state.items() if name.startswith(INSIDE)}
        if state.keys() - inside != {*names, *self.outer.momenta}:
            raise InputError(f"load_checkpoint: the file holds {', '.join(sorted(state))} instead of outer parameters")
        loaded = (state[name].to(bucket.device, copy=True) for name, bucket in zip(names, buckets, strict=True))
        self.outer_params = [Kept(values, self.run.host) for values in loaded]
        self.outer.load(state)
        if inside:
            super().load_state(inside)

    def _begin_round(self, step: int, round_: int) -> None:
        if not self.outer_params:
            self.outer_params = [Kept(bucket.flat.detach().clone(), self.run.host) for bucket in self.run.flat.buckets]
        super()._begin_round(step, round_)

    def _receive(self, index: int, sums: torch.Tensor, reduction: Reduction) -> None:
        outer_params, mean = self.outer_params[index].here(), sums[: self.run.flat.buckets[index].size]
        self.outer.step(index, mean.sub_(outer_params), reduction.ok)
        self.outer_params[index].put(mean.add_(outer_params), reduction.ok)

    def _makes_equal(self, group: Group) -> bool:  # noqa: ARG002 - outer parameters differ
        return False


class OuterSteps:
    """The outer optimizer of this worker: its momentum, an array for each bucket, none where the momentum is 0."""

    def __init__(self, outer: OuterStep, run: Run) -> None:
        self._outer, self._run = outer, run
        buckets = run.reducer.buckets if outer.momentum else []
        self.momenta = {
            f"momentum/{index}": Kept(torch.zeros_like(bucket.flat), run.host) for index, bucket in enumerate(buckets)
        }
        """By the names that they have in a saved state."""

    def step(self, index: int, movement: torch.Tensor, ok: torch.Tensor | None) -> None:
        outer_step(self._outer, movement, self.momenta.get(f"momentum/{index}"), ok)

    def rest(self) -> None:
        for momentum in self.momenta.values():
            momentum.put(torch.zeros(len(momentum.values), dtype=momentum.values.dtype, device=momentum.device))

    def state(self) -> dict[str, torch.Tensor]:
        """The momenta, once all that is kept in host memory has arrived there."""
        if self._run.host is not None:
            self._run.host.settle()
        return {name: momentum.values for name, momentum in self.momenta.items()}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        for name, momentum in self.momenta.items():
            momentum.put(state[name].to(momentum.device))


def outer_step(outer: OuterStep, movement: torch.Tensor, momentum: Kept | None, ok: torch.Tensor | None) -> None:
    """Make of a movement what the outer optimizer adds to the outer parameters, in place; and the next momentum."""
    if momentum is not None:
        following = torch.add(movement, momentum.here(), alpha=float(outer.momentum))
        momentum.put(following, ok)
        if outer.nesterov:
            movement.add_(following, alpha=float(outer.momentum))
        else:
            movement.copy_(following)
    movement.mul_(float(outer.lr))
