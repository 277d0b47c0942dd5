"""Character classes: a rule schedule as a few small matrices, whatever its number of nodes.

The matrix of a rule phase commutes with adding a constant to every digit of the node index, so it block-diagonalizes
over the characters of that group. On a character that is non-trivial exactly on the digits c, a block (L, D) with
factor t acts on the local ranks as (1−t)I + t·(averaging over L) if c and D are disjoint, else as (1−t)I on L. The
metrics depend on c only through which of the rule's digit sets it meets: classes that meet the same sets are merged,
Π (radix − 1) over the digits of c counts their members. Local ranks that are always in the same block at the same
steps_per_round are merged too: on what sums to zero over them a block acts as the number 1−t.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from partreduce.topo.errors import ScheduleError, UndecidedError
from partreduce.topo.metrics.sectors import Batch, RoundSteps, Sectors, group_worker_steps
from partreduce.topo.mixing import Operators
from partreduce.topo.rule import RuleView
from partreduce.topo.schedule import Schedule

MAX_CLASSES = 2**14
MAX_ENTRIES = 2**26


@dataclass(frozen=True, slots=True)
class MergedClass:
    """Characters on which all blocks act in the same way: `met` holds the digit sets that they meet.

    `digits` is one set c of digits for which this class stands, `multiplicity` its number of characters.
    `holds_mean` marks the trivial character, which stands alone.
    """

    digits: tuple[int, ...]
    met: frozenset[tuple[int, ...]]
    multiplicity: int
    holds_mean: bool


def rule_and_worker_steps(schedule: Schedule) -> tuple[RuleView, tuple[int, ...]] | None:
    """The schedule as a rule, with the steps per round of each local rank.

    None if the schedule is no rule, or if steps per round differ between nodes. Blocks of one phase that share a local
    rank are refused.
    """
    rule, steps = schedule.rule(by_node=True), schedule.strategy.steps_per_round
    if rule is None:
        return None
    if isinstance(steps, int):  # a table of all workers would cost more than all metrics of a rule
        of_rank = (steps,) * rule.workers_per_node
    else:
        # steps per round (num_nodes, workers_per_node): nodes are equal only if all rows are
        worker_steps = schedule.worker_steps().reshape(rule.num_nodes, rule.workers_per_node)
        if (worker_steps != worker_steps[0]).any():
            return None
        of_rank = tuple(worker_steps[0].tolist())
    if (index := rule.shared_rank()) is not None:
        raise ScheduleError(f"phases[{index}]: blocks share a local rank; groups of one phase are disjoint")
    return rule, of_rank


def merged_classes(rule: RuleView) -> list[MergedClass]:
    """The classes of a rule, the trivial character first. O(digits · classes); at most 2^min(digits, digit sets) + 1.

    Raises:
        UndecidedError: more than 16,384 classes.
    """
    sets = sorted({tuple(sorted(block.across)) for phase in rule.phases for block in phase})
    counts: dict[frozenset[tuple[int, ...]], tuple[int, tuple[int, ...]]] = {frozenset(): (1, ())}
    for digit, radix in enumerate(rule.radices):
        meets = frozenset(s for s in sets if digit in s)
        for met, (count, digits) in list(counts.items()):
            key = met | meets
            # A digit that no block uses is merged into the class itself: it changes nothing but the count.
            old, shown = counts.get(key, (0, (*digits, digit)))
            counts[key] = (old + count * (radix - 1), shown)
        if len(counts) > MAX_CLASSES:
            raise UndecidedError(f"rule: has more than {MAX_CLASSES} character classes; use fewer distinct digit sets")
    rest, _ = counts.pop(frozenset())
    result = [MergedClass((), frozenset(), 1, holds_mean=True)]
    if rest > 1:
        idle = next(d for d in range(len(rule.radices)) if not any(d in s for s in sets))
        result.append(MergedClass((idle,), frozenset(), rest - 1, holds_mean=False))
    others = (MergedClass(digits, met, count, holds_mean=False) for met, (count, digits) in counts.items())
    return [*result, *others]


def rule_sectors(schedule: Schedule) -> Sectors | None:
    """The sectors of a rule schedule, or None if the schedule is no rule or its classes are too large."""
    if (known := rule_and_worker_steps(schedule)) is None:
        return None
    rule, worker_steps = known
    classes = merged_classes(rule)
    lumps = _lumps(rule, worker_steps)
    if len(classes) * len(lumps) ** 2 * len(rule.phases) > MAX_ENTRIES:
        return None
    how = f"character classes: {len(classes)} of size {len(lumps)}, any number of nodes"
    batch, odd = batch_of_classes(schedule, rule, worker_steps, classes, lumps), _odd_batches(schedule, *known, lumps)
    return Sectors(schedule.num_workers, [batch, *odd], schedule.mixing.mixes_late, how)


def num_entries(schedule: Schedule) -> int:
    """The g³ of all classes of size g together, which every metric of a rule costs some times; 0 of no rule."""
    if (known := rule_and_worker_steps(schedule)) is None:
        return 0
    rule, worker_steps = known
    return len(merged_classes(rule)) * len(_lumps(rule, worker_steps)) ** 3


def _lumps(rule: RuleView, worker_steps: Sequence[int]) -> list[tuple[int, ...]]:
    """Local ranks that share all blocks and the steps_per_round."""
    keys: dict[tuple[int, ...], list[int]] = {}
    homes = [{rank: index for index, block in enumerate(phase) for rank in block.local} for phase in rule.phases]
    for rank in range(rule.workers_per_node):
        key = (worker_steps[rank], *(home.get(rank, -1 - rank) for home in homes))
        keys.setdefault(key, []).append(rank)
    return [tuple(ranks) for ranks in keys.values()]


def batch_of_classes(
    schedule: Schedule,
    rule: RuleView,
    worker_steps: Sequence[int],
    classes: Sequence[MergedClass],
    lumps: Sequence[tuple[int, ...]],
) -> Batch:
    """The classes, the trivial one first, on vectors that are constant in each lump, in the basis 1_lump / √size."""
    roots = np.sqrt([len(lump) for lump in lumps])
    matrices = Operators.of_rule(rule, [merged.digits for merged in classes], lumps).matrices()
    mean = np.zeros((len(classes), len(lumps)))
    mean[0] = roots / np.sqrt(rule.workers_per_node)
    matrices[:, 0] -= np.outer(mean[0], mean[0])
    return Batch(
        np.array([float(merged.multiplicity) for merged in classes]),
        matrices,
        mean,
        _steps_of_ranks(schedule, rule, worker_steps)([lump[0] for lump in lumps]),
        np.broadcast_to(roots[:, None], (len(classes), len(lumps), 1)),
    )


def _odd_batches(
    schedule: Schedule, rule: RuleView, worker_steps: Sequence[int], lumps: Sequence[tuple[int, ...]]
) -> Iterator[Batch]:
    """What sums to zero within a lump: each block acts as 1 − t there, on every character."""
    kept = np.ones((len(rule.phases), rule.workers_per_node))
    for t, phase in enumerate(rule.phases):
        for block in phase:
            kept[t, list(block.local)] = 1 - float(block.relaxation)
    steps_of = _steps_of_ranks(schedule, rule, worker_steps)
    for lump in lumps:
        if len(lump) > 1:
            count = np.array([float(rule.num_nodes * (len(lump) - 1))])
            matrices = kept[:, lump[0]].reshape(-1, 1, 1, 1)
            yield Batch(count, matrices, np.zeros((1, 1)), steps_of([lump[0]]), np.zeros((1, 1, 1)))


def _steps_of_ranks(
    schedule: Schedule, rule: RuleView, of_rank: Sequence[int]
) -> Callable[[Sequence[int]], RoundSteps]:
    """The steps of some local ranks, given those of all per round."""
    worker_steps = np.array(of_rank, dtype=np.int64)
    group = np.tile(worker_steps.astype(np.float64), (len(rule.phases), 1))
    if len(set(of_rank)) > 1:
        group = group_worker_steps(Operators.of_rule(rule, ()).rounds, worker_steps)
    return lambda ranks: RoundSteps.of(
        worker_steps[ranks], group[:, ranks], schedule.mixing.averaging, int(worker_steps.max())
    )
