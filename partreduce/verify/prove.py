"""Prove every claim about one schedule, and write its certificate: a loop over the statements for its strategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError, of_type
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, StaticGroups
from partreduce.verify.asynchronous import DYNAMIC_GROUPS, PAIRWISE, SERVER
from partreduce.verify.base import Claim, Proof, Status, not_proved
from partreduce.verify.certificate import certificate_of
from partreduce.verify.consensus import prove_consensus, prove_consensus_of_graph, prove_sums
from partreduce.verify.contraction import prove_contraction, prove_exact
from partreduce.verify.facts import If, ScheduleFacts, Statement, always
from partreduce.verify.failure_plans import prove_survives
from partreduce.verify.iteration_gap import BETWEEN_WORKERS, LOSSY_GAP, MEMORY_OF_QUEUES
from partreduce.verify.membership import (
    PhaseFunction,
    asks_everyone,
    expand,
    prove_conflict_free,
    prove_membership,
)
from partreduce.verify.payload import CODEC_ERROR, MEMORY, SENT_BYTES, TABLES, as_tables_only
from partreduce.verify.rounds import (
    DEADLOCK_FREE,
    END,
    EQUAL_REPLICAS,
    FRAGMENTS,
    QUORUM,
    STALENESS,
    has_codec,
)
from partreduce.verify.steady_state import prove_consensus_distance, prove_outer_consensus

ON_DISJOINT = "it needs conflict-free, which is refuted."

OF_EXACT_AVERAGES = (
    If(has_codec, " This speaks of exact averages; rounding adds to each at most what codec-error says."),
    If(
        lambda s, _: not s.strategy.payload.outer.is_plain,
        " Outer steps move all workers equally, so this holds for their differences; the mean itself moves with the "
        "outer steps.",
    ),
)
"""Caveats of claims about matrices, which assume that numbers are averaged exactly."""


def _where_means_stay(prover: Callable[[Schedule], Claim | None]) -> Callable[[ScheduleFacts], Claim | None]:
    """Return a prover that returns None, for no claim, unless every mixing matrix preserves the mean of all workers."""
    return lambda facts: (
        prover(facts.schedule) if facts.numbers("doubly-stochastic") or facts.numbers("unit-sums") else None
    )


CONFLICT_FREE = Statement("conflict-free", prove_conflict_free, essential=always)
MEMBERSHIP = Statement(
    "membership",
    lambda facts: prove_membership(facts.schedule.meetings),
    essential=lambda s, _: s.rule() is not None and asks_everyone(s),
)
SUMS = Statement("doubly-stochastic", prove_sums, OF_EXACT_AVERAGES, always)
CONSENSUS = Statement("consensus", lambda facts: prove_consensus(facts.schedule), OF_EXACT_AVERAGES, always)
OF_GRAPH = Statement("consensus", lambda facts: prove_consensus_of_graph(facts.schedule), essential=always)
CONTRACTION = Statement("contraction", _where_means_stay(prove_contraction), OF_EXACT_AVERAGES)
RATES = (
    CONTRACTION,
    Statement("consensus-distance", _where_means_stay(prove_consensus_distance), OF_EXACT_AVERAGES),
    Statement("exact-consensus", _where_means_stay(prove_exact), OF_EXACT_AVERAGES),
)
RUNS = (STALENESS, END, FRAGMENTS, EQUAL_REPLICAS, CODEC_ERROR, MEMORY, SENT_BYTES)
GROUPS = (CONFLICT_FREE, MEMBERSHIP, SUMS, CONSENSUS, DEADLOCK_FREE, *RATES, *RUNS)
OWN_OUTER_PARAMS = (
    CONFLICT_FREE,
    MEMBERSHIP,
    Statement("outer-consensus", lambda facts: prove_outer_consensus(facts.schedule), essential=always),
    DEADLOCK_FREE,
    STALENESS,
    END,
    CODEC_ERROR,
    MEMORY,
    SENT_BYTES,
)
"""Statements on groups with outer parameters per worker, whose rounds are therefore not mixing matrices."""
STATEMENTS: dict[str, tuple[Statement, ...]] = {
    "static": GROUPS,
    "allreduce": GROUPS,
    "neighbor": (SUMS, OF_GRAPH, *RATES, DEADLOCK_FREE, *RUNS),
    "dynamic_groups": DYNAMIC_GROUPS,
    "pairwise": PAIRWISE,
    "server": SERVER,
}
"""Statements by kind of strategy; a new kind adds one line."""
DECIDED_WHILE_IT_RUNS = ("dynamic_groups", "pairwise", "server")
"""Kinds of strategy that choose groups at run time, so there is nothing to certify."""
OF_PROTOCOL: dict[str, tuple[Statement, ...]] = {
    "gap": (SUMS, OF_GRAPH, *RATES, *BETWEEN_WORKERS, MEMORY_OF_QUEUES, STALENESS, END),
    "lossy gap": LOSSY_GAP,
    "quorum": QUORUM,
}
"""Statements by protocol of the *sync* axis, where a protocol determines which worker waits for which."""
SURVIVES = Statement("survives", lambda facts: prove_survives(facts.schedule), OF_EXACT_AVERAGES, always)


def statements_of(schedule: Schedule) -> tuple[Statement, ...]:
    """Return the statements about a schedule, by its strategy and protocol, without those on tables and failure plans.

    Raises:
        ScheduleError: there are no statements for this kind of strategy.
    """
    protocol, kind = schedule.strategy.protocol, schedule.strategy.kind
    if schedule.strategy.payload.outer.has_own_outer_params:
        return OWN_OUTER_PARAMS
    if protocol == "gap" and not schedule.is_mixing:
        protocol = "lossy gap"
    found = OF_PROTOCOL.get(protocol) or STATEMENTS.get(kind)
    if found is None:
        raise ScheduleError(f"strategy {kind!r}: has nothing to prove here")
    return found


def prove(schedule: Schedule) -> Proof:
    """Prove or refute everything that docs/certificates.md lists for this kind of schedule.

    Rates of explicit schedules are proved only up to the sizes stated there. Strategies whose groups are chosen at run
    time have no certificate; their protocols are model-checked instead.

    Args:
        schedule: a schedule of any kind.

    Returns:
        The Proof: each claim with its status, which of them are essential, and the certificate for the checker.

    Raises:
        ScheduleError: there is nothing to prove about this kind of strategy.
    """
    of_type(schedule, Schedule, "verify", "give a Schedule; partreduce.load_schedule(path) reads one")
    facts = ScheduleFacts(schedule)
    rows = [(statement, facts) for statement in statements_of(schedule)]
    if schedule.routes:
        of_tables = ScheduleFacts(as_tables_only(schedule))
        rows += [(statement, of_tables) for statement in TABLES]
    if schedule.failure_plan is not None:
        rows.append((SURVIVES, facts))
    essential = frozenset(statement.name for statement, _ in rows if statement.essential(schedule, {}))
    claims: list[Claim] = []
    is_clashing = False
    for statement, subject in rows:
        if is_clashing:  # there is no mixing matrix
            rests = statement.name in essential or statement is CONTRACTION
            claims += [not_proved(statement.name, ON_DISJOINT)] if rests else []
        elif (claim := statement.claim(subject)) is not None:
            claims.append(claim)
            is_clashing = statement is CONFLICT_FREE and not claim.holds
    certificate: dict[str, Any] = {}
    if schedule.strategy.kind not in DECIDED_WHILE_IT_RUNS:
        certificate = certificate_of(facts.read, claims)
    absent = sorted(Proof(schedule.name, tuple(claims), essential, {}).absent)
    claims += [not_proved(name, f"nothing proves it for strategy {schedule.strategy.kind!r}.") for name in absent]
    return Proof(schedule.name, tuple(claims), essential, certificate)


@dataclass(frozen=True, slots=True)
class FunctionProof:
    """Result of `prove_function`: proof, schedule (None if the function is refuted), and the proof's scope in words."""

    proof: Proof
    schedule: Schedule | None
    scope: str


def prove_function(function: PhaseFunction, cluster: Cluster, period: int, name: str) -> FunctionProof:
    """Expand a function `group_of(worker, step, cluster)` over a period, and prove the expansion.

    The function returns the group of a worker in a step, itself included (any iterable of ranks, or a Group with a
    relaxation), or None if the worker skips. Members with different results, or results that do not repeat after
    `period` steps, refute the claim `membership`.

    Raises:
        InputError: the period is below 1, the function fails, returns other values than ranks, or would be called too
            often.
    """
    n, found = cluster.num_workers, expand(function, cluster, period)
    scope = (
        f"The function was evaluated for each of the {n} workers of this cluster in steps 0 to {2 * period - 1}. That "
        f"later steps repeat with period {period}, and what it returns on other clusters, is not proved: run the "
        "exported schedule."
    )
    if isinstance(found, Claim):
        rest = (
            not_proved(other, "it needs membership, which is refuted.")
            for other in ("conflict-free", "consensus", "deadlock-free")
        )
        return FunctionProof(Proof(name, (found, *rest), frozenset({"membership"}), {}), None, scope)
    schedule = Schedule(name, cluster, StaticGroups(phases=GroupPhases(tuple(found))))
    proof = prove(schedule)
    text = f"In all {2 * period} steps the function returns the same group for all members of each group. "
    subject = Claim("membership", Status.PROVED, text + scope, {"scope": scope})
    essential = proof.essential | {"membership"}
    return FunctionProof(replace(proof, claims=(subject, *proof.claims), essential=essential), schedule, scope)
