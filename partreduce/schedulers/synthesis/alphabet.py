"""Define the phases among which a search chooses, with their small matrices and their costs.

A search never holds a phase itself: it holds the phase's index in the alphabet, and a period is a tuple of such indices
(`Indices`). Index a of the arrays below holds the data of phase a.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis import scoring
from partreduce.schedulers.synthesis.scoring import CovarianceMap, Space
from partreduce.topo.cluster import Cluster
from partreduce.topo.phase import Phase
from partreduce.topo.rule import RulePhase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.static import GroupPhases, RulePhases, StaticGroups

Floats = npt.NDArray[np.float64]

Indices = tuple[int, ...]
"""One period: the index of each of its phases in the alphabet, in order."""


@dataclass(frozen=True, slots=True, eq=False)
class Alphabet:
    """A phases over one space.

    `matrices` (A, C, G, G), `costs` (A,) in seconds of one round, `crosses` (A,) whether a group crosses nodes.
    `radices` is set for rules; `steps_per_round` is one number, or one per worker.
    """

    cluster: Cluster
    space: Space
    phases: tuple[RulePhase | Phase, ...]
    matrices: Floats
    costs: Floats
    crosses: npt.NDArray[np.bool_]
    radices: tuple[int, ...] | None = None
    steps_per_round: int | tuple[int, ...] = 1
    # The maps once they are asked for; a changed alphabet begins without them.
    _maps: list[CovarianceMap] = field(init=False, repr=False, default_factory=list)

    def __len__(self) -> int:
        return len(self.costs)

    def covariance_maps(self) -> CovarianceMap:
        """What every phase does to the covariance, leading shape (A,); computed once."""
        if not self._maps:
            self._maps.append(scoring.of_phases(self.space, self.matrices))
        return self._maps[0]

    def schedule(self, indices: Sequence[int], name: str) -> Schedule:
        """The schedule of the phases with the given indices."""
        phases = tuple(self.phases[index] for index in indices)
        chosen = GroupPhases(phases) if self.radices is None else RulePhases(self.radices, phases)  # type: ignore[arg-type]
        return Schedule(name, self.cluster, StaticGroups(phases=chosen, steps_per_round=self.steps_per_round))

    def take(self, indices: Iterable[int]) -> Alphabet:
        """The alphabet of the phases with the given indices only."""
        kept = list(indices)
        return replace(
            self,
            phases=tuple(self.phases[index] for index in kept),
            matrices=self.matrices[kept],
            costs=self.costs[kept],
            crosses=self.crosses[kept],
        )

    def full_average(self) -> int | None:
        """The index of the phase that averages over everybody, the cheapest if there are several; None without one."""
        zero = np.flatnonzero(np.abs(self.matrices).max(axis=(1, 2, 3)) < 1e-12)
        return int(zero[np.argmin(self.costs[zero])]) if len(zero) else None

    def prune(self) -> Alphabet:
        """Drop phases that cost at least as much as the full average.

        Nothing is lost: replacing such a phase by the full average makes the distance to the mean zero there and no
        larger anywhere later, at no more cost.
        """
        full = self.full_average()
        if full is None:
            return self
        limit = self.costs[full] * (1 + 1e-12)
        return self.take(i for i in range(len(self)) if i == full or self.costs[i] < limit)
