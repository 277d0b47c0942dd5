"""Decompose a schedule into sectors (invariant subspaces) by the cheapest direct method within the cost limits.

A sector is a subspace of the values of all workers that every mixing matrix of the schedule maps into itself. A rule
gives groups by the digits of the nodes' indices, for any number of nodes (`topo.rule`).

All-reduce with equal steps_per_round has two sectors, a rule has one per character class, a round that is invariant
under shifts has one per frequency. A schedule without such structure is a single sector of size n, if n is not too
large.

A block (L, D) of a rule averages over the local ranks L on all nodes that agree outside the digits D. The functions of
a node's index are spanned by the characters, products of one Fourier mode per digit. Averaging over all values of a
digit sends a character that varies along it to 0, and leaves others unchanged. So on characters that vary along exactly
the digits c, a block with relaxation t acts on the local ranks as (1−t)I + t·(averaging over L) if c and D are
disjoint, else as (1−t)I on L. Classes c that intersect the same digit sets of the rule are merged; such a class has
Π (radix − 1) characters for every c, the product taken over the digits of c. Local ranks that are always in the same
block at the same steps_per_round are merged too: on vectors that sum to zero over them a block acts as the number 1−t.

A matrix that commutes with the shifts of Z_n has the eigenvalues Σ_δ w_δ exp(−2πi k δ / n): the Fourier transform of
its first column. On Z_a × Z_b it is the two-dimensional transform, on Z_2^d the d-dimensional (Walsh–Hadamard).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.topo.arithmetic.whole_numbers import number_rows
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError, ScheduleError, UndecidedError
from partreduce.topo.fields import Floats, Whole
from partreduce.topo.graphs import Graph
from partreduce.topo.metrics.sectors import Batch, RoundSteps, Sectors, group_worker_steps
from partreduce.topo.mixing import Operators, first_column
from partreduce.topo.round import Round
from partreduce.topo.rule import RuleView, distinct
from partreduce.topo.schedule import Schedule

MAX_PAIRS = 2 * 10**7
"""The most pairs of workers on a common node for which circulant graphs get the drift with a push per node."""
MAX_GAP_WORKERS = 4_000
MAX_CLASSES = 2**14
MAX_CLASS_ENTRIES = 2**26


@dataclass(frozen=True, slots=True)
class MetricLimits:
    """The largest schedules, neither rules nor circulant graphs, for which metrics are computed from dense matrices.

    `dense_workers` limits the number of workers, `dense_entries` the entries of all matrices of a period together.
    """

    dense_workers: int = 512
    dense_entries: int = 2**27


DEFAULT = MetricLimits()


def sectors_of(schedule: Schedule, limit: MetricLimits = DEFAULT) -> Sectors | None:
    """Return the cheapest direct decomposition into sectors, invariant subspaces of the mixing matrices.

    It is that of an all-reduce, of a rule, of circulant graphs, or the dense one; None if the schedule has no such
    structure and exceeds `limit`.
    """
    n = schedule.num_workers
    is_small = n <= limit.dense_workers and schedule.period * n * n <= limit.dense_entries
    structured = uniform_sectors(schedule) or rule_sectors(schedule) or circulant_sectors(schedule)
    return structured or (dense_sectors(schedule) if is_small else None)


def dense_sectors(schedule: Schedule) -> Sectors:
    """Return the space of all n workers as a single sector (invariant subspace): its matrices are those of the rounds.

    O(T n²) memory for T rounds in a period. A metric then costs O((T + d) n³), where d, some 30, is the number of
    doublings that reach the steady state.
    """
    n, steps = schedule.num_workers, schedule.steps()
    strategy, worker_steps = schedule.mixing, schedule.worker_steps()
    matrices = Operators(steps).matrices()
    # Π W instead of W − J: equal for doubly stochastic W, and otherwise the map of distances to the mean.
    matrices -= matrices.mean(axis=2, keepdims=True)
    group = group_worker_steps(steps, worker_steps)
    round_steps = RoundSteps.of(worker_steps, group, strategy.averaging, int(worker_steps.max()))
    columns = np.eye(schedule.cluster.num_nodes)[schedule.cluster.node_of()]
    batch = Batch(np.ones(1), matrices, np.full((1, n), 1 / np.sqrt(n)), round_steps, columns[None])
    return Sectors(n, [batch], strategy.mixes_late, f"dense matrices of all {n} workers")


def uniform_sectors(schedule: Schedule) -> Sectors | None:
    """Return the sectors of an all-reduce with equal steps_per_round, None for other schedules. O(num_nodes).

    The two sectors are the mean and the n − 1 directions of differences from it. On the latter W is 0 and noise and
    push are equal in all directions, so of the matrix C that is 1 for two workers on one node, else 0, only the trace
    matters: tr C − tr JC = n − Σ (workers on a node)² / n.
    """
    strategy = schedule.strategy
    if not strategy.averages_everyone or strategy.sync.kept or not isinstance(strategy.steps_per_round, int):
        return None
    n, sizes = schedule.num_workers, schedule.cluster.node_sizes().astype(np.float64)
    along = float((sizes**2).sum()) / n
    columns = np.sqrt(np.maximum(0.0, [along, (n - along) / (n - 1)])).reshape(2, 1, 1)
    round_steps, mean = RoundSteps.equal(strategy.steps_per_round, 1), np.array([[1.0], [0.0]])
    batch = Batch(np.array([1.0, n - 1.0]), np.zeros((1, 2, 1, 1)), mean, round_steps, columns)
    return Sectors(n, [batch], strategy.mixes_late, "all-reduce: zero off the mean")


class MergedClass(NamedTuple):
    """Characters (Fourier modes of the node index, see the module) on which every block of a rule acts equally.

    `multiplicity` is their number and `digits` the set of node digits along which some of them vary; `met` are the sets
    of digits of the rule's blocks that contain one of these. `holds_mean` marks the class of the constant character.
    """

    digits: tuple[int, ...]
    met: frozenset[tuple[int, ...]]
    multiplicity: int
    holds_mean: bool


def rule_and_worker_steps(schedule: Schedule) -> tuple[RuleView, tuple[int, ...]] | None:
    """Return the schedule as a rule (groups given by node digits), and the steps per round of each local rank.

    None if the schedule is not a rule, or if steps per round differ between nodes. Raises ScheduleError if two blocks
    of a phase share a local rank.
    """
    rule = schedule.rule(by_node=True)
    if rule is None or (of_rank := steps_of_ranks(schedule, rule)) is None:
        return None
    if (index := rule.shared_rank()) is not None:
        raise ScheduleError(f"phases[{index}]: blocks share a local rank; groups of one phase are disjoint")
    return rule, of_rank


def steps_of_ranks(schedule: Schedule, rule: RuleView) -> tuple[int, ...] | None:
    """Return the steps per round of every local rank, the same on all of a rule's nodes; None if nodes differ."""
    steps = schedule.strategy.steps_per_round
    if isinstance(steps, int):  # a table of all workers would cost more than all metrics of a rule
        return (steps,) * rule.workers_per_node
    rows = schedule.worker_steps().reshape(rule.num_nodes, rule.workers_per_node)
    return None if (rows != rows[0]).any() else tuple(rows[0].tolist())


def merged_classes(rule: RuleView) -> list[MergedClass]:
    """Return the classes of characters of a rule (`MergedClass`), that of the constant character first.

    There are at most 2^min(digits, sets of digits over which blocks average) + 1 classes; UndecidedError is raised for
    more than `MAX_CLASSES`. O(digits · classes).
    """
    sets = sorted({tuple(sorted(block.across)) for _, phase in distinct(rule.phases) for block in phase})
    counts: dict[frozenset[tuple[int, ...]], tuple[int, tuple[int, ...]]] = {frozenset(): (1, ())}
    for digit, radix in enumerate(rule.radices):
        meets = frozenset(s for s in sets if digit in s)
        for met, (count, digits) in list(counts.items()):
            key = met | meets
            # A digit that no block uses is merged into the class itself: it changes only the count.
            old, shown = counts.get(key, (0, (*digits, digit)))
            counts[key] = (old + count * (radix - 1), shown)
        if len(counts) > MAX_CLASSES:
            raise UndecidedError(f"rule: has more than {MAX_CLASSES} character classes; use fewer distinct digit sets")
    rest, _ = counts.pop(frozenset())
    if rest > 1:
        idle = next(d for d in range(len(rule.radices)) if not any(d in s for s in sets))
        counts = {frozenset(): (rest - 1, (idle,)), **counts}
    others = (MergedClass(digits, met, count, holds_mean=False) for met, (count, digits) in counts.items())
    return [MergedClass((), frozenset(), 1, holds_mean=True), *others]


def rule_sectors(schedule: Schedule) -> Sectors | None:
    """Return the sectors of a rule: one per `MergedClass`, and one per set of local ranks that are always together.

    None if the groups are not given by a rule, or if the matrices of all classes together are too large.
    """
    if (known := rule_and_worker_steps(schedule)) is None:
        return None
    rule, worker_steps = known
    classes, lumps = merged_classes(rule), _lumps(rule, worker_steps)
    if len(classes) * len(lumps) ** 2 * len(rule.phases) > MAX_CLASS_ENTRIES:
        return None
    how = f"character classes: {len(classes)} of size {len(lumps)}, any number of nodes"
    batches = [batch_of_classes(schedule, rule, worker_steps, classes, lumps)]
    if len(lumps) < rule.workers_per_node:  # zero sum within a lump: blocks act as 1 − t, on every character
        alive = Operators.of_rule(rule, [()], lumps)
        odd = replace(alive, survives=tuple(map(np.zeros_like, alive.survives or ())))
        kept = np.array([odd.apply(t, np.ones((len(lumps), 1))) for t in range(len(rule.phases))])
        steps_of = _steps_of_ranks(schedule, rule, worker_steps)
        for place, lump in enumerate(lumps):
            if len(lump) > 1:
                count, steps = np.array([float(rule.num_nodes * (len(lump) - 1))]), steps_of([lump[0]])
                matrices = kept[:, place].reshape(-1, 1, 1, 1)
                batches.append(Batch(count, matrices, np.zeros((1, 1)), steps, np.zeros((1, 1, 1))))
    return Sectors(schedule.num_workers, batches, schedule.mixing.mixes_late, how)


@lru_cache(maxsize=256)  # plans for other optimizers ask again
def num_entries(schedule: Schedule) -> int:
    """Return the multiplications in one product of g×g matrices on each class of a rule: classes · g³.

    Computing a metric takes a multiple of this. 0 if `rule_and_worker_steps` returns None.
    """
    if (known := rule_and_worker_steps(schedule)) is None:
        return 0
    rule, worker_steps = known
    return len(merged_classes(rule)) * len(_lumps(rule, worker_steps)) ** 3


def _lumps(rule: RuleView, worker_steps: Sequence[int]) -> list[tuple[int, ...]]:
    """Divide the local ranks into lumps: sets of ranks that are in one block in all phases, with equal steps_per_round.

    `worker_steps` has the steps per round of every local rank.
    """
    every = np.arange(rule.workers_per_node)
    columns = [np.array(worker_steps)]
    for _, phase in distinct(rule.phases):
        home = -1 - every  # a rank that skips the phase is in no block with others
        home[list(chain.from_iterable(block.local for block in phase))] = np.repeat(
            np.arange(len(phase)), [len(block.local) for block in phase]
        )
        columns.append(home)
    kinds = number_rows(*columns)
    order = np.argsort(kinds, kind="stable")
    ends, ranks = np.flatnonzero(np.diff(kinds[order], append=-1)) + 1, order.tolist()
    return sorted(tuple(ranks[start:end]) for start, end in pairwise([0, *ends.tolist()]))


def batch_of_classes(
    schedule: Schedule,
    rule: RuleView,
    worker_steps: Sequence[int],
    classes: Sequence[MergedClass],
    lumps: Sequence[tuple[int, ...]],
) -> Batch:
    """Return the batch of sectors of these character classes, the constant one first, for vectors constant on lumps.

    `worker_steps` has the steps per round of each local rank, `lumps` the sets of local ranks (`_lumps`); the basis
    vectors are 1_lump / √size.
    """
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


def _steps_of_ranks(
    schedule: Schedule, rule: RuleView, of_rank: Sequence[int]
) -> Callable[[Sequence[int]], RoundSteps]:
    """Return a function from a list of local ranks to their `RoundSteps`.

    `of_rank` has the steps per round of every local rank.
    """
    worker_steps = np.array(of_rank, dtype=np.int64)
    group = np.tile(worker_steps.astype(np.float64), (len(rule.phases), 1))
    if len(set(of_rank)) > 1:
        group = group_worker_steps(Operators.of_rule(rule, ()).rounds, worker_steps)
    return lambda ranks: RoundSteps.of(
        worker_steps[ranks], group[:, ranks], schedule.mixing.averaging, int(worker_steps.max())
    )


def circulant_sectors(schedule: Schedule) -> Sectors | None:
    """Return one sector per Fourier mode if all rounds commute with cyclic (or xor) shifts of the ranks; else None.

    All workers must have equal steps per round. With T rounds in a period O(T n log n) once the shifts are found, and
    O(T n) for each kind of shift that is tried.
    """
    rounds, steps_per_round = schedule.strategy.graphs, schedule.strategy.steps_per_round
    if not rounds or not isinstance(steps_per_round, int) or (found := _shifts_of(rounds)) is None:
        return None
    radices, columns = found
    symbols = _transform(columns, radices)
    symbols[:, 0] = 0.0
    mean = np.zeros((symbols.shape[1], 1))
    mean[0] = 1.0
    covariance, roots = _node_column(schedule.cluster, radices), None
    if covariance is not None:
        roots = np.sqrt(np.maximum(_transform(covariance, radices).real, 0.0))[:, None, None]
    round_steps = RoundSteps.equal(steps_per_round, len(rounds))
    batch = Batch(np.ones(schedule.num_workers), symbols[:, :, None, None], mean, round_steps, roots)
    how = f"Fourier transform of rounds invariant under the shifts of {'×'.join(map(str, radices))} workers"
    if len(radices) == 1:
        how = "Fourier transform of the circulant rounds"
    elif set(radices) == {2}:
        how = "Walsh–Hadamard transform of the xor-invariant rounds"
    return Sectors(schedule.num_workers, [batch], schedule.mixing.mixes_late, how)


def _shifts_of(rounds: Sequence[Round]) -> tuple[tuple[int, ...], Floats] | None:
    """Return a group of shifts of the ranks that commutes with all T rounds, and the rounds' first columns (T, n).

    None if none is found. The group is given by its radices: ranks are written in mixed radix, the first digit the most
    significant, and shifted digit by digit. The candidates are the cyclic group (n,), xors (2, 2, …), and each a×b = n,
    for tori and for two cyclic graphs joined worker to worker. O(T n) for each.
    """
    n = rounds[0].num_workers
    xors = [(2,) * (n.bit_length() - 1)] if n & (n - 1) == 0 else []
    pairs = [(a, n // a) for a in range(2, n // 2 + 1) if n % a == 0]
    for radices in dict.fromkeys([(n,), *xors, *pairs]):
        if all(_commutes(listed, radices) for listed in rounds):
            return radices, np.array(list(map(first_column, rounds)))
    return None


def _commutes(listed: Round, radices: Sequence[int]) -> bool:
    """Return whether a round's weights depend only on target − source, by digit modulo `radices`. O(edges)."""
    n, kinds = listed.num_workers, len(listed.weights)
    if len(listed) % n:
        return False
    sources, targets, weight_of = (
        array.reshape(n, -1).astype(np.int64) for array in (listed.sources, listed.targets, listed.weight_of)
    )  # edges are sorted by target: one row per target, if in-degrees are equal
    for rows in (np.array([0, 1, n // 2, n - 1]) % n, np.arange(n)):  # a few rows reject early
        edges = np.sort(_difference(targets[rows], sources[rows], radices) * kinds + weight_of[rows], axis=1)
        if (targets[rows] != rows[:, None]).any() or (edges != edges[0]).any():
            return False
    return True


def _transform(columns: Floats, radices: Sequence[int]) -> npt.NDArray[Any]:
    """Return the discrete Fourier transform, one axis per radix, of arrays (…, n) over ranks in mixed radix."""
    grid = columns.reshape(*columns.shape[:-1], *radices)
    return np.fft.fftn(grid, axes=range(-len(radices), 0)).reshape(columns.shape)


def _difference(ranks: Whole, others: Whole, radices: Sequence[int]) -> Whole:
    """Return ranks − others, digit by digit modulo `radices`, both written in mixed radix."""
    result, place = np.zeros_like(ranks - others), 1
    for radix in reversed(radices):
        result += (ranks // place - others // place) % radix * place
        place *= radix
    return result


def _node_column(cluster: Cluster, radices: Sequence[int]) -> Floats | None:
    """Return, for each d, the share of the n pairs with i − j = d that are on one node; None above `MAX_PAIRS`."""
    n, sizes = cluster.num_workers, cluster.node_sizes()
    if int((sizes**2).sum()) > MAX_PAIRS:
        return None
    column = np.zeros(n)
    order = np.argsort(cluster.node_of(), kind="stable")  # ranks, node by node
    starts, first = np.flatnonzero(np.diff(sizes, prepend=-1)), 0
    for start, end in pairwise([*starts.tolist(), len(sizes)]):  # consecutive nodes of one size
        ranks = order[first : first + sizes[start] * (end - start)].reshape(end - start, -1)
        first += ranks.size
        offsets = _difference(ranks[:, :, None], ranks[:, None, :], radices)  # (nodes, size, size)
        column += np.bincount(offsets.reshape(-1), minlength=n) / n
    return column


def hop_gap(graph: Round) -> float:
    """Return Hop's spectral gap 1 − λ₂ of D⁻¹A, with A the adjacency without self-loops and D its degrees.

    It ignores the weights, and eigenvalues are ordered by real part (ASPLOS'19). Raises InputError for a worker without
    neighbors or over 4,000 workers. O(n³), for graphs that are invariant under shifts O(n log n).
    """
    found = _shifts_of([graph]) if len(graph) else None
    if found is not None:
        radices, columns = found
        pattern = (columns[0] != 0).astype(np.float64)
        pattern[0] = 0.0
        return 1 - float((_transform(pattern, radices).real / pattern.sum())[1:].max())
    n = graph.num_workers
    if n > MAX_GAP_WORKERS:
        raise InputError(f"hop gap: {n} workers; at most {MAX_GAP_WORKERS} as one matrix")
    adjacency = Graph(n, graph.sources, graph.targets).adjacency()
    degrees = adjacency.sum(axis=1)
    if not degrees.all():
        raise InputError(f"hop gap: worker {int(np.argmin(degrees))} has no neighbor; every worker needs at least 1")
    if np.array_equal(adjacency, adjacency.T):
        root = 1 / np.sqrt(degrees)
        values = np.linalg.eigvalsh(root[:, None] * adjacency * root)
    else:
        values = np.sort(np.linalg.eigvals(adjacency / degrees[:, None]).real)
    return 1 - float(values[-2])
