"""Search the Pareto front of schedules for a problem, with a proved bound on all others, by `search`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain, zip_longest
from math import inf
from operator import attrgetter

import numpy as np

from partreduce.schedulers.rules.grids import grid_phases
from partreduce.schedulers.synthesis.choices import Choices, choices_of
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.cluster_shape import crossing_bound, derived_worker_steps, largest_steps
from partreduce.schedulers.synthesis.long_periods import Exchanges, compositions
from partreduce.schedulers.synthesis.problem import Candidate, Front, Objective, Period, Problem, Status, up_to
from partreduce.schedulers.synthesis.schedule_model import ScheduleModel
from partreduce.topo import metrics
from partreduce.topo.arithmetic.pareto import dominates, non_dominated, scatter
from partreduce.topo.arithmetic.whole_numbers import ceil_log
from partreduce.topo.rule import Block, RulePhase

MAX_REPORTED, MAX_PHASES = 60, 4
"""Most reported candidates per kind of groups and steps per round; most phases of a period that CP-SAT decides."""
TIGHTER, MUCH_TIGHTER = 0.85, 0.6
"""The solver's next budget as a fraction of the last result's seconds: for phases of long periods; for periods."""
PROVING_SHARE, ALIGNED_SHARE, DECIDING_SHARE, COMPOSING_SHARE = 0.4, 0.1, 0.3, 0.6
"""Fractions of the time: to prove a bound; and at which to end `Choices.aligned`, deciding, and composing periods."""
MAX_MORE, MAX_TRIES = 128, 4
"""Most phases to try in exchanges in addition to those found; and most rounds of exchanges per period."""
MORE = (1, 2, 3, 5, 7, 11, 23)
"""Numbers of cheap or silent phases to insert after each phase of a decided period, to communicate less."""
PER_METRIC, PER_PRODUCT, PER_TIMING = 3e-3, 2e-9, 1e-4
"""Nominal seconds of a schedule's consensus distance, of each of its phases' n³ products, and of timing a phase."""
BY_TIME = attrgetter("step_seconds", "consensus_distance")
BY_COMMUNICATION = attrgetter("communication_seconds_per_step", "consensus_distance")
"""The two pairs of costs of a candidate by which a front is kept."""


def search(
    problem: Problem, clock: Clock, until: float, *, seed: int, progress: Callable[[str], object] = str
) -> Front:
    """Search the Pareto front of a problem: schedules with the best trade-offs of communication and consensus distance.

    Even clusters get rules (small ones explicit groups, too), others explicit groups. All workers have 1 step per
    round; if the hardware states slower workers (`Hardware.slowdown`), also as many as their speed allows. The search
    ends at the clock's position `until` (the last evaluation may overrun it a little), or after Ctrl-C, with the
    schedules found so far. If the clock has an effort, the result depends only on `seed`, unless wall-clock time ends
    the search. `progress` is called with a line for each stage of the work.
    """
    if reason := _impossible(problem):
        return Front(status=Status.INFEASIBLE, reason=reason)
    if clock.passed(until) or not (listed := choices_of(problem)):
        return Front()
    explored: list[Exploration] = []
    bound = crossing_bound(problem) if problem.objective is Objective.COMMUNICATION else 0.0
    try:
        for index, choices in enumerate(listed):
            start = clock.position()
            end = start + (until - start) / (len(listed) - index)
            explored.append(Exploration(choices, clock, seed, progress))
            if problem.objective is Objective.CONSENSUS_DISTANCE and choices.is_complete:
                bound = explored[-1].prove(start + PROVING_SHARE * (end - start))
            explored[-1].explore(end)
    except KeyboardInterrupt:
        clock.interrupt()
    reached = [list(some.values()) for one in explored for some in one.candidates]
    reached = [list(chain(*reached))] if len(listed) > 1 else reached  # rules and explicit groups, of equal steps
    # In turns, since those of other steps per round make shorter steps of as much communication.
    turns = zip_longest(*(_select_reported(problem, some) for some in reached))
    found = _name_apart(one for one in chain(*turns) if one is not None)
    best = best_of(problem, found)
    status, reason = Status.FEASIBLE, ""
    if best is None:
        status, reason = Status.UNKNOWN, ""
        if bound == inf and problem.limits.max_communication is None:
            status, reason = Status.INFEASIBLE, _all_decided(problem)
    elif _worth(problem, best) <= up_to(bound):
        status = Status.OPTIMAL
    return Front(
        candidates=tuple(sorted(found, key=lambda one: one is not best)),
        best=best,
        status=status,
        bound=bound,
        reason=reason,
    )


class Exploration:
    """The state of a search among the blocks of `choices`; `say` receives progress messages.

    `worker_steps` holds one or two tuples with each worker's steps per round, and `candidates` a dict for each of them:
    the candidates found, by period. `decided` holds the sets of phases of the periods that CP-SAT has found.
    """

    def __init__(self, choices: Choices, clock: Clock, seed: int, say: Callable[[str], object]) -> None:
        """Set up a search that has found nothing; work is charged to the clock."""
        self.choices, self.clock, self.seed, self.say = choices, clock, seed, say
        self.limits = choices.problem.limits
        self.worker_steps = ((1,),) if choices.radices else derived_worker_steps(choices.problem.cluster)
        self.candidates: list[dict[Period, Candidate]] = [{} for _ in self.worker_steps]
        self.decided: dict[frozenset[RulePhase], None] = {}  # phases decided together, a set that keeps the order

    def explore(self, until: float) -> None:
        """Fill `candidates`: find periods, or phases of long ones, by CP-SAT; improve them until position `until`."""
        start, limits, full = self.clock.position(), self.limits, self.choices.everybody()
        span = until - start
        for period in self.choices.aligned():
            if not self.clock.passed(start + ALIGNED_SHARE * span):
                self._offer(period)
        if full is not None:
            budgets = [TIGHTER * k * self.choices.cost(full) for k in (1, 2)]
            models = {ScheduleModel(self.choices, k, agree=False): [budgets[k - 1]] for k in (1, 2)}
            self._decide(models, start + DECIDING_SHARE * span)
            self._compose(full, start + COMPOSING_SHARE * span)
        if full is None or limits.choose_groups:
            n, base = self.choices.num_ranks, int(self.choices.sizes.max(initial=2))
            for count in range(2, max(2, ceil_log(n, base)) + 1) if not self.choices.radices else ():
                axes = grid_phases(n, (base,) * count)  # grids and cubes of the largest group
                self._offer(tuple(tuple(Block(group.members) for group in phase) for phase in axes))
            longest = min(MAX_PHASES, limits.max_period, limits.max_distinct_phases or MAX_PHASES)
            models = {ScheduleModel(self.choices, k): self._budgets(k) for k in range(2, longest + 1)}
            self._decide(models, start + DECIDING_SHARE * span)
        self._improve(until)

    def prove(self, until: float) -> float:
        """Return a lower bound on the consensus distance with equal steps; infinite if no schedule keeps the limits.

        If the limits allow only periods of up to `MAX_PHASES`, these are found one by one, the best by the model first,
        until no other can be better. Else the bound is the least noise that any two consecutive rounds leave.
        """
        clock, limits = self.clock, self.limits
        if limits.max_period > MAX_PHASES:
            return ScheduleModel(self.choices, 2, agree=False).decide(clock=clock, until=until, seed=self.seed).bound
        bounds, best = [], inf
        for k in range(1, limits.max_period + 1):
            model, bound = ScheduleModel(self.choices, k), 0.0
            budget = inf if limits.max_communication is None else k * limits.max_communication
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

    def _decide(self, models: dict[ScheduleModel, list[float]], until: float) -> None:
        """Solve every model within its budgets (in seconds of a period's communication), then within tighter ones.

        The models take turns until the clock's position `until`. Results are added to `decided` and `candidates`.
        """
        left = {model: list(budgets) for model, budgets in models.items()}
        while any(left.values()) and not self.clock.passed(until):
            for model, budgets in left.items():
                if not budgets or self.clock.passed(until):
                    continue
                self.say(f"deciding {model.num_phases} phase{'s' * (model.num_phases > 1)}")
                budget = budgets.pop(0)
                found = model.decide(clock=self.clock, until=until, seed=self.seed, budget=budget)
                if spent := sum(map(self.choices.cost, found.phases)):
                    self.decided[frozenset(phase for phase in found.phases if phase)] = None
                    if model.agree:
                        self._offer(found.phases)
                        model.forbid(found.phases)
                    if not budgets:
                        budgets.append((MUCH_TIGHTER if model.agree else TIGHTER) * spent)
                elif model.agree and not budgets and found.bound == inf and budget < inf:
                    budgets.extend(models[model])  # others that are as good by the model may be better

    def _budgets(self, num_phases: int) -> list[float]:
        """Return the first budgets in seconds of communication per period: infinity, then what the limit allows.

        The limit is per step, so it allows more for every silent phase (without an average) that is to be inserted.
        """
        most, lengths = self.limits.max_communication, [num_phases * (1 + more) for more in (0, *MORE)]
        return [inf, *(most * k for k in lengths if most is not None and k <= self.limits.max_period)]

    def _compose(self, full: RulePhase, until: float) -> None:
        """Compose long periods of phases that CP-SAT found, silent phases and `full`, an average over all workers.

        If distinct phases are limited, a period takes one of the decided phases, or those that were found together.
        """
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
            for period, value in compositions(self.choices, phases, self.worker_steps[s], self.clock, end):
                self._keep(period, value, s)

    def _improve(self, until: float) -> None:
        """Improve the periods on the Pareto front by exchanging their phases for others: decided, aligned or blocks."""
        self.say("improving periods")
        pool = dict.fromkeys(phase for period in self.candidates[0] for phase in period)
        pool |= dict.fromkeys(sorted((phase for together in self.decided for phase in together), key=str))
        more: list[RulePhase] = [(block,) for block in self.choices.blocks]
        if not self.choices.radices:
            more = [*chain(*self.choices.aligned())]
        pool |= dict.fromkeys(more[:: 1 + len(more) // MAX_MORE])
        for s, worker_steps in enumerate(self.worker_steps):
            exchanges = Exchanges(self.choices, worker_steps, pool, self.seed)
            tries, start = Counter[Period](), self.clock.position()
            end = start + (until - start) / (len(self.worker_steps) - s)
            front = list(self.candidates[s].values())
            while not self.clock.passed(end):
                front = non_dominated(front, BY_TIME)
                order = [one.period for one in scatter(front, BY_TIME)]
                if not order or tries[period := min(order, key=tries.__getitem__)] >= MAX_TRIES:
                    break
                if not self.clock.fits(exchanges.work(period), end):
                    break
                tries[period] += 1
                spread = list(map(BY_TIME, front))
                for found, at in exchanges.better(period, spread, self.clock):
                    if not any(dominates(other, at) for other in spread) and (kept := self._keep(found, at[1], s)):
                        front.append(kept)

    def _offer(self, period: Period) -> Candidate | None:
        """Add a period to the candidates, and variants with silent phases or more of its cheapest phase inserted.

        Return the period's candidate with equal steps; None if it exceeds a limit or does not reach consensus.
        """
        cheapest = min(period, key=self.choices.cost)
        for s, worker_steps in enumerate(self.worker_steps):
            known = list(map(BY_COMMUNICATION, self.candidates[s].values()))
            for filler, more in [((), 0), *((filler, more) for filler in ((), cheapest) for more in MORE)]:
                phases = tuple(phase for one in period for phase in (one, *[filler] * more))
                if len(phases) > self.limits.max_period:
                    continue
                self.clock.charge(PER_METRIC + PER_PRODUCT * len(phases) * self.choices.num_ranks**3)
                value = float(metrics.consensus_distance(self.choices.schedule(phases, worker_steps)))
                kept = self._keep(phases, value, s)
                if not more and kept and any(dominates(other, BY_COMMUNICATION(kept)) for other in known):
                    break
        return self.candidates[0].get(period)

    def _keep(self, period: Period, value: float, s: int) -> Candidate | None:
        """Add a period to the candidates and return it as one; None if it exceeds a limit or does not reach consensus.

        `value` is its consensus distance, infinite without consensus; `s` is the index of its steps in `worker_steps`.
        """
        limits, kept = self.limits, value < inf and len(period) <= self.limits.max_period
        if limits.max_distinct_phases is not None:
            kept &= len(set(period) - {()}) <= limits.max_distinct_phases
        if limits.max_gap is not None:
            crossing = [t for t, phase in enumerate(period) if self.choices.crosses(phase)]
            gap = np.diff([*crossing, crossing[0] + len(period)]).max() if crossing else inf
            kept &= gap * max(self.worker_steps[s]) - 1 <= limits.max_gap
        if not kept:
            return None
        if period not in self.candidates[s]:
            self.clock.charge(PER_TIMING * len(period))
            steps, spent = self.worker_steps[s], sum(map(self.choices.cost, period))
            self.candidates[s][period] = Candidate(
                schedule=self.choices.schedule(period, steps),
                period=period,
                step_seconds=round(float(self.choices.step_seconds([period], steps)[0]), 12),
                communication_seconds_per_step=round(spent / (len(period) * max(steps)), 12),
                consensus_distance=round(value, 12),
            )
        return self.candidates[s][period]


def _impossible(problem: Problem) -> str | None:
    """Return why no schedule can keep the limits, with the nearest possible value; None if one may exist."""
    limits = problem.limits
    if limits.max_gap is not None and problem.cluster.num_nodes == 1:
        return f"max_gap: {limits.max_gap}; with 1 node no group crosses nodes; leave this limit out"
    if limits.max_communication is None or limits.allow_communication(least := crossing_bound(problem)):
        return None
    steps = largest_steps(problem.cluster)
    return f"crossing bound of {limits.max_period} rounds{f' of {steps} steps' * (steps > 1)}: {least:.4g} s per step"


def _all_decided(problem: Problem) -> str:
    longest, most = problem.limits.max_period, problem.limits.max_group or problem.cluster.num_workers
    return (
        f"max_period: {longest}; no period of at most so many phases of groups of at most {most} workers joins all "
        "workers within the limits (all were decided); allow longer periods or larger groups"
    )


def _select_reported(problem: Problem, found: list[Candidate]) -> list[Candidate]:
    """Return the best candidate, then some spread over two Pareto fronts, at most `MAX_REPORTED` in all.

    Both fronts are in consensus distance; one also in step time, the other in communication.
    """
    fronts = (
        scatter(non_dominated(found, at, lambda one: (len(one.period),)), at) for at in (BY_TIME, BY_COMMUNICATION)
    )
    listed = {id(one): one for turn in zip_longest(*fronts) for one in turn if one is not None}
    best = best_of(problem, listed.values())
    return sorted(listed.values(), key=lambda one: one is not best)[:MAX_REPORTED]


def _name_apart(found: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates with distinct names: the second of equal names gets -2 appended, and so on."""
    names, result = Counter[str](), []
    for one in found:
        names[name := one.schedule.name] += 1
        schedule = one.schedule if names[name] == 1 else replace(one.schedule, name=f"{name}-{names[name]}")
        result.append(replace(one, schedule=schedule))
    return result


def best_of(problem: Problem, candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the candidate within the limits with the least objective; None if no candidate is within them."""
    limits = problem.limits
    fitting = (
        one
        for one in candidates
        if limits.allow_communication(one.communication_seconds_per_step)
        and limits.allow_consensus_distance(one.consensus_distance)
    )
    return min(fitting, key=lambda one: (round(_worth(problem, one), 9), len(one.period)), default=None)


def _worth(problem: Problem, one: Candidate) -> float:
    by_cost = problem.objective is Objective.COMMUNICATION
    return one.communication_seconds_per_step if by_cost else one.consensus_distance
