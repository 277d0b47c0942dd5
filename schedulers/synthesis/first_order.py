"""To first order, what replacing one phase of a period by another changes in its figure: many others at once.

The figure's derivative after a matrix of the period comes from two periodic states: what enters the phase, and the
weight (adjoint) of all that follows on what leaves it. So one small product a replacement tells what it is worth, and
only the best need a periodic equation of their own. Shapes: T phases of a period over one class (explicit groups) of n
workers, N replacements, K columns of a push.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis import scoring
from partreduce.schedulers.synthesis.scoring import CovarianceMap, Space

Floats = npt.NDArray[np.float64]


class ConsensusDistanceChanges:
    """Of a period's consensus distance. O(T·n³) once, O(N·n³) a call."""

    def __init__(self, space: Space, matrices: Floats, turned: CovarianceMap) -> None:
        """`matrices` (T, n, n); `turned` is the period from its second phase round to its first."""
        self.space, self.matrices = space, matrices
        space.charge(matrices, 2.0)
        length, n = matrices.shape[:2]
        spread, ahead = (part[0] for part in scoring.steady(turned))
        self.entering, self.weights = np.empty((length, n, n)), np.empty((length, n, n))
        for t in (0, *range(length - 1, 0, -1)):
            self.weights[t] = np.eye(n) + ahead  # on what leaves phase t: by its own round and by all later ones
            ahead = matrices[t].T @ self.weights[t] @ matrices[t]
        for t in (*range(1, length), 0):
            self.entering[t] = spread + space.fresh[0]  # the steps of its round included
            spread = matrices[t] @ self.entering[t] @ matrices[t].T

    def at(self, position: int, others: Floats) -> Floats:
        """For each of `others` (N, n, n), symmetric, in the place of one phase, the change: (N,)."""
        length, n = self.matrices.shape[:2]
        self.space.charge(others, 0.5)
        matrices = np.concatenate([self.matrices[position : position + 1], others])
        # ⟨U, W S W⟩ = Σ_ij (W S)_ij (W U)_ji for symmetric W. One tall product would be shared out to threads instead.
        both = matrices @ np.concatenate([self.entering[position], self.weights[position]], axis=1)
        terms = np.einsum("aij,aji->a", both[:, :, :n], both[:, :, n:])
        return np.asarray((terms[1:] - terms[0]) / (n * length))


class DriftChanges:
    """Of a period's drift. O(T·n²·K + n³) once, O(N·n²·K) a call."""

    def __init__(self, space: Space, matrices: Floats) -> None:
        """`matrices` (T, n, n), of a period that converges."""
        self.space, self.matrices = space, matrices
        space.charge(matrices, 2.0)
        length, n = matrices.shape[:2]
        push = space.push[0]  # (n, K)
        inside = [] if space.inside is None else [done[0] for done in space.inside]
        state, product = np.zeros_like(push), np.eye(n)
        for t in range(length):
            state, product = matrices[t] @ (state + push), matrices[t] @ product
        state = np.linalg.solve(np.eye(n) - product, state)
        self.entering = np.empty((length, *push.shape))
        gradients = np.empty((length, *push.shape))  # of what is counted while the state before phase t stands
        for t in range(length):
            gradients[t] = 2 * state + sum((2 * (state + done) for done in inside), np.zeros_like(push))
            self.entering[t] = state + push
            state = matrices[t] @ self.entering[t]
        # The adjoint before phase t: λ ← gradient + Wᵀ λ, once round the period from zero, then as a periodic one.
        adjoint = np.zeros_like(push)
        for t in range(length - 1, -1, -1):
            adjoint = gradients[t] + matrices[t].T @ adjoint
        adjoint = np.linalg.solve(np.eye(n) - product.T, adjoint)
        self.adjoints = np.empty((length, *push.shape))
        for t in range(length - 1, -1, -1):
            self.adjoints[t] = adjoint  # on what leaves phase t
            adjoint = gradients[t] + matrices[t].T @ adjoint

    def at(self, position: int, others: Floats) -> Floats:
        """For each of `others` (N, n, n) in the place of one phase, the change: (N,). Its own square is counted too."""
        length, n = self.matrices.shape[:2]
        self.space.charge(others, 0.5)
        moved = (others - self.matrices[position]) @ self.entering[position]  # (N, n, K)
        change = (moved * self.adjoints[position]).sum(axis=(1, 2)) + self.space.instants * (moved**2).sum(axis=(1, 2))
        return np.asarray(change / (n * length * self.space.instants))
