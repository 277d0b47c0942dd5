"""Search over one alphabet: compose periods of its phases and rebuild them until the time is up.

It starts from the hints and from compositions of all phases between full averages (`segments`). That finds the phases
that are worth using, a few dozen of hundreds, long before the best orders of them are found. So rounds of two steps
follow, which fill the same archive:

* only the phases in use on the front, combined by a beam search that is wider for fewer phases;
* windows of the periods on the front rebuilt (`windows`), from the phases in use and some others.

Where no phase averages over all, nothing can be composed, and random periods are the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis import scoring
from partreduce.schedulers.synthesis.alphabet import Alphabet, Indices
from partreduce.schedulers.synthesis.archive import Archive, Entry
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.hints import budgets_of, indices_of
from partreduce.schedulers.synthesis.problem import Limits, Problem
from partreduce.schedulers.synthesis.segments import PER_BEGINNING, Beam, segments_of, sketch_front
from partreduce.schedulers.synthesis.windows import windows

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BEAMS = (Beam(160, 4, 120), Beam(640, 4, 480), Beam(1600, 4, 480), Beam(1600, 32, 480), Beam(6400, 100, 480))
"""Of the start, of the first rounds, and of all that follow."""
BEAM_SHARE = 0.25
"""Part of what is left that one beam search may take."""
STRIDE = 16
"""Parts in which compositions are scored, each spread over the whole front."""
MAX_POOL = 96
"""Phases in use that are put together; of more, those that stand in most periods. And phases that a window tries."""
NEWCOMERS = 48
"""Other phases, drawn at random, that join those in use."""
DESCENTS, REBUILDS = 16, 4
"""Periods of the front that are improved in one round, and windows rebuilt for each of them."""
WINDOW = 4
"""Phases of a window at most."""
SAME = 1e-9
"""Difference below which two values count as equal."""
DRAWN, FEW = 64, 6
"""Random periods that are drawn at a time, and the different phases of one at most."""
DRAWING_SHARE = 0.5
"""Part of the time in which they are drawn where no phase averages over all."""
PER_DRAW = 1e-3
"""Nominal seconds of drawing these, in addition to what scoring them takes."""
PER_HINT = 3e-6
"""Nominal seconds to look a hint's phases up, for each phase of the alphabet."""
OVER_BUDGET = 8.0
"""Weight of the logarithm of cost over budget against the logarithm of consensus distance."""


@dataclass(frozen=True, slots=True)
class SearchStage:
    """What a progress callback gets: what is being done, seconds so far, and the best (value, seconds per step)."""

    stage: str
    seconds: float
    value: float | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is aimed at: the least value within `budget`, or the least cost at a value of at most `value`."""

    budget: float | None = None
    value: float | None = None

    def best(self, archive: Archive) -> Entry | None:
        """What an archive holds for it; None if everything misses it."""
        if self.budget is not None:
            return archive.best_within(self.budget)
        return archive.cheapest_below(self.value or 0.0)

    def energy(self, costs: Floats, values: Floats) -> Floats:
        """Lower is better, also among those that miss it."""
        with np.errstate(divide="ignore"):
            log_value, log_cost = np.log(values + 1e-3), np.log(costs + 1e-9)
        if self.budget is not None:
            return np.asarray(log_value + OVER_BUDGET * np.maximum(0.0, log_cost - np.log(self.budget + 1e-9)))
        assert self.value is not None
        return np.asarray(log_cost + OVER_BUDGET * np.maximum(0.0, log_value - np.log(self.value + 1e-3)))


class Search:
    """An archive of good periods for the problem's budgets and the whole front, filled as long as it is let."""

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
        self.problem, self.clock, self.progress = problem, clock, progress
        self.rng = np.random.default_rng(seed)
        limits = problem.limits
        self.targets = [Target(budget=limits.max_communication)] if limits.max_communication is not None else []
        if problem.most_consensus_distance is not None:
            self.targets.append(Target(value=problem.most_consensus_distance))
        budgets = tuple(budget for budget in (limits.max_communication, *budgets_of(problem)) if budget)
        self.archive = Archive(float(alphabet.costs.max()) / alphabet.space.instants, budgets)
        self.allowed = within_limits(alphabet, limits)
        self._composed: set[tuple[bytes, Beam]] = set()

    def start(self, until: float) -> None:
        """Hints and compositions, until the clock's position `until`; random periods where nothing can be composed."""
        limits, alphabet = self.problem.limits, self.alphabet
        hints = takewhile(lambda _: not self.clock.passed(until), self.problem.hints)
        for indices in indices_of(alphabet, hints):
            self.clock.charge(PER_HINT * len(alphabet))
            if indices is not None and limits.min_period <= len(indices) <= limits.max_period:
                self.score([indices])
        self.tell("composing")
        self._compose(np.arange(len(alphabet)), BEAMS[0], until)
        begun, composes = self.clock.position(), alphabet.full_average() is not None
        enough = begun if composes else begun + DRAWING_SHARE * (until - begun)
        while not (self.archive.front() and self.clock.passed(enough)) and not self.clock.passed(until):
            self.clock.charge(PER_DRAW)
            self.score(self._drawn())

    def refine(self, until: float) -> None:
        """Rounds, until the clock's position `until`; every other improvement aims at what is asked for.

        The others aim at what some period on the front communicates.
        """
        turn = 0
        while not self.clock.passed(until) and self.archive.front():
            turn += 1
            self._compose_again(turn, until)
            front = self.archive.front()
            budgets = [front[i].cost for i in self.rng.permutation(len(front))[:DESCENTS].tolist()]
            # A short front is made longer by what nothing on it communicates yet.
            budgets += (self.archive.edges[-1] * self.rng.random(DESCENTS - len(budgets))).tolist()
            pool, asked = np.union1d(self.used_phases(), self._newcomers()), self.targets
            for i, budget in enumerate(budgets):
                if self.clock.passed(until):
                    break
                target = asked[i // 2 % len(asked)] if asked and i % 2 else Target(budget=budget)
                indices = self._nearest(target)
                for _ in range(REBUILDS):
                    indices = self.rebuild(indices, target, pool, until)

    def score(self, options: Sequence[Indices]) -> tuple[Floats, Floats]:
        """(values, costs) of periods of any lengths, all offered to the archive; infinite where they break a limit."""
        space, maps = self.alphabet.space, self.alphabet.covariance_maps()
        values, costs = np.empty(len(options)), np.empty(len(options))
        for length in {len(option) for option in options}:
            members = [i for i, option in enumerate(options) if len(option) == length]
            table = np.array([options[i] for i in members])  # (N, T)
            costs[members] = self.alphabet.costs[table].mean(axis=1) / space.instants
            period = scoring.compose_all(space, [maps[table[:, t]] for t in range(length)])
            values[members] = scoring.consensus_distance(space, period)
        if self.allowed is not None:
            values = np.where([self.allowed(option) for option in options], values, np.inf)
        self.archive.offer(costs, values, lambda i: options[i])
        return values, costs

    def used_phases(self) -> Ints:
        """The phases in use on the front, the full average among them, at most MAX_POOL; their indices, ascending."""
        full = self.alphabet.full_average()
        uses = np.zeros(len(self.alphabet), dtype=np.int64)
        for entry in self.archive.front():
            uses[list(set(entry.indices))] += 1
        if full is not None:
            uses[full] = len(self.archive.edges) + 1
        most = np.argsort(-uses, kind="stable")[:MAX_POOL]
        return np.sort(most[uses[most] > 0])

    def rebuild(self, indices: Indices, target: Target, pool: Ints, until: float) -> Indices:
        """The best for `target` among the period and those with one window rebuilt; all go to the archive.

        O(window · beam · A · C·G³) for A phases of the pool.
        """
        limits = self.problem.limits
        width = int(self.rng.integers(1, min(WINDOW, len(indices)) + 1))
        start = int(self.rng.integers(len(indices)))
        turned = (*indices[start:], *indices[:start])
        tried = pool if len(pool) < MAX_POOL else self.rng.choice(pool, MAX_POOL - 1, replace=False)
        options = [turned]
        for window in windows(self.alphabet, turned, width, tried, expired=lambda: self.clock.passed(until)):
            made = (*window, *turned[width:])
            if limits.min_period <= len(made) <= limits.max_period:
                options.append(made)
        values, costs = self.score(options)
        return options[int(np.argmin(target.energy(costs, values)))]

    def tell(self, stage: str) -> None:
        """Say what is being done, and the best so far of what is asked for."""
        if self.progress is not None:
            best = self.targets[0].best(self.archive) if self.targets else None
            value, cost = (None, None) if best is None else (best.value, best.cost)
            self.progress(SearchStage(stage, self.clock.elapsed, value, cost))

    def _compose(self, pool: Ints, beam: Beam, until: float) -> None:
        """The phases of a pool put together between full averages, over the whole range of costs."""
        clock, limits = self.clock, self.problem.limits
        begun, span = clock.position(), until - clock.position()
        segments = segments_of(
            self.alphabet.take(pool), limits.max_period, lambda: clock.passed(begun + 0.5 * span), beam=beam
        )
        sketched = sketch_front(segments, limits, lambda: clock.passed(begun + 0.6 * span), clock, bins=beam.bins)
        options = self._better({tuple(pool[list(indices)].tolist()): value for indices, value in sketched.items()})
        for first in range(min(STRIDE, len(options))):  # every stride spreads over the whole front
            if first and clock.passed(begun + 0.8 * span):
                break
            self.score(options[first::STRIDE])

    def _better(self, sketched: dict[Indices, float]) -> list[Indices]:
        """The compositions that are better than what the archive holds; values of segments simply add up."""
        space, archive = self.alphabet.space, self.archive
        costs = np.array([self.alphabet.costs[list(indices)].mean() for indices in sketched]) / space.instants
        values = space.floor + np.array([value / len(indices) for indices, value in sketched.items()])
        bins = np.minimum(np.searchsorted(archive.edges, costs), len(archive.edges) - 1)
        return [one for one, better in zip(sketched, values < archive.values[bins] - SAME, strict=True) if better]

    def _compose_again(self, turn: int, until: float) -> None:
        """The phases in use, by the widest beam that the turn allows and that takes no more than its share."""
        left = BEAM_SHARE * (until - self.clock.position())
        beams = BEAMS[1 : turn + 1]
        fitting = [beam for beam in beams if PER_BEGINNING * beam.width * self.problem.limits.max_period < left]
        pool, beam = self.used_phases(), (fitting or beams)[-1 if fitting else 0]
        if (pool.tobytes(), beam) in self._composed:  # nothing new came into use, so others are given a chance
            pool, beam = np.union1d(pool, self._newcomers()), min(beam, BEAMS[2])
        self._composed.add((pool.tobytes(), beam))
        self._compose(pool, beam, until)

    def _newcomers(self) -> Ints:
        """Phases that need not be in use, drawn at random."""
        return self.rng.choice(len(self.alphabet), min(NEWCOMERS, len(self.alphabet)), replace=False)

    def _drawn(self) -> list[Indices]:
        """Random periods, each of a few different phases."""
        limits = self.problem.limits
        few = min(limits.max_distinct_phases or FEW, FEW)
        lengths = self.rng.integers(limits.min_period, limits.max_period + 1, DRAWN)
        phases = (self.rng.choice(len(self.alphabet), few) for _ in range(DRAWN))
        return [tuple(self.rng.choice(own, n).tolist()) for own, n in zip(phases, lengths, strict=True)]

    def _nearest(self, target: Target) -> Indices:
        """The archive's best for a target, or what misses it by the least."""
        if (best := target.best(self.archive)) is not None:
            return best.indices
        front = self.archive.front()
        energies = target.energy(np.array([one.cost for one in front]), np.array([one.value for one in front]))
        return front[int(np.argmin(energies))].indices


def within_limits(alphabet: Alphabet, limits: Limits) -> Callable[[Indices], bool] | None:
    """The test for the limits that concern which phases stand where; None if there are none."""
    if limits.max_distinct_phases is None and limits.max_gap is None:
        return None
    # Phases without groups need no communicator.
    silent = {i for i, phase in enumerate(alphabet.phases) if not len(phase)}

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
