"""Gradient engine: every worker steps with mean gradients, so that all models stay equal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from partreduce.runtime.averaging.gradient_watch import MeansWatch
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
        self._means = MeansWatch(run.flat)
        self._in_place = False
        """Whether the gradients are means already."""
        self._arrived = Arrived()
        self.compare_starts: Callable[[], None] | None = None
        """Before the first step, where workers kept models of their own: refuses those that differ."""

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
        self._check_changes(first=True)
        is_plain = not skip and found_inf is None and scale is None
        if not is_plain:
            self._check_unfit(skip=skip, found_inf=found_inf, scale=scale)
        if self._joining or self.is_behind:
            self.declare()
        applier.scaled = found_inf is not None
        if not is_plain:
            self._prepare(skip=skip, found_inf=found_inf, scale=scale)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            self.model_use.refuse()
            applier.evaluated = [loss]
        if self._in_place:
            self.runner.check_late()
            self._means.refuse()
            applier.changes_means = self._means.changed()
            if applier.changes_means:
                self.runner.check_changed_means()
        else:
            if self.runner.watch is not None and not skip and not self.runner.watch.look(unscaled=applier.scaled):
                self.runner.watch = None
            if self.runner.after_averaging is not None:
                raise InputError(
                    "join: is given after_averaging, which workers do to means that they take without a step() of "
                    "their own, and this step() would leave its means as they are; call optimizer.average_gradients() "
                    "and the same function before step(), or leave after_averaging out"
                )
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
        self._means.begin()

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
        self._compare_starts()
        if self._has_tables:
            self.run.tables.close_step()
        own_gradients(self.run.flat.slots())
        if self.alike_data is not None:
            self._look_at_data()
        self._in_place = True  # for functions that average unless that is done, such as clip_grad_norm_
        try:
            self._arrived = self.runner.average(self._progress.step)
        except BaseException:
            self._in_place = False
            raise
        if self._arrived.more:
            self._count(self._progress.step + self._arrived.more)

    def _compare_starts(self) -> None:
        compare, self.compare_starts = self.compare_starts, None
        if compare is not None:
            compare()

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
        self.other_steps.stepped()

    def _take_part(self, after_averaging: Callable[[], object] | None) -> bool:
        """A step with a gradient of zero."""
        self._compare_starts()
        own_gradients(self.run.flat.slots())
        self.optimizer.zero_grad(set_to_none=False)
        if not self._serves_tables(after_averaging):
            return False
        self._arrived = self.runner.average(self._progress.step)
        if after_averaging is not None:
            self._means.begin()
            with self._means_in_place():
                after_averaging()
            self.run.applier.changes_means = self._means.changed()
        self._take()
        return True

    @contextlib.contextmanager
    def _means_in_place(self) -> Iterator[None]:
        before, self._in_place = self._in_place, True
        try:
            yield
        finally:
            self._in_place = before

    def _check_unfit(self, *, skip: bool, found_inf: torch.Tensor | None, scale: torch.Tensor | None) -> None:
        super()._check_unfit(skip=skip, found_inf=found_inf, scale=scale)
        if skip and self._in_place:
            raise InputError(
                "skip: average_gradients() has put this step's gradients into those of all workers, who apply them; "
                "skip() before it, or call zero_grad() and step() on all workers to drop the step everywhere"
            )
        self.runner.check_unfit(skip=skip, scaled=found_inf is not None)
        if skip and self.run.applier.changes_means:
            raise InputError(
                "skip: would apply the mean gradient as it is, while this script changes it (clips it, say) after "
                "average_gradients(); call zero_grad() and go on as in every other step instead"
            )
        if scale is not None and self._in_place and self.run.schedule.strategy.sync.delays_gradients:
            raise InputError(
                "average_gradients: the gradients that it sent still bore the GradScaler's scale, which is another one "
                "when they come back; call scaler.unscale_(optimizer) before it"
            )
