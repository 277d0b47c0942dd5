"""Claims about rounds that a quorum starts: what holds of partial all-reduce, whichever workers come late.

What a round takes along is decided while the job runs. So these are theorems about the protocol, whose object is
explored in small systems (docs/internals/explorer.md). The rules that they rest on, the proofs and the numbers stand in
`verify/checker/quorum.py`.
"""

from __future__ import annotations

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.partial import MissedResultPolicy, PartialAllReduce, QuorumStart
from partreduce.verify.base import Claim, not_proved
from partreduce.verify.runs import ASSUMED
from partreduce.verify.stated import Numbers, Stated

EXPLORED = "That the protocol's code follows this was explored for small configurations (docs/internals/explorer.md)."

TOLD = {
    "rounds-in-order": (
        "each thread enters the rounds 0, 1, 2, … one after the other, and is done with a round when all workers have "
        "entered it: so every round is carried out once, whoever and however many start it, in the same order by all."
    ),
    "deadlock-free": (
        "suppose that no thread moves, no message is on its way, and every training waits for a result, or has ended. "
        "All enter a round that one has entered, so all wait to enter the same round. Each worker that goes on has "
        "come for it, so its quorum is there, and it starts: a contradiction. Where nobody goes on all know which "
        "rounds are needed, and the least of those that are not over starts. A full queue holds nobody up for ever: "
        "its worker takes results when it next calls, which waits for nobody. Assumed: messages arrive, and nobody "
        "dies."
    ),
    "conservation": (
        "a gradient joins its worker's buffer, which a round takes whole and empties when the worker's thread enters "
        "it: so each is in exactly one round, the next that the thread enters. A worker that ends tells "
        "everybody which round has the last of it, the last round of all is the largest of these, and no round beyond "
        "it is ever entered: so all end at the same round, and nothing is left."
    ),
}


def prove_quorum(schedule: Schedule, stated: Stated) -> tuple[Claim, ...]:
    """All claims about a schedule whose rounds are started by a quorum. O(1)."""
    quorum = schedule.strategy.sync
    assert isinstance(quorum, PartialAllReduce), "the registry of provers names the protocol"
    told = {name: stated.claim(name, f"{text} {EXPLORED}") for name, text in TOLD.items()}
    late = stated.claim("staleness", lambda numbers: _age(quorum, numbers)) or not_proved(
        "staleness",
        "nothing holds rounds up for a slow worker, so any number of them may pass while it computes; use missed "
        "each, or synchronize_every.",
    )
    equal = stated.claim("equal-replicas", _equal_replicas(quorum)) or not_proved(
        "equal-replicas",
        "a result that a worker is too late for is overwritten, and nothing brings parameters together again; use "
        "missed each, or synchronize_every.",
    )
    claims = (
        told["rounds-in-order"],
        told["deadlock-free"],
        stated.claim("quorum", _contributors(quorum, schedule.num_workers)),
        told["conservation"],
        late,
        equal,
    )
    return tuple(claim for claim in claims if claim is not None)


def _contributors(quorum: PartialAllReduce, of: int) -> str:
    """Who is in a round of so many workers."""
    if isinstance(quorum.quorum, int):
        text = (
            f"a round starts when {quorum.quorum} of {of} workers have come for it, so it has a gradient of each of "
            "them"
        )
    elif quorum.quorum is QuorumStart.MAJORITY:
        text = (
            "a round has a gradient of the worker that starts it, drawn from a seed of its own; of "
            f"{(of + 1) / 2:g} workers on average, where their order of arrival is independent of the draw"
        )
    else:
        text = "a round has a gradient of the worker that starts it, and of more only if these came before it began"
    return (
        f"{text}; where fewer go on, because others have ended, of so many as are left. Who ends with a gradient left "
        f"has come for the round that takes it. {EXPLORED}"
    )


def _rounds(bound: int) -> str:
    return "1 round" if bound == 1 else f"{bound} rounds"


def _age(quorum: PartialAllReduce, numbers: Numbers) -> str:
    bound = numbers["rounds"]
    why = (
        f"a worker takes no result while it computes, and its thread enters no round while {bound} wait"
        if quorum.keeps_equal
        else f"models are synchronized every {bound} rounds, and no thread goes on before its own model is"
    )
    return (
        f"{why}; so at most {_rounds(bound)} lie between those that the weights have with which a gradient was "
        "computed, and the round that has the gradient, where synchronous rounds have none: it comes at most "
        f"{bound + 1} rounds after the last one that its weights have. {EXPLORED}"
    )


def _equal_replicas(quorum: PartialAllReduce) -> str:
    text = (
        f"every {quorum.synchronize_every} rounds all take the mean of their parameters. Between these rounds they "
        "differ, because results that a worker is too late for are overwritten, and optimizer state always may. "
    )
    if quorum.missed is MissedResultPolicy.EACH:
        text = (
            "the result of a round is the same for all, none is overwritten, and every worker applies each of them in "
            "order: after as many rounds all hold the same parameters and optimizer state. At one instant "
            "workers may have applied different numbers of rounds. "
        )
    return f"{text}{ASSUMED} {EXPLORED}"
