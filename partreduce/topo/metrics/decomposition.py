"""Which sectors a schedule is split into: the cheapest direct decomposition, within limits on what metrics may cost.

All-reduce with equal steps_per_round has two, a rule one per character class, a round that looks the same from every
worker one per frequency. What has no such structure is a single sector of size n, as long as that is not too large.

A matrix that commutes with the shifts of Z_n has the eigenvalues Σ_δ w_δ exp(−2πi k δ / n): the Fourier transform of
its first column. On Z_a × Z_b it is the two-dimensional transform, on Z_2^d the d-dimensional (Walsh–Hadamard).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.metrics.classes import rule_sectors
from partreduce.topo.metrics.sectors import Batch, RoundSteps, Sectors, group_worker_steps
from partreduce.topo.mixing import Operators
from partreduce.topo.round import Round
from partreduce.topo.schedule import Schedule

MAX_PAIRS = 2 * 10**7
"""Pairs of workers on one node that are listed."""
MAX_GAP_WORKERS = 4_000


@dataclass(frozen=True, slots=True)
class MetricLimits:
    """Up to which size schedules without structure are solved directly: their workers, and numbers of all matrices."""

    dense_workers: int = 512
    dense_entries: int = 2**27


DEFAULT = MetricLimits()


def sectors_of(schedule: Schedule, limit: MetricLimits = DEFAULT) -> Sectors | None:
    """The cheapest direct decomposition, None if the schedule is too large for each: classes, Fourier, dense."""
    period = schedule.period
    structured = uniform_sectors(schedule) or rule_sectors(schedule) or circulant_sectors(schedule)
    if structured is not None:
        return structured
    n = schedule.num_workers
    if n <= limit.dense_workers and period * n * n <= limit.dense_entries:
        return dense_sectors(schedule)
    return None


def dense_sectors(schedule: Schedule) -> Sectors:
    """All workers as one sector. O(T n²) memory; every metric then costs O((T + 30) n³)."""
    n, steps = schedule.num_workers, schedule.steps()
    strategy, worker_steps = schedule.mixing, schedule.worker_steps()
    matrices = Operators(steps).matrices()
    # Π W instead of W − J: the same for doubly stochastic W, and for others still what moves distances to the mean.
    matrices -= matrices.mean(axis=2, keepdims=True)
    group = group_worker_steps(steps, worker_steps)
    round_steps = RoundSteps.of(worker_steps, group, strategy.averaging, int(worker_steps.max()))
    columns = np.eye(schedule.cluster.num_nodes)[schedule.cluster.node_of()]
    batch = Batch(np.ones(1), matrices, np.full((1, n), 1 / np.sqrt(n)), round_steps, columns[None])
    return Sectors(n, [batch], strategy.mixes_late, f"dense matrices of all {n} workers")


def uniform_sectors(schedule: Schedule) -> Sectors | None:
    """The sectors of an all-reduce with the same steps_per_round for all workers, None for anything else. O(num_nodes).

    Off the mean W is 0 and steps a multiple of the identity, so of the node covariance C only its trace counts
    there: tr C − tr JC = n − Σ (workers on a node)² / n, spread over n − 1 directions.
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


def circulant_sectors(schedule: Schedule) -> Sectors | None:
    """One sector per frequency if all rounds commute with shifts (or xors) of ranks of equal steps; else None.

    O(T n log n) once the shifts are found, O(T n) for each kind of them that is tried.
    """
    rounds, steps_per_round = schedule.strategy.graphs, schedule.strategy.steps_per_round
    if not rounds or not isinstance(steps_per_round, int) or (found := _shifts_of(rounds)) is None:
        return None
    radices, columns = found
    symbols = _transformed(columns, radices)
    symbols[:, 0] = 0.0
    mean = np.zeros((symbols.shape[1], 1))
    mean[0] = 1.0
    covariance, roots = _node_column(schedule.cluster, radices), None
    if covariance is not None:
        roots = np.sqrt(np.maximum(_transformed(covariance, radices).real, 0.0))[:, None, None]
    round_steps = RoundSteps.equal(steps_per_round, len(rounds))
    batch = Batch(np.ones(schedule.num_workers), symbols[:, :, None, None], mean, round_steps, roots)
    how = f"Fourier transform of rounds alike under the shifts of {'×'.join(map(str, radices))} workers"
    if len(radices) == 1:
        how = "Fourier transform of the circulant rounds"
    elif set(radices) == {2}:
        how = "Walsh–Hadamard transform of the xor-invariant rounds"
    return Sectors(schedule.num_workers, [batch], schedule.mixing.mixes_late, how)


def _shifts_of(rounds: Sequence[Round]) -> tuple[tuple[int, ...], npt.NDArray[np.float64]] | None:
    """The group whose shifts all rounds commute with, and their first columns (T, n); None if none is found.

    A group is given by its radices: ranks are written in mixed radix, the first digit the most significant, and shifted
    digit by digit. Tried are the cyclic group (n,), xors (2, 2, …), and each a×b = n: tori, and two copies of a cyclic
    graph that are joined worker to worker. O(T n) for each.
    """
    n = rounds[0].num_workers
    xors = [(2,) * (n.bit_length() - 1)] if n & (n - 1) == 0 else []
    pairs = [(a, n // a) for a in range(2, n // 2 + 1) if n % a == 0]
    for radices in dict.fromkeys([(n,), *xors, *pairs]):
        columns = []
        for listed in rounds:
            column = _first_column(listed, radices)
            if column is None:
                break
            columns.append(column)
        else:
            return radices, np.array(columns)
    return None


def _first_column(listed: Round, radices: Sequence[int]) -> npt.NDArray[np.float64] | None:
    """Weight by difference target − source in a group, None if the round is not invariant. O(edges)."""
    n, kinds = listed.num_workers, len(listed.weights)
    if len(listed) % n:
        return None
    sources, targets, weight_of = (
        array.reshape(n, -1).astype(np.int64) for array in (listed.sources, listed.targets, listed.weight_of)
    )  # edges are sorted by target: one row for each, if all have as many
    for rows in (np.array([0, 1, n // 2, n - 1]) % n, np.arange(n)):  # a few say no at once
        edges = np.sort(_difference(targets[rows], sources[rows], radices) * kinds + weight_of[rows], axis=1)
        if (targets[rows] != rows[:, None]).any() or (edges != edges[0]).any():
            return None
    offsets, kind = np.divmod(edges[0], kinds)
    column = np.zeros(n)
    column[offsets] = np.array([float(weight) for weight in listed.weights])[kind]
    column[0] = 1 - column.sum()
    return column


def _transformed(columns: npt.NDArray[np.float64], radices: Sequence[int]) -> npt.NDArray[Any]:
    """The characters' values of functions on a group, (…, n)."""
    grid = columns.reshape(*columns.shape[:-1], *radices)
    return np.fft.fftn(grid, axes=range(-len(radices), 0)).reshape(columns.shape)


def _difference(
    ranks: npt.NDArray[np.int64], others: npt.NDArray[np.int64], radices: Sequence[int]
) -> npt.NDArray[np.int64]:
    """The differences of ranks in a group, digit by digit."""
    result, place = np.zeros_like(ranks - others), 1
    for radix in reversed(radices):
        result += (ranks // place - others // place) % radix * place
        place *= radix
    return result


def _node_column(cluster: Cluster, radices: Sequence[int]) -> npt.NDArray[np.float64] | None:
    """Average over shifts of "i and j share a node", by difference i − j; None if there are too many pairs."""
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
    """1 − λ₂ of D⁻¹A, A the adjacency without self-loops and D its degrees. O(n³), with shifts O(n log n).

    Hop's spectral gap, that of the bare graph, with eigenvalues in the order of real numbers (ASPLOS'19): weights do
    not count, only which edges there are. The gap of W itself, by modulus, is 1 − radius.

    Raises:
        InputError: a worker without neighbors, or more than 4,000 workers in a graph that no shifts describe.
    """
    found = _shifts_of([graph]) if len(graph) else None
    if found is not None:
        radices, columns = found
        pattern = (columns[0] != 0).astype(np.float64)
        pattern[0] = 0.0
        return 1 - float((_transformed(pattern, radices).real / pattern.sum())[1:].max())
    n = graph.num_workers
    if n > MAX_GAP_WORKERS:
        raise InputError(f"hop gap: {n} workers; at most {MAX_GAP_WORKERS} as one matrix")
    adjacency = np.zeros((n, n))
    adjacency[graph.targets, graph.sources] = 1.0
    degrees = adjacency.sum(axis=1)
    if not degrees.all():
        raise InputError(f"hop gap: worker {int(np.argmin(degrees))} has no neighbor; every worker needs at least 1")
    if np.array_equal(adjacency, adjacency.T):
        root = 1 / np.sqrt(degrees)
        values = np.linalg.eigvalsh(root[:, None] * adjacency * root)
    else:
        values = np.sort(np.linalg.eigvals(adjacency / degrees[:, None]).real)
    return 1 - float(values[-2])
