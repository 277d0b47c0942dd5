"""Claim `fragments`: when each part of the model is averaged, in which order, and how old it gets.

The theorem stands in `verify/checker/facts/fragments.py`.
"""

from __future__ import annotations

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.fragments import most_in_flight
from partreduce.verify.base import Claim, follows
from partreduce.verify.equal_replicas import plain_rounds_of_all

NAME = "fragments"


def prove_fragments(schedule: Schedule) -> Claim | None:
    """The turns, None where whole models are averaged after all their steps. O(1)."""
    strategy = schedule.strategy
    if not strategy.lacks_newest:
        return None
    count, every, late = strategy.what.num_fragments, schedule.pace_of(0), strategy.when.late_steps
    kept = strategy.when.kept
    apart, age, flying = every // count, every + late, most_in_flight(count, every, late)
    if schedule.period > 1 or not strategy.has_round_of_all(schedule.cluster):
        period = every * schedule.period
        text = (
            f"Each of {count} fragments has exactly one turn in every {every} steps, with the groups of its round, so "
            f"with all of the period in every {period}; between turns lie at least {apart} steps. A group averages one "
            "fragment after the other, in one order, which follows from the step. The run refuses a model of which a "
            "parameter is in no fragment, or in two."
        )
        return follows(NAME, text, fragments=count, every=every, apart=apart, late=late, flying=flying, period=period)
    which = f"Each of {count} fragments" if count > 1 else "The model"
    merged = f"merged {late} steps after it is sent" if late else "merged where it is sent"
    is_equal = bool(plain_rounds_of_all(schedule))
    equal = "It is equal on all workers then" if is_equal else f"Workers keep {kept} of their own then"
    text = (
        f"{which} has exactly one turn in every {every} steps, {merged}; between turns lie at least {apart} steps. At "
        f"most {flying} {'is' if flying == 1 else 'are'} in flight, and all workers send and merge them in one order, "
        f"which follows from the step. {equal}, and what a worker holds of the others' is at most {age} steps old. "
        "The run refuses a model of which a parameter is in no fragment, or in two."
    )
    numbers = {"fragments": count, "every": every, "apart": apart, "late": late, "flying": flying}
    return follows(NAME, text, **numbers, age=age, equal=is_equal)
