"""Exact mixing matrices of rounds, from their groups and edges."""

from fractions import Fraction

import numpy as np

from partreduce.strategies import NeighborAveraging


def exact_matrix(n, groups=(), edges=()):
    """Return W in fractions, of groups (members, relaxation) or of edges (source, target, weight)."""
    matrix = np.full((n, n), Fraction(0))
    np.fill_diagonal(matrix, Fraction(1))
    for members, relaxation in groups:
        for i in members:
            for j in members:
                matrix[i, j] += Fraction(relaxation) * (Fraction(1, len(members)) - int(i == j))
    for source, target, weight in edges:
        matrix[target, source] += weight
        matrix[target, target] -= weight
    return matrix


def exact_round(schedule, index):
    n = schedule.num_workers
    if isinstance(schedule.strategy, NeighborAveraging):
        return exact_matrix(n, edges=schedule.strategy.rounds[index].edges())
    return exact_matrix(n, [(group.members, group.relaxation) for group in schedule.phase(index)])
