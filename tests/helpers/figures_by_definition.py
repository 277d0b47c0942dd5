"""Figures of small schedules from their definitions, by dense matrices, for tables that were published."""

import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from partreduce.topo.metrics import radius
from partreduce.topo.mixing import mixing_matrix


def n_eff(schedule, gamma):
    """(1/(1−γ)) ÷ the mean variance of x ← W(√γ x + unit noise) over the phases (Vogels et al., NeurIPS 2022)."""
    matrices = [mixing_matrix(step) for step in schedule.steps()]
    n = schedule.num_workers
    product, pushed = np.eye(n), np.zeros((n, n))
    for matrix in matrices:
        product, pushed = matrix @ product, matrix @ (gamma * pushed + np.eye(n)) @ matrix.T
    covariance = solve_discrete_lyapunov(gamma ** (len(matrices) / 2) * product, pushed, method="bilinear")
    total = 0.0
    for matrix in matrices:
        covariance = matrix @ (gamma * covariance + np.eye(n)) @ matrix.T
        total += np.trace(covariance) / n
    return len(matrices) / ((1 - gamma) * total)


def rounds_to(schedule, epsilon=1e-6):
    """The least t with ‖W_t … W_1 − J‖₂ ≤ epsilon, round by round; None if workers never agree."""
    if radius(schedule).value >= 1 - 1e-12:
        return None
    matrices, n = [mixing_matrix(step) for step in schedule.steps()], schedule.num_workers
    error, rounds = np.eye(n) - 1 / n, 0
    while np.linalg.norm(error) > np.sqrt(n) * epsilon or np.linalg.norm(error, 2) > epsilon:
        error = matrices[rounds % len(matrices)] @ error
        rounds += 1
    return rounds


def spectrum_of(sectors):
    """All eigenvalues of the period product of a decomposition, and how often each stands in it; the mean's 1 too."""
    values, counts = [], []
    for batch in sectors.batches:
        product = batch.product() + batch.mean[:, :, None] * batch.mean.conj()[:, None, :]
        values.append(np.linalg.eigvals(product).astype(np.complex128).reshape(-1))
        counts.append(np.repeat(np.rint(batch.multiplicity).astype(np.int64), batch.size))
    return np.concatenate(values), np.concatenate(counts)
