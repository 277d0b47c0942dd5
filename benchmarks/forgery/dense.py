"""Schedules as dense floats, straight from their documents, sharing nothing with prover or checker.

`steady_figures` computes consensus distance and drift from their definitions.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

Document = dict[str, Any]
Matrix = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
Groups = list[list[tuple[list[int], float]]] | None


def dense(raw: Document) -> tuple[Groups, list[Matrix]]:
    """(list of group lists or None, list of W) of a raw schedule."""
    cluster, strategy = raw["cluster"], raw["strategy"]
    n = sum(map(len, cluster["nodes"])) if "nodes" in cluster else cluster["num_nodes"] * cluster["workers_per_node"]
    if strategy["kind"] == "neighbor":
        return None, [_weighted(n, r) for r in strategy["rounds"]]
    if strategy["kind"] == "allreduce":
        when = strategy.get("when", {})
        merge = when.get("merge", {}) if isinstance(when, dict) else {}
        listed = [[(list(range(n)), 1 - float(Fraction(merge.get("alpha", 0))))]]
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


def _weighted(n: int, r: Document) -> Matrix:
    weights = r["weights"] if isinstance(r["weights"], list) else [r["weights"]] * len(r["edges"])
    w = np.eye(n)
    for (s, t), x in zip(r["edges"], weights, strict=True):
        w[t, s] += float(Fraction(x))
        w[t, t] -= float(Fraction(x))
    return w


def _blocks(cluster: Document, radices: list[int], phase: list[Document]) -> list[tuple[list[int], float]]:
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


def steady_figures(raw: Document, listed: Groups, matrices: list[Matrix]) -> dict[str, float]:
    """`consensus-distance`, `drift-worker` and `drift-node` of a raw schedule document.

    `listed` are its groups (workers, relax) by phase, None for weighted graphs, and `matrices` its W. Infinite where
    workers do not converge.
    """
    strategy, n = raw["strategy"], len(matrices[0])
    pace = strategy.get("pace", 1)
    paces = np.array(pace if isinstance(pace, list) else [pace] * n)
    when = strategy.get("when", "lockstep")
    # A pipeline's parameters are equal, and a merge keeps as much of a late step's differences as of all others.
    is_late = when != "lockstep" and not {"pipeline", "merge"} & set(when)
    scales = [np.ones(n) for _ in matrices]
    if strategy.get("averaging", "mean") != "mean":
        if listed is None:
            scales = [_round_paces(one["edges"], paces) / paces for one in strategy["rounds"]]
        else:
            scales = [_group_paces(phase, paces) / paces for phase in listed]
    node = _node_of(raw["cluster"], n)
    both = {
        "drift-worker": np.eye(n),
        "drift-node": (node[:, None] == np.arange(node.max() + 1)).astype(float),
    }
    result = {"consensus-distance": _consensus_distance(matrices, paces, scales, is_late=is_late)}
    return result | {name: _drift(matrices, paces, scales, pushes, is_late=is_late) for name, pushes in both.items()}


def _round_paces(edges: list[list[int]], paces: Numbers) -> Matrix:
    """Who has no edge in a round takes no part in it."""
    result = paces.astype(float)
    result[sorted({worker for edge in edges for worker in edge})] = paces.mean()
    return result


def _group_paces(phase: list[tuple[list[int], float]], paces: Numbers) -> Matrix:
    result = paces.astype(float)
    for group, _ in phase:
        result[list(group)] = paces[list(group)].mean()
    return result


def _node_of(cluster: Document, n: int) -> Numbers:
    node = np.zeros(n, dtype=int)
    for number, workers in enumerate(cluster.get("nodes", [])):
        node[workers] = number
    return node if "nodes" in cluster else np.arange(n) // cluster["workers_per_node"]


def _steady(matrices: list[Matrix], off: Matrix, step: _Step, shape: tuple[int, int]) -> Matrix | None:
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
    def __init__(self, one: Callable[[int, Matrix], Matrix], count: int, *, is_covariance: bool) -> None:
        self.one, self.count, self.is_covariance = one, count, is_covariance

    def __call__(self, state: Matrix) -> Matrix:
        for t in range(self.count):
            state = self.one(t, state)
        return state


def _consensus_distance(matrices: list[Matrix], paces: Numbers, scales: list[Matrix], *, is_late: bool) -> float:
    n, instants = len(paces), int(paces.max())
    off = np.eye(n) - 1 / n

    def one(t: int, sigma: Matrix) -> Matrix:
        noise, w = np.diag(paces * scales[t] ** 2), off @ matrices[t]
        return w @ sigma @ w.T + off @ noise @ off if is_late else w @ (sigma + noise) @ w.T

    sigma = _steady(matrices, off, _Step(one, len(matrices), is_covariance=True), (n, n))
    if sigma is None:
        return np.inf
    total = 0.0
    for t in range(len(matrices)):
        for s in range(1, instants):
            total += np.trace(sigma) + np.trace(off @ np.diag(s * paces // instants) @ off)
        sigma = one(t, sigma)
        total += np.trace(sigma)
    return total / (n * len(matrices) * instants)


def _drift(matrices: list[Matrix], paces: Numbers, scales: list[Matrix], pushes: Matrix, *, is_late: bool) -> float:
    n, instants = len(paces), int(paces.max())
    off = np.eye(n) - 1 / n

    def one(t: int, state: Matrix) -> Matrix:
        move = off @ ((paces * scales[t])[:, None] * pushes)
        return off @ matrices[t] @ state + move if is_late else off @ matrices[t] @ (state + move)

    state = _steady(matrices, off, _Step(one, len(matrices), is_covariance=False), pushes.shape)
    if state is None:
        return np.inf
    total = 0.0
    for t in range(len(matrices)):
        for s in range(1, instants):
            total += ((off @ (state + (s * paces // instants)[:, None] * pushes)) ** 2).sum()
        state = one(t, state)
        total += (state**2).sum()
    return total / (n * len(matrices) * instants)
