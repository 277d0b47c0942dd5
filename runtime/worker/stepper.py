"""Stepper: counts a worker's steps and rounds, and does what one step, or one round without data, is made of."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from preduce.runtime.averaging.gradients import averaged_are_finite, unscale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from preduce.runtime.liveness.uneven_inputs import UnevenInputs
    from preduce.runtime.strategies.base import Run, Runner


class Stepper:
    """The steps of one worker. A round is `pace` steps; its group operation follows the last of them."""

    def __init__(self, run: Run, runner: Runner, optimizer: torch.optim.Optimizer, uneven_inputs: UnevenInputs) -> None:
        self.run, self.runner, self.optimizer, self.uneven_inputs = run, runner, optimizer, uneven_inputs
        self.steps = 0
        """Steps taken so far, skipped ones included."""
        self._joining = False
        self._averaged = False

    @property
    def round(self) -> int:
        """The round that this worker is in: steps div pace."""
        return self.steps // self.run.pace

    def step(
        self,
        closure: Callable[[], Any] | None,
        *,
        skip: bool,
        found_inf: torch.Tensor | None,
        scale: torch.Tensor | None,
    ) -> Any:  # noqa: ANN401 - what the closure returns
        """One step; at the end of a round the group operation.

        Args:
            closure: evaluates the loss again, as torch's optimizers take it.
            skip: count the step without applying it.
            found_inf: GradScaler's verdict on this worker's gradients, which it leaves to the optimizer: it would not
                call step() at all on a worker with an infinite gradient, and its group would wait.
            scale: what GradScaler multiplied the loss by.
        """
        self.run.flat.check()
        round_, step = self.round, self.steps
        self._declare(round_)
        if found_inf is not None and scale is not None:
            unscale(self.optimizer, scale)
        if self.runner.averages_gradients:
            loss = self._step_with_mean_gradients(closure, skip=skip, scaled=found_inf is not None)
        else:
            self.runner.before_step(step, round_, first=step % self.run.pace == 0)
            loss = None
            if not skip and not (found_inf is not None and bool(found_inf)):
                loss = self.optimizer.step(closure) if closure is not None else self.optimizer.step()
        self.steps += 1
        if self.steps % self.run.pace == 0:
            self.runner.end_round(step, round_)
        return loss

    def _step_with_mean_gradients(self, closure: Callable[[], Any] | None, *, skip: bool, scaled: bool) -> Any:  # noqa: ANN401 - as above
        """The closure is evaluated here, before the averaging; all workers take the same step, or none does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if skip:
            self.optimizer.zero_grad(set_to_none=False)
        if not self._averaged:
            self.runner.before_step(self.steps, self.round, first=True)
        self._averaged = False
        if not scaled or averaged_are_finite(self.run.flat.buckets):
            self.optimizer.step()
        return loss

    @property
    def has_local_gradients(self) -> bool:
        """Whether the gradients of the coming step are still to be averaged."""
        return self.runner.averages_gradients and not self._averaged

    def average_gradients(self) -> None:
        """Average the gradients of the coming step now."""
        self._declare(self.round)
        self.runner.before_step(self.steps, self.round, first=True)
        self._averaged = True

    @contextlib.contextmanager
    def joining(self) -> Iterator[None]:
        """Inside, every round is declared before it begins, so that workers whose data ended take part in it."""
        self._joining = True
        try:
            yield
        finally:
            self._joining = False

    def _declare(self, round_: int) -> None:
        if self._joining:
            self.uneven_inputs.declare(round_)

    def serve(self) -> None:
        """This worker's data ended: take part in all rounds that others still do."""
        lost = self.runner.lost if self.runner.outlives_lost_workers else None
        self.runner.leave()  # whoever waits here for the others' next round can answer nobody's group meanwhile
        self.uneven_inputs.ended()
        while self.uneven_inputs.another(self.round, lost):
            self.run.flat.check()
            round_ = self.round
            if self.runner.averages_gradients:
                self.optimizer.zero_grad(set_to_none=False)
                self.runner.before_step(self.steps, round_, first=True)
                self.optimizer.step()
            self.runner.end_round(self.steps, round_)
            self.runner.leave()
            self.steps = (round_ + 1) * self.run.pace
