"""Fact `staleness`: how old what a worker averages can be, in rounds and in steps.

*Directly.* With synchronous averages a member contributes its parameters after all of its steps of the round, so
nothing is missing. A late average (`sync`) is one of the parameters with which the round began: it lacks the newest
`late` = 1 rounds of its worker, which are `late` times its steps_per_round in steps, at most `steps`. So does one that
begins inside its round, of fragments in turn or some steps before the end, of the steps behind that place (`fragments`
counts them); one that begins before its round, as fragments do that are late by more steps than lie before the first
turn, lacks steps of the round before, too: there `late` is 2. A pipeline averages gradients that were taken `late`
steps before: it lacks those of the newest `late` steps.

*Through others.* *Theorem:* whatever a worker did up to the end of round r − `age` is in everybody's parameters at
the end of their round r, with a positive weight. For let R = `reach` be such that any R successive rounds lead from
everybody to everybody (meetings.py). With no weight negative and a positive one on oneself, what has arrived
somewhere stays there and goes on with every meeting. Synchronously the steps of round k enter the average of round k
and have arrived everywhere R − 1 rounds later; a late average takes them in `late` rounds later: `age` = R − 1 +
`late`. (In a pipeline R = 1, and what a worker did in step k is the gradient that it took.) In steps
these are at most `age_steps`, `age` times the largest steps_per_round.

*Outer steps.* With outer parameters of each worker's own, and no outer momentum, a group of s members with the outer
rate r leaves to a member's outer parameters the weight 1 − r + r/s, and gives r/s to what each other member has: an
average with relaxation r. With an outer momentum nothing is stated of them. With shared outer parameters a round of
all adds what everybody did since the last one to them, times r > 0; none of what they have is taken back. Where workers
keep a share α of their own besides, what arrives is the sum of the outer steps so far. Without momentum that is
r·(1 − qᵏ)/(1 − q) after k rounds, q = α·(1 − r), which is positive for |q| < 1, as the reader asks; with it nothing is
stated.

It is stated where the weights are such, and everybody meets everybody. A round of the prologue averages over everybody,
so none of the numbers grows by it.
"""

from __future__ import annotations

from ..averages import keeps_something
from ..meetings import rounds_to_meet
from ..refusal import Work
from ..schedule import Numbers, Schedule


def numbers(schedule: Schedule, work: Work) -> Numbers | None:
    """`late`, `steps`, `reach`, `age`, `age_steps`."""
    outer = schedule.tables.outer
    rate = outer.lr if outer.has_own_outer_params else 1
    sizes = [pair for phase_sizes in schedule.group_sizes() for pair in phase_sizes]
    keeps_own = all(relaxation >= 0 and rate * relaxation * (size - 1) < size for size, relaxation in sizes)
    takes_back = outer.momentum > 0 and (outer.has_own_outer_params or schedule.kept > 0)
    if takes_back or not (keeps_own and all(map(keeps_something, schedule.rounds))):
        return None
    reach = rounds_to_meet(schedule, work)
    if reach is None:
        return None
    steps_per_round = max(schedule.worker_steps)
    begins_before = schedule.late_steps > steps_per_round // schedule.tables.num_fragments
    late = schedule.lag + int(schedule.takes_turns) + int(begins_before)
    age = reach - 1 + late
    return {
        "late": late,
        "steps": late * steps_per_round,
        "reach": reach,
        "age": age,
        "age_steps": age * steps_per_round,
    }
