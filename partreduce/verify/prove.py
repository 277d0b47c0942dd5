"""prove: every claim about one schedule, with its certificate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from partreduce.topo.errors import ScheduleError, of_type
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Codec, GradientBuckets
from partreduce.verify.base import Claim, Proof, Status, not_proved
from partreduce.verify.certificate import certificate_of
from partreduce.verify.checker.certificate import AFTER_FAILURE_TOO, ASSUMED
from partreduce.verify.conflict_free import NAME as CONFLICT_FREE
from partreduce.verify.conflict_free import prove_conflict_free
from partreduce.verify.consensus import prove_consensus
from partreduce.verify.consensus_distance import prove_consensus_distance
from partreduce.verify.contraction import prove_contraction
from partreduce.verify.exact_consensus import prove_exact
from partreduce.verify.graph import prove_graph
from partreduce.verify.kept_gap import essential_of_kept_gap, prove_kept_gap
from partreduce.verify.membership import asks_everyone, prove_membership
from partreduce.verify.on_request import prove_generated, prove_pairwise, prove_server
from partreduce.verify.outer_steps import NAME as OUTER_CONSENSUS
from partreduce.verify.outer_steps import prove_own_outer_params
from partreduce.verify.quorum import prove_quorum
from partreduce.verify.runs import ages, claims_of_runs, deadlock_free
from partreduce.verify.stated import Stated
from partreduce.verify.stochastic import DOUBLY, sums_of_groups
from partreduce.verify.survives import MOVED, moved_words, prove_survives
from partreduce.verify.survives import NAME as SURVIVES
from partreduce.verify.tables import essential_of_tables, prove_tables

ON_DISJOINT = "rests on conflict-freedom, which is refuted."


def prove(schedule: Schedule) -> Proof:
    """Prove or refute everything that docs/certificates.md lists for this kind of schedule.

    Rules: milliseconds at any number of nodes. Explicit schedules: near-linear in num_workers · period, rates only up
    to the sizes that docs/certificates.md states.

    Strategies whose groups are decided while the job runs have no certificate: their claims come from
    `verify.on_request`, their protocols are explored.

    Raises:
        ScheduleError: the strategy has neither phases nor conditions that could be checked.
    """
    of_type(schedule, Schedule, "verify", "give a Schedule; partreduce.load_schedule(path) reads one")
    prover = PROVERS_OF_PROTOCOL.get(schedule.strategy.protocol) or PROVERS.get(schedule.strategy.kind)
    if schedule.strategy.payload.outer.has_own_outer_params:
        prover = OWN_OUTER_PARAMS
    if prover is None:
        raise ScheduleError(f"strategy {schedule.strategy.kind!r}: has nothing to prove here")
    rule = schedule.rule()
    essential = prover.essential | (prover.of_rules if rule is not None and asks_everyone(rule) else frozenset())
    essential |= _of_payload(schedule) | prover.more(schedule) | essential_of_tables(schedule)
    essential |= {SURVIVES} if schedule.failure_plan is not None else frozenset()
    certificate: dict[str, Any] = {}
    stated = Stated(schedule)
    claims = prover.claims(schedule, stated)
    is_clashing = any(claim.claim == CONFLICT_FREE and not claim.holds for claim in claims)
    claims += prove_tables(schedule, rests_on=ON_DISJOINT if is_clashing else "")
    if schedule.failure_plan is not None:
        claims += (not_proved(SURVIVES, ON_DISJOINT) if is_clashing else _worded(prove_survives(schedule), schedule),)
        moved = stated.claim(MOVED, moved_words(schedule))
        claims += () if moved is None else (moved,)
    claims = tuple(_qualified(claim, schedule) if claim.holds else claim for claim in claims)
    if schedule.is_mixing or prover.is_certified:
        certificate = certificate_of(stated.read, claims)
    proof = Proof(schedule.name, claims, essential, certificate)
    if not proof.absent:
        return proof
    missing = (not_proved(name, f"nothing proves it for strategy {schedule.strategy.kind!r}.") for name in proof.absent)
    return replace(proof, claims=(*claims, *sorted(missing, key=lambda claim: claim.claim)))


def _qualified(claim: Claim, schedule: Schedule) -> Claim:
    """A claim that holds, with what it supposes of the program, and whether it ends with a failure."""
    assumes = "" if claim.status is Status.FOLLOWS else ASSUMED.get(claim.claim, "")
    ends = schedule.failure_plan is not None and claim.claim not in AFTER_FAILURE_TOO
    return replace(claim, assumes=assumes, before_failure=ends) if assumes or ends else claim


def _of_payload(schedule: Schedule) -> frozenset[str]:
    """What must be proved besides where gradients are late, or payloads rounded."""
    is_late = schedule.strategy.sync.delays_gradients and schedule.is_mixing
    late = {"lag", "equal-replicas"} if is_late else set()
    coded = set() if schedule.strategy.transport.codec is Codec.NONE else {"codec-error"}
    return frozenset(late | coded)


def _group_claims(schedule: Schedule, stated: Stated) -> tuple[Claim, ...]:
    first = prove_conflict_free(schedule, stated)
    if not first.holds:
        # With an overlap there is no mixing matrix to speak about.
        rest = (DOUBLY, "consensus", "deadlock-free", "contraction", *sorted(_of_payload(schedule)))
        return (first, *(not_proved(name, ON_DISJOINT) for name in rest))
    claims = [
        first,
        prove_membership(schedule),
        sums_of_groups(stated),
        prove_consensus(schedule),
        deadlock_free(schedule, stated),
        prove_contraction(schedule),
        prove_consensus_distance(schedule),
        prove_exact(schedule),
    ]
    made = tuple(_worded(claim, schedule) for claim in claims if claim is not None)
    return (*made, *claims_of_runs(schedule, stated))


EXACT = (
    DOUBLY,
    "unit-sums",
    "consensus",
    "contraction",
    "consensus-distance",
    "exact-consensus",
    SURVIVES,
)
"""Claims about matrices, which take numbers to be averaged as they are."""


OUTER = (
    "Outer steps move all workers alike, so this holds of their differences; the mean itself goes where they take it."
)


def _worded(claim: Claim, schedule: Schedule) -> Claim:
    """A claim with what has to be said of it besides, where payloads are rounded, summed, in pieces or in flight."""
    strategy, more = schedule.strategy, []
    if claim.claim in EXACT and strategy.transport.codec is not Codec.NONE:
        more.append("This speaks of exact averages; rounding adds to each at most what codec-error says.")
    if claim.claim in EXACT and not strategy.payload.outer.is_plain:
        more.append(OUTER)
    if claim.claim == "deadlock-free":
        if strategy.sync.delays_gradients:
            flying = f"Up to {strategy.sync.lag} of them are in flight at once"
            more.append(f"{flying}, begun and waited for in this order, so the argument stands.")
        if strategy.transport.gradient_buckets is GradientBuckets.PER_LAYER:
            more.append("Each is cut into pieces that all workers begin in the same order.")
        if strategy.payload.num_fragments > 1:
            more.append("Each is one after the other of its round's fragments, whose order follows from the step.")
        if strategy.transport.codec.has_blocks:
            more.append("A thread carries out its stages in this order, on communicators that nothing else uses.")
    return replace(claim, explanation=" ".join((claim.explanation, *more))) if more else claim


def _graph_claims(schedule: Schedule, stated: Stated) -> tuple[Claim, ...]:
    order = deadlock_free(schedule, stated)
    return (*prove_graph(schedule, stated), *([] if order is None else [order]), *claims_of_runs(schedule, stated))


def _kept_gap_claims(schedule: Schedule, stated: Stated) -> tuple[Claim, ...]:
    claims = prove_kept_gap(schedule, stated)
    return (*claims, *ages(schedule, stated)) if schedule.is_mixing else claims


@dataclass(frozen=True, slots=True)
class Prover:
    """How a kind is proved: its claims, and those without which a schedule of that kind should not be run.

    `of_rules` are essential as well where the groups come from rules and every worker can be asked for its own, and
    what `more` says of the schedule.
    `is_certified`: what it proves is confirmed also where rounds are not fixed.
    """

    claims: Callable[[Schedule, Stated], tuple[Claim, ...]]
    essential: frozenset[str]
    of_rules: frozenset[str] = frozenset()
    more: Callable[[Schedule], frozenset[str]] = lambda _: frozenset()
    is_certified: bool = False


MEANS = frozenset({DOUBLY, "consensus", "deadlock-free"})
GROUPS = Prover(_group_claims, MEANS | {"conflict-free"}, frozenset({"membership"}))

OWN_OUTER_PARAMS = Prover(
    prove_own_outer_params,
    frozenset({"conflict-free", "deadlock-free", OUTER_CONSENSUS}),
    frozenset({"membership"}),
    is_certified=True,
)
"""The prover of groups whose rounds are no mixing matrices."""

PROVERS: dict[str, Prover] = {
    "static": GROUPS,
    "allreduce": GROUPS,
    "neighbor": Prover(_graph_claims, MEANS),
    "dynamic_groups": Prover(
        lambda schedule, _: prove_generated(schedule), frozenset({"convergence", "deadlock-free"})
    ),
    "pairwise": Prover(lambda schedule, _: prove_pairwise(schedule), frozenset({"consensus", "deadlock-free"})),
    "server": Prover(lambda schedule, _: prove_server(schedule), frozenset({"consensus", "deadlock-free"})),
}
"""The prover of every kind. A new kind is one line here."""


PROVERS_OF_PROTOCOL: dict[str, Prover] = {
    "gap": Prover(
        _kept_gap_claims,
        frozenset({"deadlock-free", "queues"}),
        more=essential_of_kept_gap,
        is_certified=True,
    ),
    "quorum": Prover(
        prove_quorum,
        frozenset({"deadlock-free", "conservation", "equal-replicas"}),
        is_certified=True,
    ),
}
"""The prover where the *sync* axis says who waits for whom, by a protocol."""
