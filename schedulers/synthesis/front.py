"""Entry: from a problem to a Pareto front of schedules with proved bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from partreduce.schedulers.synthesis.age_bound import DualBound, dual_bound
from partreduce.schedulers.synthesis.alphabet import Alphabet, Indices
from partreduce.schedulers.synthesis.alphabet_search import AlphabetSearch, SearchStage, within_limits
from partreduce.schedulers.synthesis.candidates import (
    bounded,
    candidate,
    class_of,
    nearest,
    pareto,
    preferred,
    primitive,
)
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.cluster_shape import (
    crossing_bound,
    derived_paces,
    is_even,
    largest_pace,
    node_radices,
)
from partreduce.schedulers.synthesis.explicit_alphabet import (
    MAX_ALL_PARTITIONS,
    MAX_EXPLICIT_WORKERS,
    explicit_alphabet,
)
from partreduce.schedulers.synthesis.hints import budgets_of
from partreduce.schedulers.synthesis.problem import Candidate, Front, Objective, Problem, Status, up_to
from partreduce.schedulers.synthesis.refinement import refine
from partreduce.schedulers.synthesis.rule_alphabet import rule_alphabet
from partreduce.schedulers.synthesis.schedule_model import decided_schedules
from partreduce.topo.schedule import Schedule

T = TypeVar("T")

DECIDED_SHARE = 0.3
"""Part of the search's time in which CP-SAT decides schedules, where a limit asks for that."""
ALPHABET_SHARE = 0.15
"""Part of the search's time after which no more phases are made up."""
COMPOSING_SHARE = 0.4
"""Part of an alphabet's time in which known schedules are looked up and compositions solved."""
BOUND_SHARE = 0.2
"""Part of an alphabet's time that its bounds may take."""
REPORT_SHARE = 0.25
"""Part of an alphabet's time that is kept at the most for the figures of what was found."""
MAX_REPORTED = 60
"""Candidates of one alphabet that get their figures."""
PER_RULE = 2e-4
"""Nominal seconds to list, cost and write one phase of a rule."""
PER_CANDIDATE, PER_ENTRY = 1.2e-2, 1e-8
"""Nominal seconds of one candidate's figures, and of each of its n³ · period entries where those are dense."""


def search(
    problem: Problem,
    clock: Clock,
    until: float,
    *,
    seed: int,
    progress: Callable[[SearchStage], None] | None = None,
) -> Front:
    """Search for the schedules of a cluster that trade communication against consensus distance (or drift) best.

    Equally equipped, equally sized nodes get rules; others get explicit groups, with each worker's pace chosen from
    `problem.paces` or derived from the slowdowns. The time is kept (the last evaluation may overrun it a little).

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
        MissingFeatureError: OR-Tools is not installed.
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
    candidates: list[Candidate] = []
    bounds: list[DualBound] = []
    doubts: list[str] = []
    for index, alphabet in enumerate(alphabets):
        start = clock.position()
        end = start + (until - start) / (len(alphabets) - index)
        tried = AlphabetSearch(alphabet, problem, clock=clock, seed=seed + index, progress=progress)
        tried.start(start + COMPOSING_SHARE * (end - start))
        bound = _bound(problem, tried, start + (COMPOSING_SHARE + BOUND_SHARE) * (end - start))
        tried.tell("searching")
        _refine(problem, tried, end - _kept_for_figures(tried, end - start), seed + index)
        measured = _candidates(problem, tried, before=end)
        if bound is not None:
            bounds.append(bound)
            measured = [bounded(one, bound, problem) for one in measured]
            if shortfall := beyond(problem, bound):
                doubts.append(f"{class_of(bound, problem)}: {shortfall}")
        candidates += measured
    front = pareto(candidates)
    best = preferred(problem, candidates)
    if best is not None:
        status, reason = best.status if problem.objective is Objective.CONSENSUS_DISTANCE else Status.FEASIBLE, ""
    elif len(doubts) == len(alphabets):
        status, reason = Status.INFEASIBLE, "; ".join(doubts)
    else:
        status, reason = Status.UNKNOWN, nearest(problem, candidates)
    return Front(
        candidates=front,
        best=best,
        status=status,
        seconds=clock.elapsed - begun,
        seed=seed,
        reason=reason,
        proof="; ".join(_proof(problem, bound) for bound in bounds),
        bounds=tuple(bounds),
    )


def _decided(problem: Problem, clock: Clock, until: float, seed: int) -> list[Schedule]:
    """Schedules from CP-SAT where a limit on groups or phases is asked for, which listed phases seldom keep."""
    limits, start = problem.limits, clock.position()
    if not limits.choose_groups or problem.cluster.num_workers <= MAX_ALL_PARTITIONS:
        return []
    return list(decided_schedules(problem, clock, start + DECIDED_SHARE * (until - start), seed=seed))


def _refine(problem: Problem, tried: AlphabetSearch, until: float, seed: int) -> None:
    """Refine the archives, which share the time."""
    for index, archive in enumerate(tried.archives):
        now, by_drift = tried.clock.position(), archive is tried.second
        end = now + (until - now) / (len(tried.archives) - index)
        tried.fill(archive, end)
        refine(
            tried.alphabet,
            problem,
            archive,
            clock=tried.clock,
            until=end,
            seed=seed,
            targets=[target for target in tried.asked if target.budget is not None or not by_drift],
            by_drift=by_drift,
        )


def impossible(problem: Problem) -> str | None:
    """Why no schedule can meet the limits, with the nearest possible thing; None if nothing is known against it."""
    limits, least = problem.limits, crossing_bound(problem)
    if limits.max_communication is not None and not limits.allow_communication(least):
        return (
            f"max_communication: {limits.max_communication:.6g} s per step; the nodes must meet at least once in "
            f"{limits.max_period} rounds of {largest_pace(problem)} step(s), and one pair across nodes then costs "
            f"{least:.6g} s per step (crossing bound, for all schedules of such rounds); allow that, or a longer period"
        )
    return None


def beyond(problem: Problem, bound: DualBound) -> str | None:
    """Why the two limits together are out of reach of one class of schedules, by the age bound."""
    budget, value = problem.limits.max_communication, problem.most_consensus_distance
    if budget is None or value is None or up_to(value) >= bound.at(up_to(budget)):
        return None
    return (
        f"max_consensus_distance: {value:.6g} within {budget:.6g} s per step is impossible (age bound); consensus "
        f"distance {bound.at(budget):.6g} or more is possible there, or {bound.budget_for(value):.6g} s or more for "
        "that value"
    )


def alphabets_of(
    problem: Problem, seed: int, expired: Callable[[], bool], clock: Clock | None = None
) -> list[Alphabet]:
    """Rules for even clusters, otherwise explicit phases, one alphabet per choice of paces; none for too many workers.

    Explicit phases come second on even clusters where a hint cannot be spelled in rules. The first alphabet is there
    however little time there is.
    """
    alphabets: list[Alphabet] = []
    if is_even(problem.cluster) and problem.paces is None:
        alphabets.append(rule_alphabet(problem, node_radices(problem.cluster)))
        if clock is not None:
            clock.charge(PER_RULE * len(alphabets[0]))
        if all(hint.rule(by_node=True) is not None for hint in problem.hints):
            return alphabets
    if problem.cluster.num_workers > MAX_EXPLICIT_WORKERS:
        return alphabets
    for pace in problem.paces or derived_paces(problem.cluster):
        if not alphabets or not expired():
            alphabets.append(explicit_alphabet(problem, pace, seed=seed, expired=expired, clock=clock))
    return alphabets


def _too_large(problem: Problem) -> str:
    return (
        f"{problem.cluster.num_workers} workers on nodes that differ: explicit groups are searched up to "
        f"{MAX_EXPLICIT_WORKERS} workers; the catalogue's rules were measured"
    )


def _proof(problem: Problem, bound: DualBound) -> str:
    """What the bound covers and, for a limit on consensus distance, the communication that it proves to be needed."""
    text = f"{class_of(bound, problem)}: noise of age up to {bound.depth} counted"
    value = problem.most_consensus_distance
    if value is None:
        return text
    return f"{text}; consensus distance {value:.6g} needs {1e3 * bound.budget_for(value):.4g} ms per step or more"


def _bound(problem: Problem, tried: AlphabetSearch, until: float) -> DualBound | None:
    """The age bound over the phases of a complete alphabet.

    It is made tight at the communication that is asked for, or that the least found for the asked consensus distance
    takes.
    """
    limits, clock = problem.limits, tried.clock
    if clock.passed(until):
        return None
    budgets = [] if limits.max_communication is None else [limits.max_communication]
    value = problem.most_consensus_distance
    cheapest = None if value is None else tried.archive.cheapest_below(value)
    if cheapest is not None:
        budgets.append(cheapest[1])
    return dual_bound(
        tried.alphabet,
        lambda: clock.passed(until),
        budgets=budgets,
        affordable=lambda work: clock.fits(work, until),
    )


def _work_of(alphabet: Alphabet, period: int) -> float:
    """Nominal seconds of the figures of one candidate."""
    dense = 0 if alphabet.radices is not None else alphabet.cluster.num_workers**3 * period
    return PER_CANDIDATE + PER_ENTRY * dense


def _kept_for_figures(tried: AlphabetSearch, span: float) -> float:
    """What of the time is kept for figures: those of one candidate are tried, the others take about as long."""
    front = tried.archive.front()
    if not front:
        return 0.0
    clock, start = tried.clock, tried.clock.position()
    longest = max((entry[2] for entry in front), key=len)
    if clock.effort is None and not clock.passed(start + REPORT_SHARE * span):
        candidate(tried.problem, tried.alphabet, longest)
        each = clock.position() - start
    else:
        each = _work_of(tried.alphabet, len(longest))
    return min(REPORT_SHARE * span, 1.2 * each * min(MAX_REPORTED, len(front)))


def _candidates(problem: Problem, tried: AlphabetSearch, *, before: float) -> list[Candidate]:
    """The archives' fronts with their figures recomputed by `topo`, which the search does not share code with.

    What was asked for comes first, then the best at what each hint communicates, then those on the front's lower convex
    hull and the rest of it (`scattered`), until `before`.
    """
    alphabet, clock = tried.alphabet, tried.clock
    budget, value = problem.limits.max_communication, problem.most_consensus_distance
    allowed = within_limits(alphabet, problem.limits)
    result: list[Candidate] = []
    seen: set[Indices] = set()
    for archive in tried.archives:
        asked = [
            archive.best_within(np.inf if budget is None else budget),
            archive.cheapest_below(np.inf if value is None else value),
        ]
        hinted = [archive.best_within(budget) for budget in budgets_of(problem)]
        for entry in (*asked, *_spread(hinted), *scattered(archive.front(), lambda entry: (entry[1], entry[0]))):
            if entry is None or len(result) >= MAX_REPORTED:
                continue
            indices = primitive(entry[2], problem.limits.min_period)
            if indices in seen or (allowed is not None and not allowed(indices)):
                continue
            work = _work_of(alphabet, len(indices))
            if result and not clock.fits(work, before):
                return result
            seen.add(indices)
            result.append(candidate(problem, alphabet, indices))
            clock.charge(work)
    return result


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
