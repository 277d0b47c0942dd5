"""Square matrices in NumPy's files. Rows that sum to 1 are mixing weights, 0/1 entries are edges."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.imports.base import ImportedGraph, from_edges
from partreduce.schedulers.imports.exact import exact
from partreduce.topo.errors import DocumentError, ScheduleError


def read_npy(data: bytes, source: str) -> ImportedGraph:
    """A NumPy array file.

    Raises:
        DocumentError: not such a file, or no square matrix of numbers.
        ScheduleError: entries that are neither edges nor shares.
    """
    return of_matrix(load_npy(data, source), source)


def load_npy(data: bytes, source: str) -> npt.NDArray[np.generic]:
    """The array of a NumPy file.

    Raises:
        DocumentError: not such a file, or one with Python objects.
    """
    try:
        array: npt.NDArray[np.generic] = np.load(BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError, SyntaxError) as error:
        raise DocumentError("document", f"is not a NumPy array file: {' '.join(str(error).split())}", source) from None
    return array


def of_matrix(matrix: npt.NDArray[np.generic], source: str) -> ImportedGraph:
    """Entry [i, j] is what worker i takes from worker j when rows sum to 1, else whether there is an edge.

    Raises:
        DocumentError: no square matrix of numbers.
        ScheduleError: negative or infinite entries, or rows that sum to something else than 1.
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
