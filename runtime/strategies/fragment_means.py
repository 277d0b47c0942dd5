"""Fragments in turn (streaming DiLoCo): each has the rounds of a whole model, at steps of its own and merged late.

In every round of `pace` steps each fragment is sent once and merged `when.late_steps` steps later, at the place that
`topo.strategies.fragments.round_ends` gives it; one is merged before the next is sent, and all before the round ends.
Which one that is follows from the step alone, so all workers run the same operations in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partreduce.runtime.strategies.base import ADDS_PROGRESS, ParameterRunner, Run
from partreduce.runtime.strategies.group_means import GroupMeans
from partreduce.topo.strategies.fragments import round_ends


class FragmentMeans(ParameterRunner):
    """Group means, or outer steps, of one fragment after the other, by a runner of each one's own."""

    carries_state = True
    saves_inside_rounds = True

    def __init__(self, run: Run, parts: Sequence[GroupMeans]) -> None:
        super().__init__(run)
        self._parts, self._late = parts, run.schedule.strategy.when.late_steps
        ends = round_ends(len(parts), run.pace)
        self._merges = dict(zip(ends, parts, strict=True))
        self._sends = {end - self._late: part for end, part in self._merges.items()}

    def begin(self, step: int, round_: int, *, first: bool) -> None:  # noqa: ARG002 - a run may be loaded inside a round
        for part in self._parts:
            part.begin(step, round_, first=True)

    def end_step(self, step: int) -> None:
        """Send the fragment whose turn it is, merge the one that is in flight, each where it is due."""
        round_, before = divmod(step, self.run.pace)
        taken = before + 1
        if (part := self._sends.get(taken)) is not None:
            self.begin(step, round_, first=True)  # all at once, as with the workers that take steps
            part.send(step, round_, early=self._late > 0)
        if (part := self._merges.get(taken)) is not None:
            part.merge()

    def settle(self) -> None:
        for part in self._parts:
            part.settle()

    def drain(self) -> str:
        for part in self._parts:
            part.drain()
        return ""

    def harm_of_loading(self, round_: int, *, first: bool) -> str:
        """Where a fragment is on its way, or is measured from a reference."""
        is_sent = any(part.is_sent for part in self._parts)
        return ADDS_PROGRESS if is_sent else self._parts[0].harm_of_loading(round_, first=first)

    def state(self) -> dict[str, torch.Tensor]:
        """Of every fragment anchor and momentum, and the sums of the one that is in flight."""
        found: dict[str, torch.Tensor] = {}
        for number, part in enumerate(self._parts):
            found |= {f"{number}/{name}": tensor for name, tensor in part.state().items()}
            found |= {f"{number}/flight/{name}": tensor for name, tensor in part.flight().items()}
        return found

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        for number, part in enumerate(self._parts):
            own = {name.removeprefix(f"{number}/"): one for name, one in state.items() if name.startswith(f"{number}/")}
            flight = {name.removeprefix("flight/"): one for name, one in own.items() if name.startswith("flight/")}
            if rest := {name: one for name, one in own.items() if not name.startswith("flight/")}:
                part.load_state(rest)
            if flight:
                part.take_up(flight)
