"""User-written phase functions: expanded over a declared period, and the expansion is what is proved and exported.

A file is executed in processes of its own (`verify.function_process`), never in this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Group, Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, Static
from partreduce.verify.asked_function import place_of_function
from partreduce.verify.base import Claim, Proof, Status, not_proved, refuted, some
from partreduce.verify.prove import prove

NAME = "membership"
MAX_EVALUATIONS = 20_000_000


@dataclass(frozen=True, slots=True)
class FunctionProof:
    """The proof about the expansion of a function, the schedule to export (None if members disagree), and the scope."""

    proof: Proof
    schedule: Schedule | None
    scope: str


def prove_function_file(place: str, cluster: Cluster, period: int) -> FunctionProof:
    """Expand the function `group_of(worker, step, cluster)` named by `file.py:name` over a period, and prove that.

    It returns the group of a worker in a step, itself included (any iterable of ranks, or a Group with a relax factor),
    or None if the worker skips. Every member is asked; members that answer differently refute the claim `membership`. A
    second period is asked as well, and must repeat the first. All is asked in two processes, once in any order.

    An answer that depends on the hash seed, which is drawn for each process, or on what was asked before refutes the
    claim `membership`: workers are processes too, and disagree.

    Raises:
        InputError: the function fails, answers with something else than ranks, or is asked too often; the processes
            end early, run for too long or need too much memory.
    """
    from partreduce.verify.function_process import answers_in_processes

    check_size(cluster, period)
    _, name = place_of_function(place)
    (seed, one), (other, two) = answers_in_processes(place, cluster, period)
    for step, pair in enumerate(zip(one, two, strict=True)):
        for worker, (first, second) in enumerate(zip(*pair, strict=True)):
            if first != second:
                text = (
                    f"in step {step} worker {worker} computes {first or 'no group'} with PYTHONHASHSEED={seed}, asked "
                    f"in order, and {second or 'no group'} with {other}, asked in an order drawn at random; every "
                    "worker is a process with a seed of its own, and asks for its own groups only."
                )
                return _without_schedule(name, refuted(NAME, text, {"step": step, "worker": worker}), "")
    asked = (
        f" They were asked in two processes with different hash seeds, {seed} and {other}, the second in an order of "
        "steps and workers drawn at random, and answered alike. A function that takes over the process in which it is "
        "asked is not guarded against."
    )
    return _prove(one, cluster, period, name, asked)


def check_size(cluster: Cluster, period: int) -> None:
    """Refuse a period without steps and more questions than there is time for."""
    if period < 1:
        raise InputError(f"period: is {period}; a period has at least 1 step")
    questions = 2 * period * cluster.num_workers
    if questions > MAX_EVALUATIONS:
        raise InputError(
            f"period {period} with {cluster.num_workers} workers: {questions} evaluations; at most {MAX_EVALUATIONS}"
        )


def _prove(
    steps: Iterable[Sequence[Group | None]], cluster: Cluster, period: int, name: str, also: str
) -> FunctionProof:
    """The proof from the answers of all workers, step by step over two periods."""
    n = cluster.num_workers
    scope = (
        f"Steps 0 to {2 * period - 1} of exactly this cluster of {n} workers were asked of every worker; that later "
        f"steps repeat with period {period}, and what the function says on other clusters, is not proved. What runs "
        f"should be the exported schedule.{also}"
    )
    phases: list[Phase] = []
    for step, answers in zip(range(2 * period), steps, strict=False):
        wrong = _members_differ(answers, step) or _not_periodic(answers, phases, step, period)
        if wrong is not None:
            return _without_schedule(name, wrong, scope)
        if step < period:
            groups = {answer.members: answer for answer in answers if answer is not None}
            phases.append(Phase.from_groups(n, groups.values()))
    schedule = Schedule(name, cluster, Static(phases=GroupPhases(tuple(phases))))
    found = prove(schedule)
    text = f"All {n} workers were asked in all {2 * period} steps, and the members of each group give the same answer. "
    asked = Claim(NAME, Status.PROVED, text + scope, {"scope": scope})
    proof = replace(found, name=name, claims=(asked, *found.claims), essential=found.essential | {NAME})
    return FunctionProof(proof, schedule, scope)


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
