"""What momentum leaves of the learning rate where workers with momentum of their own average over a graph.

Along an eigenvector of the mixing matrix W with eigenvalue λ and a direction of curvature h, with learning rate r and
momentum β (heavy ball, m ← β m + h x, u = −r m), what differs between workers goes

    serial order    x ← λ (x − r m)      parallel order    x ← λ x − r m

Both have determinant β λ, and Jury's conditions (E. I. Jury, 1964) give the rates below which they shrink: in the
serial order r h < (1 − β)(1 − λ) / −λ for λ < 0 besides r h < (1 + β)(1 + λ) / λ for λ > 0, in the parallel order
r h < (1 + β)(1 + λ). The mean of all workers (λ = 1) bears 2 (1 + β) in both. So a graph whose matrix has a negative
eigenvalue bears, in the serial order, far less momentum than All-Reduce does.
"""

from __future__ import annotations

import numpy as np

from partreduce.topo.mixing import mixing_matrix
from partreduce.topo.round import Round


def largest_rate(graph: Round, momentum: float, *, parallel: bool) -> float:
    """The largest learning rate times curvature under which no difference between workers grows. O(n³).

    For symmetric weights, which have real eigenvalues; of others the symmetric part is taken, which is no bound.

    Args:
        graph: the weights, n workers.
        momentum: β, 0 <= β < 1, of every worker's own heavy ball.
        parallel: parameters are averaged while they are computed with (x ← Wx + u), not afterwards (x ← W(x + u)).

    Raises:
        InputError: more than 20,000 workers.
    """
    matrix = mixing_matrix(graph)
    eigenvalues = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    limits = [2 * (1 + momentum)]
    for value in eigenvalues.tolist():
        if parallel:
            limits.append((1 + momentum) * (1 + value))
        elif value > 0:
            limits.append((1 + momentum) * (1 + value) / value)
        elif value < 0:
            limits.append((1 - momentum) * (1 - value) / -value)
    return float(min(limits))
