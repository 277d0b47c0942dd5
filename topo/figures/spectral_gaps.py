"""Spectral gaps, always with their kind: papers use one word for three different numbers."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from partreduce.topo.errors import InputError
from partreduce.topo.figures.circulant import shifts_of, transformed
from partreduce.topo.figures.sectors import spectral_norms, spectral_radii
from partreduce.topo.mixing import mixing_matrix
from partreduce.topo.phase import Phase
from partreduce.topo.round import Round

if TYPE_CHECKING:
    import networkx as nx
    import numpy.typing as npt

MAX_WORKERS = 4_000


class GapKind(StrEnum):
    """Which spectral gap."""

    HOP = "hop"
    """1 − λ₂ of D⁻¹A, A the adjacency without self-loops, eigenvalues in the order of real numbers (Hop, ASPLOS'19)."""

    SLEM = "slem"
    """1 − the second largest modulus of an eigenvalue of W."""

    SIGMA = "sigma"
    """1 − the second singular value of W: for doubly stochastic W, 1 − ‖W − J‖₂."""


def spectral_gap(target: npt.NDArray[Any] | Phase | Round | nx.Graph[Any], kind: GapKind | str = GapKind.SLEM) -> float:
    """The gap of one matrix, phase, round or graph. O(n³); hop gaps of rounds alike under shifts O(n log n).

    `hop` looks at the graph alone: the entries' places, not their sizes. `slem` and `sigma` need weights: of a networkx
    graph the edge attribute `weight` is W[i, j] for an edge j→i, and each worker keeps what the others leave.

    Raises:
        InputError: an unknown kind, a matrix that is not square, rows that do not sum to 1 (slem, sigma), a graph
            without weights, a worker without neighbours (hop), or more than 4,000 workers.
    """
    if kind not in set(GapKind):
        raise InputError(f"spectral gap {str(kind)!r}: there is no such kind; choose hop, slem or sigma")
    if kind == GapKind.HOP:
        if isinstance(target, Round) and (fast := _circulant_hop(target)) is not None:
            return fast
        return _hop(_adjacency(target))
    matrix = _weights(target)
    if matrix.shape[0] < 2:
        raise InputError("spectral gap: 1 worker has no second eigenvalue; give at least 2 workers")
    if np.abs(matrix.sum(axis=1) - 1).max() > 1e-9:
        raise InputError("spectral gap: rows of a mixing matrix sum to 1; hop is the kind for bare graphs")
    centred = matrix - matrix.mean(axis=0, keepdims=True)
    if kind == GapKind.SLEM:
        # Π W has the eigenvalues of W with one 1, that of the all-ones vector, replaced by 0.
        return 1 - float(spectral_radii(centred[None])[0])
    return 1 - _second_singular_value(matrix, centred)


def _second_singular_value(matrix: npt.NDArray[np.float64], centred: npt.NDArray[np.float64]) -> float:
    if np.abs(matrix.sum(axis=0) - 1).max() <= 1e-9:
        return float(spectral_norms(centred[None])[0])
    return float(np.linalg.svd(matrix, compute_uv=False)[1])


def _hop(adjacency: npt.NDArray[np.float64]) -> float:
    degrees = adjacency.sum(axis=1)
    if len(degrees) < 2 or not degrees.all():
        lonely = int(np.argmin(degrees)) if len(degrees) else 0
        raise InputError(f"hop gap: worker {lonely} has no neighbour; every worker needs at least 1")
    if np.array_equal(adjacency, adjacency.T):
        root = 1 / np.sqrt(degrees)
        values = np.linalg.eigvalsh(root[:, None] * adjacency * root)
    else:
        values = np.sort(np.linalg.eigvals(adjacency / degrees[:, None]).real)
    return 1 - float(values[-2])


def _circulant_hop(graph: Round) -> float | None:
    if not len(graph) or (found := shifts_of([graph])) is None:
        return None
    radices, columns = found
    pattern = (columns[0] != 0).astype(np.float64)
    pattern[0] = 0.0
    values = transformed(pattern, radices).real / pattern.sum()
    return 1 - float(values[1:].max())


def _adjacency(target: npt.NDArray[Any] | Phase | Round | nx.Graph[Any]) -> npt.NDArray[np.float64]:
    """Row i marks those that worker i hears."""
    if isinstance(target, np.ndarray | Phase | Round):
        matrix = _square(target) if isinstance(target, np.ndarray) else _weights(target)
    else:
        import networkx as nx

        _refuse_size(target.number_of_nodes())
        matrix = nx.to_numpy_array(target, weight="").T  # an attribute that no edge has: each edge counts 1
    adjacency = (matrix != 0).astype(np.float64)
    np.fill_diagonal(adjacency, 0.0)
    return np.asarray(adjacency)


def _weights(target: npt.NDArray[Any] | Phase | Round | nx.Graph[Any]) -> npt.NDArray[np.float64]:
    if isinstance(target, np.ndarray):
        return _square(target)
    if isinstance(target, Phase | Round):
        _refuse_size(target.num_workers)
        return mixing_matrix(target)
    import networkx as nx

    _refuse_size(target.number_of_nodes())
    if any("weight" not in data for _, _, data in target.edges(data=True)):
        raise InputError("spectral gap: the graph's edges carry no `weight`; give a mixing matrix, or ask for kind hop")
    matrix = nx.to_numpy_array(target).T
    np.fill_diagonal(matrix, 0.0)
    result: npt.NDArray[np.float64] = matrix + np.diag(1 - matrix.sum(axis=1))
    return result


def _square(matrix: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
        raise InputError(f"spectral gap: the matrix has shape {matrix.shape}; a square matrix of numbers is needed")
    _refuse_size(len(matrix))
    return np.asarray(matrix, dtype=np.float64)


def _refuse_size(n: int) -> None:
    if n > MAX_WORKERS:
        raise InputError(
            f"spectral gap: {n} workers; at most {MAX_WORKERS} as one matrix; `partreduce verify` has those of larger "
            "schedules that look the same from every worker"
        )
