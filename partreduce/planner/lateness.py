"""What of a round may come late: nothing, parameters, or gradients. The planner's choices on the axis *when*."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from partreduce.topo.strategies.axes import LOCKSTEP, Late, Pipeline, When
from partreduce.topo.strategies.base import Strategy


class Lateness(StrEnum):
    """The values of the axis *when* that the planner weighs; the file holds what `when` says."""

    LOCKSTEP = "lockstep"
    """A round waits for its averaging."""

    LATE = "late"
    """Parameters come a round late."""

    PIPELINE = "pipeline"
    """Gradients come a step late, to all workers alike: Pipe-SGD with two iterations side by side."""

    @classmethod
    def of(cls, strategy: Strategy) -> Lateness | None:
        """Which one a strategy has; None where gradients are late as it comes, not all of them alike by a step."""
        if strategy.when.delays_gradients:
            return cls.PIPELINE if strategy.when.word == Pipeline.word else None
        return cls.LATE if strategy.when.lag else cls.LOCKSTEP

    @property
    def when(self) -> When:
        """As strategies and files say it."""
        if self is Lateness.LOCKSTEP:
            return LOCKSTEP
        return Late() if self is Lateness.LATE else Pipeline()

    def suits(self, strategy: Strategy) -> bool:
        """Whether a strategy has it, at its own pace."""
        if not isinstance(self.when, strategy.whens):
            return False
        return self is not Lateness.PIPELINE or replace(strategy, when=LOCKSTEP).averages_gradients
