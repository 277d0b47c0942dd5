"""Metrics of small schedules from their definitions, by dense matrices; no code is shared with the package."""

import numpy as np

from benchmarks.forgery.dense import dense, scales_of, steady_distance
from partreduce.files import dump_schedule


def rounds_of(schedule):
    """Return (W, factor of each worker's steps) of every round."""
    raw = dump_schedule(schedule)
    listed, matrices = dense(raw)
    return list(zip(matrices, scales_of(raw, listed, len(matrices)), strict=True))


def metrics_of(schedule):
    """Return contraction and radius by name, and if workers converge, consensus distance and both drifts.

    Each drift and the distance take one linear solve.
    """
    n, rounds, late = schedule.num_workers, rounds_of(schedule), schedule.strategy.mixes_late
    period, steps, center = len(rounds), schedule.worker_steps(), np.eye(n) - 1 / n
    instants = int(steps.max())
    partial = [np.diag((s * steps // instants).astype(float)) for s in range(1, instants)]
    product = np.eye(n)
    for matrix, _ in rounds:
        product = matrix @ product
    rest = center @ product
    result = {
        "contraction": float(np.linalg.norm(product - 1 / n, 2)),
        "radius": float(np.abs(np.linalg.eigvals(rest)).max()),
    }
    if result["radius"] > 1 - 1e-9:
        return result
    raw = dump_schedule(schedule)
    result["consensus_distance"] = steady_distance(raw, *dense(raw))

    def after(shift, t):
        matrix, scale = rounds[t]
        move = center @ np.diag(steps * scale)
        return center @ matrix @ shift + move if late else center @ matrix @ (shift + move)

    start = np.zeros((n, n))
    for t in range(period):
        start = after(start, t)
    start = np.linalg.solve(np.eye(n) - rest, start)
    node_of = schedule.cluster.node_of()
    for push, covariance in (("worker", np.eye(n)), ("node", (node_of[:, None] == node_of).astype(float))):
        shift, total = start, 0.0
        for t in range(period):
            total += sum(np.trace((shift + center @ part) @ covariance @ (shift + center @ part).T) for part in partial)
            shift = after(shift, t)
            total += np.trace(shift @ covariance @ shift.T)
        result[push] = total / (period * instants * n)
    return result


def outer_radius_of(schedule):
    """Return the spectral radius of a period with outer steps from own outer parameters, run on unit vectors."""
    n, outer = schedule.num_workers, schedule.strategy.payload.outer
    lr, factor = float(outer.lr), float(outer.momentum)
    models, momenta = np.hsplit(np.eye(2 * n), 2)  # the columns: whose outer parameters are 1, whose momentum
    models, momenta = models.T.copy(), momenta.T.copy()
    for phase in dense(dump_schedule(schedule))[0]:
        begun = models.copy()
        for members, _ in phase:
            for i in members:
                movement = sum(begun[j] for j in members) / len(members) - begun[i]
                momenta[i] = factor * momenta[i] + movement
                models[i] = begun[i] + lr * (movement + factor * momenta[i] if outer.nesterov else momenta[i])
    off = np.eye(2 * n)
    off[:n, :n] -= 1 / n
    return float(np.abs(np.linalg.eigvals(off @ np.concatenate([models, momenta]) @ off)).max())


def rounds_to(schedule, epsilon):
    """Return the least t with ‖W_t … W_1 − J‖₂ ≤ epsilon; None if workers never agree."""
    matrices, n = [matrix for matrix, _ in rounds_of(schedule)], schedule.num_workers
    error, rounds = np.eye(n) - 1 / n, 0
    product = error
    for matrix in matrices:
        product = matrix @ product
    if np.abs(np.linalg.eigvals(product)).max() >= 1 - 1e-12:
        return None
    while np.linalg.norm(error) > np.sqrt(n) * epsilon or np.linalg.norm(error, 2) > epsilon:
        error = matrices[rounds % len(matrices)] @ error
        rounds += 1
    return rounds


def spectrum_of(sectors):
    """Return all eigenvalues of a decomposition's period product with multiplicities, the mean's 1 included."""
    values, counts = [], []
    for batch in sectors.batches:
        product = batch.product() + batch.mean[:, :, None] * batch.mean.conj()[:, None, :]
        values.append(np.linalg.eigvals(product).astype(np.complex128).reshape(-1))
        counts.append(np.repeat(np.rint(batch.multiplicity).astype(np.int64), batch.size))
    return np.concatenate(values), np.concatenate(counts)
