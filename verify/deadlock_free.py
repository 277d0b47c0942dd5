"""Claim `deadlock-free`: one tick per group operation, equal at its members, strictly increasing along each worker.

Why that suffices: of all unfinished operations take one with the smallest tick. Each of its members has finished
every operation that it issues earlier, because those carry smaller ticks; so all members are ready, and the operation
completes. The argument needs nothing but rendezvous semantics.
"""

from __future__ import annotations

import numpy as np

from partreduce.topo.phase import Phase
from partreduce.topo.rule import RuleView
from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, follows
from partreduce.verify.view import explicit_view, rule_view

NAME = "deadlock-free"


END = (
    " So does the end: if every worker carries out the same number of rounds, whatever its pace, then also the last "
    "ones complete. That they are as many is assumed: members meet by round number; with unequal data join mode keeps "
    "a worker whose data ended in every round that anybody begins, and without it the others wait for a worker that "
    "ends early."
)
"""What the claim assumes about the end of a job, and proves of it."""


def prove_rounds_of_graph(schedule: Schedule) -> Claim:
    """Weighted graphs: every worker's exchange of round t carries the tick t + 1, for any graph.

    A worker enters round t after its exchange of round t − 1. Of all unfinished exchanges take one with the smallest
    tick: all workers have finished the rounds before, so all its neighbours enter this one, and what they send one
    another arrives. Nothing more than rendezvous is needed of the messages.
    """
    period = schedule.period
    text = (
        f"In each of the {period} rounds of a period every worker's exchange with its neighbours carries the tick of "
        "the round; all exchanges of smaller ticks are over when one with the smallest is not, so its neighbours are "
        "in the same round, and what they send arrives: no cycle of waiting workers exists, whatever the graph." + END
    )
    return follows(NAME, text, height=period)


def prove_deadlock_free(schedule: Schedule) -> Claim:
    """Give every group operation of a period its canonical tick: 1 + the largest tick that a member had before.

    A group operation of round r is issued by its members after those of round r − 1 whatever their paces are, so the
    ticks of period q are those of the first period plus q times their largest. O(num_workers · period).
    """
    rule = rule_view(schedule)
    height = _height_of_rule(rule) if rule is not None else _height(explicit_view(schedule) or ())
    unit = "block" if rule is not None else "group"
    text = (
        f"Every {unit} operation of a period carries one tick from 1 to {height}; each worker meets its operations in "
        "strictly increasing ticks, and period q adds q times the largest tick. So the unfinished operation with the "
        "smallest tick always has all its members ready, and no cycle of waiting workers exists."
    )
    text += END
    if schedule.prologue:
        text += f" The {schedule.prologue} rounds of the prologue are operations of all workers and come before all."
    return follows(NAME, text, height=height)


def _height(phases: tuple[Phase, ...]) -> int:
    last = np.zeros(phases[0].num_workers, dtype=np.int64)
    for phase in filter(len, phases):
        ticks = np.maximum.reduceat(last[phase.members], phase.offsets[:-1]) + 1
        last[phase.members] = np.repeat(ticks, phase.sizes)
    return int(last.max())


def _height_of_rule(rule: RuleView) -> int:
    last = [0] * rule.workers_per_node
    for phase in rule.phases:
        for block in (b for b in phase if b.makes_groups):
            tick = 1 + max(last[local] for local in block.local)
            for local in block.local:
                last[local] = tick
    return max(last)
