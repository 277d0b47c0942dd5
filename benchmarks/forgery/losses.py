"""Whether claims about losses are true: of every single one, by exchanging workers and taking lost ones out of groups.

Shares nothing with prover or checker: losses are alike if exchanges, tried one after the other, lead from one to the
other, and the smallest that is reached stands for all.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.forgery.dense import averaging, dense, paces, workers_of_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.forgery.dense import Document, Groups, Matrix

Loss = frozenset[int]


def exchanges(raw: Document, listed: Groups) -> list[list[int]]:
    """Permutations of workers that keep groups and paces, of which all others that are used are products."""
    nodes, strategy = workers_of_nodes(raw), raw["strategy"]
    n = sum(map(len, nodes))
    found, own = [], list(range(n))
    pace = paces(raw, n)
    home = [{w: number for number, (group, _) in enumerate(phase) for w in group} for phase in listed or []]
    keys = [(pace[w], *(at.get(w, -1) for at in home)) for w in range(n)]
    for one, other in combinations(range(n), 2):
        is_near = any(one in node and other in node for node in nodes)
        if strategy["kind"] == "allreduce" or (is_near and keys[one] == keys[other]):
            swap = list(own)
            swap[one], swap[other] = other, one
            found.append(swap)
    radices = strategy.get("node_radices", [])
    size = len(nodes[0])
    if radices and all(pace[w] == pace[w % size] for w in range(n)):
        digits = list(product(*map(range, radices)))
        for d, radix in enumerate(radices):
            for a, b in combinations(range(radix), 2):
                moved = [tuple({a: b, b: a}.get(v, v) if e == d else v for e, v in enumerate(x)) for x in digits]
                found.append([digits.index(moved[w // size]) * size + w % size for w in range(n)])
    return found


def orbit(loss: Loss, swaps: list[list[int]]) -> set[Loss]:
    """All losses that exchanges make of one."""
    reached, new = {loss}, [loss]
    while new:
        one = new.pop()
        for swap in swaps:
            other = frozenset(swap[w] for w in one)
            if other not in reached:
                reached.add(other)
                new.append(other)
    return reached


def claimed(raw: Document, workers: int, nodes: int) -> Iterator[tuple[int, ...]]:
    """The losses of up to so many workers, and those of nodes, in the order of answers."""
    listed = workers_of_nodes(raw)
    n = sum(map(len, listed))
    for count in range(1, workers + 1):
        yield from combinations(range(n), count)
    for node in listed if nodes else ():
        if len(node) > workers and n - len(node) >= 2:
            yield tuple(node)


def groups_after(raw: Document, planned: Document, lost: Loss, listed: Groups) -> list[list[tuple[list[int], float]]]:
    """The groups of each phase of one contingency's survivors. Listed phases of its own are for its own loss alone."""
    n = sum(map(len, workers_of_nodes(raw)))
    left = [w for w in range(n) if w not in lost]
    if planned.get("groups") == "all" or raw["strategy"]["kind"] == "allreduce":
        return [[(list(range(len(left))), 1.0)]]
    if "phases" in planned:
        kept = [[w for w in node if w not in lost] for node in workers_of_nodes(raw)]
        cluster = {"num_nodes": len(list(filter(None, kept))), "workers_per_node": max(map(len, kept))}
        if "node_radices" not in planned:
            cluster = {"num_nodes": len(left), "workers_per_node": 1}
        return dense({"cluster": cluster, "strategy": {"kind": "static", **planned}})[0] or []
    kept_groups = [[([left.index(w) for w in g if w not in lost], t) for g, t in phase] for phase in listed or []]
    return [[(group, t) for group, t in phase if len(group) > 1] for phase in kept_groups]


def _survives(entry: Document, raw: Document, listed: Groups, matrices: list[Matrix]) -> bool:
    planned = {frozenset(one["lost"]): one for one in raw.get("contingencies", [])}
    swaps, text = exchanges(raw, listed), hashlib.sha256()
    order = sorted(planned, key=lambda lost: (len(lost), sorted(lost)))
    if len(entry["squared"]) != len(planned):
        return False
    for lost, squared in zip(order, entry["squared"], strict=True):
        m = len(matrices[0]) - len(lost)
        period = np.eye(m)
        for phase in groups_after(raw, planned[lost], lost, listed):
            period = averaging(m, phase) @ period
        center = np.eye(m) - 1 / m
        off = period - 1 / m
        if np.linalg.norm(off, 2) ** 2 > float(Fraction(squared)) + 1e-9:
            return False
        if np.abs(np.linalg.eigvals(center @ period @ center)).max() > 1 - 1e-9:
            return False
    for loss in claimed(raw, entry["workers"], entry["nodes"]):
        alike = min(orbit(frozenset(loss), swaps), key=sorted)
        if alike not in planned:
            return False
        for phase in groups_after(raw, planned[alike], frozenset(loss), listed) if entry["answers"] else ():
            home = {w: f"{min(g)} {Fraction(t).limit_denominator(10**6)}\n" for g, t in phase for w in g}
            text.update("".join(home.get(w, "-\n") for w in range(len(matrices[0]) - len(loss))).encode())
    return not entry["answers"] or entry["answers"] == text.hexdigest()


def _moved(entry: Document, raw: Document, listed: Groups, matrices: list[Matrix]) -> bool:  # noqa: ARG001
    """By moving random models, and those that move the mean most."""
    n = len(matrices[0])
    if entry["lost"] != sorted({len(one["lost"]) for one in raw.get("contingencies", [])}):
        return False

    def ways(models: Any, k: int) -> Any:  # noqa: ANN401 - arrays
        spread = ((models - models.mean()) ** 2).mean()
        return [(np.delete(models, lost).mean() - models.mean()) ** 2 / spread for lost in combinations(range(n), k)]

    models = np.random.default_rng(1).standard_normal(n)
    for k, usual, at_most in zip(entry["lost"], entry["usual"], entry["at_most"], strict=True):
        apart = (np.arange(n) < k).astype(float)
        said = np.mean(ways(models, k)), max(ways(apart, k))
        if not np.allclose([float(Fraction(usual)), float(Fraction(at_most))], said):
            return False
    joins = [(np.append(models, x).mean() - models.mean()) ** 2 / models.var() for x in models]
    most = np.append(np.eye(n)[0], 1.0).mean() - 1 / n
    said = np.mean(joins), most**2 / np.eye(n)[0].var()
    return bool(np.allclose([float(Fraction(entry["joined"])), float(Fraction(entry["joined_at_most"]))], said))


JUDGES = {"survives": _survives, "mean-moved": _moved}
