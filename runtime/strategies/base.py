"""What every run-time strategy shares: the run it belongs to and the moments at which it is called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from preduce.runtime.averaging.flat_model import FlatModel
    from preduce.runtime.averaging.reducer import Reducer
    from preduce.topo.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Run:
    """What a strategy works on: one worker's part of a run."""

    schedule: Schedule
    rank: int
    flat: FlatModel
    reducer: Reducer
    mean_reducers: tuple[Reducer, ...]

    @property
    def pace(self) -> int:
        """Steps per round of this worker."""
        return self.schedule.pace_of(self.rank)

    def with_reducer(self, reducer: Reducer) -> Run:
        """The same run with its group operations done by another reducer."""
        return replace(self, reducer=reducer)


class Strategy(Protocol):
    """How workers synchronise; one instance per optimizer.

    `DistributedOptimizer.step` calls `before_step`, then the wrapped optimizer, and `end_round` after the last
    step of a round. A worker whose data ended calls `end_round` alone.
    """

    averages_gradients: bool

    def before_step(self, step: int, round_: int, *, first: bool) -> None:
        """Called with fresh gradients, before the wrapped optimizer; `first` of its round."""

    def end_round(self, step: int, round_: int) -> None:
        """Called after the last step of a round."""

    def settle(self) -> None:
        """Wait for what is in flight, so that the live parameters of all workers may be averaged; the run goes on."""

    def drain(self) -> None:
        """Wait for what is in flight and drop it: the run ends, or goes on from other parameters."""

    def resume(self, step: int, round_: int) -> None:
        """Called after a checkpoint was loaded, before the first step; all workers are there."""

    def close(self) -> None:
        """End threads and sockets of this strategy, after success and after failure; may be called twice."""
