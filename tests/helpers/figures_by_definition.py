"""Metrics of small schedules from their definitions, by dense matrices; no code is shared with the package."""

import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from partreduce.strategies import AllReduce, Averaging, RulePhases, StaticGroups


def groups_of(schedule):
    """Return the groups (members, relaxation) of every phase, read from the strategy."""
    n, strategy = schedule.num_workers, schedule.strategy
    if isinstance(strategy, AllReduce):
        return [[(list(range(n)), 1.0)]]
    if not isinstance(strategy.phases, RulePhases):
        return [[(list(g.members), float(g.relaxation)) for g in phase] for phase in strategy.phases.phases]
    size, result = schedule.cluster.workers_per_node, []
    for phase in strategy.phases.phases:
        found = {}
        for worker in range(n):
            node, digits = worker // size, []
            for radix in reversed(strategy.phases.node_radices):
                node, digit = divmod(node, radix)
                digits.insert(0, digit)
            for block in phase:
                if worker % size in block.local:
                    home = (block, *(digit for d, digit in enumerate(digits) if d not in block.across))
                    found.setdefault(home, []).append(worker)
        result.append([(members, float(home[0].relaxation)) for home, members in found.items() if len(members) > 1])
    return result


def rounds_of(schedule):
    """Return (W, factor of each worker's steps) of every round."""
    n, steps, strategy = schedule.num_workers, schedule.worker_steps(), schedule.strategy
    result, is_scaled = [], strategy.averaging is Averaging.STEP_NORMALIZED
    if isinstance(strategy, StaticGroups | AllReduce):
        for phase in groups_of(schedule):
            matrix, scale = np.eye(n), np.ones(n)
            for members, relaxation in phase:
                for i in members:
                    matrix[i, i] = 1 - relaxation
                    for j in members:
                        matrix[i, j] += relaxation / len(members)
                    scale[i] = sum(steps[j] for j in members) / len(members) / steps[i]
            result.append((matrix, scale if is_scaled else np.ones(n)))
        return result
    for graph in strategy.rounds:
        matrix, scale = np.eye(n), np.ones(n)
        for source, target, weight in graph.edges():
            matrix[target, target] -= float(weight)
            matrix[target, source] += float(weight)
            for worker in (source, target):
                scale[worker] = sum(steps) / n / steps[worker]
        result.append((matrix, scale if is_scaled else np.ones(n)))
    return result


def metrics_of(schedule):
    """Return contraction and radius by name, and if workers converge, consensus distance and both drifts.

    Each drift and the distance take one linear solve of size n².
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

    def after(state, t, add, both):
        matrix = center @ rounds[t][0]
        moved = state if late else state + add
        moved = matrix @ moved @ matrix.T if both else matrix @ moved
        return moved + add if late else moved

    noises = [center @ np.diag(steps * scale**2) @ center for _, scale in rounds]
    start = np.zeros((n, n))
    for t in range(period):
        start = after(start, t, noises[t], both=True)
    sigma = np.linalg.solve(np.eye(n * n) - np.kron(rest, rest), start.reshape(-1)).reshape(n, n)
    total = 0.0
    for t in range(period):
        total += sum(np.trace(sigma + center @ part @ center) for part in partial)
        sigma = after(sigma, t, noises[t], both=True)
        total += np.trace(sigma)
    result["consensus_distance"] = total / (period * instants * n)
    node_of = schedule.cluster.node_of()
    for push, covariance in (("worker", np.eye(n)), ("node", (node_of[:, None] == node_of).astype(float))):
        moves = [center @ np.diag(steps * scale) for _, scale in rounds]
        shift = np.zeros((n, n))
        for t in range(period):
            shift = after(shift, t, moves[t], both=False)
        shift = np.linalg.solve(np.eye(n) - rest, shift)
        total = 0.0
        for t in range(period):
            total += sum(np.trace((shift + center @ part) @ covariance @ (shift + center @ part).T) for part in partial)
            shift = after(shift, t, moves[t], both=False)
            total += np.trace(shift @ covariance @ shift.T)
        result[push] = total / (period * instants * n)
    return result


def outer_radius_of(schedule):
    """Return the spectral radius of a period with outer steps from own outer parameters, run on unit vectors."""
    n, outer = schedule.num_workers, schedule.strategy.payload.outer
    lr, factor = float(outer.lr), float(outer.momentum)
    models, momenta = np.hsplit(np.eye(2 * n), 2)  # the columns: whose outer parameters are 1, whose momentum
    models, momenta = models.T.copy(), momenta.T.copy()
    for phase in groups_of(schedule):
        begun = models.copy()
        for members, _ in phase:
            for i in members:
                movement = sum(begun[j] for j in members) / len(members) - begun[i]
                momenta[i] = factor * momenta[i] + movement
                models[i] = begun[i] + lr * (movement + factor * momenta[i] if outer.nesterov else momenta[i])
    off = np.eye(2 * n)
    off[:n, :n] -= 1 / n
    return float(np.abs(np.linalg.eigvals(off @ np.concatenate([models, momenta]) @ off)).max())


def n_eff(schedule, gamma):
    """Return the effective number of workers (Vogels et al., NeurIPS 2022) for the decay γ.

    It is 1/(1 − γ) divided by the mean variance, over the phases, of x ← W(√γ x + unit noise).
    """
    matrices = [matrix for matrix, _ in rounds_of(schedule)]
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
