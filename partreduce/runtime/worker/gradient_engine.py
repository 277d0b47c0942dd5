"""Gradient engine: every worker steps with mean gradients, so that all models stay equal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from partreduce.runtime.averaging.gradients import own_gradients
from partreduce.runtime.liveness.uneven_inputs import UnevenInputs
from partreduce.runtime.strategies.base import Arrived, GradientRunner, Run
from partreduce.runtime.worker.engine import Engine
from partreduce.topo.errors import InputError


class GradientEngine(Engine[GradientRunner]):
    """Averages gradients in `step`, or before it in `average_gradients`; a round is a step."""

    @property
    def differs(self) -> bool:
        return not self.runner.keeps_equal

    def __init__(
        self, run: Run, runner: GradientRunner, optimizer: torch.optim.Optimizer, uneven_inputs: UnevenInputs
    ) -> None:
        super().__init__(run, runner, optimizer, uneven_inputs)
        self._in_place = False
        """Whether the gradients are means already."""
        self._arrived = Arrived()

    def go_on_from(self, steps: int) -> None:
        super().go_on_from(steps)
        self._in_place = self.run.applier.changes_means = False

    def step(
        self,
        closure: Callable[[], Any] | None,
        *,
        skip: bool,
        found_inf: torch.Tensor | None,
        scale: torch.Tensor | None,
    ) -> Any:  # noqa: ANN401 - what the closure returns
        """As in `Engine`. The closure is evaluated before the averaging; all workers take the step, or none does."""
        applier = self.run.applier
        self.guard.before_step(first=True, skip=skip, found_inf=found_inf, scale=scale)
        is_plain = not skip and found_inf is None and scale is None
        if not is_plain:
            self.runner.check_unfit(skip=skip, scaled=found_inf is not None)
        if self._joining or self.is_behind:
            self.declare()
        applier.scaled = found_inf is not None
        if not is_plain:
            self._prepare(skip=skip, found_inf=found_inf, scale=scale)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            self.guard.after_closure()
            applier.evaluated = [loss]
        if self._in_place:
            self.runner.check_late()
            applier.changes_means = self.guard.means_changed()
            if applier.changes_means:
                self.runner.check_changed_means()
        else:
            self.guard.before_averaging(skip=skip)
            if skip:
                self.optimizer.zero_grad(set_to_none=False)
            self._average()
            applier.changes_means = False
        self._in_place = False
        self._take()
        applier.evaluated.clear()
        return loss

    @property
    def has_local_gradients(self) -> bool:
        return not self._in_place

    def average_gradients(self) -> None:
        self.declare()
        self._average()
        self.guard.after_averaging()

    def gather(self, *, apply: bool = True) -> None:
        """As in `Engine`.

        Raises:
            InputError: means were not applied that other workers do apply.
        """
        if apply and self._in_place and self.runner.agrees_on_end:
            raise InputError(
                "average_gradients: the means that it has put in place were not applied here, and with a quorum other "
                "workers apply the same ones in another call; call step() first, on every worker after each call of it"
            )
        with self._means_in_place():
            super().gather(apply=apply)

    @contextlib.contextmanager
    def joining(self, after_averaging: Callable[[], object] | None = None) -> Iterator[None]:
        self.runner.after_averaging = after_averaging
        try:
            with super().joining(after_averaging):
                yield
        finally:
            self.runner.after_averaging = None

    def _average(self) -> None:
        """Have mean gradients in place; the runner may take further steps on the way there."""
        self.guard.compare_first(gradients=True)
        if self._has_tables:
            self.run.tables.close_step()
        own_gradients(self.run.flat.slots())
        self._in_place = True  # for functions that average unless that is done, such as clip_grad_norm_
        try:
            self._arrived = self.runner.average(self._progress.step)
        except BaseException:
            self._in_place = False
            raise
        if self._arrived.more:
            self._count(self._progress.step + self._arrived.more)

    def _take(self) -> None:
        """Step with the means that are in place."""
        step = self._progress.step
        if self.run.applier.scaled or self._arrived.scaled:
            self.run.applier.step(check_finite=True)
        else:
            self.run.applier.plain_step()
        self._count(step + 1)
        if self._has_tables:
            self.run.tables.stepped()
        self.runner.end_step(step)
        self.guard.after_step()

    def _take_part(self, after_averaging: Callable[[], object] | None) -> bool:
        """A step with a gradient of zero."""
        self.guard.compare_first(gradients=False)
        own_gradients(self.run.flat.slots())
        self.optimizer.zero_grad(set_to_none=False)
        if not self._serves_tables(after_averaging):
            return False
        self._arrived = self.runner.average(self._progress.step)
        if after_averaging is not None:
            self.guard.after_averaging()
            with self._means_in_place():
                after_averaging()
            self.run.applier.changes_means = self.guard.means_changed()
        self._take()
        return True

    @contextlib.contextmanager
    def _means_in_place(self) -> Iterator[None]:
        before, self._in_place = self._in_place, True
        try:
            yield
        finally:
            self._in_place = before
