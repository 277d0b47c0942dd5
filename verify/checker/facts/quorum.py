"""Rounds that a quorum starts (`when.quorum`), by the rules of partial all-reduce, whoever comes late.

*The rules,* which the program is assumed to obey, and whose machine is explored (docs/internals/explorer.md).
n workers; each has
a *training* and a *thread*.

1. A training computes a gradient with the results of the rounds 0 … v − 1 applied (v: its version), then *calls*: the
   gradient joins the worker's send buffer, and the worker counts as come for the next round that its thread enters (by
   call: its k-th for round k only). The call waits until round v is done, takes results, and the training goes on.
2. Threads carry the rounds 0, 1, 2, … out one after the other. A thread *enters* a round with all that is in the send
   buffer, which is emptied, and is done with it when the sum over all n threads is there.
3. A round may be entered once it is *activated*: when `needed` workers have come for it (a number), or when one of them
   has (solo: any; majority: the one that is drawn), who tells all. A worker without data counts as come, and says so in
   each of its sums; a quorum then asks for no more workers than go on.
4. With `missed` each a result waits in a queue until it is taken; a thread whose worker has `capacity` results
   waiting enters no round. With latest the newest replaces the one before it; then a thread does not enter a round
   whose number is a multiple of `synchronised` = k > 0 before its own model was averaged with all at this round.
5. The first round in which all say that they have ended is the last.

*Theorems.* (rounds-in-order) Every round is carried out once by each of the n threads, in the order of
numbers, and no thread is more than a round ahead of another: a sum is there only when all have entered it.

(deadlock-free) Take the first round that is not done. If it is activated, word is on its way to all. A thread that has
heard and has not entered it waits for room (rule 4) at most. Room comes when its training takes results, which it does
when it next calls, since a round beyond its version is done; or when models are averaged, to which every training comes
that calls, since the rounds up to that one are done. If it is not activated, nobody waits for anything but it, so all
who go on call, or end, and `needed` of them have come. Assumed: messages arrive, nobody dies, a queue holds one result.

(quorum) A round has gradients of `at_least` = `needed` workers, while so many go on: those that had come for it called
before their threads entered it, and rule 2 takes what they brought. A worker that ends goes on in this sense until a
round has told so: in the one that does it is among those that have come, without a gradient.

(conservation) A gradient enters one of n send buffers once and leaves it once, into the sum of the next
round that its thread enters; whoever ends says so behind its last gradient, so the last round leaves all of them empty.

(staleness) Number a gradient's age r − v: the rounds between the last one that its weights have, v − 1, and its own,
r; 0 in lockstep. It is at most `rounds`. With a queue of `capacity` C: no result is taken from the beginning of the
computing to the call, so the thread finds 0, 1, 2, … results as it enters the rounds v, v + 1, … meanwhile; the last
of them is v + C − 1 at most, and the next one that it enters has the gradient. So `rounds` = C. With latest: the thread
enters no multiple of k above v before the training, which computes, has come to be averaged there; so r is at most the
next multiple of k after v, and `rounds` = k. Counted from round v − 1 it is one more.

(equal-replicas) With `missed` each (`of` = "gradients", `every` = 1) all apply the same results, in the order of
rounds, none left out: after as many rounds all hold the same parameters and optimizer state, as in
`equal_replicas.py`. With latest and k > 0 (`of` = "models", `every` = k) all hold the mean of their parameters right
after every k-th round. With latest alone nothing is claimed.

*Assumed of the program:* the rules, and for equal-replicas the same parameters at the start, and a deterministic
optimizer that is set up alike on all workers.
"""

from __future__ import annotations

from ..quorum import StartedRounds
from ..refusal import Work
from ..schedule import Numbers, Schedule


def setting_of(schedule: Schedule) -> StartedRounds:
    """The rounds' setting, of a schedule that has one."""
    assert schedule.quorum is not None, "these facts are of nothing else"
    return schedule.quorum


def nothing_besides(_: Schedule, __: Work) -> Numbers:
    """It holds of every setting."""
    return {}


def live(schedule: Schedule, _: Work) -> Numbers:
    """`needed` workers that a round waits for: fewer than all, as the reader has seen to."""
    return {"needed": setting_of(schedule).needed}


def contributors(schedule: Schedule, _: Work) -> Numbers:
    """`at_least` so many workers in a round, or of a group's members in its round."""
    return {"at_least": setting_of(schedule).needed}


def staleness(schedule: Schedule, _: Work) -> Numbers | None:
    """`rounds` between a gradient's weights and its own round, at most."""
    setting = setting_of(schedule)
    bound = setting.capacity or setting.synchronised
    return {"rounds": bound} if bound else None


def equal_replicas(schedule: Schedule, _: Work) -> Numbers | None:
    """`of` what is equal by itself, or made equal, and after `every` how many rounds."""
    setting = setting_of(schedule)
    if setting.missed == "each":
        return {"of": "gradients", "every": 1}
    return {"of": "models", "every": setting.synchronised} if setting.synchronised else None
