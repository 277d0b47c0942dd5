"""Fragments in turn (streaming DiLoCo): each has the rounds of a whole model, at steps of its own and merged late.

In every round of `steps_per_round` steps each fragment is sent once and merged `sync.late_steps` steps later, at the
places that `topo.strategies.fragments.moves` gives it. Which one that is follows from the step alone, so all workers
run the same operations in the same order, also where several are in flight: what was sent first is merged first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partreduce.runtime.strategies.base import ADDS_PROGRESS, ParameterRunner, Run
from partreduce.runtime.strategies.group_means import GroupMeans
from partreduce.topo.strategies.fragments import Move, moves, round_ends


class FragmentMeans(ParameterRunner):
    """Group means, or outer steps, of one fragment after the other, by a runner of each one's own."""

    measures_from_start = True

    carries_state = True

    def __init__(self, run: Run, parts: Sequence[GroupMeans]) -> None:
        super().__init__(run)
        self.reducers = tuple(part.run.reducer for part in parts)
        self._parts, self._late = parts, run.schedule.strategy.sync.late_steps
        # At unequal steps per round a worker may have had turns in a round that others still lack.
        self.saves_inside_rounds = len(set(run.schedule.worker_steps().tolist())) == 1
        self._moves: dict[int, list[Move]] = {}
        for move in moves(len(parts), run.steps_per_round, self._late):
            self._moves.setdefault(move.taken, []).append(move)
        self._ends = round_ends(len(parts), run.steps_per_round)

    def begin(self, step: int, round_: int, *, first: bool) -> None:  # noqa: ARG002 - a run may be loaded inside a round
        for part in self._parts:
            part.begin(step, round_, first=True)

    def end_step(self, step: int) -> None:
        """Merge and send the fragments that are due; what was never sent, or by a worker that rests, merges nothing."""
        round_, before = divmod(step, self.run.steps_per_round)
        for move in self._moves.get(before + 1, ()):
            part = self._parts[move.fragment]
            if move.merges:
                part.merge()
                continue
            self.begin(step, round_, first=True)  # all at once, as with the workers that take steps
            if (generations := self.run.generations) is not None:
                part.carry_out(generations, step, round_, round_ * len(self._parts) + move.fragment)
            else:
                part.send(step, round_, early=self._late > 0)

    def step_of(self, turn: int) -> int:
        round_, fragment = divmod(turn, len(self._parts))
        return round_ * self.run.steps_per_round + self._ends[fragment] - 1

    def members_changed(self) -> None:
        for part in self._parts:
            part.members_changed()

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
        """Of every fragment outer parameters and momentum, and the sums of those that are in flight."""
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
