"""Take one worker's steps: count steps and rounds, call the runner around each step, and check the script's calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from partreduce.runtime.averaging.gradients import own_gradients, unscale
from partreduce.runtime.guard.guard import Guard
from partreduce.runtime.liveness.uneven_inputs import UnevenInputs
from partreduce.runtime.strategies.base import ON_TIME, AveragedGradients, Run, Runner, StepRequest
from partreduce.topo.errors import InputError


class Engine:
    """One worker's training steps: takes them, and counts steps and rounds.

    Before and after each step it calls the runner, which averages as the schedule's strategy defines.
    """

    def __init__(self, run: Run, runner: Runner, optimizer: torch.optim.Optimizer, uneven_inputs: UnevenInputs) -> None:
        self.run, self.runner, self.optimizer, self.uneven_inputs = run, runner, optimizer, uneven_inputs
        self.traits = run.traits
        self._has_tables, self._progress, self._steps_per_round = bool(run.tables), run.progress, run.steps_per_round
        self.skipped = 0  # steps skipped to catch up with neighbors
        self._batches_to_drop = 0
        self.is_behind = False  # whether it joined, and its script is behind the run
        self.data_epoch = (-1, 0)  # epoch of the RoundSampler, and the round in which the epoch started
        self._joining = self._has_stepped = False
        self._arrived: AveragedGradients | None = None  # result of `average_gradients()`, until the step
        self._are_equal = False
        self.guard = Guard(self)

    @property
    def steps(self) -> int:
        return self._progress.step

    @property
    def round(self) -> int:
        return self._progress.step // self._steps_per_round

    @property
    def differs(self) -> bool:
        """Whether this worker's model may differ from the mean over all workers."""
        return not (self.traits.keeps_equal or self._are_equal)

    @property
    def has_local_gradients(self) -> bool:
        """Whether the schedule averages gradients, and those of the next step are not averaged yet."""
        return self.traits.averages_gradients and self._arrived is None

    # Steps.

    def step(
        self,
        closure: Callable[[], Any] | None,
        *,
        skip: bool,
        found_inf: torch.Tensor | None,
        scale: torch.Tensor | None,
    ) -> Any:  # noqa: ANN401 - what the closure returns
        """Take one step and average as the schedule defines; return the closure's result.

        If gradients are averaged, `closure` runs first. With `skip` the step counts, but this worker's gradient does
        not. `found_inf` and `scale` are set by a GradScaler, which leaves the decision to skip to the optimizer: if a
        worker with an infinite gradient did not step, its group would wait.
        """
        self.guard.before_step(skip=skip, found_inf=found_inf, scale=scale)
        scaled = found_inf is not None
        if skip or scaled or scale is not None:
            self.runner.check_step(StepRequest(skip=skip, scaled=scaled))
            own_gradients(self.run.flat.slots())
            if scaled and scale is not None:
                unscale(self.optimizer, scale)
        if self._joining or self.is_behind:
            self.declare()
        if self.traits.averages_gradients:
            return self._step_by_mean_gradients(closure, skip=skip, scaled=scaled)
        return self._step_by_own_gradients(closure, skip=skip or (found_inf is not None and bool(found_inf)))

    def _step_by_mean_gradients(self, closure: Callable[[], Any] | None, *, skip: bool, scaled: bool) -> Any:  # noqa: ANN401
        applier, loss, self._has_stepped = self.run.applier, None, True
        applier.scaled = scaled
        if closure is not None:
            loss = self._evaluate_closure(closure)
            self.guard.after_closure()
            applier.evaluated = [loss]
        if self._arrived is not None:
            self.runner.check_step(StepRequest(early=True))
            applier.changes_means = self.guard.means_changed()
            if applier.changes_means:
                self.runner.check_step(StepRequest(changed=True))
        else:
            self.guard.before_averaging(skip=skip)
            if skip:
                self.optimizer.zero_grad(set_to_none=False)
            self._average()
            applier.changes_means = False
        self._take()
        applier.evaluated.clear()
        return loss

    def _step_by_own_gradients(self, closure: Callable[[], Any] | None, *, skip: bool) -> Any:  # noqa: ANN401
        step, loss = self._progress.step, None
        self.guard.compare_first(gradients=closure is None and not skip)
        if self._has_tables:  # all workers take part in lookups, including those in the closure
            if closure is not None:
                loss, closure = self._evaluate_closure(closure), None
            self.run.tables.close_step()
        self.runner.before_step(step)
        if not skip:
            if closure is None:
                self.run.applier.plain_step()
            else:
                loss = self.run.applier.plain_step(closure)
                self.guard.after_closure()
        self._count(step + 1)
        if self._has_tables:
            self.run.tables.stepped()
        self.guard.after_step(ends_round=(step + 1) % self._steps_per_round == 0)
        self._end(step)
        return loss

    def average_gradients(self) -> None:
        if self._joining or self.is_behind:
            self.declare()
        self._average()
        self.guard.after_averaging()

    def _average(self) -> None:
        self.guard.compare_first(gradients=True)
        if self._has_tables:
            self.run.tables.close_step()
        own_gradients(self.run.flat.slots())
        self._arrived = ON_TIME  # so that functions such as clip_grad_norm_ do not average again
        try:
            self._arrived = self.runner.before_step(self._progress.step)
        except BaseException:
            self._arrived = None
            raise
        if self._arrived.more:
            self._count(self._progress.step + self._arrived.more)

    def _take(self) -> None:
        assert self._arrived is not None, "averaged before"
        step, scaled = self._progress.step, self.run.applier.scaled or self._arrived.scaled
        self._arrived, self.guard.means = None, None
        if scaled:
            self.run.applier.step(check_finite=True)
        else:
            self.run.applier.plain_step()
        self._count(step + 1)
        if self._has_tables:
            self.run.tables.stepped()
        self._end(step)
        self.guard.after_step()

    def _end(self, step: int) -> None:
        """Let the strategy's runner average after step `step`; if it skips rounds, count their steps as skipped."""
        skipped, self._are_equal = self.runner.after_step(step)
        steps = skipped * self._steps_per_round
        self.skipped += steps
        self._batches_to_drop += steps
        if not self.traits.averages_gradients and (step + 1) % self._steps_per_round == 0:
            self._count(self._progress.step + steps)

    @staticmethod
    def _evaluate_closure(closure: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the closure returns
        with torch.enable_grad():
            return closure()

    def _count(self, steps: int) -> None:
        self._progress.step = steps
        self.run.reducer.heartbeat.now = f"computes step {steps}", ()

    # Operations of all workers.

    def pause(self, place: str, *, apply: bool = True) -> None:
        """Take part in averages up to a round that is common to all workers, before the operation named `place`.

        Without `apply` delayed averages are dropped.
        """
        if apply and self._arrived is not None and self.traits.agrees_on_end:
            raise InputError(
                "average_gradients: the means that it has put in place were not applied here, and with a quorum other "
                "workers apply the same ones in another call; call step() first, on every worker after each call of it"
            )
        before, self._arrived = self._arrived, self._arrived or ON_TIME  # as in `_average`
        try:
            self._count(self._progress.step + self.runner.pause(place, apply=apply))
        finally:
            self._arrived = before

    def continue_from(self, steps: int) -> None:
        self._count(steps)
        self._batches_to_drop = 0
        self.guard.forget_loads()
        self._arrived, self.run.applier.changes_means = None, False

    def catch_up(self) -> None:
        """In a replacement's script, skip the batches of the steps that the run has already taken."""
        self.is_behind, self._batches_to_drop = True, self._progress.step

    def drops_batch(self) -> bool:
        """Return whether the next batch belongs to a skipped step; call it once per batch."""
        drops = self._batches_to_drop > 0
        self._batches_to_drop -= drops
        return drops

    def check_load(self, steps: int) -> None:
        """Raise InputError if step `steps` is inside a round and the strategy can load only states between rounds."""
        if self.traits.needs_round_start and steps % self._steps_per_round:
            raise InputError(
                f"load_state_dict: step {steps} lies inside a round of {self._steps_per_round} steps, whose "
                "beginning is not known any more; save the state after the last step of a round"
            )

    # Workers with unequal amounts of data.

    @contextlib.contextmanager
    def joining(self, after_averaging: Callable[[], object] | None = None) -> Iterator[None]:
        """In the context, declare each round before it starts, so that workers without data take part in it.

        `after_averaging` is the function by which the script changes averaged gradients, for example clips them.
        """
        self._joining = not self.traits.agrees_on_end
        self.run.applier.after_averaging = after_averaging if self.traits.averages_gradients else None
        try:
            yield
        finally:
            self._joining, self.run.applier.after_averaging = False, None

    def declare(self) -> None:
        """Tell workers without data (inside `join`) that this worker runs the current round."""
        if self.is_behind:
            self.is_behind, self._batches_to_drop = False, 0
        if self._joining:
            self.uneven_inputs.declare(self.round)

    def serve(self, after_averaging: Callable[[], object] | None = None) -> None:
        """Take part, without data, in all rounds of other workers; `after_averaging` changes averaged gradients."""
        self.pause("join")  # since it cannot answer a group while it waits for the others' next round
        if self.traits.agrees_on_end:
            return
        self.uneven_inputs.ended()
        while self.uneven_inputs.another(self.round, self.runner.membership.lost_workers):
            self.guard.before_step()
            if (self.run.applier.changes_means or self.run.tables.clips) and after_averaging is None:
                raise InputError(
                    "join: this worker's data ended, and it would continue with mean gradients as they are, while this "
                    "script changes them (clips them, say) after average_gradients(); give that as a function, "
                    "join(after_averaging=...)"
                )
            if not self._take_part(after_averaging):
                self.uneven_inputs.close()
                break
            self.pause("join")
        if self.traits.averages_gradients:  # late gradients are applied by all workers at the end of the data
            self.runner.settle(ends=True)

    def _take_part(self, after_averaging: Callable[[], object] | None) -> bool:
        """Take part, without data, in a round of other workers; return False if none of them takes a step in it."""
        if not self.traits.averages_gradients:
            return self._take_part_in_round(after_averaging)
        if not self._has_stepped:  # unknown whether the others use a GradScaler
            self.run.applier.scaled = True
        self.guard.compare_first(gradients=False)
        own_gradients(self.run.flat.slots())
        self.optimizer.zero_grad(set_to_none=False)
        if not self._serves_tables(after_averaging):
            return False
        self._arrived = self.runner.before_step(self._progress.step)
        if after_averaging is not None:
            self.guard.after_averaging()
            try:
                after_averaging()
            except BaseException:
                self._arrived = None
                raise
            self.run.applier.changes_means = self.guard.means_changed()
        self._take()
        return True

    def _take_part_in_round(self, after_averaging: Callable[[], object] | None) -> bool:
        """Run the rest of a round without changing parameters, except rows of tables that this worker owns.

        Returns False if no worker takes a step in it.
        """
        serves = self._has_tables
        while True:
            step = self._progress.step
            if serves:
                self.optimizer.zero_grad(set_to_none=True)
                serves = self._serves_tables(after_averaging)
                if serves:
                    if after_averaging is not None:
                        after_averaging()
                    self.run.applier.plain_step()
                elif step % self._steps_per_round == 0:
                    return False
            self._count(step + 1)
            self._end(step)
            if (step + 1) % self._steps_per_round == 0:
                return True

    def _serves_tables(self, after_averaging: Callable[[], object] | None) -> bool:
        """Exchange table rows with the workers that take a step; return whether any takes one, True without tables."""
        for table in self.run.tables:
            table.parameter.grad = None
        return not self.run.tables or self.run.tables.serve(changes_means=after_averaging is not None)
