"""Define the runner interface: a runner averages for one worker as its schedule's strategy defines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from partreduce.runtime.averaging.flat_model import FlatModel
from partreduce.runtime.averaging.gradients import OptimizerStepper
from partreduce.runtime.averaging.in_flight import FixedMembership, State
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.recorder import Operation
from partreduce.runtime.sharding.tables import Tables
from partreduce.runtime.transport.mailbox import Bound, Mailbox, Message
from partreduce.runtime.transport.streams import Streams
from partreduce.runtime.transport.waiting import PeerGoneError, PeerWatch
from partreduce.topo import strategies as st
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of a schedule's kind, each explained at its field, on which the engine and checkpoints depend."""

    averages_gradients: bool  # gradients before each step; if False, parameters after a round's last step
    keeps_equal: bool  # all workers apply the same averages, so models are equal in operations of all workers
    agrees_on_end: bool = False  # the protocol itself, not the store, tells which workers have no more data
    drains_together: bool = False  # no worker may `drain` before all are ready, since they answer each other
    carries_state: bool = False  # the optimizer's state dict includes `state()`
    measures_from_start: bool = False  # rounds depend on the model at the first step, which must be equal everywhere
    needs_round_start: bool = False  # the end of a round depends on the parameters at its start
    saves_inside_rounds: bool = False  # `state()` includes all that the rest of a round needs


def traits_of(schedule: Schedule) -> Traits:
    """Return the traits of a schedule's kind."""
    strategy = schedule.strategy
    has_equal_steps = schedule.has_one_steps_per_round
    normalizes = strategy.averaging is st.Averaging.STEP_NORMALIZED
    if isinstance(strategy.sync, st.PartialAllReduce):
        return Traits(True, strategy.sync.keeps_equal, agrees_on_end=True)
    if strategy.averages_gradients:
        return Traits(True, keeps_equal=True, carries_state=True)
    if isinstance(strategy, st.DynamicGroups):
        return Traits(False, keeps_equal=False, needs_round_start=normalizes)
    if isinstance(strategy.sync, st.IterationGap):
        is_parallel = strategy.sync.update_order is st.UpdateOrder.DPSGD
        return Traits(False, keeps_equal=False, drains_together=True, needs_round_start=is_parallel)
    if isinstance(strategy, st.Pairwise) or (isinstance(strategy, st.Server) and not strategy.synchronous):
        return Traits(
            False, keeps_equal=False, drains_together=True, measures_from_start=isinstance(strategy, st.Server),
            needs_round_start=normalizes and not has_equal_steps,
        )  # fmt: skip
    takes_turns = strategy.takes_turns
    has_outer_state = takes_turns or not strategy.payload.outer.is_plain
    return Traits(
        False,
        keeps_equal=False,
        carries_state=has_outer_state,
        measures_from_start=has_outer_state,
        needs_round_start=not takes_turns and (normalizes or strategy.is_delayed),
        # With unequal steps per round a worker may have sent fragments in a round that others have not sent yet.
        saves_inside_rounds=not takes_turns or has_equal_steps,
    )


@dataclass(slots=True)
class Progress:
    """Number of optimizer steps that this worker has taken, in an object that engine and runner share."""

    step: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """One worker's part of a run, on which its runner works: schedule, model, reducers and membership."""

    schedule: Schedule
    rank: int
    flat: FlatModel
    reducer: Reducer
    mean_reducers: tuple[Reducer, ...]  # for parameters, and for buffers sent only for the mean model
    applier: OptimizerStepper  # steps the wrapped optimizer with averaged gradients
    tables: Tables  # embedding tables that are exchanged separately
    keeps_on_host: bool = False  # whether outer parameters and momentum are offloaded between outer steps
    alone: bool = False  # whether the script runs without a launcher, so that nothing is averaged
    progress: Progress = field(default_factory=Progress)
    # the workers that take part, and the queue of their operations in flight
    membership: FixedMembership = field(default_factory=lambda: FixedMembership(()))

    @property
    def steps_per_round(self) -> int:
        return self.schedule.steps_per_round_of(self.rank)

    def progress_factor(self, members: Sequence[int]) -> float:
        """Return by what step-normalized averaging multiplies this worker's change in a round.

        It is the mean steps per round of `members` (ranks) divided by this worker's, as if all took equally many steps.
        """
        steps = [self.schedule.steps_per_round_of(member) for member in members]
        return sum(steps) / len(steps) / self.steps_per_round

    @property
    def traits(self) -> Traits:
        """The traits of the schedule's kind; all False for a script without a launcher."""
        return Traits(averages_gradients=False, keeps_equal=False) if self.alone else traits_of(self.schedule)

    @property
    def everyone(self) -> tuple[int, ...]:
        return (self.rank,) if self.alone else tuple(range(self.schedule.num_workers))

    @property
    def host(self) -> Streams | None:
        """Streams that copy outer parameters and momentum to host memory; None if these stay on the device."""
        return self.reducer.streams if self.keeps_on_host else None


class AveragedGradients(NamedTuple):
    """Result of `Runner.before_step`: steps already taken (`more`), and whether a GradScaler scaled the gradients."""

    more: int = 0  # steps taken already; that for which gradients are set now does not count
    scaled: bool = False  # whether these gradients are of an earlier step that used a GradScaler


class StepRequest(NamedTuple):
    """How a script asks for a step: left out, scaled by a GradScaler, or with gradients averaged or changed before."""

    skip: bool = False  # counted, but without this worker's gradient
    scaled: bool = False  # a GradScaler has scaled the gradients
    early: bool = False  # `average_gradients()` has averaged them already
    changed: bool = False  # the script has changed them since


class StepResult(NamedTuple):
    """Result of averaging after a step: how many rounds this worker skips, and whether all models are equal now."""

    skipped: int = 0  # rounds that this worker skips because it is behind
    are_equal: bool = False  # whether all workers are known to hold the same model now


ON_TIME = AveragedGradients()
DIFFERENT = StepResult()


class Runner:
    """A strategy's averaging on one worker, one object per optimizer; this base class averages nothing.

    The engine (`worker.engine`), which counts steps and rounds, calls these methods around each step; they raise
    PeerFailedError if a worker is gone or late. Operations in flight are queued in the run's membership.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.membership = run.membership
        self.reducers: tuple[Reducer, ...] = ()  # reducers in addition to the run's
        self.mailboxes: list[Mailbox] = []  # closed together with this runner

    def _open_mailbox(
        self, kind: str, deliver: Callable[[Message], None], *, max_bytes: int = 0, bound: Bound | None = None
    ) -> Mailbox:
        """Open a mailbox, for messages between two workers, that is closed with this runner; for arguments see Mailbox.

        `kind` is part of its name in the store; a side thread calls `deliver` with each message that arrives.
        """
        reducer = self.run.reducer
        store, heartbeat, name = reducer.world.store, reducer.heartbeat, f"{reducer.key} {kind}"
        mailbox = Mailbox(
            store, self.run.rank, name, deliver, max_bytes=max_bytes, timeout=reducer.timeout, bound=bound,
            heartbeat=heartbeat,
        )  # fmt: skip
        self.mailboxes.append(mailbox)
        reducer.recorder.attach("mailbox", mailbox.traffic_facts)
        return mailbox

    def before_step(self, step: int) -> AveragedGradients:  # noqa: ARG002 - the signature of all
        """Average gradients, if the strategy averages these, before the wrapped optimizer takes step `step` with them.

        Returns how many steps the runner has taken already, and whether a GradScaler had scaled the gradients.
        """
        return ON_TIME

    def after_step(self, step: int) -> StepResult:  # noqa: ARG002 - as above
        """Average parameters, if the strategy averages these, after step `step`; workers without data call only this.

        Returns how many rounds to skip, and whether all workers now have the same model.
        """
        return DIFFERENT

    def check_step(self, request: StepRequest) -> None:
        """Raise InputError if the strategy cannot take a step in the way that `request` describes."""

    def pause(self, place: str, *, apply: bool = True) -> int:  # noqa: ARG002 - as above
        """Advance to a round common to all workers, before an operation of all named `place`, such as a checkpoint.

        Meanwhile the runner answers other workers' requests. With `apply=False` averages that complete are dropped,
        since other parameters are about to be loaded. Returns how many steps were taken. Raises InputError if a started
        operation can only be completed by the next step.
        """
        return 0

    def settle(self, *, ends: bool = False) -> None:  # noqa: ARG002 - as above
        """Wait for operations in flight, before an average over all; if the run `ends`, apply delayed results too."""
        self.membership.settle()
        self.run.reducer.flush()

    def drain(self) -> str:
        """Wait for operations in flight, then drop their results and all other state, as before a model is loaded.

        Returns a warning for the user about what was dropped; empty if there is none.
        """
        return ""

    @property
    def is_measured(self) -> bool:
        """Whether the runner has state that fits only the current parameters, such as a copy from the round's start.

        If so, a script must not load a model without the optimizer's state.
        """
        return False

    def state(self) -> State:
        """Return the tensors that a checkpoint needs in addition to model and optimizer, by name, without copying."""
        return {}

    def load(self, state: State, step: int) -> None:  # noqa: ARG002 - as above
        """Restore what `state` returned, to continue with step `step`. Raises InputError for any other state."""
        check_kept(state)

    def close(self, *, failed: bool = False) -> None:
        """Stop the runner's threads and close its sockets, without waiting if the run `failed`; may be called twice."""
        for mailbox in self.mailboxes:
            mailbox.abandon() if failed else mailbox.close()
        if failed:
            self.mailboxes = []


def check_kept(state: Iterable[str]) -> None:
    """Raise InputError if `state`, the names in a checkpoint that this run does not use, is not empty."""
    if names := ", ".join(sorted(state)):
        raise InputError(f"the file holds {names}, which this run does not keep; was it saved with a codec?")


class OneSided(Runner):
    """Base of runners whose workers send each other messages by mailbox, without collectives.

    `deliver` is called with each message, in the mailbox's thread; `place` describes the strategy in errors; `bound`
    limits messages in flight to each worker, by default as Mailbox does.
    """

    def __init__(
        self,
        strategy: st.Strategy,
        run: Run,
        place: str,
        deliver: Callable[[Message], None],
        *,
        bound: Bound | None = None,
    ) -> None:
        super().__init__(run)
        if any(tensor.is_state for bucket in run.flat.buckets for tensor in bucket.piggybacked):
            raise InputError(f"optimizer_state='average': stays with each worker of {place}; use 'local'")
        normalizes, everyone = strategy.averaging is st.Averaging.STEP_NORMALIZED, range(run.schedule.num_workers)
        self._factor = run.progress_factor(everyone) if normalizes else 1.0  # factor of a round's progress
        reducer = run.reducer
        self._peer_watch = PeerWatch(reducer.heartbeat, everyone)
        max_bytes = sum(bucket.size * bucket.dtype.itemsize for bucket in run.flat.buckets)
        self._mailbox = self._open_mailbox(strategy.kind, deliver, max_bytes=max_bytes, bound=bound)
        self._starts: list[torch.Tensor] = []  # the parameters from which progress is measured

    def _progress(self) -> list[torch.Tensor]:
        return [bucket.flat - start for bucket, start in zip(self.run.flat.buckets, self._starts, strict=True)]

    def after_step(self, step: int) -> StepResult:
        round_, taken = divmod(step, self.run.steps_per_round)
        return DIFFERENT if taken + 1 < self.run.steps_per_round else self.end_round(step, round_)

    def end_round(self, step: int, round_: int) -> StepResult:
        """Average as the strategy defines, after step `step`, the last of round `round_`; returns as `after_step`."""
        raise NotImplementedError

    def wait_until(self, done: Callable[[], bool], members: Sequence[int], operation: Operation | None = None) -> None:
        """Wait until messages have made `done()` true, then record the end of `operation` in the trace.

        `members` are the ranks to watch: raises PeerFailedError if one fails, or after the timeout.
        """
        reducer = self.run.reducer
        try:
            self._mailbox.wait_until(done, reducer.heartbeat, members, None if operation is None else operation.round)
        except PeerGoneError as error:
            operation = operation or reducer.recorder.begin("pause of exchanges", 0, 0, tuple(members), 0)
            raise reducer.failure(operation, error) from None
        if operation is not None:
            reducer.recorder.end(operation)
            reducer.heartbeat.doing(operation.finished)
