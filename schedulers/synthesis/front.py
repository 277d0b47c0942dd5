"""Entry: from a problem to a Pareto front of schedules with proved bounds."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from preduce.schedulers.synthesis.age_bound import DualBound, dual_bound
from preduce.schedulers.synthesis.alphabet_search import SearchStage, search_alphabet, targets_of, within_limits
from preduce.schedulers.synthesis.candidates import bounded, candidate, class_of, nearest, pareto, preferred, primitive
from preduce.schedulers.synthesis.cluster_shape import crossing_bound, derived_paces, is_even, node_radices
from preduce.schedulers.synthesis.explicit_alphabet import explicit_alphabet
from preduce.schedulers.synthesis.hints import budgets_of
from preduce.schedulers.synthesis.local_search import Budget
from preduce.schedulers.synthesis.problem import Front, Objective, Status
from preduce.schedulers.synthesis.profile_bound import profile_bound
from preduce.schedulers.synthesis.refinement import refine
from preduce.schedulers.synthesis.rule_alphabet import rule_alphabet
from preduce.topo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from preduce.schedulers.synthesis.alphabet import Alphabet, Indices
    from preduce.schedulers.synthesis.archive import Archive
    from preduce.schedulers.synthesis.problem import Candidate, Problem

T = TypeVar("T")

SEARCH_SHARE = 0.18
"""Part of the time that goes into the search of an alphabet."""
REFINE_SHARE = 0.44
"""Part of the time that goes into refining what it found; the rest is for figures and for bounds."""
REPORT_SHARE = 0.18
"""Part of the time after which no more of what was found gets its figures."""
MAX_REPORTED = 60
"""Candidates of one alphabet that get their figures."""


def synthesise(
    problem: Problem,
    *,
    time_limit: float,
    seed: int = 0,
    progress: Callable[[SearchStage], None] | None = None,
) -> Front:
    """Search for the schedules of a cluster that trade communication against disagreement (or drift) best.

    Equally equipped, equally sized nodes get rules; others get explicit groups, with each worker's pace chosen from
    `problem.paces` or derived from the slowdowns. The time limit is kept (the last evaluation may overrun it a little).

    Args:
        problem: cluster, objective and limits.
        time_limit: seconds, > 0.
        seed: the same seed tries the same candidates in the same order; how many depends on the machine's speed.
        progress: called now and then; nothing is ever printed.

    Returns:
        The front. Its status is infeasible only with a named bound in `reason`, unknown where the time ran out first.

    Raises:
        InputError: a time limit that is not positive.
        MissingFeatureError: OR-Tools is not installed.
    """
    if not time_limit > 0:
        raise InputError(f"time_limit: is {time_limit}; give seconds > 0")
    start = time.monotonic()
    if reason := impossible(problem):
        return _empty(reason, start, seed)
    alphabets = alphabets_of(problem, seed, lambda: time.monotonic() > start + 0.15 * time_limit)
    candidates: list[Candidate] = []
    proofs: list[str] = []
    doubts: list[str] = []
    for index, alphabet in enumerate(alphabets):
        left = (start + time_limit - time.monotonic()) / (len(alphabets) - index)
        begun = time.monotonic()
        archives = search_alphabet(
            alphabet, problem, seconds=max(0.05, SEARCH_SHARE * left), seed=seed + index, progress=progress
        )
        refined_by = begun + (SEARCH_SHARE + REFINE_SHARE) * left
        wider = _refined(problem, alphabet, archives, refined_by, seed + index)
        # The figures of what was found come before the bound: without time for both, an answer is worth more.
        measured = _candidates(problem, wider, archives, before=refined_by + REPORT_SHARE * left)
        bound = _bound(problem, alphabet, archives[0], begun + left)
        if bound is not None:
            proofs.append(_proof(problem, bound))
            if shortfall := beyond(problem, bound):
                doubts.append(f"{bound.described}: {shortfall}")
        candidates += measured if bound is None else [bounded(one, bound, problem) for one in measured]
    front = pareto(candidates)
    best = preferred(problem, candidates)
    if best is not None:
        status, reason = best.status if problem.objective is Objective.DISAGREEMENT else Status.FEASIBLE, ""
    elif len(doubts) == len(alphabets):
        status, reason = Status.INFEASIBLE, doubts[0]
    else:
        status, reason = Status.UNKNOWN, nearest(problem, candidates)
    seconds = time.monotonic() - start
    proof = "; ".join(proofs)
    return Front(candidates=front, best=best, status=status, seconds=seconds, seed=seed, reason=reason, proof=proof)


def _refined(problem: Problem, alphabet: Alphabet, archives: list[Archive], until: float, seed: int) -> Alphabet:
    """The alphabet with the phases that refining the archives added; the time is shared by them."""
    asked, _ = targets_of(problem, float(alphabet.costs.max()) / alphabet.space.instants)
    for index, archive in enumerate(archives):
        now, by_drift = time.monotonic(), index > 0
        end = now + (until - now) / (len(archives) - index)
        budget = Budget(expired=partial(_passed, end))
        targets = [target for target in asked if target.budget is not None or not by_drift]
        alphabet = refine(
            alphabet, problem, archive, budget=budget, seed=seed + index, targets=targets, by_drift=by_drift
        )
    return alphabet


def _passed(end: float) -> bool:
    return time.monotonic() > end


def impossible(problem: Problem) -> str | None:
    """Why no schedule can meet the limits, with the nearest possible thing; None if nothing is known against it."""
    limits, least = problem.limits, crossing_bound(problem)
    if limits.max_communication is not None and limits.max_communication < least:
        return (
            f"max_communication: {limits.max_communication:.6g} s per step; the nodes must meet at least once in "
            f"{limits.max_period} phases, and one pair across nodes costs {least:.6g} s per step (crossing bound); "
            f"allow that, or a longer period"
        )
    return None


def beyond(problem: Problem, bound: DualBound) -> str | None:
    """Why the two limits together are out of reach of one class of schedules, by the age bound."""
    budget, value = problem.limits.max_communication, problem.limits.max_disagreement
    if budget is None or value is None or value >= bound.at(budget):
        return None
    return (
        f"max_disagreement: {value:.6g} within {budget:.6g} s per step is impossible (age bound); disagreement "
        f"{bound.at(budget):.6g} or more is possible there, or {bound.budget_for(value):.6g} s or more for that value"
    )


def alphabets_of(problem: Problem, seed: int, expired: Callable[[], bool]) -> list[Alphabet]:
    """Rules for even clusters, otherwise explicit phases, one alphabet per choice of paces."""
    if is_even(problem.cluster) and problem.paces is None:
        return [rule_alphabet(problem, node_radices(problem.cluster))]
    return [
        explicit_alphabet(problem, pace, seed=seed, expired=expired)
        for pace in problem.paces or derived_paces(problem.cluster)
    ]


def _proof(problem: Problem, bound: DualBound) -> str:
    """What the bound covers and, for a limit on disagreement, the communication that it proves to be needed."""
    text = f"{class_of(bound, problem)}: noise of age up to {bound.depth} counted"
    value = problem.limits.max_disagreement
    if value is None:
        return text
    return f"{text}; disagreement {value:.6g} needs {1e3 * bound.budget_for(value):.4g} ms per step or more"


def _bound(problem: Problem, alphabet: Alphabet, archive: Archive, until: float) -> DualBound | None:
    """The profile bound for all plain means and, for complete alphabets, the age bound over their phases.

    It is made tight at the communication that is asked for, or that the least found for the asked disagreement takes.
    """
    limits = problem.limits
    budgets = [] if limits.max_communication is None else [limits.max_communication]
    cheapest = None if limits.max_disagreement is None else archive.cheapest_below(limits.max_disagreement)
    if cheapest is not None:
        budgets.append(cheapest[1])
    early = until - 0.3 * (until - time.monotonic())
    pace = alphabet.pace if isinstance(alphabet.pace, tuple) else (alphabet.pace,) * problem.cluster.num_workers
    narrow = dual_bound(alphabet, lambda: time.monotonic() > early, budgets=budgets)
    wide = profile_bound(problem, pace, lambda: time.monotonic() > until, budgets=budgets)
    return wide if narrow is None else narrow.with_lines_of(wide)


def _candidates(problem: Problem, alphabet: Alphabet, archives: list[Archive], *, before: float) -> list[Candidate]:
    """The archives' fronts with their figures recomputed by `topo`, which the search does not share code with.

    What was asked for comes first, then the best at what each hint communicates, then entries spread over the front,
    ever finer, until `before`.
    """
    allowed = within_limits(alphabet, problem.limits)
    result: list[Candidate] = []
    seen: set[Indices] = set()
    for archive in archives:
        asked = [
            archive.best_within(problem.limits.max_communication or np.inf),
            archive.cheapest_below(problem.limits.max_disagreement or np.inf),
        ]
        hinted = [archive.best_within(budget) for budget in budgets_of(problem)]
        for entry in (*asked, *scattered(hinted), *scattered(archive.front())):
            if entry is None or len(result) >= MAX_REPORTED:
                continue
            indices = primitive(entry[2], problem.limits.min_period)
            if indices in seen or (allowed is not None and not allowed(indices)):
                continue
            if result and time.monotonic() > before:
                return result
            seen.add(indices)
            result.append(candidate(problem, alphabet, indices))
    return result


def scattered(front: list[T]) -> list[T]:
    """The same entries, ordered so that every beginning of the list is spread over the whole front."""
    order: list[int] = []
    step = 1 << max(0, len(front) - 1).bit_length()
    while step:
        order += [index for index in range(0, len(front), step) if index not in order]
        step //= 2
    return [front[index] for index in order]


def _empty(reason: str, start: float, seed: int) -> Front:
    return Front(
        candidates=(), best=None, status=Status.INFEASIBLE, seconds=time.monotonic() - start, seed=seed, reason=reason
    )
