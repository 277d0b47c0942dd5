"""Claims about a quorum: what holds of partial all-reduce whoever comes late.

Which gradients a round sums is decided while the job runs. So these are theorems about the protocol, whose object is
explored in small systems (docs/internals/explorer.md); what follows from the file's setting has an entry in the
certificate. The rules that they rest on, and the proofs, stand in `verify/checker/facts/quorum.py`.
"""

from __future__ import annotations

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.quorum import MissedResults, Quorum, QuorumStart
from partreduce.verify.base import Claim, Status, follows
from partreduce.verify.equal_replicas import ASSUMED
from partreduce.verify.equal_replicas import NAME as EQUAL_REPLICAS

EXPLORED = "That the protocol's code follows this was explored for small configurations (docs/internals/explorer.md)."


def prove_quorum(schedule: Schedule) -> tuple[Claim, ...]:
    """All claims about a schedule whose rounds are started by a quorum. O(1)."""
    quorum = schedule.strategy.when
    assert isinstance(quorum, Quorum), "the registry of provers names the protocol"
    n = schedule.num_workers
    return (
        _rounds_in_order(n),
        _deadlock_free(quorum, n),
        _contributors(quorum, n),
        _conservation(n),
        _staleness(quorum),
        _equal_replicas(quorum),
    )


def _rounds_in_order(n: int) -> Claim:
    text = (
        f"a round is a sum over all {n} threads, and each enters the rounds 0, 1, 2, … one after the other: so every "
        "round is carried out once, whoever and however many start it, all in the same order, and no thread is more "
        "than a round ahead of another."
    )
    return follows("rounds-in-order", f"{text} {EXPLORED}")


def _deadlock_free(quorum: Quorum, n: int) -> Claim:
    text = (
        "take the first round that is not over. If it is activated, word of that is on its way to all who have not "
        "entered it, and a worker that cannot enter because results wait for it takes them when it next calls, which "
        "waits for nobody. If it is not, who waits for it has come, and everybody else computes and comes in turn, or "
        "ends, which counts as coming; so those come at last that a round asks for. A worker that has ended "
        "goes on taking part; all learn of it from the same sum and ask only for the others, and the first round "
        "in which all have said so is the last one of all. Assumed: messages arrive, and nobody dies."
    )
    return follows("deadlock-free", f"{text} {EXPLORED}", needed=quorum.needed(n))


def _contributors(quorum: Quorum, n: int) -> Claim:
    if isinstance(quorum.quorum, int):
        least = quorum.needed(n)
        text = f"a round starts when {least} of {n} workers have come for it, so it has a gradient of each of them"
    elif quorum.quorum is QuorumStart.MAJORITY:
        least = 1
        text = (
            f"a round has a gradient of the worker that starts it, drawn from a seed of its own; of {(n + 1) / 2:g} "
            "workers on average, where their order of arrival is independent of the draw"
        )
    else:
        least = 1
        text = "a round has a gradient of the worker that starts it, and of more only if these came before it began"
    text += (
        "; where fewer go on, because others have ended, of so many as are left. A worker that ends has come once "
        "more, without a gradient, for the round that tells the others so."
    )
    return follows("quorum", f"{text} {EXPLORED}", {"at_least": least}, at_least=least)


def _conservation(n: int) -> Claim:
    text = (
        "a gradient is added to its worker's send buffer, which a round takes whole and empties when the worker's "
        "thread enters it; so each gradient is in the sum of exactly one round, the next that its thread enters. "
        f"Whoever ends says so behind its last gradient, so after the last round all {n} send buffers are empty."
    )
    return follows("conservation", f"{text} {EXPLORED}")


def _staleness(quorum: Quorum) -> Claim:
    name, bound = "staleness", quorum.bound
    if bound is None:
        text = (
            "nothing holds rounds up for a slow worker, so any number of them may pass while it computes; use missed "
            "each, or synchronise_every."
        )
        return Claim(name, Status.NOT_PROVED, text)
    rounds = "1 round" if bound == 1 else f"{bound} rounds"
    why = (
        f"a worker takes no result while it computes, and its thread enters no round while {bound} wait"
        if quorum.keeps_equal
        else f"models are synchronised every {bound} rounds, and no thread goes on before its own model is"
    )
    text = (
        f"{why}; so at most {rounds} lie between those that a gradient's weights have and the round that sums it, "
        f"where lockstep has none: it comes at most {bound + 1} rounds after the last one that its weights have."
    )
    return follows(name, f"{text} {EXPLORED}", {"rounds": bound}, rounds=bound)


def _equal_replicas(quorum: Quorum) -> Claim:
    if quorum.missed is MissedResults.EACH:
        text = (
            "the result of a round is the same for all, none is overwritten, and every worker applies each of them in "
            "order: after as many rounds all hold the same parameters and optimizer state. At one instant "
            "workers may have applied different numbers of rounds. "
        )
        return follows(EQUAL_REPLICAS, f"{text}{ASSUMED} {EXPLORED}", of="gradients", every=1)
    if not quorum.synchronise_every:
        text = (
            "a result that a worker is too late for is overwritten, and nothing brings parameters together again; use "
            "missed each, or synchronise_every."
        )
        return Claim(EQUAL_REPLICAS, Status.NOT_PROVED, text)
    text = (
        f"every {quorum.synchronise_every} rounds all take the mean of their parameters. Between these rounds they "
        "differ, because results that a worker is too late for are overwritten, and optimizer state always may. "
    )
    every = quorum.synchronise_every
    return follows(EQUAL_REPLICAS, f"{text}{ASSUMED}", {"every": every}, of="models", every=every)
