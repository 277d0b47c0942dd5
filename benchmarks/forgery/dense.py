"""Schedules as dense floats, read from their documents, and the consensus distance from its definition.

Nothing is shared with prover or checker.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

Document = dict[str, Any]
Matrix = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
Groups = list[list[tuple[list[int], float]]] | None


def workers_of_nodes(raw: Document) -> list[list[int]]:
    cluster = raw["cluster"]
    if "nodes" in cluster:
        return [sorted(node) for node in cluster["nodes"]]
    size = cluster["workers_per_node"]
    return [list(range(m * size, (m + 1) * size)) for m in range(cluster["num_nodes"])]


def worker_steps(raw: Document, n: int) -> list[int]:
    steps_per_round = raw["strategy"].get("steps_per_round", 1)
    return steps_per_round if isinstance(steps_per_round, list) else [steps_per_round] * n


def sync_of(raw: Document, name: str) -> Document | None:
    """Return the member `name` of the object `sync`, None if `sync` has no such member."""
    sync = raw["strategy"].get("sync")
    return sync.get(name) if isinstance(sync, dict) else None


def weighted_edges(graph: Document) -> list[tuple[int, int, Fraction]]:
    """Return (source, target, weight) of a round of neighbors."""
    weights = graph["weights"] if isinstance(graph["weights"], list) else [graph["weights"]] * len(graph["edges"])
    return [(s, t, Fraction(x)) for (s, t), x in zip(graph["edges"], weights, strict=True)]


def averaging(n: int, groups: list[tuple[list[int], float]]) -> Matrix:
    """Return W of one phase's groups (workers, relaxation)."""
    w = np.eye(n)
    for members, t in groups:
        w[np.ix_(members, members)] = (1 - t) * np.eye(len(members)) + t / len(members)
    return w


def dense(raw: Document) -> tuple[Groups, list[Matrix]]:
    """Return (groups by phase, or None for graphs; list of W) of a raw schedule."""
    cluster, strategy = raw["cluster"], raw["strategy"]
    n = sum(map(len, workers_of_nodes(raw)))
    if strategy["kind"] == "neighbor":
        return None, [_weight_matrix(n, r) for r in strategy["rounds"]]
    if strategy["kind"] == "allreduce":
        merge = sync_of(raw, "merge") or {}
        listed = [[(list(range(n)), 1 - float(Fraction(merge.get("alpha", 0))))]]
    elif "node_radices" in strategy:
        listed = [_blocks(cluster, strategy["node_radices"], phase) for phase in strategy["phases"]]
    else:
        listed = [
            [(g["group"], float(Fraction(g.get("relaxation", 1)))) for g in phase] for phase in strategy["phases"]
        ]
    return listed, [averaging(n, phase) for phase in listed]


def _weight_matrix(n: int, r: Document) -> Matrix:
    w = np.eye(n)
    for s, t, x in weighted_edges(r):
        w[t, s] += float(x)
        w[t, t] -= float(x)
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
        found += [(g, float(Fraction(block.get("relaxation", 1)))) for g in groups.values() if len(g) > 1]
    return found


def scales_of(raw: Document, listed: Groups, period: int) -> list[Matrix]:
    """Return for every round the factor by which each worker's steps count: 1, or what normalizes its progress."""
    strategy = raw["strategy"]
    of_workers = np.array(worker_steps(raw, sum(map(len, workers_of_nodes(raw)))))
    if strategy.get("averaging", "mean") == "mean":
        return [np.ones(len(of_workers))] * period
    if listed is None:
        return [_round_worker_steps(one["edges"], of_workers) / of_workers for one in strategy["rounds"]]
    return [_group_worker_steps(phase, of_workers) / of_workers for phase in listed]


def steady_distance(raw: Document, listed: Groups, matrices: list[Matrix]) -> float:
    """Return the consensus distance of a raw schedule; infinite if workers do not converge.

    `listed` are its groups (workers, relaxation) by phase, None for weighted graphs, and `matrices` its W.
    """
    strategy, n = raw["strategy"], len(matrices[0])
    of_workers = np.array(worker_steps(raw, n))
    sync = strategy.get("sync", "synchronous")
    # A pipeline's parameters are equal, and a merge keeps as much of a late step's differences as of all others.
    is_late = sync != "synchronous" and not {"pipeline", "merge"} & set(sync)
    return _consensus_distance(matrices, of_workers, scales_of(raw, listed, len(matrices)), is_late=is_late)


def _round_worker_steps(edges: list[list[int]], worker_steps: Numbers) -> Matrix:
    """Return the steps to which each worker's progress is normalized; a worker without an edge keeps its own."""
    result = worker_steps.astype(float)
    result[sorted({worker for edge in edges for worker in edge})] = worker_steps.mean()
    return result


def _group_worker_steps(phase: list[tuple[list[int], float]], worker_steps: Numbers) -> Matrix:
    result = worker_steps.astype(float)
    for group, _ in phase:
        result[list(group)] = worker_steps[list(group)].mean()
    return result


def _consensus_distance(matrices: list[Matrix], worker_steps: Numbers, scales: list[Matrix], *, is_late: bool) -> float:
    n, instants = len(worker_steps), int(worker_steps.max())
    off = np.eye(n) - 1 / n

    def one(t: int, sigma: Matrix) -> Matrix:
        noise, w = np.diag(worker_steps * scales[t] ** 2), off @ matrices[t]
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
            total += np.trace(sigma) + np.trace(off @ np.diag(s * worker_steps // instants) @ off)
        sigma = one(t, sigma)
        total += np.trace(sigma)
    return total / (n * len(matrices) * instants)
