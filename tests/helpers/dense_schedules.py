"""Schedules as dense floats, straight from their documents, sharing nothing with prover or checker.

`steady_figures` computes disagreement and drift from their definitions, `refusal` asks the checker.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from preduce.verify import checker


def refusal(raw, certificate) -> str | None:
    """What the checker says against it, None if it accepts. Inputs are consumed."""
    try:
        for _ in checker.check(certificate, checker.read_schedule(raw)):
            pass
    except checker.Refusal as error:
        return error.args[0]
    except Exception as error:  # noqa: BLE001 - what the program reports as unreadable
        return f"unreadable: {type(error).__name__}: {error}"
    return None


def dense(raw):
    """(list of group lists or None, list of W) of a raw schedule."""
    cluster, strategy = raw["cluster"], raw["strategy"]
    n = sum(map(len, cluster["nodes"])) if "nodes" in cluster else cluster["num_nodes"] * cluster["workers_per_node"]
    if strategy["kind"] == "neighbor":
        return None, [_weighted(n, r) for r in strategy["rounds"]]
    if strategy["kind"] == "allreduce":
        listed = [[(list(range(n)), 1.0)]]
    elif "node_radices" in strategy:
        listed = [_blocks(cluster, strategy["node_radices"], phase) for phase in strategy["phases"]]
    else:
        listed = [[(g["group"], float(Fraction(g.get("relax", 1)))) for g in phase] for phase in strategy["phases"]]
    matrices = []
    for phase in listed:
        w = np.eye(n)
        for members, t in phase:
            w[np.ix_(members, members)] = (1 - t) * np.eye(len(members)) + t / len(members)
        matrices.append(w)
    return listed, matrices


def _weighted(n, r):
    weights = r["weights"] if isinstance(r["weights"], list) else [r["weights"]] * len(r["edges"])
    w = np.eye(n)
    for (s, t), x in zip(r["edges"], weights, strict=True):
        w[t, s] += float(Fraction(x))
        w[t, t] -= float(Fraction(x))
    return w


def _blocks(cluster, radices, phase):
    size, nodes = cluster["workers_per_node"], [()]
    for radix in radices:
        nodes = [(*node, v) for node in nodes for v in range(radix)]
    found = []
    for block in phase:
        groups: dict[tuple[int, ...], list[int]] = {}
        for m, digits in enumerate(nodes):
            key = tuple(x for d, x in enumerate(digits) if d not in block["across"])
            groups.setdefault(key, []).extend(m * size + local for local in block["local"])
        found += [(g, float(Fraction(block.get("relax", 1)))) for g in groups.values() if len(g) > 1]
    return found


def steady_figures(raw, listed, matrices):
    """`disagreement`, `drift-worker` and `drift-node` of a raw schedule document.

    `listed` are its groups (workers, relax) by phase, None for weighted graphs, and `matrices` its W. Infinite where
    workers do not converge.
    """
    strategy, n = raw["strategy"], len(matrices[0])
    pace = strategy.get("pace", 1)
    paces = np.array(pace if isinstance(pace, list) else [pace] * n)
    is_late = strategy.get("when", "lockstep") != "lockstep"
    scales = [np.ones(n) for _ in matrices]
    if strategy.get("averaging", "mean") != "mean":
        scales = [_group_paces(phase, paces) / paces for phase in listed or [None] * len(matrices)]
    node = _node_of(raw["cluster"], n)
    both = {
        "drift-worker": np.eye(n),
        "drift-node": (node[:, None] == np.arange(node.max() + 1)).astype(float),
    }
    result = {"disagreement": _disagreement(matrices, paces, scales, is_late)}
    return result | {name: _drift(matrices, paces, scales, is_late, pushes) for name, pushes in both.items()}


def _group_paces(phase, paces):
    if phase is None:
        return np.full(len(paces), paces.mean())
    result = paces.astype(float)
    for group, _ in phase:
        result[list(group)] = paces[list(group)].mean()
    return result


def _node_of(cluster, n):
    node = np.zeros(n, dtype=int)
    for number, workers in enumerate(cluster.get("nodes", [])):
        node[workers] = number
    return node if "nodes" in cluster else np.arange(n) // cluster["workers_per_node"]


def _steady(matrices, off, step, shape):
    """The fixed point of a period of `step`, an affine map on matrices of that shape, by solving for its entries."""
    product = off.copy()
    for w in matrices:
        product = off @ w @ product
    if np.abs(np.linalg.eigvals(product)).max() > 1 - 1e-9:
        return None
    zero = step(np.zeros(shape))
    left = np.kron(product, product if shape[0] == shape[1] and step.is_covariance else np.eye(shape[1]))
    return np.linalg.solve(np.eye(len(left)) - left, zero.ravel()).reshape(shape)


class _Step:
    def __init__(self, one, count, is_covariance):
        self.one, self.count, self.is_covariance = one, count, is_covariance

    def __call__(self, state):
        for t in range(self.count):
            state = self.one(t, state)
        return state


def _disagreement(matrices, paces, scales, is_late):
    n, instants = len(paces), int(paces.max())
    off = np.eye(n) - 1 / n

    def one(t, sigma):
        noise, w = np.diag(paces * scales[t] ** 2), off @ matrices[t]
        return w @ sigma @ w.T + off @ noise @ off if is_late else w @ (sigma + noise) @ w.T

    sigma = _steady(matrices, off, _Step(one, len(matrices), True), (n, n))
    if sigma is None:
        return np.inf
    total = 0.0
    for t in range(len(matrices)):
        for s in range(1, instants):
            total += np.trace(sigma) + np.trace(off @ np.diag(s * paces // instants) @ off)
        sigma = one(t, sigma)
        total += np.trace(sigma)
    return total / (n * len(matrices) * instants)


def _drift(matrices, paces, scales, is_late, pushes):
    n, instants = len(paces), int(paces.max())
    off = np.eye(n) - 1 / n

    def one(t, state):
        move = off @ ((paces * scales[t])[:, None] * pushes)
        return off @ matrices[t] @ state + move if is_late else off @ matrices[t] @ (state + move)

    state = _steady(matrices, off, _Step(one, len(matrices), False), pushes.shape)
    if state is None:
        return np.inf
    total = 0.0
    for t in range(len(matrices)):
        for s in range(1, instants):
            total += ((off @ (state + (s * paces // instants)[:, None] * pushes)) ** 2).sum()
        state = one(t, state)
        total += (state**2).sum()
    return total / (n * len(matrices) * instants)
