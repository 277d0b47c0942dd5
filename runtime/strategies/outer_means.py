"""Outer steps (DiLoCo): where all workers meet, an outer optimizer takes what they moved on average as its gradient.

The anchor of `topo.strategies.outer` is the reference of `ProgressMeans`: equal on all workers, bit for bit, and what
is summed is x_i - anchor, plain or by a codec. So a step makes equal anchors and momenta out of equal ones, and the
movement is not rounded to the last digit of the parameters.
"""

from __future__ import annotations

import torch

from partreduce.runtime.averaging.commit import replace_where
from partreduce.runtime.strategies.base import Run
from partreduce.runtime.strategies.progress_means import ProgressMeans
from partreduce.topo.phase import Group
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.strategies.outer import Outer


class OuterMeans(ProgressMeans):
    """Group means of parameters, and outer steps where the group is everybody.

    Keeps two arrays of the parameters' size more than `GroupMeans`, the anchor and, unless it is 0, the momentum.
    """

    carries_state = True

    def __init__(self, outer: Outer, run: Run, *, averaging: Averaging) -> None:
        super().__init__(run, averaging=averaging, overlap=False)
        self.saves_inside_rounds = not self.normalises
        self._lr, self._factor, self._nesterov = float(outer.lr), float(outer.momentum), outer.nesterov
        self.momentum = [torch.zeros_like(bucket.flat) for bucket in run.flat.buckets if outer.momentum]

    def begin(self, step: int, round_: int, *, first: bool) -> None:
        """As `GroupMeans`; a run that was loaded inside a round begins there."""
        super().begin(step, round_, first=first or self.reference is None)

    def drain(self) -> str:
        """As `ProgressMeans`; whatever comes next begins without momentum."""
        for momentum in self.momentum:
            momentum.zero_()
        return super().drain()

    def state(self) -> dict[str, torch.Tensor]:
        """Anchor and momentum."""
        named = {f"momentum/{index}": momentum for index, momentum in enumerate(self.momentum)}
        return {} if self.reference is None else super().state() | named

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        names = [f"momentum/{index}" for index in range(len(self.momentum))]
        super().load_state({name: tensor for name, tensor in state.items() if name not in names})
        for name, momentum in zip(names, self.momentum, strict=True):
            momentum.copy_(state[name])

    def _is_measured(self, group: Group) -> bool:
        return super()._is_measured(group) or len(group.members) == self.run.schedule.num_workers

    def _moved(self, index: int, movement: torch.Tensor, ok: torch.Tensor | None) -> None:
        """Make an outer step of the mean movement of all, in place."""
        if self.momentum:
            momentum = torch.add(movement, self.momentum[index], alpha=self._factor)
            replace_where(self.momentum[index], momentum, ok)
            if self._nesterov:
                movement.add_(momentum, alpha=self._factor)
            else:
                movement.copy_(momentum)
        movement.mul_(self._lr)
