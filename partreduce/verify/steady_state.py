"""Certify claims by an integer matrix: `consensus-distance` by a covariance, `outer-consensus` by a norm.

The theorems stand in `verify/checker/consensus_distance.py` and `outer_steps.py`. For `consensus-distance` the prover
solves X = F(X) + ε·I in floats, where F is the effect of a period and its noise on the covariance, and ε exceeds the
rounding of X to integers but hardly increases the bound. The checker does not trust X: it applies one period itself.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, frexp, log2

import numpy as np
import numpy.typing as npt

from partreduce.topo.arithmetic import lyapunov
from partreduce.topo.metrics.decomposition import batch_of_classes, dense_sectors, merged_classes, steps_of_ranks
from partreduce.topo.metrics.sectors import NEVER, Sectors
from partreduce.topo.metrics.stability import EDGE, outer_operators, radius_of
from partreduce.topo.metrics.steady_state import after_period, noise_traces
from partreduce.topo.mixing import has_negative_entries, is_doubly_stochastic, may_lengthen
from partreduce.topo.rule import RuleView, distinct_classes
from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, fraction_above, not_proved, proved, refuted, upper
from partreduce.verify.checker.consensus_distance import GUARD
from partreduce.verify.checker.period import MAX_DIGITS, MAX_SIZE
from partreduce.verify.consensus import prove_consensus
from partreduce.verify.contraction import common_factor, rule_view

Stack = npt.NDArray[np.float64]
"""Matrices, one for each class of characters, shape (classes, size, size)."""

NAME, OUTER = "consensus-distance", "outer-consensus"
MAX_WORKERS = 512
"""Most workers of explicit schedules, as for the contraction."""
MAX_ENTRIES = 2**18
"""Most numbers in one claim's entry."""
MAX_STEPS = 2**23
"""Most matrix entries times phases times instants for the checker's period: about ten seconds."""
MAX_INSTANTS = 2**14
"""Most phases times instants of a round times classes, each of which prover and checker process."""
MAX_FACTOR_BITS = 1024
"""Most bits of the factor that makes a phase's entries integers: such matrices fit the checker's limits."""
MAX_BITS = 48
"""Most bits of the integers of covariances and norms: slower agreement has no certificate."""
NEGLIGIBLE = 1e-18
SMALL = 64
LOOSE, TIGHT = 1e-3, 1e-6
"""Relative margin of the bound over the metric: with more than SMALL places, and with fewer."""
FLOATS = 1e-9
"""Relative error of a float sum in this module."""


def prove_consensus_distance(schedule: Schedule) -> Claim:
    """Prove an upper bound on the steady-state consensus distance, slightly above the metric `consensus_distance`."""
    motion = motion_of(schedule)
    if isinstance(motion, str):
        return not_proved(NAME, motion)
    (batch,) = motion.batches
    size = batch.size
    if len(batch.multiplicity) * size * (size + 1) // 2 > MAX_ENTRIES:
        return not_proved(NAME, "the covariances of all classes are too large for a certificate.")
    if motion.radius >= NEVER:
        return not_proved(NAME, "workers agree too slowly for floating point, or never.")
    noise = after_period(batch, np.zeros_like(batch.matrices[0]), is_delayed=motion.is_delayed)
    sources = np.stack([noise, np.broadcast_to(np.eye(size), noise.shape)])  # (2, classes, size, size)
    steady = lyapunov.steady_state(batch.product(), sources, negligible=NEGLIGIBLE)
    if not np.abs(steady.remainder).max(initial=0.0) <= NEGLIGIBLE:
        return not_proved(NAME, "workers agree too slowly for this check.")
    state, slack = steady.covariance
    value = _bound(motion, state)
    cost = _bound(motion, state + slack) - value
    epsilon = max((TIGHT if size <= SMALL else LOOSE) * value, 2.0**-20) / max(cost, 1.0)
    unit = epsilon / (8 * size)
    start = max(1, 2 - frexp(unit)[1]) if unit > 0 else MAX_BITS + 1
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
        f"consensus distance ≤ {upper(at_most, 8)}: one period with its noise makes the listed covariance of the "
        "workers smaller, and averaging preserves that order. So neither a run that starts with equal workers nor the "
        "steady state exceeds it."
    )
    lower = np.tril_indices(size)
    covariance = [x[lower].astype(int).tolist() for x in rounded]
    return proved(NAME, text, at_most=str(at_most), bits=bits, covariance=covariance)


def _bound(motion: Sectors, start: Stack) -> float:
    """Return the consensus distance over a period that starts with these covariances: the mean of tr Σ / n.

    `motion` is the period, on all workers or on each character class of a rule; `start` has a covariance Σ for each.
    """
    (batch,) = motion.batches
    return noise_traces(batch, start, is_delayed=motion.is_delayed) / motion.num_workers


def _shrinks(motion: Sectors, rounded: Stack, bits: int) -> bool:
    """Return whether X ≻ F(X) by diagonal dominance, with a margin for the checker's rounding and float errors here.

    X = `rounded` / 2^`bits` is the covariance in the certificate, F the effect of a period and its noise on it.
    """
    (batch,) = motion.batches
    start = np.ldexp(rounded, -bits)
    difference = start - after_period(batch, start, is_delayed=motion.is_delayed)
    diagonal = np.diagonal(difference, axis1=-2, axis2=-1)  # (classes, size)
    beside = np.abs(difference).sum(axis=-1) - np.abs(diagonal)
    room = 2.0 ** -(bits + GUARD) * batch.period * batch.size * 4
    room = room + batch.size * 1e-14 * np.abs(start).max(axis=(-2, -1), initial=0.0)[:, None]
    return bool((diagonal - beside > room).all())


def motion_of(schedule: Schedule) -> Sectors | str:
    """Return one period as linear maps with noise; or, as a clause of a sentence, why the check is impossible.

    The maps act on all workers, or for a rule on the local ranks, once for each class of node digits.
    """
    rule = rule_view(schedule)
    worker_steps = None if rule is None else steps_of_ranks(schedule, rule)
    found = _by_workers(schedule) if rule is None or worker_steps is None else _by_classes(schedule, rule, worker_steps)
    if isinstance(found, str):
        return found
    (batch,) = found.batches
    if batch.period * batch.round_steps.instants * len(batch.multiplicity) > MAX_INSTANTS:
        return "a period has too many instants, or a rule too many classes, for this check."
    return found


def _by_workers(schedule: Schedule) -> Sectors | str:
    if schedule.num_workers > MAX_WORKERS:
        return f"explicit groups, or different steps per round, are not checked beyond {MAX_WORKERS} workers."
    if schedule.period * schedule.largest_steps_per_round * schedule.num_workers**2 > MAX_STEPS:
        return "the schedule is too large for a check that multiplies it out; write a rule."
    steps, graphs = schedule.steps(), set(schedule.strategy.graphs)
    if may_lengthen(schedule) or any(map(has_negative_entries, graphs)) or not all(map(is_doubly_stochastic, graphs)):
        return "a phase may lengthen differences."
    if max(common_factor(step).bit_length() for step in steps) > MAX_FACTOR_BITS:
        return "the factors of a phase have too long denominators for this check."
    return dense_sectors(schedule)


def _by_classes(schedule: Schedule, rule: RuleView, worker_steps: tuple[int, ...]) -> Sectors | str:
    size, instants = len(worker_steps), schedule.period * max(worker_steps)
    if rule.num_digits > MAX_DIGITS or size > MAX_SIZE:
        return f"character classes are enumerated up to {MAX_DIGITS} digits and {MAX_SIZE} workers on a node."
    if may_lengthen(schedule):
        return "a phase may lengthen differences."
    listed = distinct_classes(rule)
    entries = len(listed) * size**2
    is_large = entries > MAX_ENTRIES or entries * instants > MAX_STEPS
    if is_large or len(listed) * schedule.period > MAX_ENTRIES // 64:
        return f"the rule has {len(listed)} different classes, too many for this check."
    merged = {(one.met, one.holds_mean): one for one in merged_classes(rule)}
    sets = {tuple(sorted(block.across)) for phase in rule.phases for block in phase}
    classes = [merged[frozenset(one for one in sets if set(one) & set(digits)), not digits] for digits in listed]
    batch = batch_of_classes(schedule, rule, worker_steps, classes, [(rank,) for rank in range(size)])
    return Sectors(schedule.num_workers, [batch], schedule.mixing.mixes_late, "")


def prove_outer_consensus(schedule: Schedule) -> Claim:
    """Prove or refute that workers with separate outer parameters reach consensus if gradients are zero."""
    agrees = prove_consensus(schedule.meetings)
    if not agrees.holds:  # a worker that never meets the others keeps its outer parameters
        return replace(agrees, claim=OUTER)
    parts = outer_operators(schedule)
    if parts is None:
        return not_proved(OUTER, "the matrix of so many workers or classes is too large; write a smaller rule.")
    radius = radius_of(parts)
    if radius > 1 + EDGE:
        text = f"in the long run a period multiplies differences of outer parameters and momenta by {radius:.9g}."
        return refuted(OUTER, text, {"radius": radius})
    for share in (1 / 8, 1 / 2):  # a bound near the radius needs a P that is far from the identity
        c = radius + share * (1 - radius)
        weights = [_weights(matrix, c) for _, matrix in parts]
        if all(found is not None for found in weights):
            squared = fraction_above(c * c)
            text = (
                f"without gradients, a period leaves at most {upper(squared, power=2)} of the differences of outer "
                f"parameters and of momenta, in a norm listed for each of {len(parts)} classes (radius {radius:.6g})."
            )
            return proved(OUTER, text, {"radius": radius}, squared=str(squared), weights=weights)
    return not_proved(OUTER, f"workers agree too slowly for a certificate in integers (radius {radius:.9g}).")


def _weights(matrix: npt.NDArray[np.float64], c: float) -> list[int] | None:
    """Return the matrix P of a norm in which M shrinks by c: Σ (Mᵏ/cᵏ)ᵀ(Mᵏ/cᵏ) in integers, lower triangle by rows.

    M = `matrix` is one period of outer steps; the checker confirms c²·P − MᵀPM ⪰ 0. None if the integers would be too
    long.
    """
    scaled = matrix.T / c
    found, remainder = lyapunov.steady_state(scaled, np.eye(len(matrix)), negligible=1e-18)
    size = np.abs(found).max()
    # c²·P − MᵀPM is c²·I, of which rounding P by a half uses at most size · (‖M‖² + 1) / 2.
    finer = ceil(log2(16 * len(matrix) * (np.linalg.norm(matrix, 2) ** 2 + 1) / c**2))
    if not (np.isfinite(size) and np.abs(remainder).max() <= 1e-18 and log2(size) + finer <= MAX_BITS):
        return None
    rounded = np.rint(np.ldexp((found + found.T) / 2, finer))
    return [int(entry) for row, entries in enumerate(rounded) for entry in entries[: row + 1]]
