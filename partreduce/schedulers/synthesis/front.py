"""Search the Pareto front of schedules for a problem; this is the entry point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest
from typing import TypeVar

import numpy as np

from partreduce.schedulers.synthesis.alphabet import Alphabet, Indices
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.cluster_shape import (
    crossing_bound,
    derived_worker_steps,
    is_even,
    largest_steps_per_round,
    node_radices,
)
from partreduce.schedulers.synthesis.explicit_alphabet import (
    MAX_ALL_PARTITIONS,
    MAX_EXPLICIT_WORKERS,
    explicit_alphabet,
)
from partreduce.schedulers.synthesis.hints import budgets_of
from partreduce.schedulers.synthesis.period_search import Search, SearchStage
from partreduce.schedulers.synthesis.problem import Candidate, Front, Objective, Problem, Status
from partreduce.schedulers.synthesis.rule_alphabet import holds_rules, rule_alphabet
from partreduce.schedulers.synthesis.schedule_model import decided_schedules
from partreduce.topo.schedule import Schedule

T = TypeVar("T")

DECIDED_SHARE = 0.3
"""Part of the search's time in which CP-SAT decides schedules, where a limit asks for that."""
ALPHABET_SHARE = 0.15
"""Part of the search's time after which no more phases are made up."""
COMPOSING_SHARE = 0.4
"""Part of an alphabet's time in which known schedules are looked up and compositions solved."""
MAX_REPORTED = 60
"""Candidates of one alphabet that are reported."""
PER_RULE = 2e-4
"""Nominal seconds to list, cost and write one phase of a rule."""


def search(
    problem: Problem,
    clock: Clock,
    until: float,
    *,
    seed: int,
    progress: Callable[[SearchStage], None] | None = None,
) -> Front:
    """Search for the schedules of a cluster that trade communication against consensus distance best.

    Equally equipped, equally sized nodes get rules; others get explicit groups, with each worker's steps per round
    chosen from `problem.worker_steps` or derived from the slowdowns. The time is kept (the last evaluation may overrun
    it a little).

    Args:
        problem: cluster, objective and limits.
        clock: what may still be spent. With an effort the same seed gives the same answer, as long as the clock's
            seconds do not end the search; without one how much is tried depends on the machine.
        until: the position of the clock at which the search ends.
        seed: the same seed tries the same candidates in the same order.
        progress: called now and then; nothing is ever printed.

    Returns:
        The front. Its status is infeasible only with a named bound in `reason`, unknown where the time ran out first.

    Raises:
        MissingDependencyError: OR-Tools is not installed.
    """
    begun = clock.elapsed
    if reason := impossible(problem):
        return _without_search(Status.INFEASIBLE, reason, clock.elapsed - begun, seed)
    hints = [] if clock.passed(until) else _decided(problem, clock, until, seed)
    problem = replace(problem, hints=(*problem.hints, *hints))
    last = clock.position() + ALPHABET_SHARE * (until - clock.position())
    alphabets = [] if clock.passed(until) else alphabets_of(problem, seed, lambda: clock.passed(last), clock)
    if not alphabets:
        reached = clock.passed(until)
        reason = "the time was over before the search began" if reached else _too_large(problem)
        return _without_search(Status.UNKNOWN, reason, clock.elapsed - begun, seed)
    by_alphabet: list[list[Candidate]] = []
    for index, alphabet in enumerate(alphabets):
        start = clock.position()
        end = start + (until - start) / (len(alphabets) - index)
        tried = Search(alphabet, problem, clock=clock, seed=seed + index, progress=progress)
        tried.start(start + COMPOSING_SHARE * (end - start))
        tried.tell("searching")
        tried.refine(end)
        by_alphabet.append(_candidates(problem, tried))
    # In turns, since those of other steps per round make shorter steps of as much communication.
    found = [one for turn in zip_longest(*by_alphabet) for one in turn if one is not None]
    best = preferred(problem, found)
    return Front(
        candidates=tuple(sorted(found, key=lambda one: one is not best)),
        best=best,
        status=Status.UNKNOWN if best is None else Status.FEASIBLE,
        seconds=clock.elapsed - begun,
        seed=seed,
        reason=nearest(problem, found) if best is None else "",
    )


def _decided(problem: Problem, clock: Clock, until: float, seed: int) -> list[Schedule]:
    """Schedules from CP-SAT where a limit on groups or phases is asked for, which listed phases seldom keep."""
    limits, start = problem.limits, clock.position()
    if not limits.choose_groups or problem.cluster.num_workers <= MAX_ALL_PARTITIONS:
        return []
    return list(decided_schedules(problem, clock, start + DECIDED_SHARE * (until - start), seed=seed))


def impossible(problem: Problem) -> str | None:
    """Why no schedule can meet the limits, with the nearest possible thing; None if nothing is known against it."""
    limits = problem.limits
    if limits.max_communication is None:
        return None
    least = crossing_bound(problem)
    if not limits.allow_communication(least):
        who, pair = ("the nodes", "pair across nodes") if problem.cluster.num_nodes > 1 else ("the workers", "pair")
        return (
            f"max_communication: {limits.max_communication:.6g} s per step; {who} must meet at least once in "
            f"{limits.max_period} rounds of {largest_steps_per_round(problem)} step(s), and one {pair} then costs "
            f"{least:.6g} s per step (crossing bound, for all schedules of such rounds); allow that, or a longer period"
        )
    return None


def alphabets_of(
    problem: Problem, seed: int, expired: Callable[[], bool], clock: Clock | None = None
) -> list[Alphabet]:
    """Rules for even clusters, else explicit phases, one alphabet per choice of steps; none for too many workers.

    Explicit phases come second on even clusters where a hint cannot be spelled in rules. The first alphabet is there
    however little time there is.
    """
    alphabets: list[Alphabet] = []
    if is_even(problem.cluster) and problem.worker_steps is None and holds_rules(problem.cluster):
        alphabets.append(rule_alphabet(problem, node_radices(problem.cluster)))
        if clock is not None:
            clock.charge(PER_RULE * len(alphabets[0]))
        if all(hint.rule(by_node=True) is not None for hint in problem.hints):
            return alphabets
    if problem.cluster.num_workers > MAX_EXPLICIT_WORKERS:
        return alphabets
    for steps_per_round in problem.worker_steps or derived_worker_steps(problem.cluster):
        if not alphabets or not expired():
            alphabets.append(explicit_alphabet(problem, steps_per_round, seed=seed, expired=expired, clock=clock))
    return alphabets


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


def _candidates(problem: Problem, tried: Search) -> list[Candidate]:
    """The archive's front: what was asked for, the best at what each hint communicates, then the others, spread."""
    archive, limits = tried.archive, problem.limits
    budget, value = limits.max_communication, problem.most_consensus_distance
    asked = [
        archive.best_within(np.inf if budget is None else budget),
        archive.cheapest_below(np.inf if value is None else value),
        *_spread([archive.best_within(budget) for budget in budgets_of(problem)]),
    ]
    result: dict[Indices, Candidate] = {}
    for entry in (*asked, *scattered(archive.front(), lambda entry: (entry.cost, entry.value))):
        if entry is None or len(result) >= MAX_REPORTED:
            continue
        indices = primitive(entry.indices, limits.min_period)
        if indices in result or (tried.allowed is not None and not tried.allowed(indices)):
            continue
        result[indices] = Candidate(
            schedule=tried.alphabet.schedule(indices, f"synthesized-{len(indices)}-phases-{1e3 * entry.cost:.4g}ms"),
            communication_seconds_per_step=entry.cost,
            consensus_distance=entry.value,
        )
    return list(result.values())


def primitive(indices: Indices, least: int = 1) -> Indices:
    """The shortest period, of at least `least` phases, whose repetition is the given one."""
    for length in range(least, len(indices)):
        if len(indices) % length == 0 and indices == indices[:length] * (len(indices) // length):
            return indices[:length]
    return indices


def preferred(problem: Problem, candidates: list[Candidate]) -> Candidate | None:
    """The least communication within the limits where that is the objective, else the least consensus distance."""
    limits = problem.limits
    fitting = [
        c
        for c in candidates
        if limits.allow_communication(c.communication_seconds_per_step)
        and limits.allow_consensus_distance(c.consensus_distance)
    ]
    by_cost = problem.objective is Objective.COMMUNICATION

    def worth(one: Candidate) -> tuple[float, int]:
        least = one.communication_seconds_per_step if by_cost else one.consensus_distance
        return round(least, 9), one.period

    return min(fitting, key=worth, default=None)


def nearest(problem: Problem, candidates: list[Candidate]) -> str:
    """Which candidate comes nearest to limits that none keeps, in one line."""
    budget = problem.limits.max_communication
    if not candidates:
        return "no schedule that keeps all limits was found in the time; relax a limit or give more time"
    least = min(candidates, key=lambda c: c.communication_seconds_per_step)
    if budget is not None and not problem.limits.allow_communication(least.communication_seconds_per_step):
        return (
            f"no schedule within {budget:.6g} s per step was found; the cheapest found takes "
            f"{least.communication_seconds_per_step:.6g} s per step"
        )
    fitting = [c for c in candidates if problem.limits.allow_communication(c.communication_seconds_per_step)]
    best = min(fitting, key=lambda c: c.consensus_distance)
    return (
        f"no schedule with consensus distance at most {problem.most_consensus_distance:.6g} was found; "
        f"the least found within the budget is {best.consensus_distance:.6g}"
    )


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
    order: list[int] = []
    step = 1 << max(0, len(front) - 1).bit_length()
    while step:
        order += [index for index in range(0, len(front), step) if index not in order]
        step //= 2
    return [front[index] for index in order]


def _without_search(status: Status, reason: str, seconds: float, seed: int) -> Front:
    return Front(candidates=(), best=None, status=status, seconds=seconds, seed=seed, reason=reason)
