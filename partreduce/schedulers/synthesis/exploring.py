"""What is decided among one kind of groups: short periods as wholes, phases of long periods, and a proved bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

import numpy as np

from partreduce.schedulers.synthesis.choices import Choices, Period
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.cluster_shape import derived_worker_steps
from partreduce.schedulers.synthesis.compositions import compositions
from partreduce.schedulers.synthesis.problem import Candidate
from partreduce.schedulers.synthesis.schedule_model import ScheduleModel
from partreduce.topo import metrics
from partreduce.topo.arithmetic.pareto import dominates
from partreduce.topo.arithmetic.whole_numbers import ceil_log
from partreduce.topo.rule import Block, RulePhase
from partreduce.topo.schedule import Schedule

MAX_PHASES = 4
"""Phases of the longest period that is decided as a whole."""
TIGHTER = 0.85
"""Each next budget as a share of what the last decision took."""
SILENT = (0, 1, 2, 3, 5, 7, 11, 23)
"""Silent phases after each phase of a decided period, to communicate less."""
PER_METRIC, PER_PRODUCT = 3e-3, 2e-9
"""Nominal seconds of the consensus distance of one schedule, and of each of its phases' n³ products."""


class Exploration:
    """`candidates` found so far, one list for each choice of steps per round."""

    def __init__(self, choices: Choices, clock: Clock, seed: int, say: Callable[[str], None]) -> None:
        """Decide nothing yet; all work from here on is charged to the clock."""
        self.choices, self.clock, self.seed, self.say = choices, clock, seed, say
        self.limits = choices.problem.limits
        self.worker_steps = ((1,),) if choices.radices else derived_worker_steps(choices.problem.cluster)
        self.candidates: list[list[Candidate]] = [[] for _ in self.worker_steps]
        self.decided: dict[frozenset[RulePhase], None] = {}  # phases decided together, a set that keeps the order

    def explore(self, until: float) -> None:
        """Decide periods, and the phases that long periods are composed of, until the clock's position `until`."""
        start, limits, full = self.clock.position(), self.limits, self.choices.everybody()
        span = until - start
        if full is not None:
            budgets = [[TIGHTER * k * self.choices.cost(full)] for k in (1, 2)]
            self._decide([ScheduleModel(self.choices, k, agree=False) for k in (1, 2)], budgets, start + 0.5 * span)
            self._compose(full, start + 0.8 * span if limits.choose_groups else until)
        if full is None or limits.choose_groups:
            for period in self._by_digits():
                self._offer(period)
            longest = min(MAX_PHASES, limits.max_period, limits.max_distinct_phases or MAX_PHASES)
            models = [ScheduleModel(self.choices, k) for k in range(2, longest + 1)]
            self._decide(models, [self._budgets(model.num_phases) for model in models], until)

    def prove(self, until: float) -> float:
        """The consensus distance below which no schedule of group means lies whose workers take equal steps.

        Of short periods all are decided, the best one after the other until what is left is no better. Of any period
        the mean over its rounds is at least the least that two rounds in a row can have. Infinite where no period of
        equal steps keeps the limits.
        """
        clock, limits = self.clock, self.limits
        if limits.max_period > MAX_PHASES:
            return ScheduleModel(self.choices, 2, agree=False).decide(clock=clock, until=until, seed=self.seed).bound
        bounds, best = [], inf
        for k in range(limits.min_period, limits.max_period + 1):
            model, bound = ScheduleModel(self.choices, k), 0.0
            budget = None if limits.max_communication is None else k * limits.max_communication
            while bound < best and not clock.passed(until):
                found = model.decide(clock=clock, until=until, seed=self.seed, budget=budget, below=best)
                bound = max(bound, found.bound)
                if found.phases:
                    model.forbid(found.phases)
                    kept = self._offer(found.phases)
                    if kept is not None and limits.allow_communication(kept.communication_seconds_per_step):
                        best = min(best, kept.consensus_distance)
                elif found.bound < inf:
                    break
            bounds.append(bound)
        return min(best, *bounds)

    def _decide(self, models: list[ScheduleModel], budgets: list[list[float | None]], until: float) -> None:
        """Every model within ever tighter budgets, in turns; what was decided once is not decided again."""
        left = [list(some) for some in budgets]
        while any(left) and not self.clock.passed(until):
            for turn, model in enumerate(models):
                if not left[turn] or self.clock.passed(until):
                    continue
                self.say(f"deciding {model.num_phases} phase{'s' * (model.num_phases > 1)}")
                budget = left[turn].pop(0)
                found = model.decide(clock=self.clock, until=until, seed=self.seed, budget=budget)
                if spent := sum(map(self.choices.cost, found.phases)):
                    self.decided[frozenset(phase for phase in found.phases if phase)] = None
                    if model.agree:
                        self._offer(found.phases)
                        model.forbid(found.phases)
                    left[turn] = left[turn] or [TIGHTER * spent]
                elif model.agree and not left[turn] and found.bound == inf and budget is not None:
                    left[turn] = list(budgets[turn])  # others that are as good by the model may be better

    def _budgets(self, num_phases: int) -> list[float | None]:
        """Seconds of a period to begin with: without a limit, then what is asked with as much silence as fits."""
        most = self.limits.max_communication
        lengths = [num_phases * (1 + s) for s in SILENT if num_phases * (1 + s) <= self.limits.max_period]
        return [None, *(most * length for length in lengths if most is not None)]

    def _compose(self, full: RulePhase, until: float) -> None:
        """Long periods of the decided phases; where only few phases may differ, of those that were decided together."""
        self.say("composing periods")
        most, start = self.limits.max_distinct_phases, self.clock.position()
        pools = [frozenset(phase for together in self.decided for phase in together)]
        if most is not None and len(pools[0]) >= most:
            single = [frozenset({phase}) for phase in sorted(pools[0], key=str)]
            pools = [pool for pool in dict.fromkeys([frozenset(), *single, *self.decided]) if len(pool) < most]
        turns = [(pool, s) for pool in pools for s in range(len(self.worker_steps))]
        for index, (pool, s) in enumerate(turns):
            end = start + (until - start) * (index + 1) / len(turns)
            if index and self.clock.passed(end):
                continue
            phases = ((), *sorted(pool - {full}, key=str), full)
            for period, cost, value in compositions(self.choices, phases, self.worker_steps[s], self.clock, end):
                self._keep(period, self.choices.schedule(period, self.worker_steps[s]), cost, value, s)

    def _offer(self, period: Period) -> Candidate | None:
        """Keep a decided period, with silent phases if it is better than others; the candidate of equal steps."""
        first, spent = None, sum(map(self.choices.cost, period))
        for s, worker_steps in enumerate(self.worker_steps):
            for silent in SILENT[: sum(len(period) * (1 + silent) <= self.limits.max_period for silent in SILENT)]:
                phases = tuple(phase for one in period for phase in (one, *[()] * silent))
                schedule, cost = self.choices.schedule(phases, worker_steps), spent / (len(phases) * max(worker_steps))
                self.clock.charge(PER_METRIC + PER_PRODUCT * len(phases) * self.choices.num_ranks**3)
                value = float(metrics.consensus_distance(schedule))
                known = [(one.communication_seconds_per_step, one.consensus_distance) for one in self.candidates[s]]
                kept = self._keep(phases, schedule, cost, value, s)
                first = kept if (s, silent) == (0, 0) else first
                if any(dominates(other, (cost, value)) for other in known):
                    break
        return first

    def _keep(self, period: Period, schedule: Schedule, cost: float, value: float, s: int) -> Candidate | None:
        """The candidate, None where it breaks a limit or its workers never agree."""
        limits, kept = self.limits, value < inf and self.limits.min_period <= len(period) <= self.limits.max_period
        if limits.max_distinct_phases is not None:
            kept &= len(set(period) - {()}) <= limits.max_distinct_phases
        if limits.max_gap is not None:
            crossing = [t for t, phase in enumerate(period) if any(self.choices.crossing[block] for block in phase)]
            gap = np.diff([*crossing, crossing[0] + len(period)]).max() if crossing else inf
            kept &= gap * max(self.worker_steps[s]) - 1 <= limits.max_gap
        if not kept:
            return None
        one = Candidate(schedule=schedule, communication_seconds_per_step=cost, consensus_distance=value)
        self.candidates[s].append(one)
        return one

    def _by_digits(self) -> Iterator[Period]:
        """Phase k joins the workers whose numbers differ in digit k of the largest group alone: grids and cubes."""
        n, base = self.choices.num_ranks, int(self.choices.sizes.max(initial=2))
        for num_phases in range(2, max(2, ceil_log(n, base)) + 1) if not self.choices.radices else ():
            period = []
            for k in range(num_phases):
                groups: dict[tuple[int, int], list[int]] = {}
                for worker in range(n):
                    groups.setdefault((worker // base ** (k + 1), worker % base**k), []).append(worker)
                period.append(tuple(Block(tuple(group)) for group in groups.values() if len(group) > 1))
            yield tuple(period)
