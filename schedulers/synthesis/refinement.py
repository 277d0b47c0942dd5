"""Refinement: what a search left on its front is taken apart and put together again, until the time is up.

Compositions over a whole alphabet find the phases that are worth using, a few dozen of hundreds, long before the best
orders of them are found. So rounds of two steps follow, which fill the same archive:

* the phases in use on the front alone, put together between full averages by a beam search that is the wider the fewer
  they are (`segments`);
* windows of the periods on the front built anew, from the phases in use and some others.

Windows: the rest of the period stays, so the covariance that enters the window and the weight of every later phase on
what leaves it are known matrices, and a window costs a sum of terms, one a phase, and one linear term at its end. A
beam search over the phases finds good windows for many prices of communication at once, one phase shorter and longer
ones too. Both matrices belong to the old period, so what comes out is scored exactly before it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis import scoring
from partreduce.schedulers.synthesis.alphabet import Alphabet, Indices
from partreduce.schedulers.synthesis.alphabet_search import STRIDE, best_of, figure_of, within_limits
from partreduce.schedulers.synthesis.archive import Archive
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.problem import Problem
from partreduce.schedulers.synthesis.scored_periods import ScoredPeriods, Target
from partreduce.schedulers.synthesis.scoring import CovarianceMap
from partreduce.schedulers.synthesis.segments import PER_BEGINNING, segments_of, sketch_front, worth_extending

Ints = npt.NDArray[np.int64]

BEAMS = ((640, 4), (1600, 4), (1600, 32), (6400, 100))
"""Beginnings that the beam search goes on with in the first rounds, and how many of them for each cost."""
BINS_PER_SEGMENT = 480
"""Bins of cost for the dearest segment: four times as fine as where the search began."""
MAX_POOL = 96
"""Phases in use that are put together; of more, those that stand in most periods."""
NEWCOMERS = 48
"""Other phases, drawn at random, that are put together with those in use when these have not changed."""
DESCENTS = 16
"""Periods of the front that are improved in one round."""
BEAM_SHARE = 0.25
"""Part of what is left that one beam search may take."""
SAME = 1e-9
"""Difference below which two values count as equal."""
REBUILDS = 4
"""Windows built anew for each of them."""


def refine(
    alphabet: Alphabet,
    problem: Problem,
    archive: Archive,
    *,
    clock: Clock,
    until: float,
    seed: int,
    targets: Sequence[Target] = (),
    by_drift: bool = False,
) -> None:
    """Improve the periods of an archive.

    Args:
        alphabet: the phases that the archive's indices speak of; its space charges the clock.
        problem: what is asked.
        archive: filled with what is better.
        clock: what is charged for all work.
        until: its position at which to stop.
        seed: of all random draws.
        targets: what every other improvement aims at; the others aim at what some period on the front communicates.
        by_drift: whether the archive's values are drifts instead of consensus distances.
    """
    if clock.passed(until) or not archive.front():
        return
    refinement = _Refinement(alphabet, problem, archive, clock, until, by_drift, np.random.default_rng(seed))
    turn = 0
    while not clock.passed(until):
        refinement.round(turn, targets)
        turn += 1


def used_phases(alphabet: Alphabet, archive: Archive) -> Ints:
    """The phases in use on the front, the full average among them, at most MAX_POOL; their indices, ascending."""
    full = alphabet.full_average()
    uses = np.zeros(len(alphabet), dtype=np.int64)
    for entry in archive.front():
        uses[list(set(entry[2]))] += 1
    if full is not None:
        uses[full] = len(archive.edges) + 1
    most = np.argsort(-uses, kind="stable")[:MAX_POOL]
    return np.sort(most[uses[most] > 0])


@dataclass(slots=True, eq=False)
class _Refinement:
    """The steps of a round, on one archive."""

    alphabet: Alphabet
    problem: Problem
    archive: Archive
    clock: Clock
    until: float
    by_drift: bool
    rng: np.random.Generator
    composed: set[tuple[bytes, tuple[int, int]]] = field(default_factory=set)

    def _newcomers(self) -> Ints:
        """Phases that need not be in use, drawn anew."""
        return self.rng.choice(len(self.alphabet), min(NEWCOMERS, len(self.alphabet)), replace=False)

    def _over(self) -> bool:
        return self.clock.passed(self.until)

    def round(self, turn: int, targets: Sequence[Target]) -> None:
        """Put together and build windows anew, as long as the clock lets it."""
        self.recompose(turn)
        front = self.archive.front()
        budgets = [front[i][1] for i in self.rng.permutation(len(front))[:DESCENTS].tolist()]
        # A short front is made longer by what nothing on it communicates yet.
        budgets += (self.archive.edges[-1] * self.rng.random(DESCENTS - len(budgets))).tolist()
        chosen = [Target(budget=budget) for budget in budgets]
        if targets:
            chosen = [targets[i // 2 % len(targets)] if i % 2 else chosen[i] for i in range(len(chosen))]
        self.rebuild(chosen)

    def recompose(self, turn: int) -> None:
        """The phases in use put together anew between full averages, over the whole range of costs."""
        pool, beam = used_phases(self.alphabet, self.archive), self._beam(turn)
        if (pool.tobytes(), beam) in self.composed:  # nothing new came into use, so others are given a chance
            pool, beam = np.union1d(pool, self._newcomers()), min(beam, BEAMS[1])
        self.composed.add((pool.tobytes(), beam))
        limits, (width, per_cost) = self.problem.limits, beam
        segments = segments_of(self.alphabet.take(pool), limits.max_period, self._over, beam=width, per_cost=per_cost)
        sketched = sketch_front(segments, limits, self._over, self.clock, bins_per_segment=BINS_PER_SEGMENT)
        options = self._better({tuple(pool[list(indices)].tolist()): value for indices, value in sketched.items()})
        for first in range(STRIDE):  # every stride spreads over the whole front
            if self._over() or first >= len(options):
                break
            self._scored(pool).figures_of(options[first::STRIDE], self.alphabet.covariance_maps())

    def _beam(self, turn: int) -> tuple[int, int]:
        """The widest beam that the turn allows and that takes no more than its share of what is left."""
        left = BEAM_SHARE * (self.until - self.clock.position())
        fitting = [b for b in BEAMS[: turn + 1] if PER_BEGINNING * b[0] * self.problem.limits.max_period < left]
        return fitting[-1] if fitting else BEAMS[0]

    def _better(self, sketched: dict[Indices, float]) -> list[Indices]:
        """The compositions that are better than what the archive holds; values of segments simply add up."""
        if self.by_drift:
            return list(sketched)
        space, archive = self.alphabet.space, self.archive
        costs = np.array([self.alphabet.costs[list(indices)].mean() for indices in sketched]) / space.instants
        values = space.floor + np.array([value / len(indices) for indices, value in sketched.items()])
        bins = np.minimum(np.searchsorted(archive.edges, costs), len(archive.edges) - 1)
        return [one for one, better in zip(sketched, values < archive.values[bins] - SAME, strict=True) if better]

    def rebuild(self, targets: Sequence[Target]) -> None:
        """For each target windows of the best period built anew, with some phases that are not in use."""
        maps = self.alphabet.covariance_maps()
        scored = self._scored(np.union1d(used_phases(self.alphabet, self.archive), self._newcomers()))
        for target in targets:
            if self._over():
                break
            indices = self._nearest(target)
            for _ in range(REBUILDS):
                indices = rebuild(scored, indices, target, maps)

    def _nearest(self, target: Target) -> Indices:
        """The archive's best for a target, or what misses it by the least."""
        if (best := best_of(self.archive, target)) is not None:
            return best[2]
        front = self.archive.front()
        energies = target.energy(np.array([entry[1] for entry in front]), np.array([entry[0] for entry in front]))
        return front[int(np.argmin(energies))][2]

    def _scored(self, pool: Ints) -> ScoredPeriods:
        """Periods within the problem's limits of the phases of a pool."""
        limits = self.problem.limits
        return ScoredPeriods(
            alphabet=self.alphabet,
            archive=self.archive,
            rng=self.rng,
            expired=self._over,
            min_period=limits.min_period,
            max_period=limits.max_period,
            allowed=within_limits(self.alphabet, limits),
            figure=figure_of(self.alphabet, self.problem) if self.by_drift else None,
            width=MAX_POOL,
            pool=pool,
        )


Floats = npt.NDArray[np.float64]

WINDOW = 4
"""Phases that are torn out at most."""
BEAM = 32
"""Beginnings of a window that the beam search goes on with, about."""
RESCORED = 48
"""Windows of each length that are scored exactly."""


def rebuild(scored: ScoredPeriods, indices: Indices, target: Target, maps: CovarianceMap) -> Indices:
    """The best for `target` among the period and those with one window built anew; all go to the archive.

    O(window · beam · A · C·G³) for A phases.
    """
    length = len(indices)
    width = int(scored.rng.integers(1, min(WINDOW, length) + 1))
    start = int(scored.rng.integers(length))
    turned = (*indices[start:], *indices[:start])
    options = [turned]
    for window in windows(scored, turned, width, maps):
        made = (*window, *turned[width:])
        if scored.min_period <= len(made) <= scored.max_period:
            options.append(made)
    values, costs = scored.figures_of(options, maps)
    return options[int(np.argmin(target.energy(costs, values)))]


def windows(scored: ScoredPeriods, turned: Indices, width: int, maps: CovarianceMap) -> list[Indices]:
    """Good replacements of the first `width` phases of the period, of width−1 to width+1 phases each.

    Shapes: A phases in the sample, B beginnings in the beam, C classes of size G.
    """
    space, alphabet = scored.alphabet.space, scored.alphabet
    rest = scoring.compose_all(space, [maps[i] for i in turned[width:]])
    old = scoring.compose_all(space, [maps[i] for i in turned[:width]])
    # What enters the window, and the weight of everything later on what leaves it: both of the old period, (C, G, G).
    entering, later = scoring.steady(scoring.compose(space, old, rest))
    leaving = rest.weight + rest.product.swapaxes(-1, -2) @ later @ rest.product
    pool = scored.sample()  # (A,)
    matrices = alphabet.matrices[pool]  # (A, C, G, G)
    own_weight = matrices.swapaxes(-1, -2) @ matrices  # what the phase's own round adds to the figure
    end_weight = matrices.swapaxes(-1, -2) @ leaving @ matrices  # what all later rounds add if the window ends with it
    covariance, costs, values = entering[None], np.zeros(1), np.zeros(1)  # (B, C, G, G), (B,), (B,)
    begun: list[Indices] = [()]
    replacements: list[Indices] = [()] if width == 1 else []
    for depth in range(1, width + 2):
        here = scoring.weighed(space, covariance + space.fresh, own_weight)  # (B, A)
        ahead = scoring.weighed(space, covariance + space.fresh, end_weight)  # (B, A)
        new_costs, new_values = costs[:, None] + alphabet.costs[pool], values[:, None] + here
        keep = worth_extending(new_costs.ravel(), new_values.ravel(), ahead.ravel(), BEAM)
        parent, phase = np.divmod(keep, len(pool))
        begun = [(*begun[p], int(pool[a])) for p, a in zip(parent.tolist(), phase.tolist(), strict=True)]
        covariance = matrices[phase] @ (covariance[parent] + space.fresh) @ matrices[phase].swapaxes(-1, -2)
        costs, values = new_costs.ravel()[keep], new_values.ravel()[keep]
        if depth >= width - 1:
            order = np.argsort(values + ahead.ravel()[keep])[:RESCORED]
            replacements += [begun[i] for i in order.tolist()]
        if scored.expired():
            break
    return replacements
