"""What every strategy's runner shares: the run it belongs to and the moments at which it is called."""

# ruff: noqa: B027 - most runners need few of these moments, and doing nothing is the right default

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from partreduce.runtime.watch.progress import Progress
from partreduce.topo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from partreduce.runtime.averaging.applier import Applier
    from partreduce.runtime.averaging.flat_model import FlatModel
    from partreduce.runtime.averaging.reducer import Reducer
    from partreduce.runtime.sharding.tables import Tables
    from partreduce.runtime.watch.status import GapStatus
    from partreduce.topo.schedule import Schedule


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
    """What goes a way of its own, beside what the strategy averages."""
    alone: bool = False
    """Whether the script runs as one worker, without a launcher: nothing is averaged then."""
    progress: Progress = field(default_factory=Progress)
    """Where this worker says which step it is in, for `partreduce run --watch`."""

    @property
    def pace(self) -> int:
        """Steps per round of this worker."""
        return self.schedule.pace_of(self.rank)

    @property
    def everyone(self) -> tuple[int, ...]:
        """All workers; this one alone where the script runs without the others."""
        return (self.rank,) if self.alone else tuple(range(self.schedule.num_workers))

    def with_reducer(self, reducer: Reducer) -> Run:
        """The same run with its group operations done by another reducer."""
        return replace(self, reducer=reducer)


class Runner(ABC):
    """How one worker synchronises as its schedule's strategy says; one instance per optimizer.

    `DistributedOptimizer.step` calls `before_step`, then the wrapped optimizer, and `end_round` after the last
    step of a round. A worker whose data ended calls `end_round` alone. The other moments do nothing by default.
    """

    averages_gradients: bool = False
    """Whether gradients are averaged in each step, before the wrapped optimizer, rather than parameters."""

    drains_together: bool = False
    """Whether no worker may begin to `drain` before all others are ready to: they still answer one another."""

    needs_round_start: bool = False
    """Whether what a round's end does depends on the parameters with which the round began."""

    sends_early: bool = False
    """Whether gradients leave while the backward pass goes on, so that nothing may change them after it."""

    late_scaled: bool = False
    """Whether the gradients that `before_step` put in place came from an earlier step under a GradScaler."""

    harm_of_loading: str = "would send the difference to the others as progress"
    """What would come of a model that is loaded by itself where `takes_for_progress` says so."""

    jumped: int = 0
    """Rounds by which the last `end_round` went further than the next one: a worker left behind may skip some."""

    passed: int = 0
    """Rounds that the last `end_round` took along beside its own, without steps of this worker for them."""

    outlives_lost_workers: bool = False
    """Whether the run goes on when workers are lost; means over all are then over those that are left."""

    agrees_on_end: bool = False
    """Whether workers learn from one another's operations who has no more data: nothing of it goes by the store."""

    more: int = 0
    """Steps that the last `before_step` has taken beside the one for which it put gradients in place."""

    after_averaging: Callable[[], object] | None = None
    """What the script does to a mean gradient before the step, where it said so; for those that it does not see."""

    are_equal: bool = False
    """Whether all workers are known to hold the same model now, although parameters are averaged."""

    lost_at_load: str = ""
    """What a load would drop of what this worker has sent already, in words; empty where there is nothing."""

    enters_steps: bool = False
    """Whether it says itself, in `run.progress`, which step it is in: where neighbours know one another's steps."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def status(self) -> GapStatus | None:
        """What `partreduce run --watch` shows of its queues, if it has any.

        Called by a thread of its own while the training goes on; it neither waits nor raises.
        """
        return None

    @property
    def rests(self) -> bool:
        """Whether this worker takes no more steps until all meet, while the others' rounds go on. From any thread."""
        return False

    def follow(self, clock: Callable[[], int]) -> None:
        """Learn where to ask for the step that comes next, for what begins before `before_step`."""

    def refuse_unfinished(self, place: str) -> None:
        """Refuse a call that comes between a backward pass and its step, where its gradients have left already.

        Raises:
            InputError: as said.
        """

    def refuse_changed_means(self) -> None:
        """Called before a step whose mean gradients the script has changed after `average_gradients()`.

        Raises:
            InputError: workers would part.
        """

    def gather(self, *, apply: bool = True) -> int:  # noqa: ARG002 - for runners that go on without one another
        """Called where all workers meet, before anything else: come as far as all others; the steps that this took.

        Without `apply` what it takes is dropped: other parameters are about to be loaded.
        """
        return 0

    def refuse_late(self) -> None:
        """Called before a step whose gradients were averaged earlier: refuse what was added to them since.

        Raises:
            InputError: as said.
        """

    def before_step(self, step: int, round_: int, *, first: bool) -> None:
        """Called with fresh gradients, before the wrapped optimizer; `first` of its round."""

    @abstractmethod
    def end_round(self, step: int, round_: int) -> None:
        """Called after the last step of a round."""

    def settle(self) -> None:
        """Wait for what is in flight, so that the live parameters of all workers may be averaged; the run goes on."""

    def conclude(self) -> None:
        """Called where all workers have ended their data after the same round: apply what is still late, if at all."""

    def drain(self) -> None:
        """Wait for what is in flight and drop it: the run ends, or goes on from other parameters."""

    def takes_for_progress(self, round_: int, *, first: bool) -> bool:  # noqa: ARG002 - for runners that compare
        """Whether a change of the live parameters before this step (`first` of its round) would count as progress."""
        return False

    def resume(self, step: int, round_: int) -> None:
        """Called after a checkpoint was loaded, before the first step; all workers are there."""

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint must hold beside model and optimizer, by name; the live tensors."""
        return {}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Put back what `state` gave; called where a checkpoint holds something.

        Raises:
            InputError: this runner keeps no state.
        """
        raise InputError(
            f"load_checkpoint: the file holds {', '.join(sorted(state))}, which this run does not keep; "
            "was it saved with drift_correction, or with a codec?"
        )

    def leave(self) -> None:
        """Called before a worker waits for all others at the end: nobody's group may need it after this."""

    def lost(self) -> frozenset[int]:
        """The workers that are gone for good, where the run outlives them: nothing waits for them any more."""
        return frozenset()

    def survivors(self, place: str) -> tuple[int, ...]:  # noqa: ARG002 - for runs that lose workers
        """Who takes part in a mean over all at `place`, connected; all of them have come when this returns."""
        return self.run.everyone

    def connect(self, members: tuple[int, ...], place: str) -> None:
        """Have a communicator of these workers, all of whom call this."""

    def close(self) -> None:
        """End threads and sockets of this runner, after success and after failure; may be called twice."""

    def abandon(self) -> None:
        """The same after a failure: nothing that is still on its way is waited for."""
        self.close()
