"""prove: every claim about one schedule, with its certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from preduce.topo.errors import ScheduleError
from preduce.verify.base import Claim, Proof, Status, not_proved
from preduce.verify.budget import budgets
from preduce.verify.certificate import certificate_of
from preduce.verify.conflict_free import prove_conflict_free
from preduce.verify.consensus import prove_consensus
from preduce.verify.contraction import prove_contraction
from preduce.verify.deadlock_free import prove_deadlock_free
from preduce.verify.disagreement import prove_disagreement
from preduce.verify.drift import prove_drift
from preduce.verify.exact_consensus import prove_exact
from preduce.verify.graph import prove_graph
from preduce.verify.membership import prove_membership
from preduce.verify.on_request import prove_generated, prove_pairwise, prove_server
from preduce.verify.rounds import prove_rounds
from preduce.verify.stochastic import DOUBLY, prove_doubly_stochastic

if TYPE_CHECKING:
    from collections.abc import Callable

    from preduce.topo.schedule import Schedule


def prove(schedule: Schedule) -> Proof:
    """Prove or refute everything that docs/certificates.md lists for this kind of schedule.

    Rules: milliseconds at any number of nodes. Explicit schedules: near-linear in num_workers · period, rates only up
    to the sizes that docs/certificates.md states.

    Strategies whose groups are decided while the job runs have no certificate: their claims come from
    `verify.on_request`, their protocols are explored.

    Raises:
        ScheduleError: the strategy has neither phases nor conditions that could be checked.
    """
    prover = PROVERS.get(schedule.strategy.kind)
    if prover is None:
        raise ScheduleError(f"strategy {schedule.strategy.kind!r}: has nothing to prove here")
    essential = prover.essential | (prover.of_rules if schedule.rule() is not None else frozenset())
    certificate: dict[str, Any] = {}
    claims = prover.claims(schedule)
    if schedule.is_mixing:
        certificate = certificate_of(schedule, claims)
    proof = Proof(schedule.name, claims, essential, certificate, budgets(schedule) if schedule.is_mixing else {})
    if not proof.absent:
        return proof
    missing = (not_proved(name, f"nothing proves it for strategy {schedule.strategy.kind!r}.") for name in proof.absent)
    return replace(proof, claims=(*claims, *sorted(missing, key=lambda claim: claim.claim)))


def _group_claims(schedule: Schedule) -> tuple[Claim, ...]:
    first = prove_conflict_free(schedule)
    if first.status is not Status.PROVED:
        # With an overlap there is no mixing matrix to speak about.
        rest = (DOUBLY, "consensus", "deadlock-free", "contraction")
        return (first, *(not_proved(name, "rests on conflict-freedom, which is refuted.") for name in rest))
    exact = prove_exact(schedule)
    claims = [
        first,
        prove_membership(schedule),
        prove_doubly_stochastic(schedule),
        prove_consensus(schedule),
        prove_deadlock_free(schedule),
        prove_contraction(schedule),
        prove_disagreement(schedule),
        prove_drift(schedule, "worker"),
        prove_drift(schedule, "node"),
        exact,
        prove_rounds(schedule, exact=exact is not None),
    ]
    return tuple(claim for claim in claims if claim is not None)


@dataclass(frozen=True, slots=True)
class Prover:
    """How a kind is proved: its claims, and those without which a schedule of that kind should not be run.

    `of_rules` are essential as well where the groups come from rules.
    """

    claims: Callable[[Schedule], tuple[Claim, ...]]
    essential: frozenset[str]
    of_rules: frozenset[str] = frozenset()


MEANS = frozenset({DOUBLY, "consensus", "deadlock-free"})
GROUPS = Prover(_group_claims, MEANS | {"conflict-free"}, frozenset({"membership"}))

PROVERS: dict[str, Prover] = {
    "static": GROUPS,
    "allreduce": GROUPS,
    "neighbor": Prover(prove_graph, MEANS),
    "generated": Prover(prove_generated, frozenset({"convergence", "deadlock-free"})),
    "pairwise": Prover(prove_pairwise, frozenset({"consensus", "deadlock-free"})),
    "server": Prover(prove_server, frozenset({"consensus", "deadlock-free"})),
}
"""The prover of every kind. A new kind is one line here."""
