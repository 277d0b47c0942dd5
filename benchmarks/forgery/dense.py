"""Schedules as dense floats, straight from their documents, sharing nothing with prover or checker.

`steady_distance` computes consensus distance from its definition.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    pass

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


def steady_distance(raw: Document, listed: Groups, matrices: list[Matrix]) -> float:
    """The consensus distance of a raw schedule document.

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
    return _consensus_distance(matrices, paces, scales, is_late=is_late)


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


def _consensus_distance(matrices: list[Matrix], paces: Numbers, scales: list[Matrix], *, is_late: bool) -> float:
    n, instants = len(paces), int(paces.max())
    off = np.eye(n) - 1 / n

    def one(t: int, sigma: Matrix) -> Matrix:
        noise, w = np.diag(paces * scales[t] ** 2), off @ matrices[t]
        return w @ sigma @ w.T + off @ noise @ off if is_late else w @ (sigma + noise) @ w.T

    product, sigma = off.copy(), np.zeros((n, n))
    for t, w in enumerate(matrices):
        product, sigma = off @ w @ product, one(t, sigma)
    if np.abs(np.linalg.eigvals(product)).max() > 1 - 1e-9:
        return np.inf
    sigma = np.linalg.solve(np.eye(n * n) - np.kron(product, product), sigma.ravel()).reshape(n, n)
    total = 0.0
    for t in range(len(matrices)):
        for s in range(1, instants):
            total += np.trace(sigma) + np.trace(off @ np.diag(s * paces // instants) @ off)
        sigma = one(t, sigma)
        total += np.trace(sigma)
    return total / (n * len(matrices) * instants)
