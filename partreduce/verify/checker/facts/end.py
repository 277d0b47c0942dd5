"""`end`, by the rules of rounds: a finite run ends for all after the same round, and nobody waits for one who left.

*Theorem 1.* If every worker carries out the rounds 0 … m − 1, for any m, all their operations complete. The
operations of these rounds are a beginning of those of an endless run, each has all its members, and the argument of
`deadlock-free` never looks beyond the operation with the smallest tick.

*Theorem 2, data dealt by steps_per_round.* A round of all workers takes `steps` batches, of which worker i takes its
steps_per_round. So N batches are N div `steps` rounds, the same number for everybody, whatever the speeds; the rest is
left out.

*Theorem 3, unequal data in join mode.* A worker with data for a round declares it before it begins; one whose data
ended says so once, declares nothing any more, takes part in every round that anybody declared, and leaves when all
have ended and, asked after that, the next round is not declared. A worker takes rounds in order, so the declared rounds
are 0 … m − 1. A worker that leaves before round k has seen that nobody can declare k any
more: k = m. And nobody leaves later, because round m is never begun. So every worker carries out exactly the rounds 0
… m − 1, and theorem 1 applies.

*Theorem 4, unequal data without it.* A worker that leaves after its round r holds up everybody at most `behind`
rounds later (the R of meetings.py, and R + lag in a pipeline of gradients), so unequal data cannot go unnoticed for
longer than that. −1 where somebody never meets somebody.

*A pipeline* ends with operations in flight: all workers have begun each of them, so they complete, and are waited for
as it drains.

*Assumed of the program:* what `deadlock-free` assumes, and of join mode that what one worker noted is seen by all who
ask later.
"""

from __future__ import annotations

from ..meetings import rounds_to_meet
from ..refusal import Work
from ..schedule import Numbers, Schedule

NONE = -1
"""There is no bound."""


def numbers(schedule: Schedule, work: Work) -> Numbers:
    """`steps` (of all workers in a round), `behind`."""
    worker_steps = schedule.worker_steps
    steps = worker_steps[0] * schedule.num_workers if len(worker_steps) == 1 else sum(worker_steps)
    reach = rounds_to_meet(schedule, work)
    ahead = schedule.lag if schedule.pipeline else 0
    return {"steps": steps, "behind": NONE if reach is None else reach + ahead}
