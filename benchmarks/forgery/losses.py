"""Whether claims about failures are true: of every single one, by exchanging workers and dropping failed ones.

Shares nothing with prover or checker: failures are equivalent if exchanges, tried one after the other, lead from one to
the other.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from itertools import combinations, product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.forgery.dense import averaging, dense, workers_of_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.forgery.dense import Document, Groups, Matrix

Loss = frozenset[int]


def exchanges(raw: Document, listed: Groups) -> list[list[int]]:
    """Permutations of workers that keep groups, of which all others that are used are products."""
    nodes, strategy = workers_of_nodes(raw), raw["strategy"]
    n = sum(map(len, nodes))
    found, own = [], list(range(n))
    home = [{w: number for number, (group, _) in enumerate(phase) for w in group} for phase in listed or []]
    keys = [tuple(at.get(w, -1) for at in home) for w in range(n)]
    for one, other in combinations(range(n), 2):
        is_near = any(one in node and other in node for node in nodes)
        if is_near and keys[one] == keys[other]:
            swap = list(own)
            swap[one], swap[other] = other, one
            found.append(swap)
    radices = strategy.get("node_radices", [])
    size = len(nodes[0])
    if radices:
        digits = list(product(*map(range, radices)))
        for d, radix in enumerate(radices):
            for a, b in combinations(range(radix), 2):
                moved = [tuple({a: b, b: a}.get(v, v) if e == d else v for e, v in enumerate(x)) for x in digits]
                found.append([digits.index(moved[w // size]) * size + w % size for w in range(n)])
    return found


def orbit(loss: Loss, swaps: list[list[int]]) -> set[Loss]:
    """All failures that exchanges make of one."""
    reached, new = {loss}, [loss]
    while new:
        one = new.pop()
        for swap in swaps:
            other = frozenset(swap[w] for w in one)
            if other not in reached:
                reached.add(other)
                new.append(other)
    return reached


def covered(raw: Document) -> Iterator[tuple[int, ...]]:
    """The failures that the plan covers, in the order of answers."""
    listed, failures = workers_of_nodes(raw), raw["failure_plan"]["failures"]
    n = sum(map(len, listed))
    for count in range(1, failures + 1):
        yield from combinations(range(n), count)
    for node in listed:
        if len(node) > failures and n - len(node) >= 2:
            yield tuple(sorted(node))


def on_nodes(raw: Document, count: int) -> Document:
    """The same rule on fewer nodes: each prime factor goes to the digit that is furthest below its old radix."""
    strategy, size = raw["strategy"], len(workers_of_nodes(raw)[0])
    old, new, rest = strategy["node_radices"], [1] * len(strategy["node_radices"]), count
    if count == prod(old):
        return raw
    factors = []
    for p in range(2, count + 1):
        while rest % p == 0:
            factors.append(p)
            rest //= p
    for p in sorted(factors, reverse=True):
        new[max(range(len(old)), key=lambda d: (Fraction(old[d], new[d]), -d))] *= p
    left = [d for d, radix in enumerate(new) if radix > 1]
    phases = [
        [{**block, "across": [left.index(d) for d in block["across"] if d in left]} for block in phase]
        for phase in strategy["phases"]
    ]
    smaller = strategy | {"node_radices": [new[d] for d in left], "phases": phases}
    return {"cluster": {"num_nodes": count, "workers_per_node": size}, "strategy": smaller}


def groups_after(raw: Document, failed: Loss, listed: Groups) -> list[list[tuple[list[int], float]]]:
    """The groups of each phase that survivors run."""
    nodes, of = workers_of_nodes(raw), raw["failure_plan"]["rule"]
    n = sum(map(len, nodes))
    left = [w for w in range(n) if w not in failed]
    if of == "all_reduce":
        return [[(list(range(len(left))), 1.0)]]
    places = left
    if of == "reapply_rule":
        some = [node for node in nodes if not failed.issuperset(node)]
        listed = dense(on_nodes(raw, len(some)))[0]
        places = [at for at, w in enumerate(w for node in some for w in node) if w not in failed]
    kept = [[([places.index(w) for w in g if w in places], t) for g, t in phase] for phase in listed or []]
    return [[(group, t) for group, t in phase if len(group) > 1] for phase in kept]


def _survives(entry: Document, raw: Document, listed: Groups, matrices: list[Matrix]) -> bool:
    """Each covered loss has the groups that are stated, and is one of the classes: by name, or by what it leaves."""
    if "failure_plan" not in raw or entry["failures"] != raw["failure_plan"]["failures"]:
        return False
    n, text, norms = len(matrices[0]), hashlib.sha256(), dict[tuple[int, ...], float]()
    for failed in covered(raw):
        m, period = n - len(failed), np.eye(n - len(failed))
        for phase in groups_after(raw, frozenset(failed), listed):
            period = averaging(m, phase) @ period
            home = {w: f"{min(g)} {Fraction(t).limit_denominator(10**6)}\n" for g, t in phase for w in g}
            text.update("".join(home.get(w, "-\n") for w in range(m)).encode())
        center, off = np.eye(m) - 1 / m, period - 1 / m
        if np.abs(np.linalg.eigvals(center @ period @ center)).max() > 1 - 1e-9:
            return False
        norms[failed] = float(np.linalg.norm(off, 2) ** 2)
    bounds = {tuple(one["failed"]): float(Fraction(one["squared"])) for one in entry["classes"]}
    if any(failed not in norms or norms[failed] > bound + 1e-9 for failed, bound in bounds.items()):
        return False
    if raw["failure_plan"]["rule"] == "keep_groups":
        swaps = exchanges(raw, listed)
        covers = set().union(*(orbit(frozenset(failed), swaps) for failed in bounds))
        if not covers.issuperset(map(frozenset, norms)):
            return False
    elif raw["failure_plan"]["rule"] == "all_reduce":
        if bounds:
            return False
    elif not all(any(norm <= bound + 1e-9 for bound in bounds.values()) for norm in norms.values()):
        return False
    return not entry["answers"] or entry["answers"] == text.hexdigest()


def _moved(entry: Document, raw: Document, listed: Groups, matrices: list[Matrix]) -> bool:  # noqa: ARG001
    """By moving random models, and those that move the mean most."""
    n = len(matrices[0])
    if "failure_plan" not in raw or entry["failed"] != sorted({len(failed) for failed in covered(raw)}):
        return False

    def ways(models: Any, k: int) -> Any:  # noqa: ANN401 - arrays
        spread = ((models - models.mean()) ** 2).mean()
        return [
            (np.delete(models, failed).mean() - models.mean()) ** 2 / spread for failed in combinations(range(n), k)
        ]

    models = np.random.default_rng(1).standard_normal(n)
    for k, usual, at_most in zip(entry["failed"], entry["usual"], entry["at_most"], strict=True):
        apart = (np.arange(n) < k).astype(float)
        said = np.mean(ways(models, k)), max(ways(apart, k))
        if not np.allclose([float(Fraction(usual)), float(Fraction(at_most))], said):
            return False
    joins = [(np.append(models, x).mean() - models.mean()) ** 2 / models.var() for x in models]
    most = np.append(np.eye(n)[0], 1.0).mean() - 1 / n
    said = np.mean(joins), most**2 / np.eye(n)[0].var()
    return bool(np.allclose([float(Fraction(entry["joined"])), float(Fraction(entry["joined_at_most"]))], said))


JUDGES = {"survives": _survives, "mean-moved": _moved}
