"""Parameter engine: every worker steps with its own gradients, and models are averaged at the ends of rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from partreduce.runtime.liveness.uneven_inputs import UnevenInputs
from partreduce.runtime.strategies.base import ParameterRunner, Run
from partreduce.runtime.worker.engine import Engine
from partreduce.topo.errors import InputError


class ParameterEngine(Engine[ParameterRunner]):
    """The wrapped optimizer steps first; after the last step of a round the runner averages models."""

    def __init__(
        self, run: Run, runner: ParameterRunner, optimizer: torch.optim.Optimizer, uneven_inputs: UnevenInputs
    ) -> None:
        super().__init__(run, runner, optimizer, uneven_inputs)

    @property
    def differs(self) -> bool:
        return not self.runner.are_equal

    def step(
        self,
        closure: Callable[[], Any] | None,
        *,
        skip: bool,
        found_inf: torch.Tensor | None,
        scale: torch.Tensor | None,
    ) -> Any:  # noqa: ANN401 - what the closure returns
        step, steps_per_round, loss = self._progress.step, self.run.steps_per_round, None
        round_, first = step // steps_per_round, step % steps_per_round == 0
        self.guard.before_step(first=first, skip=skip, found_inf=found_inf, scale=scale)
        if skip or found_inf is not None or scale is not None:
            self._prepare(skip=skip, found_inf=found_inf, scale=scale)
        self.declare()
        self.guard.compare_first(gradients=closure is None and not skip)
        if self._has_tables:  # whose lookups, in the closure too, all workers do
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self.run.tables.close_step()
            closure = None
        self.runner.begin(step, round_, first=first)
        if not skip and not (found_inf is not None and bool(found_inf)):
            if closure is None:
                self.run.applier.plain_step()
            else:
                loss = self.run.applier.plain_step(closure)
                self.guard.after_closure()
        self._count(step + 1)
        if self._has_tables:
            self.run.tables.stepped()
        self.runner.end_step(step)
        ends_round = self._progress.step % steps_per_round == 0
        self.guard.after_step(ends_round=ends_round)
        if ends_round:
            self._end_round(step, round_)
        return loss

    def check_load(self, steps: int) -> None:
        """Refuse a step inside a round where the runner measures rounds from their beginning."""
        if self.runner.needs_round_start and steps % self.run.steps_per_round:
            raise InputError(
                f"load_state_dict: step {steps} lies inside a round of {self.run.steps_per_round} steps, whose "
                "beginning "
                "is not known any more; save the state after the last step of a round"
            )

    def _end_round(self, step: int, round_: int) -> None:
        """End a round; steps of rounds that the runner skips count as taken."""
        skipped = self.runner.end_round(step, round_) * self.run.steps_per_round
        self._count(self._progress.step + skipped)  # what it does now, though it is no further
        self.skipped += skipped
        self._batches_to_drop += skipped

    def _take_part(self, after_averaging: Callable[[], object] | None) -> bool:
        """A round with the parameters as they are."""
        step, round_ = self._progress.step, self.round
        if self._has_tables and not self._serve_tables_of_round(after_averaging):
            return False
        while self._progress.step < (round_ + 1) * self.run.steps_per_round:
            self._count(self._progress.step + 1)
            self.runner.end_step(self._progress.step - 1)
        self._end_round(step, round_)
        return True

    def _serve_tables_of_round(self, after_averaging: Callable[[], object] | None) -> bool:
        """Take the rest of a round's steps with this worker's rows of tables only.

        Whether any step of the round was taken, here or before: else nobody does the round.
        """
        for _ in range(self.run.steps_per_round - self._progress.step % self.run.steps_per_round):
            self.optimizer.zero_grad(set_to_none=True)
            if not self._serves_tables(after_averaging):
                return self._progress.step % self.run.steps_per_round > 0
            if after_averaging is not None:
                after_averaging()
            self.run.applier.plain_step()
            self._count(self._progress.step + 1)
            self.runner.end_step(self._progress.step - 1)
        return True
