"""Spectra by Fourier transforms: circulant graphs, tori, hypercubes, products. O(n log n) for all n eigenvalues.

A matrix that commutes with the shifts of Z_n has the eigenvalues Σ_δ w_δ exp(−2πi k δ / n): the Fourier transform of
its first column. On Z_a × Z_b it is the two-dimensional transform, on Z_2^d the Walsh–Hadamard transform.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from preduce.topo.errors import InputError
from preduce.topo.figures.round_steps import RoundSteps
from preduce.topo.figures.sectors import Batch, Sectors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from preduce.topo.cluster import Cluster
    from preduce.topo.round import Round
    from preduce.topo.schedule import Schedule


def circulant_spectrum(num_workers: int, weights: Mapping[int, float]) -> npt.NDArray[np.complex128]:
    """All eigenvalues when every worker i takes weight w from worker i − offset; index 0 is the mean.

    `weights` maps offset → w; the rest stays. The ring with weights 1/3 is {1: 1/3, −1: 1/3}. O(n log n).
    """
    column = np.zeros(num_workers)
    for offset, weight in weights.items():
        column[offset % num_workers] += weight
    column[0] += 1 - sum(weights.values())
    return np.fft.fft(column).astype(np.complex128)


def torus_spectrum(rows: int, columns: int, weight: float = 0.2) -> npt.NDArray[np.float64]:
    """All eigenvalues of the rows×columns torus, `weight` from each of the 4 neighbours; entry 0 is the mean."""
    first = np.zeros((rows, columns))
    first[0, 0] += 1 - 4 * weight
    for place in ((1 % rows, 0), (-1 % rows, 0), (0, 1 % columns), (0, -1 % columns)):
        first[place] += weight
    return np.fft.fft2(first).real.reshape(-1)


def walsh_spectrum(num_workers: int, weights: Mapping[int, float]) -> npt.NDArray[np.float64]:
    """All eigenvalues when every worker i takes weight w from worker i xor mask; entry 0 is the mean.

    `weights` maps mask → w; the rest stays. The hypercube of dimension d with weight w is {2^k: w for all k < d}.
    O(n log n).

    Raises:
        InputError: num_workers is no power of two.
    """
    if num_workers < 1 or num_workers & (num_workers - 1):
        raise InputError(f"xor graph: {num_workers} workers; the number of workers is a power of two")
    values = np.zeros(num_workers)
    for mask, weight in weights.items():
        values[mask] += weight
    values[0] += 1 - sum(weights.values())
    return _walsh(values)


def product_spectrum(factors: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """All eigenvalues of a Kronecker product (hyper-cuboids, tori of independent steps) from those of its factors."""
    result: npt.NDArray[np.float64] = np.ones(1)
    for factor in factors:
        result = np.multiply.outer(result, factor).reshape(-1)
    return result


def circulant_sectors(schedule: Schedule) -> Sectors | None:
    """One sector per frequency when all rounds commute with shifts (or xors) of the ranks at one pace, else None.

    O(T n log n).

    Raises:
        ScheduleError: the strategy has no fixed phases.
    """
    rounds = schedule.strategy.graphs
    if not rounds:
        return None
    n, pace = schedule.num_workers, schedule.strategy.pace
    if not isinstance(pace, int):
        return None
    for xor in (False, True):
        columns = [first_column(listed, xor=xor) for listed in rounds]
        if all(column is not None for column in columns):
            break
    else:
        return None
    strategy = schedule.mixing
    stack = np.array(columns, dtype=np.float64)
    covariance = _node_column(schedule.cluster, xor=xor)
    multiplicity = np.ones(n)
    symbols: npt.NDArray[Any]
    if xor:
        symbols, node = _walsh(stack), None if covariance is None else _walsh(covariance)
    else:
        # The matrices are real: frequencies k and n − k are conjugate and have equal figures.
        symbols, node = np.fft.rfft(stack), None if covariance is None else np.fft.rfft(covariance).real
        multiplicity = np.full(symbols.shape[1], 2.0)
        multiplicity[0] = 1.0
        if n % 2 == 0:
            multiplicity[-1] = 1.0
    symbols[:, 0] = 0.0
    mean = np.zeros((symbols.shape[1], 1))
    mean[0] = 1.0
    paces = np.array([pace], dtype=np.int64)
    round_steps = RoundSteps.of(paces, np.full((len(rounds), 1), float(pace)), strategy.averaging, pace)
    roots = None if node is None else np.sqrt(np.maximum(node, 0.0))[:, None, None]
    batch = Batch(multiplicity, symbols[:, :, None, None], mean, round_steps, roots)
    how = f"{'Walsh–Hadamard' if xor else 'Fourier'} transform of the {'xor-invariant' if xor else 'circulant'} rounds"
    return Sectors(n, [batch], strategy.mixes_late, how)


def first_column(listed: Round, *, xor: bool) -> npt.NDArray[np.float64] | None:
    """Weight by offset target − source (or target xor source), None if the round is not invariant. O(edges)."""
    n = listed.num_workers
    if len(listed) % n or (xor and n & (n - 1)):
        return None
    sources, targets = listed.sources.astype(np.int64), listed.targets.astype(np.int64)
    offsets = sources ^ targets if xor else (targets - sources) % n
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


def _node_column(cluster: Cluster, *, xor: bool) -> npt.NDArray[np.float64] | None:
    """Average over shifts of "i and j share a node", by offset i − j; None if there are too many pairs."""
    n, sizes = cluster.num_workers, cluster.node_sizes()
    if int((sizes**2).sum()) > 2 * 10**7:
        return None
    column = np.zeros(n)
    if cluster.workers_per_node is not None and not xor:
        for d in range(cluster.workers_per_node):
            pairs = cluster.num_nodes * (cluster.workers_per_node - d) / n
            column[d % n] += pairs
            if d:
                column[-d % n] += pairs
        return column
    for node in range(cluster.num_nodes):
        ranks = np.array(cluster.workers_of(node), dtype=np.int64)
        offsets = ranks[:, None] ^ ranks if xor else (ranks[:, None] - ranks) % n
        np.add.at(column, offsets.reshape(-1), 1 / n)
    return column


def _walsh(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The Walsh–Hadamard transform of the last axis, whose length is a power of two. O(n log n)."""
    shape = values.shape
    result = np.array(values, dtype=np.float64)
    half = 1
    while half < shape[-1]:
        pairs = result.reshape(*shape[:-1], -1, 2, half)
        result = np.stack([pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]], axis=-2)
        result = result.reshape(shape)
        half *= 2
    return result
