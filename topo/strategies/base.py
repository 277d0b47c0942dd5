"""What every strategy kind shares."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster

Pace = int | tuple[int, ...]
"""Steps per round: one number for all, or one per worker."""


class Averaging(StrEnum):
    """How a group weighs its members' progress when their paces differ."""

    MEAN = "mean"
    """The plain mean of the members' parameters: favours the data of workers that took more steps."""

    STEP_NORMALISED = "step-normalised"
    """Each member's progress of the round is first divided by its pace and multiplied by the mean pace."""


class Strategy(Protocol):
    """The common face of all strategy kinds: frozen values, closed under JSON round trips."""

    kind: ClassVar[str]

    @property
    def pace(self) -> Pace:
        """Steps per round."""

    def check(self, cluster: Cluster) -> None:
        """Raise ScheduleError if the strategy cannot run on the cluster."""
