"""Claim `equal-replicas`: after which rounds all workers hold the same parameters, bit for bit.

The theorem stands in `verify/checker/facts/equal_replicas.py`.
"""

from __future__ import annotations

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Codec
from partreduce.verify.base import Claim, follows
from partreduce.verify.view import explicit_view, rule_view

NAME = "equal-replicas"
ASSUMED = "Assumed: the same start, and a deterministic optimizer that is set up alike on all workers."
BYTES = " A codec is no exception: all take the decoded bytes, whoever summed them, too."


def prove_equal_replicas(schedule: Schedule) -> Claim | None:
    """The rounds after which all are equal, None where there is none. O(size of the schedule)."""
    strategy = schedule.strategy
    if strategy.mixes_late or strategy.what.num_fragments > 1:
        return None
    bytes_ = "" if strategy.how.codec is Codec.NONE else BYTES
    if strategy.averages_gradients:
        text = (
            "All workers hold the same parameters and optimizer state after every step: they start so, and each step "
            f"applies the same average of gradients on all, or none.{bytes_} {ASSUMED}"
        )
        return follows(NAME, text, of="gradients", rounds=[0])
    rounds = plain_rounds_of_all(schedule)
    if not rounds:
        return None
    which = "every round" if len(rounds) == schedule.period else f"{len(rounds)} of {schedule.period} rounds"
    outer = strategy.what.outer.in_words
    result = f"what {outer} makes of the average" if outer else "the average"
    text = (
        f"After {which} of the period, which average over all workers, all hold the same parameters: {result}."
        f"{bytes_} Between these rounds parameters differ, and optimizer state always may. {ASSUMED}"
    )
    return follows(NAME, text, of="parameters", rounds=rounds)


def plain_rounds_of_all(schedule: Schedule) -> list[int]:
    """The phases of the period that are one group of all workers with relax 1."""
    rule = rule_view(schedule)
    if rule is not None:
        everyone = tuple(range(rule.workers_per_node)), tuple(range(rule.num_digits))
        wanted = {(t, b.relax) for t, phase in enumerate(rule.phases) for b in phase if (b.local, b.across) == everyone}
        return sorted(t for t, relax in wanted if relax == 1)
    whole = schedule.num_workers
    listed = enumerate(explicit_view(schedule) or ())
    return [t for t, phase in listed if len(phase) == 1 and phase[0].relax == 1 and len(phase.members) == whole]
