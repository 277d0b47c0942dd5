"""Define statements about schedules: what is claimed, how it is proved, and the sentence that explains the result.

A statement is a row of a table: its name, its prover, the caveats of its sentence, and the condition under which a
schedule should not be run without it. A sentence is data: text with placeholders for numbers, and clauses that appear
only if a condition holds. The checker computes the numbers of facts; the prover adds words, and witnesses of
refutations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from partreduce.topo.document.reader import collector_paused
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.errors import ScheduleError
from partreduce.topo.schedule import Schedule
from partreduce.verify import checker
from partreduce.verify.base import Claim, Status, follows, not_proved
from partreduce.verify.checker.claims import AFTER_FAILURE_TOO, ASSUMED, GAP, MAX_WORK, Fact
from partreduce.verify.checker.claims import fact as checker_fact

Numbers = dict[str, Any]
Condition = Callable[[Schedule, Numbers], Any]
"""The condition of a clause: a function of the schedule and the numbers of the fact."""
Values = Callable[[Schedule, Numbers], Mapping[str, object]]
"""Values of placeholders in a sentence other than the numbers."""

TOO_LONG = "computing its numbers would take over a second."
NONE = -1
"""The value of a bound that does not exist."""


class If(NamedTuple):
    """A clause of a sentence: the text `then` if the condition on schedule and numbers holds, else `otherwise`."""

    condition: Condition
    then: Sentence
    otherwise: Sentence = ""


Sentence = str | If | tuple["Sentence", ...]


def format_sentence(sentence: Sentence, schedule: Schedule, numbers: Numbers, values: Values | None = None) -> str:
    """Return the text of a sentence: the clauses whose conditions hold, with their placeholders filled.

    A placeholder names one of `numbers`, which the checker computed, a key of what `values` returns, or `schedule`.
    """
    known = {**numbers, **(values(schedule, numbers) if values else {}), "schedule": schedule}

    def clause(part: Sentence) -> str:
        if isinstance(part, If):
            return clause(part.then if part.condition(schedule, numbers) else part.otherwise)
        return part.format(**known) if isinstance(part, str) else "".join(map(clause, part))

    return clause(sentence)


def always(_: Schedule, __: Numbers) -> bool:
    """Return True: the condition that holds for every schedule."""
    return True


def never(_: Schedule, __: Numbers) -> bool:
    """Return False: the condition that holds for no schedule."""
    return False


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement about schedules: `prove` returns the claim, or None if the statement does not apply.

    `caveats` is appended to the explanation of a claim that holds; `essential` selects the schedules that should not
    run without the claim.
    """

    name: str
    prove: Callable[[ScheduleFacts], Claim | None]
    caveats: Sentence = ""
    essential: Condition = never

    def claim(self, facts: ScheduleFacts) -> Claim | None:
        """Return the claim for one schedule, with caveats and assumptions; None if the statement does not apply."""
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
) -> Statement:
    """Return the statement of a fact: the checker computes its numbers, and `sentence` explains them.

    `values` computes further values for the sentence. If the fact does not apply to a schedule, there is no claim, or
    with `without` a claim that is not proved, for the reason that `without` returns. `essential` selects the schedules
    that should not run without the claim.
    """

    def prove(facts: ScheduleFacts) -> Claim | None:
        found = facts.claim(name, sentence, values)
        return not_proved(name, without(facts)) if found is None and without else found

    return Statement(name, prove, essential=essential)


def of_protocol(
    name: str,
    sentence: Sentence,
    values: Callable[[Schedule, Numbers], Numbers] | None = None,
    *,
    essential: Condition = never,
    where: Condition = always,
    witness: Callable[[Numbers], Mapping[str, Any]] | None = None,
) -> Statement:
    """Return a statement that follows from a protocol's rules; it applies to schedules for which `where` holds.

    `values` computes the numbers that `sentence` quotes, `witness` the evidence of the claim from these numbers.
    """

    def prove(facts: ScheduleFacts) -> Claim | None:
        if not where(facts.schedule, {}):
            return None
        numbers = values(facts.schedule, {}) if values else {}
        return follows(name, format_sentence(sentence, facts.schedule, numbers), witness(numbers) if witness else None)

    return Statement(name, prove, essential=essential)


class ScheduleFacts:
    """The facts of one schedule: statements that need no certificate. The checker computes each one on first use."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._known: dict[str, Fact | None] = {}

    @cached_property
    def read(self) -> Any:  # noqa: ANN401 - the checker's own schedule
        """The schedule as the checker reads it; cached.

        Raises:
            ScheduleError: the checker does not read this kind, such as one whose groups are chosen at run time.
        """
        try:
            with collector_paused():
                return checker.read_schedule(dump_schedule(replace(self.schedule, certificate=None)))
        except checker.Refusal as refusal:
            raise ScheduleError(f"schedule {self.schedule.name!r}: {refusal.sentence}") from None

    def _fact(self, name: str) -> Fact | None:
        """Return a fact by its name; None if it does not apply. Its `numbers` are None if computing them takes long.

        Facts of an iteration gap have no time limit: a run needs them, and their cost is near-linear in the edges.
        """
        if name not in self._known:
            limit = sys.maxsize if self.read.gap and name in GAP else MAX_WORK
            self._known[name] = checker_fact(self.read, name, limit)
        return self._known[name]

    def numbers(self, name: str) -> Numbers:
        """Return the values of a fact by name; empty if the fact does not apply or takes too long."""
        found = self._fact(name)
        return {} if found is None else found.numbers or {}

    def claim(self, name: str, sentence: Sentence, values: Values | None = None) -> Claim | None:
        """Return a fact as a claim explained by the sentence; None if the fact does not apply.

        The claim is not proved if computing the numbers takes too long.
        """
        found = self._fact(name)
        if found is None:
            return None
        if found.numbers is None:
            return not_proved(name, TOO_LONG)
        words = format_sentence(sentence, self.schedule, found.numbers, values)
        return Claim(name, Status.FOLLOWS if found.follows else Status.FACT, words, numbers=found.numbers)
