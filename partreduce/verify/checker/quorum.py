"""Facts of rounds that a quorum of the workers starts (`sync.partial`), whichever workers are late.

*The rules.* The program is assumed to obey them; the protocol is model-checked (docs/internals/explorer.md). Each of n
workers has a *training* (its training loop) and a communication *thread*.

1. A training computes a gradient with the results of the rounds 0 … v − 1 applied (v: its version), then *calls*: the
gradient is added to the worker's send buffer, and the worker *arrives* at the next round that its thread enters (by
call: its k-th call is for round k only). The call waits until round v is done, takes results, and training continues.

2. Threads carry out the rounds 0, 1, 2, … in order. A thread *enters* a round with all that is in the send buffer,
which is emptied, and has finished the round when it has the sum over all workers.

3. A round may be entered once it is *activated*: when `needed` workers (a number) have arrived at it, or one has (solo:
any; majority: one drawn at random). Workers notify each other. A worker that ends arrives at the round that takes its
remaining gradients, and announces this round as its last; its arrivals stay valid, and never more workers are needed
than have arrived or still train. When no worker trains any more, a round starts if it is *needed*: some worker has
arrived at it or at a later one.

4. With `missed` = each, results wait in a queue until they are taken, and a thread enters no round while `capacity`
results wait. With latest, a new result replaces the previous one, and a thread enters a round whose number is a
multiple of `synchronized` = k > 0 only after its model was averaged with all others at this round. Once all workers
have ended, no thread enters a round that is not needed.

*Theorems.* (order) Each of n threads carries out every round that is needed once, in the order of numbers: rule 2. No
thread is more than a round ahead of another: a sum is there only when all have entered it.

(deadlock-free) A round never needs more workers than there are. Suppose that no thread moves, no message is in transit,
and every training waits for a result or has ended. Then no thread is in a round, because all enter a round that one has
entered; so all threads wait to enter the same round k. A worker that still trains has called, and no result waits for
it, so it has arrived at k, as have all others that train. (By call as well: a worker whose call does not count finds
the result of its own round, and calls again.) So the quorum is complete, and k starts: a contradiction. If no worker
trains, all know which rounds are needed, and the first unfinished one starts. A full queue blocks no worker for ever: a
call takes results without waiting. Nor does the averaging of models: every training that calls or has ended takes part,
since the rounds before are done. Assumed: messages arrive, no worker fails, a queue holds one result.

(conservation) A gradient enters one of n send buffers once and leaves it once, into the next round that its thread
enters. A worker that ends announces the round with its last gradient; all rounds up to the largest of these are
needed, and none after it. So all workers end at the same round, after which the buffers are empty.

(staleness) The age r − v of a gradient counts the rounds between v − 1, the last one that the weights contain with
which it was computed, and its own round r; it is 0 if synchronous, and at most `rounds`. With a queue of `capacity` C:
no result is taken while a gradient is computed, so the thread finds 0, 1, 2, … results waiting as it enters the rounds
v, v + 1, …; the last of these is at most v + C − 1, and the next one has the gradient: the age is at most C. With
latest: the thread enters no multiple of k above v before the training has come to average its model there; so r is at
most the next multiple of k after v: the age is at most k.

(equal-replicas) With `missed` each (`of` = "gradients", `every` = 1) all apply the same results, in the order of
rounds, none left out: after as many rounds all hold the same parameters and optimizer state. With latest and k > 0
(`of` = "models", `every` = k) all hold the mean of their parameters right after every k-th round. With latest alone
nothing is claimed.

*Assumed of the program:* the rules; for equal-replicas what `rounds.py` assumes for it.
"""

from __future__ import annotations

from .refusal import Work
from .schedule import Numbers, Schedule


def staleness(schedule: Schedule, _: Work) -> Numbers | None:
    """Fact `staleness`: return `rounds`, the largest age of a gradient in rounds; None without a limit."""
    setting = schedule.quorum
    bound = setting["staleness"] if setting["missed"] == "each" else setting["synchronize_every"]
    return {"rounds": bound} if bound else None


def equal_replicas(schedule: Schedule, _: Work) -> Numbers | None:
    """Fact `equal-replicas`: return by averages `of` what, and after how many rounds (`every`), models are equal."""
    if schedule.quorum["missed"] == "each":
        return {"of": "gradients", "every": 1}
    every = schedule.quorum["synchronize_every"]
    return {"of": "models", "every": every} if every else None
