"""Define the axis of what may be late in a round: nothing, parameters, or gradients."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from partreduce.topo.strategies.axes import SYNCHRONOUS, DelayedAveraging, Pipeline, Sync
from partreduce.topo.strategies.base import Strategy


class Delay(StrEnum):
    """The values of the axis *sync* that the planner weighs; `sync` is the axis in schedule files."""

    SYNCHRONOUS = "synchronous"
    """A round waits for its averaging."""

    LATE = "delay"
    """Parameters are averaged one round late."""

    PIPELINE = "pipeline"
    """Gradients are one step late on all workers: Pipe-SGD with two overlapping iterations."""

    @classmethod
    def of(cls, strategy: Strategy) -> Delay | None:
        """Return the delay of a strategy; None where the lateness of gradients varies."""
        if strategy.sync.delays_gradients:
            return cls.PIPELINE if strategy.sync.word == Pipeline.word else None
        return cls.LATE if strategy.sync.lag else cls.SYNCHRONOUS

    @property
    def label(self) -> str:
        """Return how schedule names write the delay."""
        return "late" if self is Delay.LATE else str(self)

    @property
    def sync(self) -> Sync:
        """Return the `Sync` of strategies and files."""
        if self is Delay.SYNCHRONOUS:
            return SYNCHRONOUS
        return DelayedAveraging() if self is Delay.LATE else Pipeline()

    def suits(self, strategy: Strategy) -> bool:
        """Return whether a strategy supports it with its steps per round."""
        if not isinstance(self.sync, strategy.sync_types):
            return False
        return self is not Delay.PIPELINE or replace(strategy, sync=SYNCHRONOUS).averages_gradients
