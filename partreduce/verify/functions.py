"""User-written phase functions: expanded over a declared period, and the expansion is what is proved and exported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Group, Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, StaticGroups
from partreduce.verify.base import Claim, Proof, Status, not_proved, refuted, some
from partreduce.verify.prove import prove

PhaseFunction = Callable[[int, int, Cluster], Group | Iterable[int] | None]

NAME = "membership"
MAX_EVALUATIONS = 20_000_000


@dataclass(frozen=True, slots=True)
class FunctionProof:
    """The proof about the expansion of a function, the schedule to export (None if members disagree), and the scope."""

    proof: Proof
    schedule: Schedule | None
    scope: str


def prove_function(function: PhaseFunction, cluster: Cluster, period: int, name: str) -> FunctionProof:
    """Expand a function `group_of(worker, step, cluster)` over a period, and prove the expansion.

    The function returns the group of a worker in a step, itself included (any iterable of ranks, or a Group with a
    relaxation), or None if the worker skips. Every member is asked; members that answer differently refute the claim
    `membership`. A second period is asked as well, and must repeat the first.

    Raises:
        InputError: the function fails, answers with something else than ranks, or is asked too often.
    """
    check_size(cluster, period)
    n = cluster.num_workers
    scope = (
        f"Steps 0 to {2 * period - 1} of exactly this cluster of {n} workers were asked of every worker; that later "
        f"steps repeat with period {period}, and what the function says on other clusters, is not proved. What runs "
        "should be the exported schedule."
    )
    phases: list[Phase] = []
    for step in range(2 * period):
        answers = [ask(function, worker, step, cluster) for worker in range(n)]
        wrong = _members_differ(answers, step) or _not_periodic(answers, phases, step, period)
        if wrong is not None:
            return _without_schedule(name, wrong, scope)
        if step < period:
            groups = {answer.members: answer for answer in answers if answer is not None}
            phases.append(Phase.from_groups(n, groups.values()))
    schedule = Schedule(name, cluster, StaticGroups(phases=GroupPhases(tuple(phases))))
    found = prove(schedule)
    text = f"All {n} workers were asked in all {2 * period} steps, and the members of each group give the same answer. "
    asked = Claim(NAME, Status.PROVED, text + scope, {"scope": scope})
    proof = replace(found, name=name, claims=(asked, *found.claims), essential=found.essential | {NAME})
    return FunctionProof(proof, schedule, scope)


def check_size(cluster: Cluster, period: int) -> None:
    """Refuse a period without steps and more questions than there is time for."""
    if period < 1:
        raise InputError(f"period: is {period}; a period has at least 1 step")
    questions = 2 * period * cluster.num_workers
    if questions > MAX_EVALUATIONS:
        raise InputError(
            f"period {period} with {cluster.num_workers} workers: {questions} evaluations; at most {MAX_EVALUATIONS}"
        )


def ask(function: PhaseFunction, worker: int, step: int, cluster: Cluster) -> Group | None:
    """What the function answers, as a Group with ascending members.

    Raises:
        InputError: it fails, ends the process, or answers with something else than ranks.
    """
    place = f"group_of(worker={worker}, step={step})"
    try:
        answer = function(worker, step, cluster)
        if answer is None or isinstance(answer, Group):
            group = answer and Group(tuple(sorted(answer.members)), answer.relaxation)
        else:
            group = Group(tuple(sorted(answer)))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
        text = " ".join(str(error).split())[:300]
        raise InputError(f"{place}: raised {f'{type(error).__name__}: {text}'.rstrip(': ')}") from None
    if group is None or group.members == (worker,) or not group.members:
        return None
    if any(type(member) is not int for member in group.members):
        shown = " ".join(repr(group.members).split())[:200]
        raise InputError(f"{place}: answered {shown}; a group holds ranks as plain integers")
    if type(group.relaxation) is not Fraction:
        raise InputError(f"{place}: answered relaxation {group.relaxation!r:.100}; it is a Fraction")
    if (
        len(set(group.members)) != len(group.members)
        or not 0 <= group.members[0] <= group.members[-1] < cluster.num_workers
    ):
        raise InputError(f"{place}: answered {group}; a group holds ranks 0..{cluster.num_workers - 1}, each once")
    return group


def _without_schedule(name: str, wrong: Claim, scope: str) -> FunctionProof:
    """The refuted claim, and the others that rest on it."""
    rest = tuple(not_proved(other, "rests on membership.") for other in ("conflict-free", "consensus", "deadlock-free"))
    return FunctionProof(Proof(name, (wrong, *rest), frozenset({NAME}), {}), None, scope)


def _members_differ(answers: Sequence[Group | None], step: int) -> Claim | None:
    for worker, group in enumerate(answers):
        if group is None:
            continue
        if worker not in group.members:
            text = f"in step {step} worker {worker} computes the group {some(group.members)}, in which it is not."
            return refuted(NAME, text, {"step": step, "worker": worker, "group": list(group.members)})
        for member in group.members:
            other = answers[member]
            if other != group:
                answer = "that it skips" if other is None else f"the group {other}"
                text = f"in step {step} worker {worker} computes the group {group}, but its member {member} computes "
                witness = {"step": step, "worker": worker, "group": list(group.members), "member": member}
                witness["members_group"] = None if other is None else list(other.members)
                return refuted(NAME, text + answer + ".", witness)
    return None


def _not_periodic(answers: Sequence[Group | None], phases: list[Phase], step: int, period: int) -> Claim | None:
    if step < period:
        return None
    phase = phases[step - period]
    labels = phase.labels()
    for worker, group in enumerate(answers):
        before = phase[int(labels[worker])] if labels[worker] >= 0 else None
        if before != group:
            text = f"worker {worker} computes {before or 'no group'} in step {step - period} but {group or 'no group'} "
            text += f"in step {step}, so the declared period {period} is wrong."
            return refuted(NAME, text, {"worker": worker, "step": step, "period": period})
    return None
