"""Strategy `allreduce`: everybody averages with everybody (DDP for pace 1, local SGD for pace H > 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from preduce.topo.strategies.base import Averaging, Pace
from preduce.topo.strategies.static import check_pace

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """Average over all workers once per round.

    With pace 1 and no overlap *gradients* are averaged before the step, which equals DDP for every optimizer;
    otherwise *parameters* are averaged after the last step of each round.
    """

    kind: ClassVar[str] = "allreduce"
    pace: Pace = 1
    overlap: bool = False
    averaging: Averaging = Averaging.MEAN

    def check(self, cluster: Cluster) -> None:
        """Refuse a bad pace.

        Raises:
            ScheduleError: as said.
        """
        check_pace(self.pace, cluster)

    @property
    def averages_gradients(self) -> bool:
        """Whether gradients are averaged rather than parameters."""
        return self.pace == 1 and not self.overlap
