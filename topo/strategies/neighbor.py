"""Strategy `neighbor`: weighted averaging over a graph, fixed or one graph per round (D-PSGD, SGP, MATCHA, …)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from preduce.topo.errors import ScheduleError
from preduce.topo.round import Round
from preduce.topo.strategies.base import Mixing

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbor(Mixing):
    """Rounds of weighted averaging that repeat for ever; one round is a fixed graph.

    Lockstep is Hop's serial order (its Figure 2), x ← W(x + u); late by one round its parallel order, x ← Wx + u(x).
    """

    kind: ClassVar[str] = "neighbor"
    rounds: tuple[Round, ...]

    def check_kind(self, cluster: Cluster) -> None:
        """Refuse rounds that do not fit the cluster.

        Raises:
            ScheduleError: no rounds, or rounds for another number of workers.
        """
        if not self.rounds:
            raise ScheduleError("rounds: is empty; a neighbor schedule has at least 1 round")
        for t, graph in enumerate(self.rounds):
            if graph.num_workers != cluster.num_workers:
                raise ScheduleError(
                    f"rounds[{t}]: is for {graph.num_workers} workers, the cluster has {cluster.num_workers}"
                )

    @property
    def period(self) -> int:
        """The number of rounds."""
        return len(self.rounds)

    @property
    def graphs(self) -> tuple[Round, ...]:
        """The rounds."""
        return self.rounds

    def steps(self, cluster: Cluster) -> tuple[Round, ...]:  # noqa: ARG002 - rounds name their workers
        """The rounds."""
        return self.rounds

    def num_distinct_phases(self, cluster: Cluster) -> int:  # noqa: ARG002 - as above
        """Distinct graphs."""
        return len(set(self.rounds))
