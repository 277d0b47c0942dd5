"""Local search over explicit partitions: the phases of good periods are changed worker by worker.

The alphabet of a cluster of more than a few workers holds patterns that treat nodes alike, so where links or nodes
differ the best phases are often not in it. Here every phase of a period on the front is replaced by the partitions one
change away (`partitions.neighbours`). All of them are estimated at once (`first_order`). The most promising are scored
exactly, as everything else is, and go to the archive; the best one, if it is better, is taken. At the end of a descent
a few phases are changed at random, and the next one starts there.

Iterated local search: Lourenço, Martin and Stützle, Handbook of Metaheuristics, 2003. Shapes: T phases of a period, n
workers, N neighbours, K of them scored exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis import scoring
from partreduce.schedulers.synthesis.alphabet import Alphabet, Indices
from partreduce.schedulers.synthesis.annealing import Target
from partreduce.schedulers.synthesis.archive import Archive
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.first_order import ConsensusDistanceChanges, DriftChanges
from partreduce.schedulers.synthesis.partitions import PartitionCosts, labels_of, matrices_of, neighbours
from partreduce.schedulers.synthesis.problem import Problem
from partreduce.schedulers.synthesis.scoring import CovarianceMap, Space
from partreduce.topo.phase import Phase

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

POSITIONS = 8
"""Positions of a period whose neighbours are estimated together."""
SCORED = 48
"""Neighbours scored exactly at a time."""
KICKS = 1
"""Times that a descent starts again from its end, changed at random."""
MAX_WORK, LEAST_NEIGHBOURS = 30_000_000, 64
"""Multiplications that estimating the neighbours of one phase may take; more of them are drawn from, down to these."""
REMEMBERED = 2000
"""Phases whose neighbours are remembered with their costs."""
PER_STEP, PER_NEIGHBOUR = 1e-3, 2e-5
"""Nominal seconds of one step beside the matrices, and of listing and costing one neighbour."""


@dataclass(slots=True, eq=False)
class LocalSearch:
    """Descents from periods of plain means on explicit groups, within the problem's limits.

    `alphabet` is the one that the archive's indices speak of; `grow` puts into it what the descents brought up. All
    work is charged to the clock, and ends at its position `until`.
    `figure`, if given, replaces consensus distance by the drift of whole periods, matrices (K, T, 1, n, n) → (K,).
    """

    alphabet: Alphabet
    problem: Problem
    archive: Archive
    clock: Clock
    until: float
    rng: np.random.Generator
    figure: Callable[[Floats], Floats] | None = None
    costs: PartitionCosts = field(init=False)
    node_of: Labels = field(init=False)
    dearest: float = field(init=False)
    labels: list[Labels] = field(init=False)
    place: dict[bytes, int] = field(init=False)
    around: dict[bytes, tuple[Labels, Floats]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Look up the alphabet's phases by their labels."""
        self.costs = PartitionCosts(self.problem)
        self.node_of = self.problem.cluster.node_of().astype(np.int64)
        full = self.alphabet.full_average()
        # What costs as much as the full average is dominated by it, as in `Alphabet.prune`.
        self.dearest = np.inf if full is None else float(self.alphabet.costs[full]) * (1 - 1e-12)
        self.labels = [labels_of(phase) for phase in self.alphabet.phases if isinstance(phase, Phase)]
        self.place = {row.tobytes(): index for index, row in enumerate(self.labels)}

    def improve(self, indices: Indices, target: Target) -> None:
        """A descent, then further ones from its end with random changes; the best end is where the next one starts."""
        best, least = self.descend(np.array([self.labels[i] for i in indices]), target)
        for _ in range(KICKS):
            if self.clock.passed(self.until):
                break
            end, energy = self.descend(self._kicked(best), target)
            if energy < least:
                best, least = end, energy

    def _kicked(self, rows: Labels) -> Labels:
        """The period with one to three of its phases changed at random."""
        rows = rows.copy()
        for t in self.rng.integers(len(rows), size=int(self.rng.integers(1, 4))).tolist():
            options, _ = self._around(rows[t])
            if len(options):
                rows[t] = options[int(self.rng.integers(len(options)))]
        return rows

    def descend(self, rows: Labels, target: Target) -> tuple[Labels, float]:
        """Change one phase at a time, (T, n), as long as that lowers the energy; returns the end and its energy."""
        energy, unchanged, order = np.inf, 0, self.rng.permutation(len(rows))
        costs = self.costs.seconds(rows)
        while unchanged < len(rows) and not self.clock.passed(self.until):
            positions, order = order[:POSITIONS], np.roll(order, -POSITIONS)
            new, new_costs, least = self._step(rows, costs, positions, target)
            unchanged = 0 if least < energy - 1e-9 else unchanged + len(positions)
            if least < energy:
                rows, costs, energy = new, new_costs, least
        return rows, energy

    def _step(self, rows: Labels, costs: Floats, positions: Labels, target: Target) -> tuple[Labels, Floats, float]:
        """The best of the period itself and the neighbours at some of its positions, its phases' costs, its energy."""
        space, matrices = self.alphabet.space, matrices_of(rows)
        maps = scoring.of_phases(space, matrices[:, None])
        rests = rests_of(space, maps)
        whole = scoring.compose(space, rests[0], maps[0])  # from the second phase round to the first
        value = float(
            scoring.consensus_distance(space, whole) if self.figure is None else self.figure(matrices[None, :, None])[0]
        )
        if not np.isfinite(value):
            return rows, costs, np.inf
        changes = (
            ConsensusDistanceChanges(space, matrices, whole) if self.figure is None else DriftChanges(space, matrices)
        )
        options = [self._around(rows[t]) for t in positions.tolist()]
        where = np.repeat(positions, [len(labels) for labels, _ in options])
        trials, seconds = np.concatenate([o for o, _ in options]), np.concatenate([s for _, s in options])
        replacing = matrices_of(trials)
        estimates = value + np.concatenate([changes.at(t, replacing[where == t]) for t in positions.tolist()])
        totals = (costs.sum() - costs[where] + seconds) / (len(rows) * space.instants)
        kept = self._promising(totals, np.maximum(estimates, 1e-6), target)
        where, trials, seconds = where[kept], trials[kept], seconds[kept]
        values = np.append(self._values(matrices, where, replacing[kept], rests), value)
        totals = np.append(totals[kept], costs.sum() / (len(rows) * space.instants))
        self.clock.charge(PER_STEP)

        def period(index: int) -> Labels:
            result = rows.copy()
            if index < len(where):
                result[where[index]] = trials[index]
            return result

        values = np.where([self._allowed(period(i)) for i in range(len(values))], values, np.inf)
        self.archive.offer(totals, values, lambda i: self._indices(period(i)))
        energies = target.energy(totals, values)
        best = int(np.argmin(energies))
        new_costs = costs.copy()
        if best < len(where):
            new_costs[where[best]] = seconds[best]
        return period(best), new_costs, float(energies[best])

    def _values(self, matrices: Floats, where: Labels, replacing: Floats, rests: CovarianceMap) -> Floats:
        """The exact figures of a period with one phase replaced: K places, K matrices (K, n, n) → (K,)."""
        space = self.alphabet.space
        if self.figure is None:
            maps = scoring.of_phases(space, replacing[:, None])
            return scoring.consensus_distance(space, scoring.compose(space, rests[where], maps))
        periods = np.repeat(matrices[None], len(where), axis=0)
        periods[np.arange(len(where)), where] = replacing
        return self.figure(periods[:, :, None])

    def _promising(self, totals: Floats, estimates: Floats, target: Target) -> Labels:
        """The places of the best estimates for the target, and for one other price, to fill the archive around it."""
        best = np.argsort(target.energy(totals, estimates))[: SCORED * 3 // 4]
        price = float(np.exp(self.rng.uniform(-0.7, 2.0)))
        priced = np.argsort(np.log(estimates + 1e-3) + price * np.log(totals + 1e-9))[: SCORED // 4]
        return np.unique(np.concatenate([best, priced]))

    def _around(self, row: Labels) -> tuple[Labels, Floats]:
        """The neighbours of one phase that the full average does not dominate, with their seconds."""
        key = row.tobytes()
        if key not in self.around:
            if len(self.around) >= REMEMBERED:
                self.around.clear()
            most = max(LEAST_NEIGHBOURS, MAX_WORK // row.size**3)
            options = neighbours(row, self.node_of, self.problem.limits.max_group, most=most, rng=self.rng)
            seconds = self.costs.seconds(options)
            self.clock.charge(PER_STEP + PER_NEIGHBOUR * len(options))
            kept = seconds < self.dearest
            self.around[key] = options[kept], seconds[kept]
        return self.around[key]

    def _allowed(self, rows: Labels) -> bool:
        """Whether a period keeps the limits that concern which phases stand where."""
        limits = self.problem.limits
        if limits.max_distinct_phases is not None:
            speaking = rows[(rows != np.arange(rows.shape[1])).any(axis=1)]
            if len({row.tobytes() for row in speaking}) > limits.max_distinct_phases:
                return False
        if limits.max_gap is None:
            return True
        crossing = np.flatnonzero(self._crosses(rows))
        if not len(crossing):
            return False
        gaps = np.diff([*crossing.tolist(), int(crossing[0]) + len(rows)])
        return int(gaps.max()) * self.alphabet.space.instants - 1 <= limits.max_gap

    def _crosses(self, rows: Labels) -> npt.NDArray[np.bool_]:
        """Whether a group of each phase crosses nodes, (T,)."""
        return np.asarray((self.node_of[rows] != self.node_of).any(axis=1))

    def _indices(self, rows: Labels) -> Indices:
        """The period's phases as indices; phases without one get one, and join the alphabet at the next `grow`."""
        for row in rows:
            if row.tobytes() not in self.place:
                self.place[row.tobytes()] = len(self.labels)
                self.labels.append(row.copy())
        return tuple(self.place[row.tobytes()] for row in rows)

    def grow(self) -> None:
        """Put the new phases into the alphabet."""
        new, old = self.labels[len(self.alphabet) :], self.alphabet
        if not new:
            return
        rows = np.array(new)
        self.alphabet = replace(
            old,
            phases=(*old.phases, *(Phase.from_labels(row) for row in new)),
            matrices=np.concatenate([old.matrices, matrices_of(rows)[:, None]]),
            costs=np.concatenate([old.costs, self.costs.seconds(rows)]),
            crosses=np.concatenate([old.crosses, self._crosses(rows)]),
        )


def rests_of(space: Space, maps: CovarianceMap) -> CovarianceMap:
    """For each of T phases the rest of the period, from the next phase round to the one before; leading shape (T,).

    Windows of 1, 2, 4, … phases are composed for all beginnings at once: O(log T) compositions of T maps.
    """
    places = np.arange(len(maps.constant))
    nothing = scoring.nothing(space)
    rest = replace(
        nothing,
        product=np.broadcast_to(nothing.product, maps.product.shape),
        noise=np.broadcast_to(nothing.noise, maps.noise.shape),
        weight=np.broadcast_to(nothing.weight, maps.weight.shape),
        constant=np.zeros(len(places)),
    )
    window, left = maps, len(places) - 1
    while left:
        if left & 1:
            rest = scoring.compose(space, rest, window[(places + 1 + rest.length) % len(places)])
        window = scoring.compose(space, window, window[(places + window.length) % len(places)])
        left >>= 1
    return rest
