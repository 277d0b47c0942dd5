"""Statements about schedules: what the checker computes from a file, and the sentences that say it.

A statement is a row of a table: its name, how it is proved, the caveats of its sentence, and where a schedule should
not be run without it. Sentences are data: texts with places for numbers, and clauses with a condition. No number of a
fact is computed twice; the prover adds words, and the witnesses of what is refuted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from partreduce.topo.document.reader import collector_paused
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.errors import ScheduleError
from partreduce.topo.schedule import Schedule
from partreduce.verify import checker
from partreduce.verify.base import Claim, Status, not_proved
from partreduce.verify.checker.certificate import AFTER_FAILURE_TOO, ASSUMED
from partreduce.verify.checker.codec_error import (
    FIRST_ROUNDINGS,
    ROUNDING,
    SINGLE,
    SMALLEST_SINGLE,
    FollowedSum,
    rounded_up,
)
from partreduce.verify.checker.facts import GAP, MAX_WORK, Fact
from partreduce.verify.checker.facts import fact as checker_fact
from partreduce.verify.checker.gaps import two_closed_sets
from partreduce.verify.checker.groups import conflict
from partreduce.verify.checker.refusal import Work

Numbers = dict[str, Any]
Condition = Callable[[Schedule, Numbers], Any]
"""Of a clause: whether the schedule, or the numbers of the fact, have it said."""
Values = Callable[[Schedule, Numbers], Mapping[str, object]]
"""What stands at the places of a sentence besides the numbers."""

TOO_LONG = "computing its numbers would take over a second."
NONE = -1
"""There is no bound."""


class If(NamedTuple):
    """A clause of a sentence: `then` where the condition holds, and else `otherwise`."""

    condition: Condition
    then: Sentence
    otherwise: Sentence = ""


Sentence = str | If | tuple["Sentence", ...]


def format_sentence(sentence: Sentence, schedule: Schedule, numbers: Numbers, values: Values | None = None) -> str:
    """The clauses of a sentence whose conditions hold, with numbers and values at their places."""
    known = {**numbers, **(values(schedule, numbers) if values else {}), "schedule": schedule}

    def clause(part: Sentence) -> str:
        if isinstance(part, If):
            return clause(part.then if part.condition(schedule, numbers) else part.otherwise)
        return part.format(**known) if isinstance(part, str) else "".join(map(clause, part))

    return clause(sentence)


def always(_: Schedule, __: Numbers) -> bool:
    """Of every schedule."""
    return True


def never(_: Schedule, __: Numbers) -> bool:
    """Of no schedule."""
    return False


@dataclass(frozen=True, slots=True)
class Statement:
    """A row of a table: `prove` finds the claim, None where there is nothing to say; `caveats` end what holds."""

    name: str
    prove: Callable[[ScheduleFacts], Claim | None]
    caveats: Sentence = ""
    essential: Condition = never

    def claim(self, facts: ScheduleFacts) -> Claim | None:
        """The claim with its caveats, what it supposes of the program, and whether it ends with a failure."""
        found, schedule = self.prove(facts), facts.schedule
        if found is None or not found.holds:
            return found
        words = found.explanation + format_sentence(self.caveats, schedule, dict(found.numbers or {}))
        assumes = "" if found.status is Status.FOLLOWS else ASSUMED.get(found.claim, "")
        ends = schedule.failure_plan is not None and found.claim not in AFTER_FAILURE_TOO
        return replace(found, explanation=words, assumes=assumes, before_failure=ends)


def fact(
    name: str,
    sentence: Sentence,
    values: Values | None = None,
    *,
    essential: Condition = never,
    without: Callable[[ScheduleFacts], str] | None = None,
    witness: Callable[[Numbers], Mapping[str, Any]] | None = None,
) -> Statement:
    """A statement whose numbers the checker computes; where it states none, `without` says why, or nobody does."""

    def prove(facts: ScheduleFacts) -> Claim | None:
        found = facts.claim(name, sentence, values, witness)
        return not_proved(name, without(facts)) if found is None and without else found

    return Statement(name, prove, essential=essential)


class ScheduleFacts:
    """The facts of one schedule, each computed by the checker when it is asked for."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._known: dict[str, Fact | None] = {}

    @cached_property
    def read(self) -> Any:  # noqa: ANN401 - the checker's own schedule
        """The document as the checker sees it, read at the first question: kinds decided at run time have none.

        Raises:
            ScheduleError: the checker does not read it.
        """
        try:
            with collector_paused():
                return checker.read_schedule(dump_schedule(replace(self.schedule, certificate=None)))
        except checker.Refusal as refusal:
            raise ScheduleError(f"schedule {self.schedule.name!r}: {refusal.sentence}") from None

    def _fact(self, name: str) -> Fact | None:
        """A fact by its name; without numbers where these take too long, None where there is nothing to state.

        What must be known of a gap before a run is computed however long it takes; it is near-linear in the edges.
        """
        if name not in self._known:
            limit = sys.maxsize if self.read.gap and name in GAP else MAX_WORK
            self._known[name] = checker_fact(self.read, name, limit)
        return self._known[name]

    def numbers(self, name: str) -> Numbers:
        """The numbers of a fact; none where it is not stated, or takes too long."""
        found = self._fact(name)
        return {} if found is None else found.numbers or {}

    def claim(
        self,
        name: str,
        sentence: Sentence,
        values: Values | None = None,
        witness: Callable[[Numbers], Mapping[str, Any]] | None = None,
    ) -> Claim | None:
        """A fact with its sentence; None where there is nothing to state."""
        found = self._fact(name)
        if found is None:
            return None
        if found.numbers is None:
            return not_proved(name, TOO_LONG)
        words = format_sentence(sentence, self.schedule, found.numbers, values)
        seen = None if witness is None else witness(found.numbers)
        return Claim(name, Status.FOLLOWS if found.follows else Status.FACT, words, seen, numbers=found.numbers)

    def conflict(self) -> tuple[int, int, list[Any]] | None:
        """The first worker (or local rank) in two groups of a phase: the phase, the worker, the two groups."""
        return conflict(self.read)


def sets_that_close_themselves(
    sources: Sequence[Sequence[int]], spare: Sequence[int]
) -> tuple[set[int], set[int]] | None:
    """Two disjoint sets of workers that can do without all others, as the checker's search finds them."""
    return two_closed_sets(sources, spare, Work("consensus", MAX_WORK))


def codec_error_of_server(codec: str, num_workers: int) -> Numbers:
    """`codec-error` of sums that hosts decode, add and code again: the checker reads no schedule of servers."""
    unit, added = ROUNDING[codec], FollowedSum()
    for _ in range(FIRST_ROUNDINGS):
        added.round(num_workers, SINGLE, SMALLEST_SINGLE)
    added.round(num_workers, *unit)
    added.add(num_workers, SINGLE)
    added.round(1, *unit)
    relative, absolute = rounded_up(added)
    return {"relative": relative, "absolute": absolute, "roundings": 2}
