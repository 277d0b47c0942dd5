"""User-written phase functions: expanded over a declared period, and the expansion is what is proved and exported."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from preduce.topo.errors import InputError
from preduce.topo.phase import Group, Phase
from preduce.topo.schedule import Schedule
from preduce.topo.strategies import GroupPhases, Static
from preduce.verify.base import Claim, Proof, Status, not_proved, refuted, some
from preduce.verify.prove import prove

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from preduce.topo.cluster import Cluster

    PhaseFunction = Callable[[int, int, Cluster], Group | Iterable[int] | None]

NAME = "membership"
MAX_EVALUATIONS = 20_000_000


@dataclass(frozen=True, slots=True)
class FunctionProof:
    """The proof about the expansion of a function, the schedule to export (None if members disagree), and the scope."""

    proof: Proof
    schedule: Schedule | None
    scope: str


def prove_function(function: PhaseFunction, cluster: Cluster, period: int, *, name: str = "function") -> FunctionProof:
    """Expand `group_of(worker, step, cluster)` over the declared period and prove the expansion.

    The function returns the group of a worker in a step, itself included (any iterable of ranks, or a Group with a
    relax factor), or None if the worker skips. Every member is asked; members that answer differently refute the
    claim `membership`. A second period is asked as well, and must repeat the first.

    Raises:
        InputError: the function fails, answers with something else than ranks, or is asked too often.
    """
    if period < 1:
        raise InputError(f"period: is {period}; a period has at least 1 step")
    n = cluster.num_workers
    if 2 * period * n > MAX_EVALUATIONS:
        raise InputError(f"period {period} with {n} workers: {2 * period * n} evaluations; at most {MAX_EVALUATIONS}")
    scope = (
        f"Steps 0 to {2 * period - 1} of exactly this cluster of {n} workers were asked of every worker; that later "
        f"steps repeat with period {period}, and what the function says on other clusters, is not proved. What runs "
        "should be the exported schedule."
    )
    phases: list[Phase] = []
    for step in range(2 * period):
        answers = [_ask(function, worker, step, cluster) for worker in range(n)]
        wrong = _disagreement(answers, step) or _not_periodic(answers, phases, step, period)
        if wrong is not None:
            rest = (
                not_proved(other, "rests on membership.") for other in ("conflict-free", "consensus", "deadlock-free")
            )
            return FunctionProof(Proof(name, (wrong, *rest), {}), None, scope)
        if step < period:
            groups = {answer.members: answer for answer in answers if answer is not None}
            phases.append(Phase.from_groups(n, groups.values()))
    schedule = Schedule(name, cluster, Static(phases=GroupPhases(tuple(phases))))
    found = prove(schedule)
    text = f"All {n} workers were asked in all {2 * period} steps, and the members of each group give the same answer. "
    asked = Claim(NAME, Status.PROVED, text + scope, {"scope": scope})
    return FunctionProof(Proof(name, (asked, *found.claims), found.certificate, found.budgets), schedule, scope)


def _ask(function: PhaseFunction, worker: int, step: int, cluster: Cluster) -> Group | None:
    place = f"group_of(worker={worker}, step={step})"
    try:
        answer = function(worker, step, cluster)
        if answer is None or isinstance(answer, Group):
            group = answer and Group(tuple(sorted(answer.members)), answer.relax)
        else:
            group = Group(tuple(sorted(answer)))
    except Exception as error:  # noqa: BLE001 - user code may raise anything; it must become one sentence
        raise InputError(f"{place}: raised {type(error).__name__}: {error}") from None
    if group is None or group.members == (worker,) or not group.members:
        return None
    if any(type(member) is not int for member in group.members):
        raise InputError(f"{place}: answered {group.members!r}; a group holds ranks as plain integers")
    if (
        len(set(group.members)) != len(group.members)
        or not 0 <= group.members[0] <= group.members[-1] < cluster.num_workers
    ):
        raise InputError(f"{place}: answered {group}; a group holds ranks 0..{cluster.num_workers - 1}, each once")
    return group


def _disagreement(answers: list[Group | None], step: int) -> Claim | None:
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


def _not_periodic(answers: list[Group | None], phases: list[Phase], step: int, period: int) -> Claim | None:
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


def load_function(place: str) -> PhaseFunction:
    """The function named by `file.py:name`. The file is executed, so it must be trusted like any script.

    Raises:
        InputError: no such file or function, or a file that fails when executed.
    """
    file, colon, name = place.rpartition(":")
    path = Path(file)
    if not colon or not name.isidentifier() or not path.is_file():
        raise InputError(f"{place!r}: not found; name a function as FILE.py:NAME")
    spec = importlib.util.spec_from_file_location(f"preduce_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{file}: is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001 - user code may raise anything; it must become one sentence
        raise InputError(f"{file}: raised {type(error).__name__} when executed: {error}") from None
    function: PhaseFunction | None = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{file}: has no function {name!r}")
    return function
