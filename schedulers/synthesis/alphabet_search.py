"""Where the search over one alphabet begins: hints, compositions, and random periods where neither can be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis import scoring
from partreduce.schedulers.synthesis.alphabet import Alphabet, Indices
from partreduce.schedulers.synthesis.archive import Archive
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.hints import budgets_of, indices_of
from partreduce.schedulers.synthesis.problem import Limits, Objective, Problem
from partreduce.schedulers.synthesis.scored_periods import ScoredPeriods, Target
from partreduce.schedulers.synthesis.segments import segments_of, sketch_front

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

STRIDE = 16
"""Parts in which the sketched front is scored, each spread over the whole of it."""
PER_HINT = 3e-6
"""Nominal seconds to look a hint's phases up, for each phase of the alphabet."""
DRAWN = 64
"""Random periods that are drawn at a time."""
DRAWING_SHARE = 0.5
"""Part of an archive's time in which they are drawn where no phase averages over all."""
PER_DRAW = 1e-3
"""Nominal seconds of drawing these, beside what scoring them takes."""


@dataclass(frozen=True, slots=True)
class SearchStage:
    """What a progress callback gets: what is being done, seconds so far, and the best (value, seconds per step)."""

    stage: str
    seconds: float
    value: float | None = None
    cost: float | None = None


def within_limits(alphabet: Alphabet, limits: Limits) -> Callable[[Indices], bool] | None:
    """The test for the limits that concern which phases stand where; None if there are none."""
    if limits.max_distinct_phases is None and limits.max_gap is None:
        return None
    silent = silent_phases(alphabet)

    def allowed(indices: Indices) -> bool:
        if limits.max_distinct_phases is not None and len(set(indices) - silent) > limits.max_distinct_phases:
            return False
        return limits.max_gap is None or longest_gap(alphabet, indices) <= limits.max_gap

    return allowed


def longest_gap(alphabet: Alphabet, indices: Indices) -> int:
    """The most steps in a row, around the period, in which no group crosses nodes."""
    crossing = [t for t, phase in enumerate(indices) if alphabet.crosses[phase]]
    if not crossing:
        return len(indices) * alphabet.space.instants + 1
    gaps = np.diff([*crossing, crossing[0] + len(indices)])
    return int(gaps.max()) * alphabet.space.instants - 1


def silent_phases(alphabet: Alphabet) -> frozenset[int]:
    """The indices of the phases without groups: they need no communicator."""
    return frozenset(i for i, phase in enumerate(alphabet.phases) if not len(phase))


def figure_of(alphabet: Alphabet, problem: Problem) -> Callable[[Ints], Floats] | None:
    """The figure to search by instead of consensus distance; None where it is consensus distance."""
    if problem.objective is not Objective.DRIFT:
        return None

    def figure(table: Ints) -> Floats:
        return scoring.drift(alphabet.space, alphabet.matrices[table])

    return figure


def targets_of(problem: Problem) -> list[Target]:
    """What the problem asks for."""
    limits, asked = problem.limits, []
    if limits.max_communication is not None:
        asked.append(Target(budget=limits.max_communication))
    if problem.most_consensus_distance is not None and problem.objective is not Objective.DRIFT:
        asked.append(Target(value=problem.most_consensus_distance))
    return asked


class AlphabetSearch:
    """Archives of good periods for the problem's budgets and the whole front, filled as long as it is let.

    One archive is by consensus distance; a second by drift, where that is the objective.
    """

    def __init__(
        self,
        alphabet: Alphabet,
        problem: Problem,
        *,
        clock: Clock,
        seed: int,
        progress: Callable[[SearchStage], None] | None = None,
    ) -> None:
        """Spend nothing yet; all work from here on is charged to the clock."""
        self.alphabet = replace(alphabet, space=replace(alphabet.space, clock=clock))
        self.clock, self.seed, self.progress = clock, seed, progress
        self.problem = problem
        self.rng = np.random.default_rng(seed)
        most = float(alphabet.costs.max()) / alphabet.space.instants
        self.asked = targets_of(problem)
        budgets = tuple(budget for budget in (problem.limits.max_communication, *budgets_of(problem)) if budget)
        self.archive = Archive(most, budgets)
        self.figure = figure_of(self.alphabet, problem)
        self.second = None if self.figure is None else Archive(most, budgets)

    @property
    def archives(self) -> list[Archive]:
        """That by consensus distance first."""
        return [self.archive] if self.second is None else [self.archive, self.second]

    def start(self, until: float) -> None:
        """Hints and compositions, until the clock's position `until`; random periods where nothing can be composed."""
        begun = self.clock.position()
        self._start_from_hints(until)
        self._compose(begun, until)
        self.fill(self.archive, until)

    def fill(self, archive: Archive, until: float) -> None:
        """Let there be something in an archive: by drift what the first holds, or random periods within the limits.

        Random ones come where nothing was found, and where no phase averages over all, so that nothing was composed.
        """
        scored, maps = self._scored(until, archive), self.alphabet.covariance_maps()
        begun, composes = self.clock.position(), self.alphabet.full_average() is not None
        enough = begun if composes else begun + DRAWING_SHARE * (until - begun)
        if archive is self.second:
            for _, _, indices in self.archive.front():
                if self.clock.passed(until):
                    break
                scored.score(indices)
        while not (archive.front() and self.clock.passed(enough)) and not self.clock.passed(until):
            self.clock.charge(PER_DRAW)
            scored.figures_of(scored.draw(DRAWN, self.problem.limits.max_distinct_phases), maps)

    def _scored(self, until: float, archive: Archive) -> ScoredPeriods:
        limits = self.problem.limits
        return ScoredPeriods(
            alphabet=self.alphabet,
            archive=archive,
            rng=self.rng,
            expired=lambda: self.clock.passed(until),
            min_period=limits.min_period,
            max_period=limits.max_period,
            allowed=within_limits(self.alphabet, limits),
            figure=self.figure if archive is self.second else None,
        )

    def _start_from_hints(self, until: float) -> None:
        """The hints that the alphabet can spell and the limits allow go to the archive."""
        limits, scored = self.problem.limits, self._scored(until, self.archive)
        for hint in self.problem.hints:
            if self.clock.passed(until):
                break
            indices = indices_of(self.alphabet, hint)
            self.clock.charge(PER_HINT * len(self.alphabet))
            if indices is not None and limits.min_period <= len(indices) <= limits.max_period:
                scored.score(indices)

    def _compose(self, begun: float, until: float) -> None:
        """Compositions: the whole front by dynamic programming."""
        clock, limits, span = self.clock, self.problem.limits, until - begun
        segments = segments_of(self.alphabet, limits.max_period, lambda: clock.passed(begun + 0.5 * span))
        scored = self._scored(until, self.archive)
        self.tell("composing")
        sketched = list(sketch_front(segments, limits, lambda: clock.passed(begun + 0.6 * span), clock))
        maps = self.alphabet.covariance_maps()
        for first in range(STRIDE):  # every stride spreads over the whole front
            if first and clock.passed(begun + 0.8 * span):
                break
            scored.figures_of(sketched[first::STRIDE], maps)

    def tell(self, stage: str) -> None:
        """Say what is being done, and the best so far of what is asked for."""
        if self.progress is not None:
            best = best_of(self.archive, self.asked[0]) if self.asked else None
            value, cost = (None, None) if best is None else best[:2]
            self.progress(SearchStage(stage, self.clock.elapsed, value, cost))


def best_of(archive: Archive, target: Target) -> tuple[float, float, Indices] | None:
    """(value, cost, indices) of what an archive holds for a target."""
    if target.budget is not None:
        return archive.best_within(target.budget)
    return archive.cheapest_below(target.value or 0.0)
