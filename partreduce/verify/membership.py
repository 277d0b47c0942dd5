"""Prove that a worker has at most one group per phase (`conflict-free`), the same for all members (`membership`).

The checker finds workers in two groups (`verify/checker/groups.py`, with the proof). For membership the prover calls
`Schedule.group_of`, the function that a worker evaluates at run time. If all groups of a period together are small
enough, it is called for every worker in every phase, which proves the claim for this cluster. Beyond that it is called
for random workers, which is no proof: the claim stays open, with the number of results that matched their blocks. The
definition used for the comparison shares no code with the function under test.

A user's function is expanded over a declared period, and the expansion is proved and exported.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.phase import ONE, Group, Phase
from partreduce.topo.rule import Block, RulePhase, RuleView, nodes_of_group
from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, Status, not_proved, proved, refuted, some
from partreduce.verify.checker.groups import EVALUATED, conflict, members_of_answers
from partreduce.verify.contraction import rule_view
from partreduce.verify.facts import ScheduleFacts

Expected = tuple[tuple[int, ...], Fraction] | None

NAME = "membership"
SAMPLED = 2**19
"""Most group members that are computed, in all, to test random workers."""

RULE = "each worker is in at most one group of a phase"
OF_RULES = (
    "For every number of nodes with {digits} digits: in each phase a local rank is in at most one block, and two "
    "workers of one block share a group exactly if their nodes agree on the digits that the block does not average "
    "over. This is an equivalence, so the groups are disjoint and their members agree."
)
OF_GROUPS = (
    "In each of the {period} phases no worker occurs twice in the list of groups. Every worker reads its group from "
    "this list, so all members of a group agree on it."
)


def prove_conflict_free(facts: ScheduleFacts) -> Claim:
    """Prove or refute that groups of one phase never share a worker."""
    schedule = facts.schedule.meetings
    rule, found = rule_view(schedule), conflict(facts.read)
    if found is None:
        text = OF_GROUPS.format(period=schedule.period) if rule is None else OF_RULES.format(digits=rule.num_digits)
        return Claim("conflict-free", Status.FACT, text, numbers={})
    phase, worker, both = found
    groups, blocks, place = [list(average.members) for average in both], {}, f"in phase {phase}"
    if rule is not None:
        listed = [Block(tuple(members), tuple(across), relaxation) for members, across, relaxation in both]
        groups, blocks = [_members(rule, block) for block in listed], {"blocks": [str(block) for block in listed]}
        place += f" the blocks {listed[0]} and {listed[1]} share local rank {worker}:"
    text = f"{place} worker {worker} is in group {some(groups[0])} and in group {some(groups[1])}; {RULE}."
    witness: dict[str, Any] = {"phase": phase, "worker": worker, "groups": groups, **blocks, "rule": RULE}
    return refuted("conflict-free", text, witness)


def _members(rule: RuleView, block: Block) -> list[int]:
    """Return the ranks in the group that a block of the rule (local ranks across node digits) forms with node 0.

    On a huge cluster they are truncated: a few members confirm the conflict.
    """
    nodes = nodes_of_group(0, rule.radices, block.across)[:64]
    return sorted(node * rule.workers_per_node + rank for node in nodes for rank in block.local)


def prove_membership(schedule: Schedule) -> Claim | None:
    """Prove or refute that `Schedule.group_of` agrees with the rule's blocks; None for explicit schedules.

    A block of a rule is a set of local ranks that average on nodes which differ only in some digits (`topo.rule`).
    """
    rule = rule_view(schedule)
    if rule is None:
        return None
    if rule.shared_rank() is not None:
        return not_proved(NAME, "two blocks of one phase share a local rank.")
    n, everyone = schedule.num_workers, asks_everyone(schedule)
    wrong, digest = _ask_everyone(schedule, rule) if everyone else (None, "")
    evaluated = 0
    for worker, round_, right in _draw(schedule, rule):
        if wrong is not None:
            break
        evaluated += 1
        answer = _answer(schedule, worker, round_)
        wrong = None if answer == right else _wrong(round_, worker, answered=answer, block=right)
    if wrong is not None:
        text = f"in round {wrong['round']} worker {wrong['worker']} computes another group than its block's."
        return refuted(NAME, text, wrong)
    drawn = f"{evaluated} random workers were asked in random rounds"
    if not everyone:
        text = (
            f"the groups of all {n} workers are too long to evaluate: {drawn}, and each answered with the group of its "
            "block. That the others do so too is assumed of the installed code; conflict-free needs the blocks only."
        )
        return not_proved(NAME, text)
    text = (
        f"On this cluster: all {n} workers were asked in all {schedule.period} phases, and each answered with the "
        f"group of its block, the same for every member. Also, {drawn}, and answered as in the first period."
    )
    return proved(NAME, text, {"asked": n, "drawn": evaluated}, answers=digest)


def asks_everyone(schedule: Schedule) -> bool:
    """Return whether all groups of a rule's period are small enough, together, to evaluate `group_of` for everyone."""
    return members_of_answers(ScheduleFacts(schedule).read) <= EVALUATED


def expected_group(rule: RuleView, phase: RulePhase, worker: int) -> Expected:
    """Return the group of one worker, as members and relaxation; None if the worker skips the phase.

    It follows the definition of a rule's block: local ranks `local`, on nodes that agree outside the digits `across`.
    """
    node, local = divmod(worker, rule.workers_per_node)
    block = next((block for block in phase if local in block.local), None)
    if block is None or not block.makes_groups:
        return None
    own = []
    for radix in reversed(rule.radices):
        node, digit = divmod(node, radix)
        own.append(digit)
    choices = [range(radix) if d in block.across else (own[-1 - d],) for d, radix in enumerate(rule.radices)]
    starts = [0]
    for d, values in enumerate(choices):
        weight = rule.workers_per_node * prod(rule.radices[d + 1 :])
        starts = [start + value * weight for start, value in product(starts, values)]
    return tuple(start + rank for start, rank in product(starts, sorted(block.local))), block.relaxation


def _answer(schedule: Schedule, worker: int, round_: int) -> Expected:
    group = schedule.group_of(worker, round_)
    return None if group is None else (group.members, group.relaxation)


def _ask_everyone(schedule: Schedule, rule: RuleView) -> tuple[dict[str, Any] | None, str]:
    """Compare `group_of` with the rule's blocks, for every worker in every phase.

    Returns None and the answers' SHA-256, for the certificate, if all agree; else the first wrong answer and "".
    """
    text = hashlib.sha256()
    for t, phase in enumerate(rule.phases):
        due: dict[int, Expected] = {}
        for worker in range(schedule.num_workers):
            if worker not in due:
                # The definition is evaluated once per group: its groups are the classes of an equivalence.
                right = expected_group(rule, phase, worker)
                due.update(dict.fromkeys(right[0] if right is not None else (worker,), right))
            answer = _answer(schedule, worker, schedule.prologue + t)
            if answer != due[worker]:
                return _wrong(schedule.prologue + t, worker, answered=answer, block=due[worker]), ""
            text.update(b"-\n" if answer is None else b"%d %b\n" % (answer[0][0], str(answer[1]).encode()))
    return None, text.hexdigest()


def _draw(schedule: Schedule, rule: RuleView) -> Iterator[tuple[int, int, Expected]]:
    """Yield (worker, round, expected group) triples to test `group_of`, in rounds of the first and of later periods.

    A worker is drawn for each local rank of every block, first on the last node, then at random, and two in the
    prologue. Groups that would exceed SAMPLED members in all are left out.
    """
    draw, budget = random.Random(schedule.name), SAMPLED
    places = [(t, block, local) for t, phase in enumerate(rule.phases) for block in phase for local in block.local]
    draw.shuffle(places)
    for turn in range(4 * len(places)):
        t, block, local = places[turn % len(places)]
        cost = rule.span(block) * len(block.local) + 50
        if cost > budget:
            continue
        budget -= cost
        node = rule.num_nodes - 1 if turn < len(places) else draw.randrange(rule.num_nodes)
        worker = node * rule.workers_per_node + local
        later = schedule.period * draw.choice((0, 1, 12_345, 10**9))
        yield worker, schedule.prologue + t + later, expected_group(rule, rule.phases[t], worker)
    if schedule.prologue and schedule.num_workers < SAMPLED // 4:
        everyone = tuple(range(schedule.num_workers)), ONE
        for round_ in sorted({0, schedule.prologue - 1}):
            yield draw.randrange(schedule.num_workers), round_, everyone


def _wrong(round_: int, worker: int, **groups: Expected) -> dict[str, Any]:
    shown = {
        name: group and {"members": some(group[0]), "size": len(group[0]), "relaxation": str(group[1])}
        for name, group in groups.items()
    }
    return {"round": round_, "worker": worker, **shown}


PhaseFunction = Callable[[int, int, Cluster], Group | Iterable[int] | None]
"""A user's `group_of(worker, step, cluster)`."""
MAX_EVALUATIONS = 20_000_000


def expand(function: PhaseFunction, cluster: Cluster, period: int) -> list[Phase] | Claim:
    """Return the phases of a user's function over a period; a refuted claim if members differ or the period is wrong.

    The function is called for every member, and in a second period, which must repeat the first.

    Raises:
        InputError: the period is below 1, the function fails, returns other values than ranks, or would be called too
            often.
    """
    n = cluster.num_workers
    if period < 1:
        raise InputError(f"period: is {period}; a period has at least 1 step")
    if 2 * period * n > MAX_EVALUATIONS:
        raise InputError(f"period {period} with {n} workers: {2 * period * n} evaluations; at most {MAX_EVALUATIONS}")
    phases: list[Phase] = []
    for step in range(2 * period):
        answers = [ask(function, worker, step, cluster) for worker in range(n)]
        wrong = _members_differ(answers, step) or _not_periodic(answers, phases, step, period)
        if wrong is not None:
            return wrong
        if step < period:
            groups = {answer.members: answer for answer in answers if answer is not None}
            phases.append(Phase.from_groups(n, groups.values()))
    return phases


def ask(function: PhaseFunction, worker: int, step: int, cluster: Cluster) -> Group | None:
    """Call the user's function for one worker and step; return the group, or None if the worker skips.

    Raises:
        InputError: the function fails, or returns no valid group.
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


def _members_differ(answers: Sequence[Group | None], step: int) -> Claim | None:
    for worker, group in enumerate(answers):
        if group is None:
            continue
        if worker not in group.members:
            text = f"in step {step} worker {worker} computes the group {some(group.members)}, in which it is not."
            return refuted("membership", text, {"step": step, "worker": worker, "group": list(group.members)})
        for member in group.members:
            other = answers[member]
            if other != group:
                answer = "that it skips" if other is None else f"the group {other}"
                text = f"in step {step} worker {worker} computes the group {group}, but its member {member} computes "
                witness = {"step": step, "worker": worker, "group": list(group.members), "member": member}
                witness["members_group"] = None if other is None else list(other.members)
                return refuted("membership", text + answer + ".", witness)
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
            return refuted("membership", text, {"worker": worker, "step": step, "period": period})
    return None
