"""Import stacks of mixing matrices, one per round: a format in which any program can write its schedule."""

from __future__ import annotations

from pathlib import PurePath

import numpy as np

from partreduce.schedulers.imports.adjacency import load_npy, of_matrix
from partreduce.schedulers.imports.base import matrix_round, schedule
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.reader import parse_json
from partreduce.topo.errors import DocumentError, ScheduleError
from partreduce.topo.schedule import Schedule

MAX_ROUNDS = 10_000


def is_stack(data: bytes, source: str) -> bool:
    """Whether a NumPy file holds a stack of matrices: three axes.

    Raises:
        DocumentError: no NumPy file.
    """
    return load_npy(data, source).ndim == 3


def read_matrix_stack(data: bytes, source: str, *, cluster: Cluster | None = None) -> Schedule:
    """One mixing matrix a round, as they stand: an array of shape (rounds, n, n), or JSON with it under `w_list`.

    Entry [t, i, j] is what worker i takes from worker j in round t. A round need not connect all.

    Raises:
        DocumentError: another format, or a round that is no square matrix of numbers.
        ScheduleError: entries or rows of a round that are no shares, or a cluster of another size.
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
            rounds.append(matrix_round(of_matrix(matrix, source)))
        except ScheduleError as error:
            raise ScheduleError(f"{source}: round {t}: {error}") from None
    return schedule(PurePath(source).stem, rounds, cluster)
