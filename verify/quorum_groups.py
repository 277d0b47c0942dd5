"""Claims about a schedule of groups whose rounds start by a quorum: the shadow models do what the schedule does.

Which progress a round takes along is decided while the job runs, so what is proved here besides the schedule's own
matrices are theorems about the protocol, whose object is explored in small systems (docs/internals/explorer.md). Their
derivation stands in docs/theory/quorum-groups.md. Each has an entry in the certificate; the rules that they rest on,
and the proofs, stand in `verify/checker/facts/quorum_groups.py`.
"""

from __future__ import annotations

from dataclasses import replace

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import LOCKSTEP
from partreduce.topo.strategies.quorum import Quorum, QuorumStart
from partreduce.verify.base import Claim, follows, not_proved
from partreduce.verify.conflict_free import prove_conflict_free
from partreduce.verify.consensus import prove_consensus
from partreduce.verify.contraction import prove_contraction
from partreduce.verify.exact_consensus import prove_exact
from partreduce.verify.membership import prove_membership
from partreduce.verify.quorum import EXPLORED
from partreduce.verify.stochastic import DOUBLY, explicit_pairs, prove_doubly_stochastic, rule_pairs
from partreduce.verify.view import rule_view

OF_SHADOWS = "By a quorum this holds of the workers' shadow models, round by round of each worker."
"""What the claims about matrices speak of."""


def prove_quorum_of_groups(schedule: Schedule) -> tuple[Claim, ...]:
    """All claims about a schedule of groups whose rounds are started by a quorum. Cost: that of the matrices' claims.

    The claims about matrices are those of the same schedule in lockstep. Consensus distance and drift are none of them:
    they take every worker to make progress in every round.
    """
    strategy = schedule.strategy
    quorum = strategy.when
    assert isinstance(quorum, Quorum), "the registry of provers names the protocol"
    lockstep = replace(schedule, strategy=replace(strategy, when=LOCKSTEP), certificate=None)
    first = prove_conflict_free(lockstep)
    if not first.holds:
        rest = (DOUBLY, "consensus", "mean-preserved", "deadlock-free", "conservation")
        return (first, *(not_proved(name, "rests on conflict-freedom, which is refuted.") for name in rest))
    stochastic = prove_doubly_stochastic(lockstep)
    of_matrices = (
        stochastic,
        prove_consensus(lockstep),
        prove_contraction(lockstep),
        prove_exact(lockstep),
    )
    worded = (replace(c, explanation=f"{c.explanation} {OF_SHADOWS}") for c in of_matrices if c is not None)
    membership = prove_membership(lockstep)
    return (
        first,
        *(() if membership is None else (membership,)),
        *worded,
        _rounds_in_order(),
        _deadlock_free(asked_of(lockstep, quorum)),
        _contributors(quorum),
        _conservation(),
        _mean_preserved(stochastic),
        _staleness(quorum),
    )


def asked_of(schedule: Schedule, quorum: Quorum) -> list[list[int]]:
    """[members, how many of them a round waits for] of the groups of all rounds, each different one once, in order.

    The prologue is a group of all. O(blocks) for rules, O(groups) for lists.
    """
    rule = rule_view(schedule)
    pairs = rule_pairs(rule) if rule is not None else explicit_pairs(schedule)
    sizes = {size for size, _ in pairs} | ({schedule.num_workers} if schedule.prologue else set())
    return [[size, quorum.needed(size)] for size in sorted(sizes)]


def _rounds_in_order() -> Claim:
    text = (
        "each thread enters the rounds 0, 1, 2, … one after the other, is in one group of each, and is done with a "
        "round when all members of its group have entered it: so every group's round is carried out once, whoever "
        "and however many start it, and members of two groups carry these out in the same order."
    )
    return follows("rounds-in-order", f"{text} {EXPLORED}")


def _deadlock_free(asked: list[list[int]]) -> Claim:
    text = (
        "suppose that no thread moves, no message is on its way, and every training waits for a result, or has ended; "
        "take the least round in which a worker that goes on waits. It has come for it, as have all members of its "
        "group that go on, so the group's quorum is there, and all its members know that the round is needed. One of "
        "them is in an earlier round, and has ended; of all such rounds take the least. Nobody in its group goes on, "
        "and it is needed, so it starts: a contradiction. Where nobody goes on all know which rounds are needed, "
        "and the least of those that are not over starts likewise. A full queue holds nobody up for ever: its worker "
        "takes all results when it next calls, which waits for nobody. Assumed: messages arrive, and nobody dies."
    )
    return follows("deadlock-free", f"{text} {EXPLORED}", needed=asked)


def _contributors(quorum: Quorum) -> Claim:
    if isinstance(quorum.quorum, int):
        text = f"a group's round starts when {quorum.quorum} of its members have come for it, all of a smaller group"
        least = quorum.quorum
    elif quorum.quorum is QuorumStart.MAJORITY:
        text = "a group's round has progress of the member that starts it, drawn from a seed of its own"
        least = 1
    else:
        text = "a group's round has progress of the member that starts it, and of more only if these came before"
        least = 1
    text += (
        "; where fewer go on, because others have ended, of so many as are left. A worker that a round leaves out "
        "comes to it alone. A member that is in an earlier round is waited for: the quorum of that one is not waived."
    )
    return follows("quorum", f"{text} {EXPLORED}", {"at_least": least}, at_least=least)


def _conservation() -> Claim:
    text = (
        "what a call publishes is in the snapshot that its worker's thread next takes, and in no other round's as "
        "progress; a worker that ends tells everybody which round has the last of it, the last round of all is the "
        "largest of these, and no round beyond it is ever entered: so all end at the same round, and nothing is left."
    )
    return follows("conservation", f"{text} {EXPLORED}")


def _mean_preserved(stochastic: Claim) -> Claim:
    if not stochastic.holds:
        return not_proved("mean-preserved", f"rests on {stochastic.claim}, which is not proved.")
    text = (
        "a round changes each member's shadow model by t(m - b), b what it brought and m the mean of all that was "
        "brought; these corrections sum to 0 over the group. So the mean of all shadow models moves by published "
        "progress only, for every order of arrival, as the mean of all models does in lockstep; in floats also by what "
        "rounding makes of m - b and of each sum, which nothing takes back. A training applies each correction once, "
        "and when all are applied its model is its shadow."
    )
    return follows("mean-preserved", f"{text} {EXPLORED}")


def _staleness(quorum: Quorum) -> Claim:
    bound = quorum.staleness
    rounds = "1 round" if bound == 1 else f"{bound} rounds"
    text = (
        f"a worker takes no result while it computes, and its thread enters no round while {bound} wait; so at most "
        f"{rounds} lie between those whose corrections the parameters have with which a call was computed, and the "
        "round that averages its progress, where lockstep has none."
    )
    return follows("staleness", f"{text} {EXPLORED}", {"rounds": bound}, rounds=bound)
