"""Read a matrix over workers, or a stack with one matrix per round, from NumPy files or JSON.

A matrix whose rows sum to 1 holds mixing weights; a matrix of 0 and 1 holds edges.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import PurePath

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.imports.exact import exact
from partreduce.schedulers.imports.graphs import ImportedGraph, from_edges, schedule, weighted_round
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.reader import parse_json
from partreduce.topo.errors import DocumentError, ScheduleError
from partreduce.topo.schedule import Schedule

MAX_ROUNDS = 10_000


def read_npy(data: bytes, source: str) -> ImportedGraph:
    """Read a NumPy file with one square matrix of weights or edges (`of_matrix`)."""
    return of_matrix(load_npy(data, source), source)


def load_npy(data: bytes, source: str) -> npt.NDArray[np.generic]:
    """Return the array of a NumPy file; an array of Python objects raises DocumentError."""
    try:
        array: npt.NDArray[np.generic] = np.load(BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError, SyntaxError) as error:
        raise DocumentError("document", f"is not a NumPy array file: {' '.join(str(error).split())}", source) from None
    return array


def of_matrix(matrix: npt.NDArray[np.generic], source: str) -> ImportedGraph:
    """Return the graph of a matrix: entry [i, j] is j's weight in i's average or, if all are 0 and 1, an edge j → i.

    Weights in a row sum to 1. Raises DocumentError if the matrix is not square, ScheduleError for other numbers.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        shape = "x".join(map(str, matrix.shape)) or "empty"
        raise DocumentError("document", f"is {shape}; a matrix over workers is square", source)
    if matrix.dtype.kind not in "biuf":
        raise DocumentError("document", f"holds {matrix.dtype}; a matrix over workers holds real numbers", source)
    values = matrix.astype(np.float64)
    bad = ~np.isfinite(values) | (values < 0)
    if bad.any():
        i, j = (int(k) for k in np.argwhere(bad)[0])
        raise ScheduleError(
            f"entry [{i}, {j}]: is {values[i, j]:g}; entries are shares from 0 to 1, or 0 and 1 for edges"
        )
    targets, sources = np.nonzero(values)
    edges = list(zip(sources.tolist(), targets.tolist(), strict=True))
    if np.isin(values, (0.0, 1.0)).all() and not np.allclose(values.sum(axis=1), 1):
        return from_edges(len(values), edges, None, directed=True)
    weights = [exact(values[i, j], f"entry [{i}, {j}]") for j, i in edges]
    for i, total in enumerate(values.sum(axis=1).tolist()):
        if abs(total - 1) > 1e-6:
            raise ScheduleError(f"row {i}: sums to {total:g}; rows of mixing weights sum to 1 (0/1 entries are edges)")
    return from_edges(len(values), edges, weights, directed=True)


def read_matrix_stack(data: bytes, source: str, *, cluster: Cluster | None = None) -> Schedule:
    """Read one mixing matrix per round: an array of shape (rounds, n, n), or JSON with the array under `w_list`.

    Entry [t, i, j] is the weight of worker j in i's average of round t. A round need not connect all workers.
    """
    if data.startswith(b"\x93NUMPY"):
        stack = load_npy(data, source)
    else:
        value = parse_json(data, source=source)
        listed = value.get("w_list") if isinstance(value, dict) else None
        try:
            stack = np.array(listed, dtype=np.float64)
        except (TypeError, ValueError):
            raise DocumentError("w_list", "is not a list of matrices of one size", source) from None
    if stack.ndim != 3 or not 1 <= len(stack) <= MAX_ROUNDS:
        shape = "x".join(map(str, stack.shape)) or "empty"
        raise DocumentError("document", f"is {shape}; a stack is 1 to {MAX_ROUNDS} rounds of a square matrix", source)
    rounds = []
    for t, matrix in enumerate(stack):
        try:
            rounds.append(weighted_round(of_matrix(matrix, source)))
        except ScheduleError as error:
            raise ScheduleError(f"{source}: round {t}: {error}") from None
    return schedule(PurePath(source).stem, rounds, cluster)
