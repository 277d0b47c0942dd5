"""What of a round may come late: nothing, parameters, or gradients. The planner's choices on the axis *when*."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from partreduce.topo.strategies.axes import SYNCHRONOUS, DelayedAveraging, Pipeline, Sync
from partreduce.topo.strategies.base import Strategy


class Delay(StrEnum):
    """The values of the axis *sync* that the planner weighs; `sync` is the axis as files hold it."""

    SYNCHRONOUS = "synchronous"
    """A round waits for its averaging."""

    LATE = "delay"
    """Parameters come a round late."""

    PIPELINE = "pipeline"
    """Gradients come one step late, to all workers: Pipe-SGD with two iterations side by side."""

    @classmethod
    def of(cls, strategy: Strategy) -> Delay | None:
        """Which one a strategy has; None where gradients are late by as much as it happens, not all by one step."""
        if strategy.sync.delays_gradients:
            return cls.PIPELINE if strategy.sync.word == Pipeline.word else None
        return cls.LATE if strategy.sync.lag else cls.SYNCHRONOUS

    @property
    def label(self) -> str:
        """What names of schedules say of it."""
        return "late" if self is Delay.LATE else str(self)

    @property
    def sync(self) -> Sync:
        """As strategies and files say it."""
        if self is Delay.SYNCHRONOUS:
            return SYNCHRONOUS
        return DelayedAveraging() if self is Delay.LATE else Pipeline()

    def suits(self, strategy: Strategy) -> bool:
        """Whether a strategy has it, with its own steps per round."""
        if not isinstance(self.sync, strategy.sync_types):
            return False
        return self is not Delay.PIPELINE or replace(strategy, sync=SYNCHRONOUS).averages_gradients
