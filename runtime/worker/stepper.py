"""Stepper: counts a worker's steps and rounds, and does what one step, or one round without data, is made of."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from partreduce.runtime.averaging.gradient_watch import GradientWatch, MeansWatch
from partreduce.runtime.averaging.gradients import own_gradients, unscale
from partreduce.runtime.worker.model_use import ModelUse
from partreduce.topo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partreduce.runtime.liveness.uneven_inputs import UnevenInputs
    from partreduce.runtime.strategies.base import Run, Runner


class Stepper:
    """The steps of one worker. A round is `pace` steps; its group operation follows the last of them."""

    def __init__(self, run: Run, runner: Runner, optimizer: torch.optim.Optimizer, uneven_inputs: UnevenInputs) -> None:
        self.run, self.runner, self.optimizer, self.uneven_inputs = run, runner, optimizer, uneven_inputs
        self._pace, self._has_tables = run.pace, bool(run.tables)
        self._steps = 0
        self.skipped = 0
        """Steps that were not taken because the worker skipped ahead to its neighbours."""
        self._batches_to_drop = 0
        self._loads = run.flat.loads.count
        self._joining = False
        self._averaged = False
        # What is changed after it has left is refused and not warned of.
        self._watch = GradientWatch(run.flat) if runner.averages_gradients and not runner.sends_early else None
        self._means = MeansWatch(run.flat)
        self.model_use = ModelUse(run, runner, self)
        runner.follow(lambda: self._steps)

    @property
    def steps(self) -> int:
        """Steps taken so far, skipped ones included."""
        return self._steps

    @steps.setter
    def steps(self, steps: int) -> None:
        """Go on from another step, with parameters that were loaded."""
        self._count(steps)
        self._batches_to_drop = 0
        self._loads = self.run.flat.loads.count
        self._averaged = self.run.applier.changes_means = False

    def _count(self, steps: int) -> None:
        self._steps = steps
        if not self.runner.enters_steps:
            self.run.progress.enter(steps)
            self.run.reducer.heartbeat.doing(f"computes step {steps}")

    @property
    def round(self) -> int:
        """The round that this worker is in: steps div pace."""
        return self._steps // self._pace

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

        Raises:
            InputError: a model or optimizer that was changed, or gradients that are to be skipped and are averaged.
        """
        step, pace = self._steps, self._pace
        round_, first = step // pace, step % pace == 0
        self._refuse_changes(first=first)
        if skip or found_inf is not None or scale is not None:
            self._refuse_unfit(skip=skip, found_inf=found_inf, scale=scale)
        self.declare()
        self.run.applier.scaled = found_inf is not None
        if skip or found_inf is not None:
            own_gradients(self.run.flat.slots())
        if found_inf is not None and scale is not None:
            unscale(self.optimizer, scale)
        if self.runner.averages_gradients:
            loss = self._step_with_mean_gradients(closure, skip=skip)
        else:
            loss, closure = self._closed_tables(closure)
            self.runner.before_step(step, round_, first=first)
            if not skip and not (found_inf is not None and bool(found_inf)):
                loss = self._step_alone(closure, loss)
        self._count(self._steps + 1)
        if self._has_tables:
            self.run.tables.stepped()
        if self._steps % pace == 0:
            self._end_round(step, round_)
        return loss

    def _step_alone(self, closure: Callable[[], Any] | None, loss: Any) -> Any:  # noqa: ANN401 - as above
        """A step with this worker's own gradients; the closure's loss, or the one that is known."""
        if closure is None:
            self.optimizer.step()
            return loss
        loss = self.optimizer.step(closure)
        self.model_use.refuse()
        return loss

    def _refuse_unfit(self, *, skip: bool, found_inf: torch.Tensor | None, scale: torch.Tensor | None) -> None:
        """Refuse what does not go with how and when gradients travel.

        Raises:
            InputError: as said.
        """
        if self.run.tables:
            self._refuse_with_tables(skip=skip, scaled=found_inf is not None)
        if skip and self._averaged:
            raise InputError(
                "skip: average_gradients() has put this step's gradients into those of all workers, who apply them; "
                "skip() before it, or call zero_grad() and step() on all workers to drop the step everywhere"
            )
        if skip and not self._averaged:
            self.runner.refuse_unfinished("skip")
            if self.runner.averages_gradients and self.run.applier.changes_means:
                raise InputError(
                    "skip: would apply the mean gradient as it is, while this script changes it (clips it, say) after "
                    "average_gradients(); call zero_grad() and go on as in every other step instead"
                )
        if found_inf is not None and self.runner.sends_early:
            raise InputError(
                "GradScaler: divides gradients after backward(), when they have left already, since they are sent by "
                "layers; let gradients travel whole, or use bfloat16, which needs no scaler"
            )
        if scale is not None and self._averaged and self.run.schedule.strategy.when.delays_gradients:
            raise InputError(
                "average_gradients: the gradients that it sent still bore the GradScaler's scale, which is another one "
                "when they come back; call scaler.unscale_(optimizer) before it"
            )

    def _serves_tables(self, after_averaging: Callable[[], object] | None) -> bool:
        """Hand out this worker's rows for a step of the others', and take their gradients; whether anybody steps."""
        for table in self.run.tables:
            table.parameter.grad = None
        return not self.run.tables or self.run.tables.serve(changes_means=after_averaging is not None)

    def _serve_tables_of_round(self, after_averaging: Callable[[], object] | None) -> bool:
        """Where parameters are averaged, take the rest of a round's steps with this worker's rows of tables only.

        Whether any step of the round was taken, here or before: else nobody does the round.
        """
        for _ in range(self.run.pace - self.steps % self.run.pace):
            self.optimizer.zero_grad(set_to_none=True)
            if not self._serves_tables(after_averaging):
                return self.steps % self.run.pace > 0
            if after_averaging is not None:
                after_averaging()
            self.optimizer.step()
            self._count(self._steps + 1)
        return True

    def _closed_tables(self, closure: Callable[[], Any] | None) -> tuple[Any, Callable[[], Any] | None]:
        """Where there are tables: evaluate the closure, whose lookups all workers do, and end the step's exchanges.

        Returns the loss and what is left to be evaluated.
        """
        if not self.run.tables:
            return None, closure
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.run.tables.close_step()
        return loss, None

    def _refuse_with_tables(self, *, skip: bool, scaled: bool) -> None:
        """Refuse what one worker would decide by itself after its rows' gradients have gone to all."""
        name = next(table.name for table in self.run.tables)
        if skip:
            raise InputError(
                f"skip: the gradients of parameter {name!r} have reached the owners of its rows at the end of "
                "backward(); call zero_grad() and step() on all workers to drop the step everywhere"
            )
        if scaled:
            raise InputError(
                f"GradScaler: finds infinities on one worker, and the rows of parameter {name!r} lie on all; use "
                "bfloat16, which needs no scaler"
            )

    def _end_round(self, step: int, round_: int) -> None:
        """End a round; where the runner skips some, their steps count as taken."""
        self.runner.end_round(step, round_)
        jumped = self.runner.jumped * self._pace
        self._count(self._steps + jumped + self.runner.passed * self._pace)  # what it does now, though none was skipped
        self.skipped += jumped
        self._batches_to_drop += jumped

    def drops_batch(self) -> bool:
        """Whether the next batch belongs to a step that was skipped; asked once for each."""
        drops = self._batches_to_drop > 0
        self._batches_to_drop -= drops
        return drops

    def _step_with_mean_gradients(self, closure: Callable[[], Any] | None, *, skip: bool) -> Any:  # noqa: ANN401 - as above
        """The closure is evaluated here, before the averaging; all workers take the same step, or none does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            self.model_use.refuse()
        watches = self._watch is not None and not skip and not self._averaged
        if watches and self._watch is not None and not self._watch.look(unscaled=self.run.applier.scaled):
            self._watch = None
        if skip:
            self.optimizer.zero_grad(set_to_none=False)
        if self._averaged:
            self.runner.refuse_late()
            self._means.refuse()
            self.run.applier.changes_means = self._means.changed()
            if self.run.applier.changes_means:
                self.runner.refuse_changed_means()
        else:
            self._refuse_unchanged_means()
            self._average()
            self.run.applier.changes_means = False
        self._averaged = False
        self._apply()
        return loss

    def _refuse_unchanged_means(self) -> None:
        """Refuse a step with means as they are, where other workers do something to the same means.

        Raises:
            InputError: as said.
        """
        if self.runner.after_averaging is not None:
            raise InputError(
                "join: is given after_averaging, which workers do to means that they take without a step() of their "
                "own, and this step() would leave its means as they are; call optimizer.average_gradients() and the "
                "same function before step(), or leave after_averaging out"
            )

    def _apply(self) -> None:
        """Step with the means that are in place."""
        applier = self.run.applier
        if applier.scaled or self.runner.late_scaled:
            applier.step(check_finite=True)
        else:
            self.optimizer.step()

    def _average(self) -> None:
        """Have mean gradients in place; the runner may take further steps on the way there."""
        if self._has_tables:
            self.run.tables.close_step()
        own_gradients(self.run.flat.slots())
        with self._means_in_place():
            self.runner.before_step(self._steps, self.round, first=True)
        if self.runner.more:
            self._count(self._steps + self.runner.more)

    def gather(self, *, apply: bool = True) -> None:
        """Come to a place where all workers meet, which must be at the same round then.

        Raises:
            InputError: means were not applied that other workers do apply.
        """
        if apply and self._averaged and self.runner.agrees_on_end:
            raise InputError(
                "average_gradients: the means that it has put in place were not applied here, and with a quorum other "
                "workers apply the same ones in another call; call step() first, on every worker after each call of it"
            )
        with self._means_in_place():
            self._count(self._steps + self.runner.gather(apply=apply))

    @contextlib.contextmanager
    def _means_in_place(self) -> Iterator[None]:
        """For functions that average unless that is done, such as clip_grad_norm_, given to `join()`."""
        before, self._averaged = self._averaged, True
        try:
            yield
        finally:
            self._averaged = before

    @property
    def has_local_gradients(self) -> bool:
        """Whether the gradients of the coming step are still to be averaged."""
        return self.runner.averages_gradients and not self._averaged

    def average_gradients(self) -> None:
        """Average the gradients of the coming step now."""
        self.declare()
        self._average()
        self._averaged = True
        self._means.begin()

    @contextlib.contextmanager
    def joining(self, after_averaging: Callable[[], object] | None = None) -> Iterator[None]:
        """Inside, every round is declared before it begins, so that workers whose data ended take part in it."""
        self._joining = not self.runner.agrees_on_end
        self.runner.after_averaging = after_averaging
        try:
            yield
        finally:
            self._joining, self.runner.after_averaging = False, None

    def declare(self) -> None:
        """Tell workers whose data ended that this one begins, or is in, its next round."""
        if self._joining:
            self.uneven_inputs.declare(self.round)

    def _refuse_changes(self, *, first: bool) -> None:
        """Refuse a model or optimizer that was changed since the last step in a way that cannot be averaged."""
        flat = self.run.flat
        if self.model_use.is_due:
            self.model_use.refuse()
        flat.check()
        if self._has_tables:
            self.run.tables.check()
        flat.refuse_foreign(self.optimizer)
        if flat.loads.count != self._loads:
            if self.runner.takes_for_progress(self.round, first=first):
                raise InputError(
                    f"model: was loaded after a step, and strategy {self.run.schedule.strategy.kind!r} "
                    f"{self.runner.harm_of_loading}; call optimizer.load_state_dict(...) beside "
                    "model.load_state_dict(...), on all workers (optimizer.state_dict() will do), to go on from there"
                )
            self._loads = flat.loads.count

    def serve(self, after_averaging: Callable[[], object] | None = None) -> None:
        """This worker's data ended: take part in all rounds that others still do.

        `after_averaging` is what the others do with the mean gradients of a step before they take it.

        Raises:
            InputError: this worker changed its means, too, while it had data, and is not told how to go on so.
        """
        if self.runner.agrees_on_end:
            self.gather()
            return
        lost = self.runner.lost if self.runner.outlives_lost_workers else None
        self.runner.leave()  # whoever waits here for the others' next round can answer nobody's group meanwhile
        self.uneven_inputs.ended()
        while self.uneven_inputs.another(self.round, lost):
            self._refuse_changes(first=True)
            round_, step = self.round, self.steps
            if (self.run.applier.changes_means or self.run.tables.clips) and after_averaging is None:
                raise InputError(
                    "join: this worker's data ended, and it would go on with mean gradients as they are, while this "
                    "script changes them (clips them, say) after average_gradients(); give that as a function, "
                    "join(after_averaging=...)"
                )
            if self.runner.averages_gradients:
                own_gradients(self.run.flat.slots())
                self.optimizer.zero_grad(set_to_none=False)
                if not self._serves_tables(after_averaging):
                    self.uneven_inputs.close()
                    break
                self.runner.before_step(step, round_, first=True)
                if after_averaging is not None:
                    self._means.begin()
                    with self._means_in_place():
                        after_averaging()
                    self.run.applier.changes_means = self._means.changed()
                self._apply()
            elif self.run.tables and not self._serve_tables_of_round(after_averaging):
                self.uneven_inputs.close()
                break
            self._count((round_ + 1) * self.run.pace)
            self._end_round(step, round_)
            self.runner.leave()
        self.runner.conclude()
