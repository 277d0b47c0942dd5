"""Candidates: periods as schedules with figures from `topo`, and the choice among them.

The choice: those that nothing else beats, the one that the objective prefers, the nearest miss where none will do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from partreduce.schedulers.synthesis.age_bound import DualBound
from partreduce.schedulers.synthesis.alphabet import Alphabet, Indices
from partreduce.schedulers.synthesis.problem import Candidate, Objective, Problem, Status
from partreduce.topo import figures
from partreduce.topo.arithmetic.pareto import non_dominated
from partreduce.topo.timing.cost import communication
from partreduce.topo.timing.event_graph import cycle_time

TOLERANCE = 5e-5
"""A consensus distance within this of its proved bound is called optimal (the bound's tables are float32)."""


LOCKSTEP_CLASS = "in lockstep"
"""How the class of a bound says that no averaging is late; whoever converts the bound says otherwise in its place."""


def candidate(problem: Problem, alphabet: Alphabet, indices: Indices) -> Candidate:
    """One schedule with its figures from `topo`."""
    schedule = alphabet.schedule(indices, "synthesised")
    cost = communication(schedule, problem.hardware, model_bytes=problem.size, form=problem.form).per_step
    value = float(figures.consensus_distance(schedule))
    drift = figures.drift(schedule, problem.push)
    name = f"synthesised-{len(indices)}-phases-{1e3 * cost:.4g}ms"
    return Candidate(
        schedule=alphabet.schedule(indices, name),
        name=name,
        communication_seconds_per_step=cost,
        consensus_distance=value,
        drift=float(drift),
        step_seconds=cycle_time(schedule, problem.hardware, model_bytes=problem.size, form=problem.form).per_step,
        period=len(indices),
        status=Status.FEASIBLE,
    )


def bounded(one: Candidate, bound: DualBound, problem: Problem) -> Candidate:
    """The same candidate with the bound at its own communication; optimal where it meets it.

    The bound speaks of one class of schedules and of no other: of the form whose costs were counted, and in lockstep.
    """
    floor = bound.at(one.communication_seconds_per_step)
    status = Status.OPTIMAL if one.consensus_distance <= floor + TOLERANCE else Status.FEASIBLE
    return replace(one, bound=floor, bound_class=class_of(bound, problem), status=status)


def class_of(bound: DualBound, problem: Problem) -> str:
    """The schedules that a bound covers, in words: another form or a late averaging may do better."""
    return f"{bound.described}, of any period, {LOCKSTEP_CLASS}, with sums in the form {problem.form}"


def primitive(indices: Indices, least: int = 1) -> Indices:
    """The shortest period, of at least `least` phases, whose repetition is the given one."""
    for length in range(least, len(indices)):
        if len(indices) % length == 0 and indices == indices[:length] * (len(indices) // length):
            return indices[:length]
    return indices


def pareto(candidates: list[Candidate]) -> tuple[Candidate, ...]:
    """Candidates that none beats in communication, consensus distance, drift and step time, by communication."""

    def costs(one: Candidate) -> tuple[float, float, float, float]:
        return one.communication_seconds_per_step, one.consensus_distance, one.drift, one.step_seconds

    return tuple(non_dominated(candidates, costs, lambda one: (one.period,)))


def preferred(problem: Problem, candidates: list[Candidate]) -> Candidate | None:
    """The candidate that the objective likes best within the limits."""
    limits = problem.limits
    fitting = [
        c
        for c in candidates
        if limits.allow_communication(c.communication_seconds_per_step)
        and limits.allow_consensus_distance(c.consensus_distance)
    ]
    measures: dict[Objective, Callable[[Candidate], float]] = {
        Objective.CONSENSUS_DISTANCE: lambda c: c.consensus_distance,
        Objective.COMMUNICATION: lambda c: c.communication_seconds_per_step,
        Objective.DRIFT: lambda c: c.drift,
    }
    measure = measures[problem.objective]
    return min(fitting, key=lambda c: (round(measure(c), 9), c.period), default=None)


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
