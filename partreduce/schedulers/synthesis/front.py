"""Entry: from a problem to a Pareto front of schedules, and what is proved about all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import zip_longest
from math import inf
from typing import TypeVar

from partreduce.schedulers.synthesis.choices import choices_of
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.cluster_shape import MAX_EXPLICIT_WORKERS, crossing_bound, is_even, largest_steps
from partreduce.schedulers.synthesis.exploring import Exploration
from partreduce.schedulers.synthesis.problem import Candidate, Front, Objective, Problem, Status, up_to
from partreduce.topo.arithmetic.pareto import non_dominated

T = TypeVar("T")

MAX_REPORTED = 60
"""Candidates of one kind of groups, and of one choice of steps per round, that are reported."""
PROVING_SHARE = 0.4
"""Part of the time for proving a bound."""


def search(
    problem: Problem, clock: Clock, until: float, *, seed: int, progress: Callable[[str], None] | None = None
) -> Front:
    """Search for the schedules of a cluster that trade communication against consensus distance best.

    Equally equipped, equally sized nodes get rules; others get explicit groups, with each worker's steps per round
    derived from the slowdowns. The time is kept (the last evaluation may overrun it a little), and an interrupt
    (Ctrl-C) ends the search and its clock with what was found so far. OR-Tools has to be installed.

    Args:
        problem: cluster, objective and limits.
        clock: what may still be spent. With an effort the same seed gives the same answer, as long as the clock's
            seconds do not end the search; without one how much is tried depends on the machine.
        until: the position of the clock at which the search ends.
        seed: CP-SAT's.
        progress: called now and then with what is being done; nothing is ever printed.
    """
    begun = clock.elapsed
    if reason := _impossible(problem):
        return Front(status=Status.INFEASIBLE, reason=reason)
    if clock.passed(until):
        return Front(reason="the time was over before the search began")
    if not (listed := choices_of(problem)):
        return Front(reason=_too_large(problem))
    explored: list[Exploration] = []
    bound = crossing_bound(problem) if problem.objective is Objective.COMMUNICATION else 0.0
    try:
        for index, choices in enumerate(listed):
            start = clock.position()
            end = start + (until - start) / (len(listed) - index)
            explored.append(Exploration(choices, clock, seed, progress or (lambda _: None)))
            if problem.objective is Objective.CONSENSUS_DISTANCE and choices.is_complete:
                bound = explored[-1].prove(start + PROVING_SHARE * (end - start))
            explored[-1].explore(end)
    except KeyboardInterrupt:
        clock.interrupt()
    # In turns, since those of other steps per round make shorter steps of as much communication.
    reported = [_reported(problem, some) for one in explored for some in one.candidates]
    found = [one for turn in zip_longest(*reported) for one in turn if one is not None]
    best = preferred(problem, found)
    status, reason = Status.FEASIBLE, ""
    if best is None:
        status, reason = Status.UNKNOWN, _nearest(problem, found)
        if bound == inf and problem.limits.max_communication is None:
            status, reason = Status.INFEASIBLE, _no_period(problem)
    elif _worth(problem, best) <= up_to(bound):
        status = Status.OPTIMAL
    return Front(
        candidates=tuple(sorted(found, key=lambda one: one is not best)),
        best=best,
        status=status,
        bound=bound,
        seconds=clock.elapsed - begun,
        seed=seed,
        reason=reason,
    )


def _impossible(problem: Problem) -> str | None:
    """Why no schedule can meet the limits, with the nearest possible thing; None if nothing is known against it."""
    limits = problem.limits
    if limits.max_communication is None or limits.allow_communication(least := crossing_bound(problem)):
        return None
    who, pair = ("the nodes", "pair across nodes") if problem.cluster.num_nodes > 1 else ("the workers", "pair")
    return (
        f"max_communication: {limits.max_communication:.6g} s per step; {who} must meet at least once in "
        f"{limits.max_period} rounds of {largest_steps(problem.cluster)} step(s), and one {pair} then costs "
        f"{least:.6g} s per step (crossing bound, for all schedules of such rounds); allow that, or a longer period"
    )


def _no_period(problem: Problem) -> str:
    return (
        f"max_period: {problem.limits.max_period}; no period of at most so many phases of groups of at most "
        f"{problem.limits.max_group or problem.cluster.num_workers} workers joins all workers within the limits (all "
        "were decided); allow longer periods or larger groups"
    )


def _too_large(problem: Problem) -> str:
    if is_even(problem.cluster):
        return (
            f"{problem.cluster.workers_per_node} workers on each node: rules of so many are not searched; the "
            "catalogue's were measured"
        )
    return (
        f"{problem.cluster.num_workers} workers on nodes that differ: explicit groups are searched up to "
        f"{MAX_EXPLICIT_WORKERS} workers; the catalogue's rules were measured"
    )


def _nearest(problem: Problem, candidates: list[Candidate]) -> str:
    """Which candidate comes nearest to limits that none keeps, in one line."""
    limits, budget = problem.limits, problem.limits.max_communication
    if not candidates:
        return "no schedule that keeps all limits was found in the time; relax a limit or give more time"
    within = [c for c in candidates if limits.allow_communication(c.communication_seconds_per_step)]
    if not within:
        least = min(one.communication_seconds_per_step for one in candidates)
        return f"no schedule within {budget:.6g} s per step was found; the cheapest found takes {least:.6g} s per step"
    return (
        f"no schedule with consensus distance at most {float(limits.max_consensus_distance or 0):.6g} was found; "
        f"the least found within the budget is {min(one.consensus_distance for one in within):.6g}"
    )


def _reported(problem: Problem, found: list[Candidate]) -> list[Candidate]:
    """The best for what is asked, then the front, spread; no two of one name."""

    def at(one: Candidate) -> tuple[float, float]:
        return round(one.communication_seconds_per_step, 12), round(one.consensus_distance, 12)

    front = non_dominated(found, at, lambda one: (one.period,))
    best, names, reported = preferred(problem, front), Counter[str](), []
    for one in sorted(scattered(front, at), key=lambda one: one is not best)[:MAX_REPORTED]:
        name = one.schedule.name
        names[name] += 1
        schedule = one.schedule if names[name] == 1 else replace(one.schedule, name=f"{name}-{names[name]}")
        reported.append(replace(one, schedule=schedule))
    return reported


def preferred(problem: Problem, candidates: Iterable[Candidate]) -> Candidate | None:
    """The least communication within the limits where that is the objective, else the least consensus distance."""
    limits = problem.limits
    fitting = (
        one
        for one in candidates
        if limits.allow_communication(one.communication_seconds_per_step)
        and limits.allow_consensus_distance(one.consensus_distance)
    )
    return min(fitting, key=lambda one: (round(_worth(problem, one), 9), one.period), default=None)


def _worth(problem: Problem, one: Candidate) -> float:
    by_cost = problem.objective is Objective.COMMUNICATION
    return one.communication_seconds_per_step if by_cost else one.consensus_distance


def scattered(front: list[T], at: Callable[[T], tuple[float, float]]) -> list[T]:
    """The same entries, each beginning of the list spread over the whole front: first those on its lower convex hull.

    A time to a loss, a step's seconds times the steps, is a product of two sums that rise with one cost each, so that
    the least over a front lies on the hull, whatever a unit of either costs. O(k log k).
    """
    hull: list[T] = []
    for entry in sorted(front, key=at):
        x, y = at(entry)
        while len(hull) > 1:
            (x0, y0), (x1, y1) = at(hull[-2]), at(hull[-1])
            if (x1 - x0) * (y - y0) > (x - x0) * (y1 - y0):
                break
            hull.pop()
        hull.append(entry)
    on_hull = set(map(id, hull))
    return _spread(hull) + _spread([entry for entry in front if id(entry) not in on_hull])


def _spread(front: list[T]) -> list[T]:
    """Ordered so that every beginning of the list is spread over the whole."""
    powers = range(len(front).bit_length(), -1, -1)
    return [front[i] for i in dict.fromkeys(i for power in powers for i in range(0, len(front), 1 << power))]
