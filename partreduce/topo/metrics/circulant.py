"""Fourier transforms: rounds that look the same from every worker, of which each frequency is a sector of its own.

A matrix that commutes with the shifts of Z_n has the eigenvalues Σ_δ w_δ exp(−2πi k δ / n): the Fourier transform of
its first column. On Z_a × Z_b it is the two-dimensional transform, on Z_2^d the d-dimensional (Walsh–Hadamard).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.topo.cluster import Cluster
from partreduce.topo.metrics.round_steps import RoundSteps
from partreduce.topo.metrics.sectors import Batch, Sectors
from partreduce.topo.round import Round
from partreduce.topo.schedule import Schedule


def circulant_sectors(schedule: Schedule) -> Sectors | None:
    """One sector per frequency if all rounds commute with shifts (or xors) of ranks of equal steps; else None.

    O(T n log n) once the shifts are found, O(T n) for each kind of them that is tried.

    Raises:
        ScheduleError: the strategy has no fixed phases.
    """
    rounds = schedule.strategy.graphs
    if not rounds:
        return None
    n, steps_per_round = schedule.num_workers, schedule.strategy.steps_per_round
    if not isinstance(steps_per_round, int) or (found := shifts_of(rounds)) is None:
        return None
    radices, columns = found
    strategy = schedule.mixing
    covariance = _node_column(schedule.cluster, radices)
    symbols = transformed(columns, radices)
    node = None if covariance is None else transformed(covariance, radices).real
    symbols[:, 0] = 0.0
    mean = np.zeros((symbols.shape[1], 1))
    mean[0] = 1.0
    worker_steps = np.array([steps_per_round], dtype=np.int64)
    round_steps = RoundSteps.of(
        worker_steps, np.full((len(rounds), 1), float(steps_per_round)), strategy.averaging, steps_per_round
    )
    roots = None if node is None else np.sqrt(np.maximum(node, 0.0))[:, None, None]
    batch = Batch(_multiplicity(radices), symbols[:, :, None, None], mean, round_steps, roots)
    return Sectors(n, [batch], strategy.mixes_late, _transport(radices))


def shifts_of(rounds: Sequence[Round]) -> tuple[tuple[int, ...], npt.NDArray[np.float64]] | None:
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
            column = first_column(listed, radices)
            if column is None:
                break
            columns.append(column)
        else:
            return radices, np.array(columns)
    return None


def first_column(listed: Round, radices: Sequence[int]) -> npt.NDArray[np.float64] | None:
    """Weight by difference target − source in a group, None if the round is not invariant. O(edges)."""
    n = listed.num_workers
    if len(listed) % n:
        return None
    sources, targets = listed.sources.astype(np.int64), listed.targets.astype(np.int64)
    degree = len(listed) // n
    probes = np.array([0, 1, n // 2, n - 1]) % n
    edges = probes[:, None] * degree + np.arange(degree)  # (4, degree): edges are sorted by target
    few = np.sort(_difference(targets[edges], sources[edges], radices), axis=1)
    if (targets[edges] != probes[:, None]).any() or (few != few[0]).any():
        return None  # seen at a few workers already
    offsets = _difference(targets, sources, radices)
    counts = np.bincount(offsets, minlength=n)
    if not np.isin(counts, (0, n)).all():
        return None
    shared = np.zeros(n, dtype=np.int64)
    shared[offsets] = listed.weight_of
    if (shared[offsets] != listed.weight_of).any():
        return None
    column = np.bincount(offsets, weights=listed.edge_weights(), minlength=n) / n
    column[0] = 1 - column.sum()
    return column


def transformed(columns: npt.NDArray[np.float64], radices: Sequence[int]) -> npt.NDArray[Any]:
    """The characters' values of functions on a group (…, n): (…, frequencies), one of each pair of conjugate ones.

    The matrices are real, so conjugate frequencies have equal metrics.
    """
    grid = columns.reshape(*columns.shape[:-1], *radices)
    values = np.fft.rfftn(grid, axes=tuple(range(-len(radices), 0)))
    return values.reshape(*columns.shape[:-1], -1)


def _multiplicity(radices: Sequence[int]) -> npt.NDArray[np.float64]:
    """For how many frequencies each that `transformed` gives stands."""
    last = radices[-1]
    along = np.full(last // 2 + 1, 2.0)
    along[0] = 1.0
    if last % 2 == 0:
        along[-1] = 1.0
    return np.tile(along, prod(radices[:-1]))


def _transport(radices: Sequence[int]) -> str:
    if len(radices) == 1:
        return "Fourier transform of the circulant rounds"
    if set(radices) == {2}:
        return "Walsh–Hadamard transform of the xor-invariant rounds"
    return f"Fourier transform of rounds alike under the shifts of {'×'.join(map(str, radices))} workers"


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
    if int((sizes**2).sum()) > 2 * 10**7:
        return None
    column = np.zeros(n)
    if cluster.workers_per_node is not None and len(radices) == 1:
        for d in range(cluster.workers_per_node):
            pairs = cluster.num_nodes * (cluster.workers_per_node - d) / n
            column[d % n] += pairs
            if d:
                column[-d % n] += pairs
        return column
    order = np.argsort(cluster.node_of(), kind="stable")  # ranks, node by node
    first = 0
    for size, count in _runs(sizes):
        ranks = order[first : first + size * count].reshape(count, size)
        first += size * count
        offsets = _difference(ranks[:, :, None], ranks[:, None, :], radices)  # (nodes, size, size)
        column += np.bincount(offsets.reshape(-1), minlength=n) / n
    return column


def _runs(sizes: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Consecutive nodes of one size: the size, and how many they are."""
    starts = np.flatnonzero(np.diff(sizes, prepend=-1))
    return [(int(sizes[a]), int(b - a)) for a, b in pairwise([*starts.tolist(), len(sizes)])]
