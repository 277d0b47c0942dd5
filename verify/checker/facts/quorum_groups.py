"""Groups that a quorum starts (`when.quorum` of a static schedule), by the rules of shadow models, whoever comes late.

*The rules,* which the program is assumed to obey, and whose machine is explored (docs/internals/explorer.md).
n workers; each has
a *training* with parameters x, and a *thread* with a second model, its *shadow* s. c is what rounds changed in the
shadow since the training last looked. All begin with s = x and c = 0.

1. A training computes the steps of a call with the corrections of the rounds 0 … v − 1 applied (v: its version), then
   *calls*: s ← x + c, and the worker has come for the next round that its thread enters. The call waits until round v
   is done, then takes all that is there: x ← s, c ← 0; and the training goes on.
2. Threads carry the rounds 0, 1, 2, … out one after the other, each in the group of the schedule that its worker is in
   (all in a prologue, itself alone where the worker rests). A thread *enters* a round with a snapshot b of its shadow.
   When all members have entered, m is the mean of their snapshots: s ← s + t·(m − b), and c likewise, with the group's
   factor t. What was published meanwhile stays in s.
3. A group's round may be entered once it is *activated*: when `needed` of its members have come for it (a number, or
   all of a smaller group), or when one has (solo: any; majority: the one that is drawn). Members tell each other. Who
   ends tells everybody the last round that has progress of it; who came before it ended has come, and no more members
   are asked for than have come or go on. A group of which nobody goes on starts a round that is *needed*: somebody has
   come for it or for a later one, or has said that it has the last of its progress.
4. A thread whose worker has `capacity` results waiting enters no round. None enters a round that nobody needs once all
   have ended.

*Theorems.* (the matrices) Let b_i(k) be worker i's snapshot for round k, and u_i(k) what it published between its
snapshots for k − 1 and k. Nothing but rule 2 changes a shadow besides, and a thread is done with k before it enters
k + 1, so b(k + 1) = W_k·b(k) + u(k + 1) with the schedule's matrix W_k, for every order of arrival. Claims about
products of matrices therefore hold of the shadows, round by round of each worker: `conflict-free`, `membership`,
`doubly-stochastic`, `unit-sums`, `consensus`, `contraction` and `exact-consensus` are read here as in lockstep.

(rounds-in-order) Each of n threads carries out every round once, in the order of numbers, and the members
of two groups these in the same order: rule 2.

(deadlock-free) `needed` lists [members, needed] of all groups of two or more: never more than there are. Suppose that
no thread moves, no word is on its way, and every training waits for a result, or has ended. Let k be the least round
in which a worker waits that goes on. It has called, and nothing waits for it, so it has come for k; so have all members
of its group that go on, since they are in round k, too. So the quorum is there, and all members know that k is needed.
One of them is therefore in an earlier round, and has ended. Take the least round in which one is that knows so: nobody
of its group there goes on, as k was the least, so by rule 3 it starts, and whoever starts it tells the others of that
group that it is needed. A contradiction. Where nobody goes on all know which rounds are needed, and the least of them
that is not over starts likewise. A full queue holds up nobody for ever: a training that calls takes all results without
waiting. Assumed: messages arrive, nobody dies, a queue holds one result.

(quorum) A group's round has progress of `at_least` members, of all where there are fewer, while so many go on: those
that had come for it had called before their threads entered it.

(conservation) What a call publishes is in the next snapshot of its worker, and stays in the shadows from then on. Who
ends says which round has the last of it; all rounds up to the largest of these are needed, and none beyond; so all
n workers end at one round, with nothing that no round has had.

(mean-preserved) In a group the corrections sum to the sum of t·(m − b) = 0, so the mean of all shadows moves by what is
published only. A training applies each correction once, and has applied all when c = 0: then x = s. This is exact for
exact numbers. In floats m, m − b and each sum are rounded, so a round moves the mean by what rounding makes of it,
about an ulp of the largest number, and nothing takes these movements back.

(staleness) No result is taken from the beginning of the computing to the call, so the thread finds 0, 1, 2, … results
waiting as it enters the rounds v, v + 1, … meanwhile; the last of them is v + C − 1 at most with a queue of C, and the
next one that it enters has the progress. So at most `rounds` = C lie between the rounds whose corrections the
parameters have and the one that averages what was computed with them; 0 in lockstep.

*Assumed of the program:* the rules. Groups are disjoint (`conflict-free`). What is published counts as it is: nothing
is claimed of consensus distance and drift, which take every worker to make progress in every round.
"""

from __future__ import annotations

from ..refusal import Work
from ..schedule import Numbers, Schedule
from .quorum import setting_of


def live(schedule: Schedule, _: Work) -> Numbers:
    """`needed`: [members, needed of them] of the groups of all rounds, each different one once, in order."""
    sizes = {size for phase in schedule.group_sizes() for size, _ in phase}
    if schedule.prologue:
        sizes.add(schedule.num_workers)
    asked = setting_of(schedule).needed
    return {"needed": [[size, min(asked, size)] for size in sorted(sizes)]}


def staleness(schedule: Schedule, _: Work) -> Numbers:
    """`rounds` between those whose corrections parameters have and the one that averages progress, at most."""
    return {"rounds": setting_of(schedule).capacity}
