"""Claims about rounds that a quorum starts: what holds of partial all-reduce, and of groups, whoever comes late.

What a round takes along is decided while the job runs. So these are theorems about the protocol, whose object is
explored in small systems (docs/internals/explorer.md). The rules that they rest on, the proofs and the numbers stand in
`verify/checker/facts/quorum.py`; docs/theory/quorum-groups.md derives that the shadow models of groups do what their
schedule does.
"""

from __future__ import annotations

from dataclasses import replace

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import LOCKSTEP
from partreduce.topo.strategies.quorum import MissedResults, Quorum, QuorumStart
from partreduce.verify.base import Claim, not_proved
from partreduce.verify.conflict_free import prove_conflict_free
from partreduce.verify.consensus import prove_consensus
from partreduce.verify.contraction import prove_contraction
from partreduce.verify.exact_consensus import prove_exact
from partreduce.verify.membership import asks_everyone, prove_membership
from partreduce.verify.runs import ASSUMED
from partreduce.verify.stated import Numbers, Stated
from partreduce.verify.stochastic import DOUBLY, sums_of_groups

EXPLORED = "That the protocol's code follows this was explored for small configurations (docs/internals/explorer.md)."

TOLD = {
    "rounds-in-order": (
        "each thread enters the rounds 0, 1, 2, … one after the other, is in one group of each, all in one or those of "
        "the schedule, and is done with a round when all members of its group have entered it: so every group's round "
        "is carried out once, whoever and however many start it, and members of two groups carry these out in the "
        "same order."
    ),
    "deadlock-free": (
        "suppose that no thread moves, no message is on its way, and every training waits for a result, or has ended; "
        "take the least round in which a worker that goes on waits. It has come for it, as have all members of its "
        "group that go on, so the group's quorum is there, and all its members know that the round is needed. One of "
        "them is in an earlier round, and has ended; of all such rounds take the least. Nobody in its group goes on, "
        "and it is needed, so it starts: a contradiction. Where nobody goes on all know which rounds are needed, "
        "and the least of those that are not over starts likewise. A full queue holds nobody up for ever: its worker "
        "takes results when it next calls, which waits for nobody. Assumed: messages arrive, and nobody dies."
    ),
    "conservation": (
        "what a call makes joins its worker's buffer, which a round takes whole and empties when the worker's thread "
        "enters it: so each is in exactly one round, the next that the thread enters. A worker that ends tells "
        "everybody which round has the last of it, the last round of all is the largest of these, and no round beyond "
        "it is ever entered: so all end at the same round, and nothing is left."
    ),
}
MEAN_PRESERVED = (
    "a round changes each member's shadow model by t(m - b), b what it brought and m the mean of all that was "
    "brought; these corrections sum to 0 over the group. So the mean of all shadow models moves by published "
    "progress only, for every order of arrival, as the mean of all models does in lockstep; in floats also by what "
    "rounding makes of m - b and of each sum, which nothing takes back. A training applies each correction once, "
    "and when all are applied its model is its shadow."
)
OF_SHADOWS = "By a quorum this holds of the workers' shadow models, round by round of each worker."
"""What the claims about matrices speak of."""


def prove_quorum(schedule: Schedule, stated: Stated) -> tuple[Claim, ...]:
    """All claims about a schedule whose rounds are started by a quorum. Cost: that of the matrices' claims, else O(1).

    The claims about the matrices of groups are those of the same schedule in lockstep. Consensus distance and drift are
    none of them: they take every worker to make progress in every round.
    """
    quorum, of_all = schedule.strategy.when, schedule.strategy.averages_everyone
    assert isinstance(quorum, Quorum), "the registry of provers names the protocol"
    lockstep = replace(schedule, strategy=replace(schedule.strategy, when=LOCKSTEP), certificate=None)
    first: tuple[Claim | None, ...] = ()
    if not of_all:
        disjoint = prove_conflict_free(lockstep, stated)
        if not disjoint.holds:
            rest = (DOUBLY, "consensus", "mean-preserved", "deadlock-free", "conservation")
            return (disjoint, *(not_proved(name, "rests on conflict-freedom, which is refuted.") for name in rest))
        of_matrices = (
            sums_of_groups(stated),
            prove_consensus(lockstep),
            prove_contraction(lockstep),
            prove_exact(lockstep),
        )
        shadows = (c and replace(c, explanation=f"{c.explanation} {OF_SHADOWS}") for c in of_matrices)
        first = (disjoint, prove_membership(lockstep), *shadows)
    told = {name: stated.claim(name, f"{text} {EXPLORED}") for name, text in TOLD.items()}
    late = stated.claim("staleness", lambda numbers: _age(quorum, numbers)) or not_proved(
        "staleness",
        "nothing holds rounds up for a slow worker, so any number of them may pass while it computes; use missed "
        "each, or synchronise_every.",
    )
    last = stated.claim("mean-preserved", f"{MEAN_PRESERVED} {EXPLORED}")
    if of_all:
        last = stated.claim("equal-replicas", _equal_replicas(quorum)) or not_proved(
            "equal-replicas",
            "a result that a worker is too late for is overwritten, and nothing brings parameters together again; use "
            "missed each, or synchronise_every.",
        )
    claims = (
        *first,
        told["rounds-in-order"],
        told["deadlock-free"],
        stated.claim("quorum", _contributors(quorum, schedule.num_workers if of_all else None)),
        told["conservation"],
        late,
        last,
    )
    return tuple(claim for claim in claims if claim is not None)


def essential_of_quorum(schedule: Schedule) -> frozenset[str]:
    """What must be proved besides: that models are equal, or what is said of the matrices of groups."""
    if schedule.strategy.averages_everyone:
        return frozenset({"equal-replicas"})
    of_rules = {"membership"} if (rule := schedule.rule()) is not None and asks_everyone(rule) else set()
    return frozenset({DOUBLY, "consensus", "conflict-free", "mean-preserved", *of_rules})


def _contributors(quorum: Quorum, of: int | None) -> str:
    """Who is in a round of so many workers, or of a group."""
    made, who = ("progress", "member") if of is None else ("a gradient", "worker")
    a_round = "a group's round" if of is None else "a round"
    if isinstance(quorum.quorum, int):
        text = (
            f"a group's round starts when {quorum.quorum} of its members have come for it, all of a smaller group"
            if of is None
            else f"a round starts when {quorum.quorum} of {of} workers have come for it, so it has a gradient of each "
            "of them"
        )
    elif quorum.quorum is QuorumStart.MAJORITY:
        text = f"{a_round} has {made} of the {who} that starts it, drawn from a seed of its own"
        if of is not None:
            text += f"; of {(of + 1) / 2:g} workers on average, where their order of arrival is independent of the draw"
    else:
        text = f"{a_round} has {made} of the {who} that starts it, and of more only if these came before it began"
    text += "; where fewer go on, because others have ended, of so many as are left. "
    if of is None:
        text += (
            "A worker that a round leaves out comes to it alone. A member that is in an earlier round is waited for: "
            "the quorum of that one is not waived."
        )
    else:
        text += "Who ends with a gradient left has come for the round that takes it."
    return f"{text} {EXPLORED}"


def _rounds(bound: int) -> str:
    return "1 round" if bound == 1 else f"{bound} rounds"


def _age(quorum: Quorum, numbers: Numbers) -> str:
    bound = numbers["rounds"]
    why = (
        f"a worker takes no result while it computes, and its thread enters no round while {bound} wait"
        if quorum.keeps_equal
        else f"models are synchronised every {bound} rounds, and no thread goes on before its own model is"
    )
    return (
        f"{why}; so at most {_rounds(bound)} lie between those that the weights have with which a call was computed, "
        "and the round that has what it made, where lockstep has none: it comes at most "
        f"{bound + 1} rounds after the last one that its weights have. {EXPLORED}"
    )


def _equal_replicas(quorum: Quorum) -> str:
    text = (
        f"every {quorum.synchronise_every} rounds all take the mean of their parameters. Between these rounds they "
        "differ, because results that a worker is too late for are overwritten, and optimizer state always may. "
    )
    if quorum.missed is MissedResults.EACH:
        text = (
            "the result of a round is the same for all, none is overwritten, and every worker applies each of them in "
            "order: after as many rounds all hold the same parameters and optimizer state. At one instant "
            "workers may have applied different numbers of rounds. "
        )
    return f"{text}{ASSUMED} {EXPLORED}"
