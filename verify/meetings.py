"""After how many rounds everybody has met everybody, directly or through others: for `staleness`, `queues` and `end`.

The theorems stand in `verify/checker/meetings.py`: nobody is more than so many rounds ahead of another, and
everything that a worker did is everywhere after so many rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, pairwise

from partreduce.topo.rule import RuleView
from partreduce.topo.schedule import Schedule
from partreduce.verify.view import explicit_view, rule_view

MAX_WORKERS = 16_384
"""A set of as many bits for each worker: 34 MB."""

MAX_UNIONS = 2 * 10**6
"""Unions of sets that may be formed, those of more than 2,000 workers counting more: about a second."""

Meeting = tuple[list[int], list[int]]
"""(whose sets are united, who holds the union afterwards)."""


class NeverMeetError(Exception):
    """Some worker never hears of another; the two are its arguments: who did not hear, and of whom."""


class TooManyRoundsError(Exception):
    """It would take longer than a second to follow everybody."""


class Meetings:
    """The meetings of every round of a period, followed from any of them. Not for rules."""

    def __init__(self, schedule: Schedule) -> None:
        """Read the meetings of a period.

        Raises:
            TooManyRoundsError: too many workers.
        """
        if schedule.num_workers > MAX_WORKERS:
            raise TooManyRoundsError
        self.num_workers = schedule.num_workers
        self.rounds = _of_graphs(schedule) if schedule.strategy.graphs else _of_phases(schedule)
        self._unions = 0.0

    def heard(self, start: int) -> Iterator[list[int]]:
        """Of whom every worker has heard (bits of an integer) after 1, 2, … rounds, as long as that changes."""
        sets = [1 << worker for worker in range(self.num_workers)]
        quiet, cost = 0, 1 + self.num_workers / 2000
        for t in count(start):
            before, changed = sets, False
            sets = before.copy()
            meetings = self.rounds[t % len(self.rounds)]
            self._unions += cost * (self.num_workers / 10 + sum(len(sources) for sources, _ in meetings))
            if self._unions > MAX_UNIONS:
                raise TooManyRoundsError
            for sources, targets in meetings:
                union = 0
                for source in sources:
                    union |= before[source]
                for target in targets:
                    changed = changed or sets[target] != union
                    sets[target] = union
            quiet = 0 if changed else quiet + 1
            if quiet == len(self.rounds):
                return
            yield sets

    def rounds_to_meet(self) -> int:
        """The smallest R such that any R successive rounds lead from everybody to everybody.

        Raises:
            NeverMeetError: no number of rounds does.
            TooManyRoundsError: as said there.
        """
        everybody = (1 << self.num_workers) - 1
        slowest = 0
        for start in range(len(self.rounds)):
            sets: list[int] = []
            number = 0
            for number, sets in enumerate(self.heard(start), 1):  # noqa: B007 - the last one is used below
                if all(heard == everybody for heard in sets):
                    break
            else:
                sets = sets or [1 << worker for worker in range(self.num_workers)]
                deaf = next(worker for worker, heard in enumerate(sets) if heard != everybody)
                missing = everybody & ~sets[deaf]
                raise NeverMeetError(deaf, (missing & -missing).bit_length() - 1)
            slowest = max(slowest, number)
        return slowest


def rounds_to_meet(schedule: Schedule) -> int:
    """R of any schedule with fixed rounds. Rules: for every number of nodes, from the digits alone.

    Raises:
        NeverMeetError: no number of rounds does.
        TooManyRoundsError: as said there.
    """
    rule = rule_view(schedule)
    if rule is None:
        return Meetings(schedule).rounds_to_meet()
    return max(
        _of_rule(rule, start, rank) for start in range(len(rule.phases)) for rank in range(rule.workers_per_node)
    )


def _of_phases(schedule: Schedule) -> list[list[Meeting]]:
    result = []
    for phase in explicit_view(schedule) or ():
        moving = phase.relax or (1,) * len(phase)
        members = phase.members.tolist()
        bounds = phase.offsets.tolist()
        groups = (members[low:high] for low, high in pairwise(bounds))
        result.append([(group, group) for group, relax in zip(groups, moving, strict=True) if relax])
    return result


def _of_graphs(schedule: Schedule) -> list[list[Meeting]]:
    result = []
    for graph in schedule.strategy.graphs:
        sources: dict[int, list[int]] = {}
        for source, target, weight in graph.edges():
            if weight:
                sources.setdefault(target, [target]).append(source)
        result.append([(heard, [target]) for target, heard in sources.items()])
    return result


def _of_rule(rule: RuleView, start: int, rank: int) -> int:
    """Rounds from `start` until what began at a local rank of one node is at all workers.

    The nodes reached at a local rank are, in turn, all that agree with the first one outside one of some sets of
    digits; only the largest of these sets are kept.
    """
    everything = frozenset(range(rule.num_digits))
    reached: list[set[frozenset[int]]] = [set() for _ in range(rule.workers_per_node)]
    reached[rank].add(frozenset())
    number = quiet = 0
    while not all(everything in sets for sets in reached):
        changed = False
        for block in rule.phases[(start + number) % len(rule.phases)]:
            if not block.makes_groups or not block.relax:
                continue
            union = {digits | frozenset(block.across) for local in block.local for digits in reached[local]}
            union = {digits for digits in union if not any(digits < other for other in union)}
            for local in block.local:
                changed = changed or reached[local] != union
                reached[local] = union
        number += 1
        quiet = 0 if changed else quiet + 1
        if quiet == len(rule.phases):
            deaf = next(local for local, sets in enumerate(reached) if everything not in sets)
            raise NeverMeetError(deaf, rank)
    return number
