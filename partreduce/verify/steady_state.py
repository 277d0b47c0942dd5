"""Claims certified by a matrix in integers: `consensus-distance` by a covariance, `outer-consensus` by a norm.

`consensus-distance`: at most so much in the steady state, for the noise of the steps that the schedule states, because
a covariance X is listed that one period makes smaller: X ≻ F(X), where F is the period with its noise. The prover
solves X = F(X) + ε·I in floats, with an ε that rounding X to integers does not use up, and costs the bound little.

`outer-consensus`: workers with their own outer parameters agree at zero gradients, by so much a period, because of a P
for each class of characters with c²·P − MᵀPM positive semidefinite, M being a period of models and outer momentum
together (`topo.metrics.outer_steps`).

What is computed here is not trusted: it is rounded to integers, which the checker puts through one period itself
(`verify/checker/`).
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, frexp, log2

import numpy as np
import numpy.typing as npt

from partreduce.topo.arithmetic import lyapunov
from partreduce.topo.metrics.classes import batch_of_classes, merged_classes
from partreduce.topo.metrics.decomposition import dense_sectors
from partreduce.topo.metrics.outer_steps import EDGE, outer_operators, radius_of
from partreduce.topo.metrics.sectors import NEVER, Sectors
from partreduce.topo.metrics.steady_state import after_period, noise_traces
from partreduce.topo.mixing import has_negative_entries, is_doubly_stochastic
from partreduce.topo.phase import Phase
from partreduce.topo.round import MixingStep
from partreduce.topo.rule import RuleView, distinct_classes
from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, fraction_above, not_proved, proved, refuted, upper
from partreduce.verify.consensus import prove_consensus
from partreduce.verify.contraction import common_factor
from partreduce.verify.view import MAX_DIGITS, MAX_SIZE, rule_view

Stack = npt.NDArray[np.float64]
"""(classes, size, size)."""

NAME, OUTER = "consensus-distance", "outer-consensus"
MAX_WORKERS = 512
"""Workers of explicit schedules, as for the contraction."""
MAX_ENTRIES = 2**18
"""Numbers in one claim's entry."""
MAX_STEPS = 2**23
"""Entries of matrices times phases times instants that the checker puts through a period: about ten seconds."""
MAX_INSTANTS = 2**14
"""Phases times instants of a round times classes, each of which prover and checker look at."""
MAX_FACTOR_BITS = 1024
"""Bits of the number that makes integers of a phase's entries: such matrices fit into what the checker allows."""
GUARD = 16
"""Bits that the checker keeps below those of the entry's own numbers."""
MAX_BITS = 48
"""Covariances and norms are listed in whole numbers of up to so many bits: slower agreement has no certificate."""
NEGLIGIBLE = 1e-18
SMALL = 64
LOOSE, TIGHT = 1e-3, 1e-6
"""By which part of itself the bound may lie above the metric: with more than SMALL places, and with fewer."""
FLOATS = 1e-9
"""By which part a sum of floats may be wrong here."""


def prove_consensus_distance(schedule: Schedule) -> Claim:
    """Prove a bound a little above the metric `consensus_distance`."""
    motion = motion_of(schedule)
    if isinstance(motion, str):
        return not_proved(NAME, motion)
    (batch,) = motion.batches
    size = batch.size
    if len(batch.multiplicity) * size * (size + 1) // 2 > MAX_ENTRIES:
        return not_proved(NAME, "the covariances of all classes are too many numbers for a certificate.")
    if motion.radius >= NEVER:
        return not_proved(NAME, "it is infinite: workers never agree.")
    noise = after_period(batch, np.zeros_like(batch.matrices[0]), is_delayed=motion.is_delayed)
    sources = np.stack([noise, np.broadcast_to(np.eye(size), noise.shape)])  # (2, classes, size, size)
    steady = lyapunov.steady_state(batch.product(), sources, negligible=NEGLIGIBLE)
    if not np.abs(steady.remainder).max(initial=0.0) <= NEGLIGIBLE:
        return not_proved(NAME, "workers agree too slowly for this check.")
    state, slack = steady.covariance
    value = _bound(motion, state)
    cost = _bound(motion, state + slack) - value
    epsilon = max((TIGHT if size <= SMALL else LOOSE) * value, 2.0**-20) / max(cost, 1.0)
    start = bits_for(epsilon / (8 * size))
    for bits in range(start, min(start + 9, MAX_BITS + 1), 2):
        rounded = np.rint(np.ldexp(state + epsilon * slack, bits))
        if _shrinks(motion, rounded, bits):
            break
    else:
        return not_proved(NAME, "workers agree too slowly for a certificate in integers.")
    units = batch.period * (size + 1) * 2.0 ** -(bits + GUARD)
    exact = _bound(motion, np.ldexp(rounded, -bits))
    at_most = fraction_above(max(exact * (1 + FLOATS) + size * units, 2.0**-64))
    text = (
        f"consensus distance ≤ {upper(at_most, 8)}: a covariance of the workers is listed that one period with its "
        "noise makes smaller, and what averaging does keeps that order; so no period that starts with equal workers "
        "leads above it, nor does the steady state."
    )
    lower = np.tril_indices(size)
    covariance = [x[lower].astype(int).tolist() for x in rounded]
    return proved(NAME, text, at_most=str(at_most), bits=bits, covariance=covariance)


def _bound(motion: Sectors, start: Stack) -> float:
    """The mean over all instants of tr Σ / n that these covariances at the start of a period lead to."""
    (batch,) = motion.batches
    return noise_traces(batch, start, is_delayed=motion.is_delayed) / motion.num_workers


def _shrinks(motion: Sectors, rounded: Stack, bits: int) -> bool:
    """Whether rows show X ≻ F(X), with room for what the checker adds in its rounding and floats lose here."""
    (batch,) = motion.batches
    start = np.ldexp(rounded, -bits)
    difference = start - after_period(batch, start, is_delayed=motion.is_delayed)
    diagonal = np.diagonal(difference, axis1=-2, axis2=-1)  # (classes, size)
    beside = np.abs(difference).sum(axis=-1) - np.abs(diagonal)
    room = 2.0 ** -(bits + GUARD) * batch.period * batch.size * 4
    room = room + batch.size * 1e-14 * np.abs(start).max(axis=(-2, -1), initial=0.0)[:, None]
    return bool((diagonal - beside > room).all())


def motion_of(schedule: Schedule) -> Sectors | str:
    """The schedule as one batch for this claim, of all workers or of a rule's classes; or why it is not made for it."""
    rule = rule_view(schedule)
    worker_steps = None if rule is None else _worker_steps_of_ranks(schedule, rule.workers_per_node)
    found = _by_workers(schedule) if rule is None or worker_steps is None else _by_classes(schedule, rule, worker_steps)
    if isinstance(found, str):
        return found
    (batch,) = found.batches
    if batch.period * batch.round_steps.instants * len(batch.multiplicity) > MAX_INSTANTS:
        return "a period has too many instants, or a rule too many classes, for this check."
    return found


def _by_workers(schedule: Schedule) -> Sectors | str:
    if schedule.num_workers > MAX_WORKERS:
        return (
            f"groups of over {MAX_WORKERS} workers that no rule describes, or of different steps per round, are "
            "not checked."
        )
    if schedule.period * schedule.largest_steps_per_round * schedule.num_workers**2 > MAX_STEPS:
        return "the schedule is too large for a check that multiplies it out; write a rule."
    steps = schedule.steps()
    if not all(map(_lengthens_nothing, set(steps))):
        return "a phase may lengthen differences."
    if max(common_factor(step).bit_length() for step in steps) > MAX_FACTOR_BITS:
        return "the factors of a phase have too long denominators for this check."
    return dense_sectors(schedule)


def _by_classes(schedule: Schedule, rule: RuleView, worker_steps: npt.NDArray[np.int64]) -> Sectors | str:
    size, instants = len(worker_steps), schedule.period * int(worker_steps.max())
    if rule.num_digits > MAX_DIGITS or size > MAX_SIZE:
        return f"character classes are enumerated up to {MAX_DIGITS} digits and {MAX_SIZE} workers on a node."
    if any(not 0 <= block.relaxation <= 2 for phase in rule.phases for block in phase if block.makes_groups):
        return "a phase may lengthen differences."
    listed = distinct_classes(rule)
    entries = len(listed) * size**2
    is_large = entries > MAX_ENTRIES or entries * instants > MAX_STEPS
    if is_large or len(listed) * schedule.period > MAX_ENTRIES // 64:
        return f"the rule has {len(listed)} different classes, too many for this check."
    merged = {(one.met, one.holds_mean): one for one in merged_classes(rule)}
    sets = {tuple(sorted(block.across)) for phase in rule.phases for block in phase}
    classes = [merged[frozenset(one for one in sets if set(one) & set(digits)), not digits] for digits in listed]
    batch = batch_of_classes(schedule, rule, worker_steps.tolist(), classes, [(rank,) for rank in range(size)])
    return Sectors(schedule.num_workers, [batch], schedule.mixing.mixes_late, "")


def bits_for(step: float) -> int:
    """The bits after the point with which a unit is at most `step`; at least 1."""
    return max(1, 1 - frexp(step)[1] + 1) if step > 0 else MAX_BITS + 1


def _worker_steps_of_ranks(schedule: Schedule, ranks: int) -> npt.NDArray[np.int64] | None:
    """The steps_per_round of every local rank, None where it differs between nodes."""
    steps_per_round = schedule.strategy.steps_per_round
    if isinstance(steps_per_round, int):
        return np.full(ranks, steps_per_round, dtype=np.int64)
    rows = np.array(steps_per_round, dtype=np.int64).reshape(-1, ranks)
    return None if (rows != rows[0]).any() else np.asarray(rows[0])


def _lengthens_nothing(step: MixingStep) -> bool:
    if isinstance(step, Phase):
        return all(0 <= relaxation <= 2 for relaxation in set(step.relaxation or ()))
    return is_doubly_stochastic(step) and not has_negative_entries(step)


def prove_outer_consensus(schedule: Schedule) -> Claim:
    """Prove or refute that workers with their own outer parameters come to agree where gradients are zero."""
    agrees = prove_consensus(schedule.meetings)
    if not agrees.holds:  # who never meets the others keeps its own outer parameters
        return replace(agrees, claim=OUTER)
    parts = outer_operators(schedule)
    if parts is None:
        return not_proved(OUTER, "so many workers or classes are too large a matrix; write a smaller rule.")
    radius = radius_of(parts)
    if radius > 1 + EDGE:
        text = f"a period multiplies a difference between outer parameters and momenta by {radius:.9g} in the long run."
        return refuted(OUTER, text, {"radius": radius})
    for share in (1 / 8, 1 / 2):  # a bound near the radius needs a P that is far from the identity
        c = radius + share * (1 - radius)
        weights = [_weights(matrix, c) for _, matrix in parts]
        if all(found is not None for found in weights):
            squared = fraction_above(c * c)
            text = (
                "where gradients are zero, outer parameters come to agree, and momenta to rest, by at most "
                f"{upper(squared, power=2)} "
                f"a period in a norm that is listed for each of {len(parts)} classes (radius {radius:.6g})."
            )
            return proved(OUTER, text, {"radius": radius}, squared=str(squared), weights=weights)
    return not_proved(OUTER, f"workers agree too slowly for a certificate in integers (radius {radius:.9g}).")


def _weights(matrix: npt.NDArray[np.float64], c: float) -> list[int] | None:
    """Σ (Mᵏ/cᵏ)ᵀ(Mᵏ/cᵏ) in whole numbers, the lower triangle by rows; None where it is too long."""
    scaled = matrix.T / c
    found, remainder = lyapunov.steady_state(scaled, np.eye(len(matrix)), negligible=1e-18)
    size = np.abs(found).max()
    # c²·P − MᵀPM is c²·I, from which rounding P by a half takes at most size · (‖M‖² + 1) / 2.
    finer = ceil(log2(16 * len(matrix) * (np.linalg.norm(matrix, 2) ** 2 + 1) / c**2))
    if not (np.isfinite(size) and np.abs(remainder).max() <= 1e-18 and log2(size) + finer <= MAX_BITS):
        return None
    rounded = np.rint(np.ldexp((found + found.T) / 2, finer))
    return [int(entry) for row, entries in enumerate(rounded) for entry in entries[: row + 1]]
