"""Claim `rounds`: no schedule of groups of at most g workers reaches the exact mean of n in fewer than k rounds.

The bounds, their theorems and their numbers stand in `verify/checker/facts/rounds.py`.
"""

from __future__ import annotations

from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, fact
from partreduce.verify.checker.facts.rounds import NEVER, least_rounds
from partreduce.verify.stochastic import explicit_pairs, rule_pairs
from partreduce.verify.view import rule_view

NAME = "rounds"


def prove_rounds(schedule: Schedule, *, exact: bool) -> Claim | None:
    """The best named lower bound for this n and this largest group; None without groups."""
    if not schedule.is_phased:
        return None
    rule = rule_view(schedule)
    pairs = rule_pairs(rule) if rule is not None else explicit_pairs(schedule)
    if not pairs:
        return None
    largest, plain = max(size for size, _ in pairs), all(relax == 1 for _, relax in pairs)
    n = schedule.num_workers
    found = least_rounds(n, largest, plain_means=plain)
    least = found["at_least"]
    if least == NEVER:
        text = f"{n} has the prime factor {found['prime']} > {largest}: plain means of groups of at most {largest} "
        text += "workers never reach the exact mean, they only approach it; a relax factor can."
    else:
        text = f"Groups of at most {largest} workers need at least {least} rounds to the exact mean of {n} workers"
        text += f" (bound: {found['bound']})"
        text += f"; this schedule takes {schedule.period}" if exact else ""
        text += ", the least possible." if exact and schedule.period == least else "."
    return fact(NAME, text, {"optimal": True} if exact and schedule.period == least else None, group=largest, **found)
