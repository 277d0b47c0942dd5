"""Define the interface of runners, which average for one worker as its schedule's strategy says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from partreduce.runtime.averaging.flat_model import FlatModel
from partreduce.runtime.averaging.in_flight import FixedMembership, State
from partreduce.runtime.averaging.optimizer_step import OptimizerStepper
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.sharding.tables import Tables
from partreduce.runtime.strategies.traits import Traits, traits_of
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
    applier: OptimizerStepper
    """The wrapped optimizer, for strategies that have a mean gradient to apply."""
    tables: Tables
    """What goes its own way, apart from what the strategy averages."""
    keeps_on_host: bool = False
    """Whether what outer steps keep lies in host memory between two of them."""
    alone: bool = False
    """Whether the script runs as one worker, without a launcher: nothing is averaged then."""
    progress: Progress = field(default_factory=Progress)
    membership: FixedMembership = field(default_factory=lambda: FixedMembership(()))
    """Who takes part, with this worker's operations in flight."""

    @property
    def steps_per_round(self) -> int:
        """Steps per round of this worker."""
        return self.schedule.steps_per_round_of(self.rank)

    @property
    def traits(self) -> Traits:
        """What is to be known of the schedule's kind; where the script runs alone, of none."""
        return Traits(averages_gradients=False, keeps_equal=False) if self.alone else traits_of(self.schedule)

    @property
    def everyone(self) -> tuple[int, ...]:
        """All workers; this one alone where the script runs without the others."""
        return (self.rank,) if self.alone else tuple(range(self.schedule.num_workers))

    @property
    def host(self) -> Streams | None:
        """What moves arrays to host memory and back, where outer steps keep theirs there."""
        return self.reducer.streams if self.keeps_on_host else None


class AveragedGradients(NamedTuple):
    """What came of averaging the gradients of a step."""

    more: int = 0
    """Steps that were taken besides the one whose gradients are in place now."""
    scaled: bool = False
    """Whether a GradScaler was at work on these gradients in an earlier step."""


class StepRequest(NamedTuple):
    """What a script asks of a step."""

    skip: bool = False
    scaled: bool = False
    """A GradScaler has scaled the gradients."""
    early: bool = False
    """They are means already, by `average_gradients()`."""
    changed: bool = False
    """And the script has changed them since."""


class StepResult(NamedTuple):
    """What came of a step's end."""

    skipped: int = 0
    """Rounds that a worker left behind skips."""
    are_equal: bool = False
    """Whether all workers are known to hold the same model now."""


ON_TIME = AveragedGradients()
DIFFERENT = StepResult()


class Runner:
    """How one worker averages; one instance per optimizer. As it stands it averages nothing, as of a script alone.

    An engine (see `worker.engine`) takes the steps and calls these methods. What they share, operations in flight, lies
    in the queue of the run's membership; what else is to be known of a kind follows from its schedule (see `traits`).
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.membership = run.membership
        """Who else is there still."""
        self.reducers: tuple[Reducer, ...] = ()
        """What it averages by, apart from the run's own reducers."""
        self.mailboxes: list[Mailbox] = []
        """Closed together with this runner."""

    def before_step(self, step: int) -> AveragedGradients:  # noqa: ARG002 - the signature of all
        """What is due before the wrapped optimizer's step: mean gradients are in place afterwards, if any are averaged.

        Raises:
            PeerFailedError: a worker is gone or too late.
        """
        return ON_TIME

    def after_step(self, step: int) -> StepResult:  # noqa: ARG002 - as above
        """What is due after it; a worker whose data ended calls this alone.

        Raises:
            PeerFailedError: a worker is gone or too late.
        """
        return DIFFERENT

    def check_step(self, asked: StepRequest) -> None:
        """Refuse a step that does not go with how and when gradients travel.

        Raises:
            InputError: as said.
        """

    def pause(self, place: str, *, apply: bool = True) -> int:  # noqa: ARG002 - as above
        """Reach the round at which all workers meet at `place`, and serve the operations that still need this worker.

        Without `apply` what it takes to come there is dropped: other parameters are about to be loaded. Returns the
        steps that this took.

        Raises:
            InputError: this worker has begun what only its next step ends.
        """
        return 0

    def settle(self, *, ends: bool = False) -> None:  # noqa: ARG002 - as above
        """Wait for what is in flight, so that the live parameters of all workers may be averaged.

        Where the run `ends`, for all after the same round, what is still late is applied, if at all.
        """
        self.membership.settle()
        self.run.reducer.flush()

    def drain(self) -> str:
        """Wait for what is in flight and drop it with all that is kept: the run ends, or other parameters come.

        Returns what was dropped that this worker had sent already, in words; empty where there was nothing.
        """
        return ""

    @property
    def is_measured(self) -> bool:
        """Whether anything is kept that belongs to the model as it is: a model loaded by itself would not fit it."""
        return False

    def state(self) -> State:
        """What a checkpoint must hold besides model and optimizer, by name; the live tensors."""
        return {}

    def load(self, state: State, step: int) -> None:  # noqa: ARG002 - as above
        """Put back what `state` gave, to continue with this step; all workers are there.

        Raises:
            InputError: this runner does not keep that.
        """
        if state:
            raise InputError(
                f"load_checkpoint: the file holds {', '.join(sorted(state))}, which this run does not keep; "
                "was it saved with a codec?"
            )

    def close(self, *, failed: bool = False) -> None:
        """End threads and sockets of this runner; may be called twice. After a failure nothing is waited for."""
        for mailbox in self.mailboxes:
            mailbox.abandon() if failed else mailbox.close()
        if failed:
            self.mailboxes = []
