"""Runner: how one worker averages as its schedule's strategy says, and the run that it belongs to.

An engine (see `worker.engine`) takes the steps and calls its runner at the moments that are declared here. There are
two kinds: a `GradientRunner` puts mean gradients in place before each step, a `ParameterRunner` averages models at the
end of a round. Most runners need few of these moments, and doing nothing is the right default.
"""

# ruff: noqa: B024, B027 - as said

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from partreduce.runtime.averaging.applier import Applier
from partreduce.runtime.averaging.flat_model import FlatModel
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.elastic.generations import Generations
from partreduce.runtime.liveness.survivors import Everyone
from partreduce.runtime.sharding.tables import Tables
from partreduce.runtime.transport.mailbox import Mailbox
from partreduce.runtime.transport.streams import Streams
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule


@dataclass(slots=True)
class Progress:
    """How far the engine has come, for its runner."""

    step: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """What a runner works on: one worker's part of a run."""

    schedule: Schedule
    rank: int
    flat: FlatModel
    reducer: Reducer
    mean_reducers: tuple[Reducer, ...]
    """Reducers of everything that the mean model holds: parameters, and buffers that do not ride along with them."""
    applier: Applier
    """The wrapped optimizer, for strategies that have a mean gradient to apply."""
    tables: Tables
    """What goes a way of its own, apart from what the strategy averages."""
    keeps_on_host: bool = False
    """Whether what outer steps keep lies in host memory between two of them."""
    alone: bool = False
    """Whether the script runs as one worker, without a launcher: nothing is averaged then."""
    progress: Progress = field(default_factory=Progress)
    generations: Generations | None = None
    """Carries out group operations where the run continues after failures."""

    @property
    def steps_per_round(self) -> int:
        """Steps per round of this worker."""
        return self.schedule.steps_per_round_of(self.rank)

    @property
    def everyone(self) -> tuple[int, ...]:
        """All workers; this one alone where the script runs without the others."""
        return (self.rank,) if self.alone else tuple(range(self.schedule.num_workers))

    @property
    def host(self) -> Streams | None:
        """What moves arrays to host memory and back, where outer steps keep theirs there."""
        return self.reducer.streams if self.keeps_on_host else None

    def with_reducer(self, reducer: Reducer) -> Run:
        """The same run with its group operations done by another reducer."""
        return replace(self, reducer=reducer)


class Runner(ABC):
    """What both kinds of runners have in common; one instance per optimizer."""

    agrees_on_end: bool = False
    """Whether workers learn from one another's operations who has no more data: nothing of it goes by the store."""

    drains_together: bool = False
    """Whether no worker may begin to `drain` before all others are ready to: they still answer one another."""

    carries_state: bool = False
    """Whether the optimizer's state dict holds `state()`, too, as it holds the wrapped optimizer's own momentum."""

    measures_from_start: bool = False
    """Whether rounds depend on the model that the first step finds, which has to be everybody's then."""

    saves_inside_rounds: bool = False
    """Whether a checkpoint may lie inside a round, because `state()` says all that the rest of the round needs."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.others: Everyone = run.generations or Everyone(run.everyone)
        """Who else is there still."""
        self.reducers: tuple[Reducer, ...] = ()
        """What it averages by, apart from the run's own reducers."""
        self.mailboxes: list[Mailbox] = []
        """Closed together with this runner."""

    def gather(self, *, apply: bool = True) -> int:  # noqa: ARG002 - for runners that go on without one another
        """Called where all workers meet, before anything else: come as far as all others; the steps that this took.

        Without `apply` what it takes is dropped: other parameters are about to be loaded.
        """
        return 0

    def leave(self, place: str) -> None:
        """Called before a worker waits for all others at `place`: nobody's group may need it after this.

        Raises:
            InputError: this worker has begun what only its next step ends.
        """

    def settle(self) -> None:
        """Wait for what is in flight, so that the live parameters of all workers may be averaged; the run continues."""

    def conclude(self) -> None:
        """Called where all workers have ended their data after the same round: apply what is still late, if at all."""

    def drain(self) -> str:
        """Wait for what is in flight and drop it: the run ends, or continues from other parameters.

        Returns what was dropped that this worker had sent already, in words; empty where there was nothing.
        """
        return ""

    def members_changed(self) -> None:
        """Called where workers have failed or join, when all that continue connect, and before one gives its state."""

    def connected(self) -> None:
        """Called when they are connected, and all have a state: begin again what was in flight between them."""

    def harm_of_loading(self, round_: int, *, first: bool) -> str:  # noqa: ARG002 - for runners that compare
        """The harm of a model that was loaded by itself before this step (`first` of its round), if any."""
        return ""

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint must hold besides model and optimizer, by name; the live tensors."""
        return {}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Put back what `state` gave; called where a checkpoint holds something.

        Raises:
            InputError: this runner keeps no state.
        """
        raise InputError(
            f"load_checkpoint: the file holds {', '.join(sorted(state))}, which this run does not keep; "
            "was it saved with a codec?"
        )

    def step_of(self, turn: int) -> int:
        """The step after which a turn's operation is due, in a run that continues after failures (`Generations`)."""
        return (turn + 1) * self.run.steps_per_round - 1

    def resume(self, step: int, round_: int) -> None:
        """Called after a checkpoint was loaded, before the first step; all workers are there."""

    def close(self) -> None:
        """End threads and sockets of this runner, after success and after failure; may be called twice."""
        for mailbox in self.mailboxes:
            mailbox.close()

    def abandon(self) -> None:
        """The same after a failure: nothing that is still on its way is waited for."""
        mailboxes, self.mailboxes = self.mailboxes, []
        for mailbox in mailboxes:
            mailbox.abandon()
        self.close()


class Arrived(NamedTuple):
    """What came of averaging the gradients of a step."""

    more: int = 0
    """Steps that were taken besides the one whose gradients are in place now."""
    scaled: bool = False
    """Whether a GradScaler was at work on these gradients in an earlier step."""


class GradientRunner(Runner):
    """Averages gradients in each step: `average`, then the wrapped optimizer's step, then `end_step`."""

    carries_state = True

    keeps_equal: bool = True
    """Whether all workers step with the same means, so that their models are equal wherever all meet."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.after_averaging: Callable[[], object] | None = None
        """What the script does to a mean gradient before the step, where it said so; for those that it does not see."""

    @abstractmethod
    def average(self, step: int) -> Arrived:
        """Put mean gradients in the place of this worker's own."""

    def end_step(self, step: int) -> None:
        """Called after the wrapped optimizer's step."""

    def check_unfit(self, *, skip: bool, scaled: bool) -> None:
        """Called before a step that is to be skipped, or whose gradients a GradScaler has scaled.

        Raises:
            InputError: that does not go with how and when gradients travel.
        """

    def check_late(self) -> None:
        """Called before a step whose gradients were averaged earlier: refuse what was added to them since."""

    def check_changed_means(self) -> None:
        """Called before a step whose mean gradients the script has changed after `average_gradients()`.

        Raises:
            InputError: workers would part.
        """


ADDS_PROGRESS = "would send the difference to the others as progress"


class ParameterRunner(Runner):
    """Averages models: `begin` is called before a step, `end_round` after the last one of a round.

    A worker whose data ended calls `end_step` and `end_round` alone. As it stands it averages nothing, for a script
    that runs alone.
    """

    needs_round_start: bool = False
    """Whether what a round's end does depends on the parameters with which the round began."""

    are_equal: bool = False
    """Whether all workers are known to hold the same model now."""

    def begin(self, step: int, round_: int, *, first: bool) -> None:
        """Called before the wrapped optimizer's step; `first` of its round."""

    def end_step(self, step: int) -> None:
        """Called after each step, before the end of its round, also where a worker without data takes none."""

    def end_round(self, step: int, round_: int) -> int:  # noqa: ARG002 - for runners that average
        """Called after the last step of a round; how many of the next rounds a worker left behind skips."""
        return 0
