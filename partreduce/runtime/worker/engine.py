"""Engine: takes one worker's steps, counts them and its rounds, and refuses what a schedule cannot bear.

There are two: one averages gradients before the wrapped optimizer's step (`gradient_engine`), one parameters after the
last step of a round (`parameter_engine`). What they share is here. How the schedule's strategy averages is the runner's
business (see `strategies.base`).
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

import torch

from partreduce.runtime.averaging.gradients import own_gradients, unscale
from partreduce.runtime.guard.guard import Guard
from partreduce.runtime.liveness.uneven_inputs import UnevenInputs
from partreduce.runtime.strategies.base import Run, Runner
from partreduce.topo.errors import InputError

AnyRunner = TypeVar("AnyRunner", bound=Runner)
State: TypeAlias = "dict[str, torch.Tensor]"


class Engine(ABC, Generic[AnyRunner]):
    """The steps of one worker. A round has `steps_per_round` steps; its group operation belongs to the last of them."""

    def __init__(
        self, run: Run, runner: AnyRunner, optimizer: torch.optim.Optimizer, uneven_inputs: UnevenInputs
    ) -> None:
        self.run, self.runner, self.optimizer, self.uneven_inputs = run, runner, optimizer, uneven_inputs
        self._has_tables = bool(run.tables)
        self._progress = run.progress
        self.skipped = 0
        """Steps that were not taken because the worker skipped ahead to its neighbors."""
        self._batches_to_drop = 0
        self.is_behind = False
        """Whether the worker has joined the run, and its script has still to come to the step that it goes on with."""
        self.data_epoch = (-1, 0)
        """The epoch of the data that is dealt by rounds, and the round with which it began."""
        self._joining = False
        self.guard = Guard(self)

    @property
    def steps(self) -> int:
        return self._progress.step

    @property
    def round(self) -> int:
        """The round that this worker is in: steps divided by steps per round."""
        return self._progress.step // self.run.steps_per_round

    @property
    @abstractmethod
    def differs(self) -> bool:
        """Whether this worker's model may be another one than the mean of all."""

    def go_on_from(self, steps: int) -> None:
        """Go on from another step, with parameters that were loaded."""
        self._count(steps)
        self._batches_to_drop = 0
        self.guard.went_on()

    def catch_up(self) -> None:
        """The script begins anew and the run does not: the batches of the steps that others have taken are left out."""
        self.is_behind, self._batches_to_drop = True, self._progress.step

    @abstractmethod
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
            closure: evaluates the loss again, as torch's optimizers take it.
            skip: count the step without applying it.
            found_inf: GradScaler's verdict on this worker's gradients, which it leaves to the optimizer: it would not
                call step() at all on a worker with an infinite gradient, and its group would wait.
            scale: what GradScaler multiplied the loss by.

        Raises:
            InputError: a model or optimizer that was changed, or gradients that are to be skipped and are averaged.
        """

    @property
    def has_local_gradients(self) -> bool:
        """Whether the gradients of the coming step are still to be averaged."""
        return False

    def average_gradients(self) -> None:
        """Average the gradients of the coming step now; called where they are still to be averaged."""

    def drops_batch(self) -> bool:
        """Whether the next batch belongs to a step that was skipped; asked once for each."""
        drops = self._batches_to_drop > 0
        self._batches_to_drop -= drops
        return drops

    def gather(self, *, apply: bool = True) -> None:
        """Come to a place where all workers meet, which must be at the same round then.

        Without `apply` what it takes to come there is dropped: other parameters are about to be loaded.
        """
        self._count(self._progress.step + self.runner.gather(apply=apply))

    def strategy_state(self, guard: Callable[[Callable[[], State]], State]) -> State:
        """What an optimizer's state holds of the strategy's: gradients still to be applied, an outer momentum."""
        return guard(self.runner.state) if self.runner.carries_state else {}

    def check_load(self, steps: int) -> None:
        """Refuse to go on from a step where the schedule cannot."""

    @contextlib.contextmanager
    def joining(self, after_averaging: Callable[[], object] | None = None) -> Iterator[None]:  # noqa: ARG002 - of gradients
        """Inside, every round is declared before it begins, so that workers whose data ended take part in it.

        `after_averaging` is what the script does with the mean gradients of a step before it is taken.
        """
        self._joining = not self.runner.agrees_on_end
        try:
            yield
        finally:
            self._joining = False

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
        if self.runner.agrees_on_end:
            self.gather()
            return
        self.runner.leave("join")  # whoever waits here for the others' next round can answer nobody's group meanwhile
        self.uneven_inputs.ended()
        while self.uneven_inputs.another(self.round, self.runner.others.lost_workers):
            self.guard.before_step(first=True)
            if (self.run.applier.changes_means or self.run.tables.clips) and after_averaging is None:
                raise InputError(
                    "join: this worker's data ended, and it would go on with mean gradients as they are, while this "
                    "script changes them (clips them, say) after average_gradients(); give that as a function, "
                    "join(after_averaging=...)"
                )
            if not self._take_part(after_averaging):
                self.uneven_inputs.close()
                break
            self.runner.leave("join")
        self.runner.conclude()

    @abstractmethod
    def _take_part(self, after_averaging: Callable[[], object] | None) -> bool:
        """Do a round that others do, without data; False where nobody does it after all."""

    def _serves_tables(self, after_averaging: Callable[[], object] | None) -> bool:
        """Hand out this worker's rows for a step of the others', and take their gradients; whether anybody steps."""
        for table in self.run.tables:
            table.parameter.grad = None
        return not self.run.tables or self.run.tables.serve(changes_means=after_averaging is not None)

    def _count(self, steps: int) -> None:
        self._progress.step = steps
        self.run.reducer.heartbeat.now = f"computes step {steps}", ()

    def _prepare(self, *, skip: bool, found_inf: torch.Tensor | None, scale: torch.Tensor | None) -> None:
        """Make gradients what a step takes that is to be skipped, or that a GradScaler is at work on."""
        if skip or found_inf is not None:
            own_gradients(self.run.flat.slots())
        if found_inf is not None and scale is not None:
            unscale(self.optimizer, scale)
