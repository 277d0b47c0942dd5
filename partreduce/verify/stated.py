"""Stated: what the checker computes from a schedule's file alone, for the prover to put into words.

No number of a fact is computed twice: who trusts the checker trusts all of them. A prover adds what a reader wants to
be told, and the witnesses of what is refuted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from partreduce.topo.document.reader import collector_paused
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.errors import ScheduleError
from partreduce.topo.schedule import Schedule
from partreduce.verify import checker
from partreduce.verify.base import Claim, Status, not_proved
from partreduce.verify.checker.facts import GAP, MAX_WORK, Fact, fact

Numbers = dict[str, Any]
TOO_LONG = "computing its numbers would take over a second."


class Stated:
    """The facts of one schedule, each computed when it is asked for."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._known: dict[str, Fact | None] = {}

    @cached_property
    def read(self) -> Any:  # noqa: ANN401 - the checker's own schedule
        """The document as the checker sees it, read at the first question: kinds decided at run time have none.

        Raises:
            ScheduleError: the checker does not read it.
        """
        try:
            with collector_paused():
                return checker.read_schedule(dump_schedule(replace(self._schedule, certificate=None)))
        except checker.Refusal as refusal:
            raise ScheduleError(f"schedule {self._schedule.name!r}: {refusal.sentence}") from None

    def fact(self, name: str) -> Fact | None:
        """A fact by its name; without numbers where these take too long, None where there is nothing to state.

        What must be known of a gap before a run is computed however long it takes; it is near-linear in the edges.
        """
        if name not in self._known:
            limit = sys.maxsize if self.read.gap and name in GAP else MAX_WORK
            self._known[name] = fact(self.read, name, limit)
        return self._known[name]

    def numbers(self, name: str) -> Numbers:
        """The numbers of a fact; none where it is not stated, or takes too long."""
        found = self.fact(name)
        return {} if found is None else found.numbers or {}

    def claim(
        self, name: str, words: str | Callable[[Numbers], str], witness: Mapping[str, Any] | None = None
    ) -> Claim | None:
        """A fact in words, which may hang on its numbers; None where there is nothing to state."""
        found = self.fact(name)
        if found is None:
            return None
        if found.numbers is None:
            return not_proved(name, TOO_LONG)
        status = Status.FOLLOWS if found.follows else Status.FACT
        said = words if isinstance(words, str) else words(found.numbers)
        return Claim(name, status, said, witness, numbers=found.numbers)
