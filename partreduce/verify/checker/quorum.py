"""Facts of rounds that a quorum of the workers starts (`sync.partial`), whichever workers are late.

*The rules,* which the program is assumed to obey, and whose machine is explored (docs/internals/explorer.md). n
workers; each has a *training* and a *thread*.

1. A training computes a gradient with the results of the rounds 0 … v − 1 applied (v: its version), then *calls*: the
gradient joins the worker's send buffer, and the worker has come for the next round that its thread enters (by call: its
k-th call is for round k only). The call waits until round v is done, takes results, and the training continues.

2. Threads carry the rounds 0, 1, 2, … out one after the other. A thread *enters* a round with all that is in the send
buffer, which is emptied, and is done with it when the sum over all workers is there.

3. A round may be entered once it is *activated*: when `needed` workers have come for it (a number), or when one has
(solo: any; majority: the one that is drawn). Workers tell each other. Who ends has come for the round that takes what
it has left, and tells everybody which round it came for last; who came before it ended has come, and no more workers
are asked for than have come or continue. Where no worker continues, a round starts that is *needed*: some worker
has come for it or for a later one.

4. With `missed` each a result waits in a queue until it is taken; a thread whose worker has `capacity` results waiting
enters no round. With latest the newest replaces the one before it; then a thread does not enter a round whose number is
a multiple of `synchronized` = k > 0 before its own model was averaged with all at this round. None enters a round that
no worker needs once all have ended.

*Theorems.* (order) Each of n threads carries out every round that is needed once, in the order of numbers: rule 2. No
thread is more than a round ahead of another: a sum is there only when all have entered it.

(deadlock-free) `needed` workers that a round waits for, and has a gradient of: never more than there are. Suppose that
no thread moves, no word is on its way, and every training waits for a result, or has ended. Then no thread is in a
round, as all enter a round that one has entered; so all threads wait to enter the same round k. A worker that continues
has called, and nothing waits for it, so it has come for k, as have all that continue. (By call as well: whose call does
not count finds the result of its own round, and calls again.) So the quorum is there, and k starts: a contradiction.
Where no worker continues all know which rounds are needed, and the least of them that is not over starts. A full queue
blocks no worker for ever: a training that calls takes results without waiting; nor does a model that is to be averaged,
to which every training comes that calls or has ended, since the rounds up to that one are done. Assumed: messages
arrive, no worker fails, a queue holds one result.

(conservation) A gradient enters one of n send buffers once and leaves it once, into the next round that its thread
enters. Who ends says which round has the last of it; all rounds up to the largest of these are needed, and none beyond;
so all end at one round, which leaves the buffers empty.

(staleness) The age r − v of a gradient counts the rounds between the last one that its weights have, v − 1, and its
own, r; 0 if synchronous. It is at most `rounds`. With a queue of `capacity` C: no result is taken from the beginning of
the computing to the call, so the thread finds 0, 1, 2, … results as it enters the rounds v, v + 1, … meanwhile; the
last of them is v + C − 1 at most, and the next one that it enters has the gradient: C. With latest: the thread enters
no multiple of k above v before the training, which computes, has come to be averaged there; so r is at most the next
multiple of k after v: k.

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
    """Fact `equal-replicas`: return `of` ("gradients" or "models") and `every`, the rounds until equal again."""
    if schedule.quorum["missed"] == "each":
        return {"of": "gradients", "every": 1}
    every = schedule.quorum["synchronize_every"]
    return {"of": "models", "every": every} if every else None
