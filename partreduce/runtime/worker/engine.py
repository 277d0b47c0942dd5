"""Engine: takes one worker's steps, counts them and its rounds, and refuses what a schedule cannot bear.

Where gradients are averaged, that is before the wrapped optimizer's step, and a round is a step. Where parameters are,
that is after the last step of a round. How the schedule's strategy averages is the runner's business (see
`strategies.base`); what is in flight between steps lies in the queue of the run's membership.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from partreduce.runtime.averaging.gradient_watch import GradientWatch, MeansWatch
from partreduce.runtime.averaging.gradients import own_gradients, unscale
from partreduce.runtime.averaging.in_flight import State
from partreduce.runtime.liveness.uneven_inputs import UnevenInputs
from partreduce.runtime.sharding.modules import check_embeddings
from partreduce.runtime.strategies.base import ON_TIME, Arrived, Asked, Run, Runner
from partreduce.runtime.worker.alike_data import DuplicateDataCheck
from partreduce.runtime.worker.model_use import ModelUseChecks
from partreduce.runtime.worker.other_steps import ForeignStepCheck
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.axes import GradientBuckets

ADDS_PROGRESS = "would send the difference to the others as progress"
TAKEN_ELSEWHERE = "would apply gradients to it that were taken at other parameters"


class Engine:
    """The steps of one worker. A round has `steps_per_round` steps."""

    def __init__(self, run: Run, runner: Runner, optimizer: torch.optim.Optimizer, uneven_inputs: UnevenInputs) -> None:
        self.run, self.runner, self.optimizer, self.uneven_inputs = run, runner, optimizer, uneven_inputs
        self.traits = run.traits
        self._has_tables, self._progress = bool(run.tables), run.progress
        self._is_torchs = type(optimizer).__module__.startswith("torch.optim.")
        self.skipped = 0
        """Steps that were not taken because the worker skipped ahead to its neighbors."""
        self._batches_to_drop = 0
        self.is_behind = False
        """Whether the worker has joined the run, and its script has still to come to the step that it goes on with."""
        self.data_epoch = (-1, 0)
        """The epoch of the data that is dealt by rounds, and the round with which it began."""
        self._joining = False
        self._arrived: Arrived | None = None
        """What `average_gradients()` has put in the place of this step's gradients, or is about to; else None."""
        self._are_equal = False
        self._loads = run.flat.loads.count
        self._means = MeansWatch(run.flat)
        is_whole = run.schedule.strategy.transport.gradient_buckets is not GradientBuckets.PER_LAYER
        self._watch = GradientWatch(run.flat) if self.traits.averages_gradients and is_whole else None
        """Warns of gradients that were changed too early; None where that is refused, or was watched long enough."""
        self.model_use = ModelUseChecks(run, lambda: self.differs)
        self.other_steps = ForeignStepCheck(run, optimizer, lambda: self.has_local_gradients)
        self.alike_data: DuplicateDataCheck | None = None
        """Where workers are processes: looks at the first gradients."""
        self.compare_starts: Callable[[], None] | None = None
        """Before the first step, where workers kept models of their own: refuses those that differ."""

    @property
    def steps(self) -> int:
        return self._progress.step

    @property
    def round(self) -> int:
        """The round that this worker is in: steps divided by steps per round."""
        return self._progress.step // self.run.steps_per_round

    @property
    def differs(self) -> bool:
        """Whether this worker's model may be another one than the mean of all."""
        return not (self.traits.keeps_equal or self._are_equal)

    @property
    def has_local_gradients(self) -> bool:
        """Whether the gradients of the coming step are still to be averaged."""
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
        """One step, and what the schedule asks for with it.

        Args:
            closure: evaluates the loss again, as torch's optimizers take it. Where gradients are averaged, that is
                before the averaging: all workers take the step, or none does.
            skip: count the step without applying it.
            found_inf: GradScaler's verdict on this worker's gradients, which it leaves to the optimizer: it would not
                call step() at all on a worker with an infinite gradient, and its group would wait.
            scale: what GradScaler multiplied the loss by.

        Raises:
            InputError: a model or optimizer that was changed, or gradients that are to be skipped and are averaged.
        """
        self._check_changes()
        scaled = found_inf is not None
        if skip or scaled or scale is not None:
            self._check_unfit(skip=skip, scaled=scaled, scale=scale)
            own_gradients(self.run.flat.slots())
            if scaled and scale is not None:
                unscale(self.optimizer, scale)
        if self._joining or self.is_behind:
            self.declare()
        if self.traits.averages_gradients:
            return self._step_by_mean_gradients(closure, skip=skip, scaled=scaled)
        return self._step_by_own_gradients(closure, skip=skip or (found_inf is not None and bool(found_inf)))

    def _step_by_mean_gradients(self, closure: Callable[[], Any] | None, *, skip: bool, scaled: bool) -> Any:  # noqa: ANN401
        applier, loss = self.run.applier, None
        applier.scaled = scaled
        if closure is not None:
            loss = self._evaluated(closure)
            self.model_use.refuse()
            applier.evaluated = [loss]
        if self._arrived is not None:
            self.runner.check_step(Asked(early=True))
            self._means.refuse()
            applier.changes_means = self._means.changed()
            if applier.changes_means:
                self.runner.check_step(Asked(changed=True))
        else:
            if self._watch is not None and not skip and not self._watch.look(unscaled=scaled):
                self._watch = None
            if applier.after_averaging is not None:
                raise InputError(
                    "join: is given after_averaging, which workers do to means that they take without a step() of "
                    "their own, and this step() would leave its means as they are; call optimizer.average_gradients() "
                    "and the same function before step(), or leave after_averaging out"
                )
            if skip:
                self.optimizer.zero_grad(set_to_none=False)
            self._average()
            applier.changes_means = False
        self._take()
        applier.evaluated.clear()
        return loss

    def _step_by_own_gradients(self, closure: Callable[[], Any] | None, *, skip: bool) -> Any:  # noqa: ANN401
        step, loss = self._progress.step, None
        if self.alike_data is not None and closure is None and not skip:
            self._look_at_data()
        if self._has_tables:  # whose lookups, in the closure too, all workers do
            if closure is not None:
                loss, closure = self._evaluated(closure), None
            self.run.tables.close_step()
        self.runner.begin(step)
        if not skip:
            if closure is None:
                self.run.applier.plain_step()
            else:
                loss = self.run.applier.plain_step(closure)
                self.model_use.refuse()
        self._count(step + 1)
        if self._has_tables:
            self.run.tables.stepped()
        if not self._is_torchs and self._progress.step % self.run.steps_per_round == 0:
            self.run.flat.check(self.run.rank)  # again: the step may have given a parameter other memory
        self._end(step)
        return loss

    def average_gradients(self) -> None:
        """Average the gradients of the coming step now; called where they are still to be averaged."""
        if self._joining or self.is_behind:
            self.declare()
        self._average()
        self._means.begin()

    def _average(self) -> None:
        """Have mean gradients in place; the runner may take further steps on the way there."""
        self._compare_starts()
        if self._has_tables:
            self.run.tables.close_step()
        own_gradients(self.run.flat.slots())
        if self.alike_data is not None:
            self._look_at_data()
        self._arrived = ON_TIME  # for functions that average unless that is done, such as clip_grad_norm_
        try:
            self._arrived = self.runner.begin(self._progress.step)
        except BaseException:
            self._arrived = None
            raise
        if self._arrived.more:
            self._count(self._progress.step + self._arrived.more)

    def _take(self) -> None:
        """Step with the means that are in place."""
        assert self._arrived is not None, "averaged before"
        step, scaled = self._progress.step, self.run.applier.scaled or self._arrived.scaled
        self._arrived = None
        if scaled:
            self.run.applier.step(check_finite=True)
        else:
            self.run.applier.plain_step()
        self._count(step + 1)
        if self._has_tables:
            self.run.tables.stepped()
        self._end(step)
        self.other_steps.stepped()

    def _end(self, step: int) -> None:
        """What the schedule asks for after a step; steps of rounds that the runner skips count as taken."""
        skipped, self._are_equal = self.runner.end(step)
        if skipped:
            steps = skipped * self.run.steps_per_round
            self.skipped += steps
            self._batches_to_drop += steps
        if (step + 1) % self.run.steps_per_round == 0:
            self._count(self._progress.step + skipped * self.run.steps_per_round)  # what it does, though no further

    @staticmethod
    def _evaluated(closure: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the closure returns
        with torch.enable_grad():
            return closure()

    def _compare_starts(self) -> None:
        compare, self.compare_starts = self.compare_starts, None
        if compare is not None:
            compare()

    def _count(self, steps: int) -> None:
        self._progress.step = steps
        self.run.reducer.heartbeat.now = f"computes step {steps}", ()

    def _look_at_data(self) -> None:
        """Compare this worker's own gradients with the others'."""
        if self.alike_data is not None and self.alike_data.look(slot.gradient for slot in self.run.flat.slots()):
            self.alike_data = None

    # Where workers meet.

    def pause(self, place: str, *, apply: bool = True) -> None:
        """Come to a place where all workers meet, which must be at the same round then.

        Without `apply` what it takes to come there is dropped: other parameters are about to be loaded.

        Raises:
            InputError: means were not applied that other workers do apply.
        """
        if apply and self._arrived is not None and self.traits.agrees_on_end:
            raise InputError(
                "average_gradients: the means that it has put in place were not applied here, and with a quorum other "
                "workers apply the same ones in another call; call step() first, on every worker after each call of it"
            )
        with self._means_in_place():
            self._count(self._progress.step + self.runner.pause(place, apply=apply))

    def go_on_from(self, steps: int) -> None:
        """Go on from another step, with parameters that were loaded."""
        self._count(steps)
        self._batches_to_drop = 0
        self._loads = self.run.flat.loads.count
        self._arrived, self.run.applier.changes_means = None, False

    def loads_were_undone(self, number: int) -> None:
        """As many loads of the model have left it as it was."""
        self._loads += number

    def catch_up(self) -> None:
        """The script begins anew and the run does not: the batches of the steps that others have taken are left out."""
        self.is_behind, self._batches_to_drop = True, self._progress.step

    def drops_batch(self) -> bool:
        """Whether the next batch belongs to a step that was skipped; asked once for each."""
        drops = self._batches_to_drop > 0
        self._batches_to_drop -= drops
        return drops

    def strategy_state(self, guard: Callable[[Callable[[], State]], State]) -> State:
        """What an optimizer's state holds of the strategy's: gradients still to be applied, an outer momentum."""
        return guard(self.runner.state) if self.traits.carries_state else {}

    def check_load(self, steps: int) -> None:
        """Refuse a step inside a round where the runner measures rounds from their beginning."""
        if self.traits.needs_round_start and steps % self.run.steps_per_round:
            raise InputError(
                f"load_state_dict: step {steps} lies inside a round of {self.run.steps_per_round} steps, whose "
                "beginning is not known any more; save the state after the last step of a round"
            )

    # Workers with unequal data.

    @contextlib.contextmanager
    def joining(self, after_averaging: Callable[[], object] | None = None) -> Iterator[None]:
        """Inside, every round is declared before it begins, so that workers whose data ended take part in it.

        `after_averaging` is what the script does with the mean gradients of a step before it is taken.
        """
        self._joining = not self.traits.agrees_on_end
        self.run.applier.after_averaging = after_averaging if self.traits.averages_gradients else None
        try:
            yield
        finally:
            self._joining, self.run.applier.after_averaging = False, None

    def declare(self) -> None:
        """Begin, or go on with, a round: tell workers whose data ended so; who has joined has caught up."""
        if self.is_behind:
            self.is_behind, self._batches_to_drop = False, 0
        if self._joining:
            self.uneven_inputs.declare(self.round)

    def serve(self, after_averaging: Callable[[], object] | None = None) -> None:
        """This worker's data ended: take part in all rounds that others still do.

        `after_averaging` is what the others do with the mean gradients of a step before they take it.

        Raises:
            InputError: this worker changed its means, too, while it had data, and is not told how to go on so.
        """
        self.pause("join")  # whoever waits here for the others' next round can answer nobody's group meanwhile
        if self.traits.agrees_on_end:
            return
        self.uneven_inputs.ended()
        while self.uneven_inputs.another(self.round, self.runner.membership.lost_workers):
            self._check_changes()
            if (self.run.applier.changes_means or self.run.tables.clips) and after_averaging is None:
                raise InputError(
                    "join: this worker's data ended, and it would go on with mean gradients as they are, while this "
                    "script changes them (clips them, say) after average_gradients(); give that as a function, "
                    "join(after_averaging=...)"
                )
            if not self._take_part(after_averaging):
                self.uneven_inputs.close()
                break
            self.pause("join")
        self.runner.settle(ends=True)

    def _take_part(self, after_averaging: Callable[[], object] | None) -> bool:
        """Do a round that others do, without data; False where nobody does it after all."""
        if not self.traits.averages_gradients:
            return self._take_part_in_round(after_averaging)
        self._compare_starts()
        own_gradients(self.run.flat.slots())
        self.optimizer.zero_grad(set_to_none=False)
        if not self._serves_tables(after_averaging):
            return False
        self._arrived = self.runner.begin(self._progress.step)
        if after_averaging is not None:
            self._means.begin()
            after_averaging()
            self.run.applier.changes_means = self._means.changed()
        self._take()
        return True

    def _take_part_in_round(self, after_averaging: Callable[[], object] | None) -> bool:
        """The rest of a round with the parameters as they are; of tables this worker's rows take the others' steps."""
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
                elif step % self.run.steps_per_round == 0:
                    return False
            self._count(step + 1)
            self._end(step)
            if (step + 1) % self.run.steps_per_round == 0:
                return True

    def _serves_tables(self, after_averaging: Callable[[], object] | None) -> bool:
        """Hand out this worker's rows for a step of the others', and take their gradients; whether anybody steps."""
        for table in self.run.tables:
            table.parameter.grad = None
        return not self.run.tables or self.run.tables.serve(changes_means=after_averaging is not None)

    @contextlib.contextmanager
    def _means_in_place(self) -> Iterator[None]:
        """Inside, functions that average unless that is done do not."""
        before, self._arrived = self._arrived, self._arrived or ON_TIME
        try:
            yield
        finally:
            self._arrived = before

    # Checks.

    def _check_changes(self) -> None:
        """Refuse a model or optimizer that was changed since the last step in a way that cannot be averaged."""
        flat = self.run.flat
        if self.model_use.is_due:
            self.model_use.refuse()
        flat.check(self.run.rank, self.optimizer)
        if self._has_tables:
            check_embeddings(self.run.tables)
        if flat.loads.count != self._loads:
            if self.runner.is_measured:
                harm = TAKEN_ELSEWHERE if self.traits.averages_gradients else ADDS_PROGRESS
                raise InputError(
                    f"model: was loaded after a step, and strategy {self.run.schedule.strategy.kind!r} {harm}; "
                    "call optimizer.load_state_dict(...) beside "
                    "model.load_state_dict(...), on all workers (optimizer.state_dict() will do), to go on from there"
                )
            self._loads = flat.loads.count

    def _check_unfit(self, *, skip: bool, scaled: bool, scale: torch.Tensor | None) -> None:
        """Refuse what one process would decide by itself for others that do not."""
        if self.run.flat.sharders.shards:
            what = "skip: skips the step on this rank" if skip else "GradScaler: looks for infinities on this rank"
            raise InputError(
                f"{what} alone, which has a part of its replica's model; take bfloat16, which needs no scaler, "
                "and to "
                "drop a step call zero_grad() and step() on all ranks"
            )
        name = next((table.name for table in self.run.tables), "")
        if name and skip:
            raise InputError(
                f"skip: the gradients of parameter {name!r} have reached the owners of its rows at the end of "
                "backward(); call zero_grad() and step() on all workers to drop the step everywhere"
            )
        if name and scaled:
            raise InputError(
                f"GradScaler: finds infinities on one worker, and the rows of parameter {name!r} lie on all; use "
                "bfloat16, which needs no scaler"
            )
        if not self.traits.averages_gradients:
            return
        if skip and self._arrived is not None:
            raise InputError(
                "skip: average_gradients() has put this step's gradients into those of all workers, who apply them; "
                "skip() before it, or call zero_grad() and step() on all workers to drop the step everywhere"
            )
        self.runner.check_step(Asked(skip=skip, scaled=scaled))
        if skip and self.run.applier.changes_means:
            raise InputError(
                "skip: would apply the mean gradient as it is, while this script changes it (clips it, say) after "
                "average_gradients(); call zero_grad() and go on as in every other step instead"
            )
        if scale is not None and self._arrived is not None and self.run.schedule.strategy.sync.delays_gradients:
            raise InputError(
                "average_gradients: the gradients that it sent still bore the GradScaler's scale, which is another one "
                "when they come back; call scaler.unscale_(optimizer) before it"
            )
