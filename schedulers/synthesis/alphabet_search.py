"""The search over one alphabet: hints, compositions, then windows built anew and annealing until the time is up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis import scoring
from partreduce.schedulers.synthesis.alphabet import Alphabet, Indices
from partreduce.schedulers.synthesis.annealing import Target, Walk
from partreduce.schedulers.synthesis.archive import Archive
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.hints import budgets_of, indices_of
from partreduce.schedulers.synthesis.problem import Limits, Objective, Problem
from partreduce.schedulers.synthesis.segments import segments_of, sketch_front
from partreduce.schedulers.synthesis.window_rebuilding import rebuild

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SWEEPS = 24
"""Sweeps of one annealing."""
REBUILDS = 8
"""Windows built anew in one turn."""
STRIDE = 16
"""Parts in which the sketched front is scored, each spread over the whole of it."""
HOT, COLD = 0.15, 0.003
"""First and last temperature of an annealing, in units of the energy (logarithms of figures)."""
SWEEP_WORK = 6_000_000
"""Multiplications that one visited position may cost; it bounds how many phases are tried there."""
PER_HINT = 3e-6
"""Nominal seconds to look a hint's phases up, for each phase of the alphabet."""
PER_TURN = 2e-4
"""Nominal seconds of a turn beside the periods that it scores."""


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
    """The figure to anneal on instead of consensus distance; None where it is consensus distance."""
    if problem.objective is not Objective.DRIFT:
        return None

    def figure(table: Ints) -> Floats:
        return scoring.drift(alphabet.space, alphabet.matrices[table])

    return figure


def targets_of(problem: Problem, most: float) -> tuple[list[Target], list[Target]]:
    """(what the problem asks for, budgets that sketch the whole front)."""
    limits = problem.limits
    asked = []
    if limits.max_communication is not None:
        asked.append(Target(budget=limits.max_communication))
    if problem.most_consensus_distance is not None and problem.objective is not Objective.DRIFT:
        asked.append(Target(value=problem.most_consensus_distance))
    budgets = most / np.array([1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0])
    hinted = [b for b in budgets_of(problem) if b < most]
    return asked, [Target(budget=float(b)) for b in (*budgets, *hinted)]


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
        self.begun = clock.position()
        self.rng = np.random.default_rng(seed)
        most = float(alphabet.costs.max()) / alphabet.space.instants
        self.asked, self.sketch = targets_of(problem, most)
        budgets = tuple(t.budget for t in (*self.asked, *self.sketch) if t.budget is not None)
        self.archive = Archive(most, budgets)
        self.figure = figure_of(self.alphabet, problem)
        self.second = None if self.figure is None else Archive(most, budgets)
        self.done: Counter[tuple[str, bool]] = Counter()  # turns, and targets of each list, for either archive

    @property
    def archives(self) -> list[Archive]:
        """That by consensus distance first."""
        return [self.archive] if self.second is None else [self.archive, self.second]

    def start(self, until: float) -> None:
        """Hints and compositions, until the clock's position `until`."""
        begun = self.clock.position()
        self._start_from_hints(until)
        self._compose(begun, until)

    def go_on(self, until: float) -> None:
        """Windows built anew and annealing; may be called again and goes on where it stopped."""
        if self.second is None:
            self._anneal(self.archive, self.asked, until)
            return
        begun = self.clock.position()
        self._anneal(self.archive, self.asked, begun + 0.4 * (until - begun))
        walk = self._walk(until, self.second)
        for _, _, indices in self.archive.front():
            if self.clock.passed(until):
                break
            walk.score(indices)
        self._anneal(self.second, [t for t in self.asked if t.budget is not None], until)

    def _walk(self, until: float, archive: Archive, pool: Ints | None = None) -> Walk:
        limits, space = self.problem.limits, self.alphabet.space
        work = 40 * space.fresh[0].shape[0] ** 3 * len(space.multiplicity)
        return Walk(
            alphabet=self.alphabet,
            archive=archive,
            rng=self.rng,
            expired=lambda: self.clock.passed(until),
            min_period=limits.min_period,
            max_period=limits.max_period,
            allowed=within_limits(self.alphabet, limits),
            figure=self.figure if archive is self.second else None,
            width=int(np.clip(SWEEP_WORK // work, 12, 256)),
            pool=pool,
        )

    def _start_from_hints(self, until: float) -> None:
        """The hints that the alphabet can spell and the limits allow go to the archive."""
        limits, walk = self.problem.limits, self._walk(until, self.archive)
        for hint in self.problem.hints:
            if self.clock.passed(until):
                break
            indices = indices_of(self.alphabet, hint)
            self.clock.charge(PER_HINT * len(self.alphabet))
            if indices is not None and limits.min_period <= len(indices) <= limits.max_period:
                walk.score(indices)

    def _compose(self, begun: float, until: float) -> None:
        """Compositions: the whole front by dynamic programming."""
        clock, limits, span = self.clock, self.problem.limits, until - begun
        segments = segments_of(self.alphabet, limits.max_period, lambda: clock.passed(begun + 0.5 * span))
        walk = self._walk(until, self.archive)
        self._tell("composing", None)
        sketched = list(sketch_front(segments, limits, lambda: clock.passed(begun + 0.6 * span), clock))
        maps = self.alphabet.covariance_maps()
        for first in range(STRIDE):  # every stride spreads over the whole front
            if first and clock.passed(begun + 0.8 * span):
                break
            walk.figures_of(sketched[first::STRIDE], maps)

    def _anneal(self, archive: Archive, asked: list[Target], until: float) -> None:
        """Two turns of three aim at what is asked for, if anything is; two of three build windows of the best anew.

        The third anneals, every other time from the best. Indices are mostly the strongest, sometimes all of them.
        """
        if self.clock.passed(until):
            return
        everything = self._walk(until, archive)
        mostly = self._walk(until, archive, self.alphabet.strongest())
        second = archive is self.second
        while not self.clock.passed(until):
            turn = self.done["turn", second]
            name = "asked" if asked and turn // 3 % 3 < 2 else "sketch"
            pool = asked if name == "asked" else self.sketch
            target = pool[self.done[name, second] % len(pool)]
            self.done.update([("turn", second), (name, second)])
            self._turn(turn, target, everything if turn % 5 == 4 else mostly, archive)

    def _turn(self, turn: int, target: Target, walk: Walk, archive: Archive) -> None:
        known, maps, limits = best_of(archive, target), self.alphabet.covariance_maps(), self.problem.limits
        self._tell("searching", target)
        self.clock.charge(PER_TURN)
        if known is not None and turn % 3 < 2:
            best = known[2]
            for _ in range(REBUILDS):
                best = best if walk.expired() else rebuild(walk, best, target, maps)
        elif known is not None and turn % 2 == 1:
            walk.anneal(known[2], target, num_sweeps=SWEEPS, hot=HOT / 5, cold=COLD)
        else:
            length = int(self.rng.integers(limits.min_period, limits.max_period + 1))
            begin = tuple(self.rng.choice(walk.sample(), length).tolist())
            walk.anneal(begin, target, num_sweeps=SWEEPS, hot=HOT, cold=COLD)

    def _tell(self, stage: str, target: Target | None) -> None:
        if self.progress is None:
            return
        best = None if target is None else best_of(self.archive, target)
        value, cost = (None, None) if best is None else best[:2]
        self.progress(SearchStage(stage, self.clock.elapsed, value, cost))


def best_of(archive: Archive, target: Target) -> tuple[float, float, Indices] | None:
    """(value, cost, indices) of what an archive holds for a target."""
    if target.budget is not None:
        return archive.best_within(target.budget)
    return archive.cheapest_below(target.value or 0.0)
