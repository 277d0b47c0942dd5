"""Strategy `pairwise`: asynchronous averaging of two workers at a time (AD-PSGD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Index, Rounds
from partreduce.topo.strategies.base import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairwise(Strategy):
    """After each round an active worker picks a random passive neighbor and both take the mean of the two models.

    `active` lists the ranks that start exchanges; all others answer. `edges` lists the allowed pairs (None: every
    active worker with every passive one). The graph is bipartite by construction, so the exchange cannot deadlock
    (Lian et al., ICML 2018, section 3). `seed` fixes the choice of neighbors.
    """

    kind: ClassVar[str] = "pairwise"
    is_on_request: ClassVar[bool] = True
    active: tuple[Index, ...]
    edges: tuple[tuple[Index, Index], ...] | None = None
    seed: Rounds = 0

    def check_kind(self, cluster: Cluster) -> None:
        n, active = cluster.num_workers, set(self.active)
        if len(active) != len(self.active) or not all(0 <= worker < n for worker in active):
            raise ScheduleError(f"active: lists each rank of 0..{n - 1} at most once; it is {list(self.active)}")
        if not 1 <= len(active) < n:
            raise ScheduleError(
                f"active: has {len(active)} of {n} workers; at least 1 is active and at least 1 passive"
            )
        if self.edges is not None and not self.edges:
            raise ScheduleError("edges: is empty; leave it out and every active worker meets every passive one")
        seen: set[frozenset[int]] = set()
        for index, (a, b) in enumerate(self.edges or ()):
            if not (0 <= a < n and 0 <= b < n):
                raise ScheduleError(f"edges[{index}]: [{a}, {b}] names a rank outside 0..{n - 1}")
            if (a in active) == (b in active):
                side = "active" if a in active else "passive"
                raise ScheduleError(f"edges[{index}]: [{a}, {b}] joins two {side} workers; an edge joins the two sides")
            if frozenset((a, b)) in seen:
                raise ScheduleError(f"edges[{index}]: is [{a}, {b}]; this pair is given twice; keep it once")
            seen.add(frozenset((a, b)))

    def passive_of(self, worker: int, num_workers: int) -> tuple[int, ...]:
        """Return the passive workers that the active `worker` may pick, ascending."""
        active = set(self.active)
        if self.edges is None:
            return tuple(other for other in range(num_workers) if other not in active)
        return tuple(sorted({b if a == worker else a for a, b in self.edges if worker in (a, b)}))
