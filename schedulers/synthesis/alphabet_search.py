"""The search over one alphabet: hints, compositions, then windows built anew and annealing until the time is up."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from preduce.schedulers.synthesis import scoring
from preduce.schedulers.synthesis.annealing import Target, Walk
from preduce.schedulers.synthesis.archive import Archive
from preduce.schedulers.synthesis.hints import budgets_of, indices_of
from preduce.schedulers.synthesis.problem import Objective
from preduce.schedulers.synthesis.segments import compositions, segments_of, sketch_front
from preduce.schedulers.synthesis.window_rebuilding import rebuild

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from preduce.schedulers.synthesis.alphabet import Alphabet, Indices
    from preduce.schedulers.synthesis.problem import Limits, Problem

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
    """The figure to anneal on instead of disagreement; None where it is disagreement."""
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
    if limits.max_disagreement is not None and problem.objective is not Objective.DRIFT:
        asked.append(Target(value=limits.max_disagreement))
    budgets = most / np.array([1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0])
    hinted = [b for b in budgets_of(problem) if b < most]
    return asked, [Target(budget=float(b)) for b in (*budgets, *hinted)]


def promising(tried: Floats, target: Target, limits: Limits) -> list[int]:
    """All periods within the limits, those first whose best try (period, value, cost) comes nearest to the target."""
    energies = target.energy(tried[:, 2], tried[:, 1])
    best = {int(p): float(energies[tried[:, 0] == p].min()) for p in np.unique(tried[:, 0])}
    return sorted(range(limits.max_period, limits.min_period - 1, -1), key=lambda p: best.get(p, np.inf))


def search_alphabet(
    alphabet: Alphabet,
    problem: Problem,
    *,
    seconds: float,
    seed: int,
    progress: Callable[[SearchStage], None] | None = None,
) -> list[Archive]:
    """Archives of good periods for the problem's budgets and the whole front. The time limit is kept.

    One archive is by disagreement; a second by drift, where that is the objective.
    """
    start = time.monotonic()
    most = float(alphabet.costs.max()) / alphabet.space.instants
    asked, sketch = targets_of(problem, most)
    budgets = tuple(t.budget for t in (*asked, *sketch) if t.budget is not None)
    archive = Archive(most, budgets)
    run = _Run(alphabet, problem, archive, np.random.default_rng(seed), start, start + seconds, progress)
    run.start_from_hints()
    run.compose(asked, seed)
    figure = figure_of(alphabet, problem)
    if figure is None:
        run.anneal(asked, sketch, run.deadline)
        return [archive]
    run.anneal(asked, sketch, start + 0.4 * seconds)
    second = _Run(alphabet, problem, Archive(most, budgets), run.rng, start, run.deadline, progress, figure)
    for _, _, indices in archive.front():
        second.walk().score(indices)
    second.anneal([t for t in asked if t.budget is not None], sketch, run.deadline)
    return [archive, second.archive]


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    alphabet: Alphabet
    problem: Problem
    archive: Archive
    rng: np.random.Generator
    start: float
    deadline: float
    progress: Callable[[SearchStage], None] | None = None
    figure: Callable[[Ints], Floats] | None = None

    def walk(self, pool: Ints | None = None) -> Walk:
        limits, space = self.problem.limits, self.alphabet.space
        work = 40 * space.fresh[0].shape[0] ** 3 * len(space.multiplicity)
        return Walk(
            alphabet=self.alphabet,
            archive=self.archive,
            rng=self.rng,
            expired=lambda: time.monotonic() > self.deadline,
            min_period=limits.min_period,
            max_period=limits.max_period,
            allowed=within_limits(self.alphabet, limits),
            figure=self.figure,
            width=int(np.clip(SWEEP_WORK // work, 12, 256)),
            pool=pool,
        )

    def start_from_hints(self) -> None:
        """The hints that the alphabet can spell and the limits allow go to the archive."""
        limits, walk = self.problem.limits, self.walk()
        for hint in self.problem.hints:
            indices = indices_of(self.alphabet, hint)
            if indices is not None and limits.min_period <= len(indices) <= limits.max_period:
                walk.score(indices)

    def compose(self, asked: list[Target], seed: int) -> None:
        """Compositions: the whole front by dynamic programming, then what is asked for exactly, by CP-SAT."""
        span = self.deadline - self.start
        limits, space = self.problem.limits, self.alphabet.space
        segments = segments_of(self.alphabet, limits.max_period, lambda: time.monotonic() > self.start + 0.3 * span)
        walk = self.walk()
        self._tell("composing", None)
        sketched = list(sketch_front(segments, limits, lambda: time.monotonic() > self.start + 0.4 * span))
        maps, tried = self.alphabet.covariance_maps(), [np.empty((0, 3))]
        for first in range(STRIDE):  # every stride spreads over the whole front
            if first and time.monotonic() > self.start + 0.5 * span:
                break
            part = sketched[first::STRIDE]
            values, costs = walk.figures_of(part, maps)
            tried.append(np.column_stack([[len(indices) for indices in part], values, costs]))
        for target in asked:
            self._tell("composing", target)
            for indices in compositions(
                segments,
                limits,
                budget=None if target.budget is None else target.budget * space.instants,
                value=None if target.value is None else target.value - space.floor,
                periods=promising(np.concatenate(tried), target, limits),
                deadline=self.start + 0.6 * span,
                seed=seed,
                free=silent_phases(self.alphabet),
            ):
                walk.score(indices)

    def anneal(self, asked: list[Target], sketch: list[Target], until: float) -> None:
        """Two turns of three aim at what is asked for, if anything is; two of three build windows of the best anew.

        The third anneals, every other time from the best. Indices are mostly the strongest, sometimes all of them.
        """
        everything, mostly = self.walk(), self.walk(self.alphabet.strongest())
        maps, limits = self.alphabet.covariance_maps(), self.problem.limits
        turn, place = 0, {"asked": 0, "sketch": 0}
        while time.monotonic() < min(until, self.deadline):
            name = "asked" if asked and turn // 3 % 3 < 2 else "sketch"
            pool = asked if name == "asked" else sketch
            target = pool[place[name] % len(pool)]
            place[name] += 1
            known, walk = self._best(target), everything if turn % 5 == 4 else mostly
            self._tell("searching", target)
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
            turn += 1

    def _tell(self, stage: str, target: Target | None) -> None:
        if self.progress is None:
            return
        best = None if target is None else self._best(target)
        value, cost = (None, None) if best is None else best[:2]
        self.progress(SearchStage(stage, time.monotonic() - self.start, value, cost))

    def _best(self, target: Target) -> tuple[float, float, Indices] | None:
        if target.budget is not None:
            return self.archive.best_within(target.budget)
        return self.archive.cheapest_below(target.value or 0.0)
