"""Rounds that a quorum starts (`when.quorum`), of all workers or of each group of a schedule, whoever comes late.

*The rules,* which the program is assumed to obey, and whose machine is explored (docs/internals/explorer.md). n
workers; each has a *training* and a *thread*. A round has groups of workers: one of all, or the schedule's (all in a
prologue, itself alone where a worker rests).

1. A training computes with the results of the rounds 0 … v − 1 applied (v: its version), then *calls*: what it made (a
   gradient; in groups the progress of its steps) joins the worker's send buffer, and the worker has come for the next
   round that its thread enters (by call: its k-th call is for round k only). The call waits until round v is done,
   takes results, and the training goes on.
2. Threads carry the rounds 0, 1, 2, … out one after the other. A thread *enters* a round with all that is in the send
   buffer, which is emptied, and is done with it when the sum over all members of its group is there. In groups it
   brings a snapshot b of a second model, its *shadow* s; c is what rounds changed in s since the training last looked.
   A call publishes: s ← x + c. m is the mean of the snapshots: s ← s + t·(m − b), and c likewise, with the group's
   factor t; what was published meanwhile stays in s. Taking is x ← s, c ← 0. All begin with s = x and c = 0.
3. A group's round may be entered once it is *activated*: when `needed` of its members have come for it (a number, or
   all of a smaller group), or when one has (solo: any; majority: the one that is drawn). Members tell each other. Who
   ends has come for the round that takes what it has left, and tells everybody which round it came for last; who came
   before it ended has come, and no more members are asked for than have come or go on. A group of which nobody goes on
   starts a round that is *needed*: somebody has come for it or for a later one.
4. With `missed` each a result waits in a queue until it is taken; a thread whose worker has `capacity` results
   waiting enters no round. With latest the newest replaces the one before it; then a thread does not enter a round
   whose number is a multiple of `synchronised` = k > 0 before its own model was averaged with all at this round.
   None enters a round that nobody needs once all have ended.

*Theorems.* (rounds-in-order) Each of n threads carries out every round that is needed once, in the order of numbers,
and the members of two groups these in the same order: rule 2. With one group of all no thread is more than a round
ahead of another: a sum is there only when all have entered it.

(deadlock-free) `needed` workers that a round waits for; of groups [members, needed] of each of two or more: never more
than there are. Suppose that no thread moves, no word is on its way, and every training waits for a result, or has
ended. Let k be the least round in which a worker waits that goes on. It has called, and nothing waits for it, so it has
come for k; so have all members of its group that go on, since they are in round k, too. (By call as well: whose call
does not count finds the result of its own round, and calls again.) So the quorum is there, and all members know that k
is needed. One of them is therefore in an earlier round, and has ended. Take the least round in which one is that knows
so: nobody of its group there goes on, as k was the least, so by rule 3 it starts, and whoever starts it tells the
others of that group that it is needed. A contradiction. Where nobody goes on all know which rounds are needed, and the
least of them that is not over starts likewise. A full queue holds up nobody for ever: a training that calls takes
results without waiting; nor does a model that is to be averaged, to which every training comes that calls or has ended,
since the rounds up to that one are done. Assumed: messages arrive, nobody dies, a queue holds one result.

(quorum) A round has something of `at_least` = `needed` members, of all where there are fewer, while so many go on:
those that had come for it called before their threads entered it, and rule 2 takes what they brought.

(conservation) What a call makes enters one of n send buffers once and leaves it once, into the next round that its
thread enters. Who ends says which round has the last of it; all rounds up to the largest of these are needed, and none
beyond; so all end at one round, which leaves the buffers empty.

(staleness) Number the age r − v of what a call made: the rounds between the last one that its weights have, v − 1, and
its own, r; 0 in lockstep. It is at most `rounds`. With a queue of `capacity` C: no result is taken from the beginning
of the computing to the call, so the thread finds 0, 1, 2, … results as it enters the rounds v, v + 1, … meanwhile; the
last of them is v + C − 1 at most, and the next one that it enters has what was made. So `rounds` = C. With latest: the
thread enters no multiple of k above v before the training, which computes, has come to be averaged there; so r is at
most the next multiple of k after v, and `rounds` = k. Counted from round v − 1 it is one more.

(equal-replicas; sums over all) With `missed` each (`of` = "gradients", `every` = 1) all apply the same results, in the
order of rounds, none left out: after as many rounds all hold the same parameters and optimizer state, as in
`equal_replicas.py`. With latest and k > 0 (`of` = "models", `every` = k) all hold the mean of their parameters right
after every k-th round. With latest alone nothing is claimed.

(the matrices; groups) Let b_i(k) be worker i's snapshot for round k, and u_i(k) what it published between its
snapshots for k − 1 and k. Nothing but rule 2 changes a shadow besides, and a thread is done with k before it enters
k + 1, so b(k + 1) = W_k·b(k) + u(k + 1) with the schedule's matrix W_k, for every order of arrival. Claims about
products of matrices therefore hold of the shadows, round by round of each worker: `conflict-free`, `membership`,
`doubly-stochastic`, `unit-sums`, `consensus`, `contraction` and `exact-consensus` are read here as in lockstep.

(mean-preserved; groups) In a group the corrections sum to the sum of t·(m − b) = 0, so the mean of all shadows moves by
what is published only. A training applies each correction once, and has applied all when c = 0: then x = s. This is
exact for exact numbers. In floats m, m − b and each sum are rounded, so a round moves the mean by what rounding makes
of it, about an ulp of the largest number, and nothing takes these movements back.

*Assumed of the program:* the rules; groups are disjoint (`conflict-free`); for equal-replicas the same parameters at
the start, and a deterministic optimizer that is set up alike on all workers. What is published counts as it is: nothing
is claimed of consensus distance and drift, which take every worker to make progress in every round.
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


def live_in_groups(schedule: Schedule, _: Work) -> Numbers:
    """`needed`: [members, needed of them] of the groups of all rounds, each different one once, in order."""
    sizes = {size for phase in schedule.group_sizes() for size, _ in phase}
    if schedule.prologue:
        sizes.add(schedule.num_workers)
    asked = setting_of(schedule).needed
    return {"needed": [[size, min(asked, size)] for size in sorted(sizes)]}


def contributors(schedule: Schedule, _: Work) -> Numbers:
    """`at_least` so many workers in a round, or of a group's members in its round."""
    return {"at_least": setting_of(schedule).needed}


def staleness(schedule: Schedule, _: Work) -> Numbers | None:
    """`rounds` between the weights that something was computed with and its own round, at most."""
    setting = setting_of(schedule)
    bound = setting.capacity or setting.synchronised
    return {"rounds": bound} if bound else None


def equal_replicas(schedule: Schedule, _: Work) -> Numbers | None:
    """`of` what is equal by itself, or made equal, and after `every` how many rounds."""
    setting = setting_of(schedule)
    if setting.missed == "each":
        return {"of": "gradients", "every": 1}
    return {"of": "models", "every": setting.synchronised} if setting.synchronised else None
