"""Claim `membership`: the function that a worker evaluates at run time finds its group, the same at every member.

Two ways at once, on exactly this cluster. The code of `Schedule.group_of`, and of all that it calls, is *read* for a
general worker (`verify.reading`): a node with digits of which only 0 ≤ digit < radix is known, every local rank, every
round; it must come out as the group of the worker's block, member for member in ascending order, with its relax. And it
is *evaluated*: for every worker and phase where all groups together are small enough, else for workers drawn at random.
Both have to agree with the blocks. The definition that they are compared with shares no code with them.
"""

from __future__ import annotations

import hashlib
import random
from itertools import product
from typing import TYPE_CHECKING, Any

from partreduce.verify.affine import Affine, GroupRead, Listed, Loop, Symbol, UnprovedError
from partreduce.verify.base import Claim, not_proved, proved, refuted, some
from partreduce.verify.reading import Reader
from partreduce.verify.view import rule_view

if TYPE_CHECKING:
    from fractions import Fraction

    from partreduce.topo.rule import Block, RulePhase, RuleView
    from partreduce.topo.schedule import Schedule

NAME = "membership"
EVALUATED = 2**18
"""Members in all answers of one period, up to which every worker is asked; the checker counts them in the same way."""

SAMPLED = 2**19
"""Members in the answers of workers drawn at random, beyond."""

LAST_ROUND = 2**53
"""Rounds are read up to this number."""


def prove_membership(schedule: Schedule) -> Claim | None:
    """Prove or refute that `Schedule.group_of` agrees with the blocks; None for explicit schedules (one list for all).

    O(blocks · local ranks) for the reading, whatever the number of nodes, and a bounded number of answers.
    """
    rule = rule_view(schedule)
    if rule is None:
        return None
    if rule.shared_rank() is not None:
        return not_proved(NAME, "two blocks of one phase share a local rank.")
    everyone = answers_of(rule) <= EVALUATED
    wrong, asked, digest = _evaluate(schedule, rule) if everyone else _sample(schedule, rule)
    if wrong is not None:
        text = f"in round {wrong['round']} worker {wrong['worker']} computes another group than its block's."
        return refuted(NAME, text, wrong)
    try:
        divisions = _read(schedule, rule)
    except UnprovedError as error:
        return not_proved(NAME, f"the code that computes a worker's group could not be read for all workers: {error}.")
    except RecursionError:
        return not_proved(NAME, "the code that computes a worker's group is recursive; it was not read.")
    evaluated = (
        f"Besides, all {schedule.num_workers} workers were asked in all {schedule.period} phases, and answered so."
        if everyone
        else f"Besides, {asked} workers drawn at random were asked (not all: their answers are too long), and answered "
        "so."
    )
    text = (
        f"On exactly this cluster of {schedule.num_workers} workers, in every round: the code that computes a worker's "
        "group was read for a general node, of whose digits only 0 <= digit < radix is known, and each local rank; it "
        f"gives exactly the group of the worker's block, the same at every member, by {divisions} Euclidean divisions "
        f"with 0 <= remainder < divisor shown for all digits. {evaluated}"
    )
    used = sorted({digit for phase in rule.phases for block in phase for digit in block.across})
    steps = [
        {"digit": d, "quotient": list(range(d + 1)), "remainder": list(range(d + 1, rule.num_digits))} for d in used
    ]
    across = sorted({block.across for phase in rule.phases for block in phase})
    witness = {"divisions": divisions, "asked": schedule.num_workers if everyone else asked, "all": everyone}
    return proved(
        NAME, text, witness, digits=rule.num_digits, across=[list(d) for d in across], steps=steps, answers=digest
    )


def answers_of(rule: RuleView) -> int:
    """Members in the answers of all workers in all phases of a period; a worker that skips counts as 1."""
    total = 0
    for phase in rule.phases:
        inside = 0
        for block in phase:
            size = rule.span(block) * len(block.local)
            inside += len(block.local)
            total += rule.num_nodes * len(block.local) * size
        total += rule.num_nodes * (rule.workers_per_node - inside)
    return total


# Reading


def _read(schedule: Schedule, rule: RuleView) -> int:
    """Read the code for every phase and local rank; the number of divisions that it took.

    Raises:
        UnprovedError: it goes outside the language that is read, or comes out as another group.
    """
    reader = Reader()
    size, period, prologue = rule.workers_per_node, schedule.period, schedule.prologue
    strides = _strides(rule.radices)
    digits = [Symbol(f"x{d}", radix) for d, radix in enumerate(rule.radices)]
    node = Affine(0, tuple((digit, stride) for digit, stride in zip(digits, strides, strict=True)))
    later = Symbol("period", LAST_ROUND, orders=True)
    for t, phase in enumerate(rule.phases):
        round_ = Affine(prologue + t, ((later, period),))
        block_of = {local: block for block in phase for local in block.local if block.makes_groups}
        for local in range(size):
            worker = node.times(Affine(size)).plus(Affine(local))
            found = reader.call(schedule.group_of, (worker, round_))
            _compare(found, block_of.get(local), digits, strides, size=size, place=f"phase {t}, local rank {local}")
    if prologue:
        first = Affine(0, ((Symbol("round", prologue, orders=True), 1),))
        for local in range(size):
            found = reader.call(schedule.group_of, (node.times(Affine(size)).plus(Affine(local)), first))
            _compare_everyone(found, schedule.num_workers)
    return reader.divisions


def _strides(radices: tuple[int, ...]) -> list[int]:
    """The weight of every digit, counted from the last."""
    strides = [1]
    for radix in reversed(radices[1:]):
        strides.append(strides[-1] * radix)
    return strides[::-1][: len(radices)] if radices else []


def _compare(
    found: Any,  # noqa: ANN401 - whatever the code returned
    block: Block | None,
    digits: list[Symbol],
    strides: list[int],
    *,
    size: int,
    place: str,
) -> None:
    """A group must be the block's: its digits run through all values, in order, the others are the worker's own.

    Raises:
        UnprovedError: it is not, or its relax is another.
    """
    if block is None:
        if found is not None:
            raise UnprovedError(f"in {place} a worker that skips finds a group")
        return
    if not isinstance(found, GroupRead) or type(found.relax) is not type(block.relax) or found.relax != block.relax:
        raise UnprovedError(f"in {place} the answer is no group with relax {block.relax}")
    items: tuple[Any, ...] = found.members.items if isinstance(found.members, Listed) else found.members
    terms = {digit: size * s for d, (digit, s) in enumerate(zip(digits, strides, strict=True)) if d not in block.across}
    for d in sorted(block.across):
        loop = items[0] if type(items) is tuple and len(items) == 1 else None
        if not isinstance(loop, Loop) or loop.symbol.bound != digits[d].bound:
            raise UnprovedError(f"in {place} the members do not run through digit {d} once")
        terms[loop.symbol] = size * strides[d]
        items = loop.body
    ranks = sorted(block.local)
    right = type(items) is tuple and len(items) == len(ranks)
    for item, rank in zip(items, ranks, strict=False) if right else ():
        value = Affine(item) if type(item) is int else item
        right = right and isinstance(value, Affine) and value.constant == rank and dict(value.terms) == terms
    if not right:
        raise UnprovedError(f"in {place} the members are not those of the block {block}")


def _compare_everyone(found: Any, num_workers: int) -> None:  # noqa: ANN401 - as above
    """The group of a round of the prologue.

    Raises:
        UnprovedError: it is another than that of all workers.
    """
    items = found.members.items if isinstance(found, GroupRead) and isinstance(found.members, Listed) else ()
    loop = items[0] if len(items) == 1 else None
    bound = loop.symbol.bound if isinstance(loop, Loop) and loop.body == (Affine(0, ((loop.symbol, 1),)),) else 0
    if bound != num_workers or found.relax != 1:
        raise UnprovedError("in the prologue the members are not all workers")


# Evaluating

Expected = tuple[tuple[int, ...], "Fraction"] | None


def expected_group(rule: RuleView, phase: RulePhase, worker: int) -> Expected:
    """The group of one worker by the definition of a block: digits from the last to the first, and every setting."""
    node, local = divmod(worker, rule.workers_per_node)
    block = next((block for block in phase if local in block.local), None)
    if block is None or not block.makes_groups:
        return None
    own = []
    for radix in reversed(rule.radices):
        node, digit = divmod(node, radix)
        own.append(digit)
    choices = [range(radix) if d in block.across else (own[-1 - d],) for d, radix in enumerate(rule.radices)]
    weights = [rule.workers_per_node * stride for stride in _strides(rule.radices)]
    starts = [0]
    for values, weight in zip(choices, weights, strict=True):
        starts = [start + value * weight for start, value in product(starts, values)]
    return tuple(start + rank for start, rank in product(starts, sorted(block.local))), block.relax


def _answer(schedule: Schedule, worker: int, round_: int) -> Expected:
    group = schedule.group_of(worker, round_)
    return None if group is None else (group.members, group.relax)


def _evaluate(schedule: Schedule, rule: RuleView) -> tuple[dict[str, Any] | None, int, str]:
    """Ask every worker in every phase; the first wrong answer, how many were asked, and the hash of all answers."""
    text = hashlib.sha256()
    for t, phase in enumerate(rule.phases):
        due: dict[int, Expected] = {}
        for worker in range(schedule.num_workers):
            answer = _answer(schedule, worker, schedule.prologue + t)
            if worker not in due:
                # The definition is followed once for each group: its groups are the classes of an equivalence.
                right = expected_group(rule, phase, worker)
                due.update(dict.fromkeys(right[0] if right is not None else (worker,), right))
            right = due[worker]
            if answer != right:
                return _wrong(schedule.prologue + t, worker, answer, right), 0, ""
            text.update(b"-\n" if answer is None else b"%d %b\n" % (answer[0][0], str(answer[1]).encode()))
    return None, schedule.num_workers, text.hexdigest()


def _sample(schedule: Schedule, rule: RuleView) -> tuple[dict[str, Any] | None, int, str]:
    """Ask workers drawn at random, some of every block, and the last of all; as `_evaluate`, without a hash."""
    draw, budget, asked = random.Random(schedule.name), SAMPLED, 0
    blocks = [(t, block) for t, phase in enumerate(rule.phases) for block in phase]
    places = [(t, local) for t, block in blocks for local in block.local]
    draw.shuffle(places)
    for turn in range(4 * len(places)):
        t, local = places[turn % len(places)]
        block = next(block for block in rule.phases[t] if local in block.local)
        size = rule.span(block) * len(block.local)
        if size + 50 > budget:
            continue
        budget -= size + 50
        asked += 1
        node = rule.num_nodes - 1 if turn < len(places) else draw.randrange(rule.num_nodes)
        worker = node * rule.workers_per_node + local
        round_ = schedule.prologue + t + schedule.period * draw.choice((0, 0, 1, 12_345))
        answer, right = _answer(schedule, worker, round_), expected_group(rule, rule.phases[t], worker)
        if answer != right:
            return _wrong(round_, worker, answer, right), asked, ""
    return None, asked, ""


def _wrong(round_: int, worker: int, answer: Expected, right: Expected) -> dict[str, Any]:
    def shown(group: Expected) -> Any:  # noqa: ANN401 - JSON
        return None if group is None else {"members": some(group[0]), "size": len(group[0]), "relax": str(group[1])}

    return {"round": round_, "worker": worker, "answered": shown(answer), "block": shown(right)}
