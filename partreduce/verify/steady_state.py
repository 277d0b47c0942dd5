"""The steady state of a schedule in floats, class by class, for the claim `consensus-distance`.

What is computed here is not trusted: it is rounded to integers, which the checker puts through one period itself.
"""

from __future__ import annotations

from fractions import Fraction
from math import frexp

import numpy as np
import numpy.typing as npt

from partreduce.topo.metrics.classes import batch_of_classes, merged_classes
from partreduce.topo.metrics.decomposition import dense_sectors
from partreduce.topo.metrics.sectors import Sectors
from partreduce.topo.mixing import has_negative_entries, is_doubly_stochastic
from partreduce.topo.phase import Phase
from partreduce.topo.round import MixingStep
from partreduce.topo.rule import RuleView, distinct_classes
from partreduce.topo.schedule import Schedule
from partreduce.verify.base import fraction_above
from partreduce.verify.classes import MAX_DIGITS, MAX_SIZE
from partreduce.verify.contraction import common_factor
from partreduce.verify.view import rule_view

Matrix = npt.NDArray[np.float64]

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


def rounded_up(value: float) -> Fraction:
    """A fraction of 32 bits not below a float that is not negative."""
    return fraction_above(value) if value > 0 else fraction_above(2.0**-64)


def as_integers(matrix: Matrix, bits: int) -> list[int]:
    """The entries times 2^bits, rounded, in order."""
    return [int(entry) for entry in np.rint(np.ldexp(matrix, bits)).ravel()]


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
