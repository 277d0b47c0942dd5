"""Decides whether a certificate's entry is true, by dense floats and simulations of the document.

It shares nothing with prover or checker. Workers with an iteration gap run Hop's rules on counts of entered, sent and
reduced steps, with one worker stopped; sets of workers that can continue by themselves are found by trying all. Every
failure is tried by dropping the failed workers; two failures are equivalent if exchanges of workers, tried one after
another, lead from one to the other.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from functools import cached_property
from itertools import combinations, product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.forgery import payloads, quorums, runs, tables
from benchmarks.forgery.dense import averaging, dense, steady_distance, sync_of, weighted_edges, workers_of_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.forgery.dense import Document, Groups, Matrix

Loss = frozenset[int]
OF_EVENTS = ("deadlock-free", "queues", "gap", "memory")
"""Claims about which worker waits for which under an iteration gap."""

OF_MATRICES = ("doubly-stochastic", "unit-sums", "consensus", "contraction", "exact-consensus", "consensus-distance")
"""Claims about the matrices of a period."""


def is_true(entry: Document, raw: Document) -> bool:
    """Return whether an entry's statement about a schedule is true."""
    return Truth(raw).says(entry)


class Truth:
    """Facts about one schedule, used for several entries."""

    def __init__(self, raw: Document) -> None:
        self.raw = raw
        self.listed, self.matrices = dense(raw)
        self.is_delayed = self.listed is not None and any(
            len({w for g, _ in p for w in g}) != sum(len(g) for g, _ in p) for p in self.listed
        )
        self.quorum, gap = quorums.quorum_of(raw), gap_of(raw)
        self.rules = None if gap is None else Rules(raw, gap, len(self.matrices[0]))

    def says(self, entry: Document) -> bool:
        n, name, rules = len(self.matrices[0]), entry["claim"], self.rules
        if self.is_delayed:
            return False
        if self.quorum is not None:
            return quorums.is_true(entry, self.quorum, n)
        if rules is not None and (name in OF_EVENTS or is_lossy(rules.gap)):
            return is_true_of_gap(entry, self.raw, rules)
        if runs.outer_of(self.raw).get("own") and name in OF_MATRICES:
            return False
        judge = JUDGES.get(name, _of_matrices)
        return judge(entry, self.raw, self.listed, self.matrices)


def _of_matrices(entry: Document, raw: Document, listed: Groups, matrices: list[Matrix]) -> bool:
    n, name = len(matrices[0]), entry["claim"]
    product = np.eye(n)
    for w in matrices:
        product = w @ product
    off = product - 1 / n
    if name in ("deadlock-free", "conflict-free"):
        return name == "deadlock-free" or listed is not None
    if name == "membership":
        is_rule = raw["strategy"]["kind"] == "allreduce" or "node_radices" in raw["strategy"]
        text = "".join(_answers(phase, n) for phase in listed or ())
        return is_rule and listed is not None and entry["answers"] == hashlib.sha256(text.encode()).hexdigest()
    if name in ("doubly-stochastic", "unit-sums"):
        sums = all(np.allclose(w.sum(0), 1) and np.allclose(w.sum(1), 1) for w in matrices)
        return sums and (name == "unit-sums" or min(w.min() for w in matrices) > -1e-12)
    if name == "consensus":
        center = np.eye(n) - 1 / n
        return bool(np.abs(np.linalg.eigvals(center @ product @ center)).max() < 1 - 1e-9)
    if name == "contraction":
        return float(Fraction(entry["squared"])) >= np.linalg.norm(off, 2) ** 2 - 1e-9
    if name == "consensus-distance":
        return float(Fraction(entry["at_most"])) >= steady_distance(raw, listed, matrices) * (1 - 1e-9) - 1e-15
    assert name.startswith("exact"), name
    return bool(np.abs(off).max() < 1e-9)


def _answers(phase: list[tuple[list[int], float]], n: int) -> str:
    """Return every worker's answer (`membership`) in a phase, a line each, from the groups one by one."""
    home = {w: f"{min(group)} {Fraction(t).limit_denominator(10**6)}" for group, t in phase for w in group}
    return "".join(home.get(worker, "-") + "\n" for worker in range(n))


GAP = {
    "max_ig": None, "staleness": 0, "backup": 0, "notify_ack": False, "skip": None, "weights": "graph",
    "update_order": "adapt_then_combine",
}  # fmt: skip


def gap_of(raw: Document) -> dict[str, Any] | None:
    """Return the members of an iteration gap with defaults, None without one."""
    gap = sync_of(raw, "iteration_gap")
    return None if gap is None else GAP | gap


def is_lossy(gap: dict[str, Any]) -> bool:
    """Return whether a reduce may use other updates than those of its step from all in-neighbors."""
    return bool(gap["staleness"] or gap["skip"] or np.any(gap["backup"]))


class Rules:
    """A graph with an iteration gap."""

    def __init__(self, raw: Document, gap: dict[str, Any], n: int) -> None:
        self.gap, self.n = gap, n
        self.edges: list[tuple[int, int]] = sorted((s, t) for s, t in map(tuple, raw["strategy"]["rounds"][0]["edges"]))
        self.into = [[s for s, t in self.edges if t == v] for v in range(n)]
        self.out = [[t for s, t in self.edges if s == v] for v in range(n)]
        backup = gap["backup"]
        self.backup = backup if isinstance(backup, list) else [backup] * n
        self.cap = 4 * n * (gap["staleness"] + (gap["max_ig"] or 0) + 2)

    @cached_property
    def columns(self) -> list[list[int | None]]:
        """By stopped worker, the number of steps that every worker can take (`ahead_of`)."""
        return [self.ahead_of(held) for held in range(self.n)]

    def ahead_of(self, held: int | None) -> list[int | None]:
        """Return how many steps every worker can take while one worker stays in step 0, None for any number."""
        n, gap = self.n, self.gap
        entered, sent, reduced = [0] * n, [0] * n, [0] * n
        moved = True
        while moved:
            moved = False
            for v in range(n):
                if sent[v] == entered[v] and (not gap["notify_ack"] or all(reduced[w] >= sent[v] for w in self.out[v])):
                    sent[v] += 1
                    moved = True
                there = sum(sent[u] - 1 >= reduced[v] - gap["staleness"] for u in self.into[v])
                if reduced[v] < sent[v] and there >= len(self.into[v]) - self.backup[v]:
                    reduced[v] += 1
                    moved = True
                tokens = gap["max_ig"] is None or all(entered[w] + gap["max_ig"] > entered[v] for w in self.out[v])
                if v != held and entered[v] < reduced[v] and tokens and entered[v] < self.cap:
                    entered[v] += 1
                    moved = True
        return [None if count >= self.cap else count for count in entered]


def is_true_of_gap(entry: Document, raw: Document, rules: Rules) -> bool:
    """Return whether an entry about workers with an iteration gap is true; bounds may be larger than necessary."""
    gap, n = rules.gap, rules.n
    if entry["claim"] == "deadlock-free":
        return rules.ahead_of(None) == [None] * n
    if entry["claim"] == "consensus":
        return agrees(raw, gap, rules)
    columns = rules.columns
    true = [(columns[t][s], columns[s][t]) for s, t in rules.edges]
    late = int(gap["update_order"] == "dpsgd")
    ahead = [_bound(pair[0]) for pair in true]
    match entry["claim"]:
        case "queues":
            tokens = _tokens(gap, true)
            return entry["update"] == [None if a is None else a + 1 for a, _ in true] and (
                entry.get("token", []) == [-1 if token is None else token for token in tokens]
                if gap["max_ig"] is not None
                else "token" not in entry
            )
        case "gap":
            return _says(entry["bound"], [bound for pair in true for bound in pair])
        case "staleness":
            newest = max(ahead, default=0) if gap["staleness"] else 0
            return entry["steps"] >= gap["staleness"] + late and entry["ahead"] >= newest
        case "memory":
            places = [0] * n
            for (_, t), most in zip(rules.edges, ahead, strict=True):
                places[t] += 1 if gap["staleness"] else most + 1
            near = [len({*rules.into[v], *rules.out[v]}) for v in range(n)]
            return entry["places"] >= max(places) and entry["connections"] >= max(near)
    return False


def _bound(bound: int | None) -> float:
    return float("inf") if bound is None else bound


def _says(claimed: int, true: list[int | None]) -> bool:
    """Return whether a bound is not too small, and infinite if none is stated."""
    return None in true if claimed == -1 else claimed >= max(map(_bound, true), default=0)


def _tokens(gap: dict[str, Any], true: list[tuple[int | None, int | None]]) -> list[int | None]:
    return [None if back is None else back + (gap["max_ig"] or 0) for _, back in true]


def agrees(raw: Document, gap: dict[str, Any], rules: Rules) -> bool:
    """Return whether weights are positive, and no two disjoint sets of workers can continue by themselves."""
    into: list[set[int]] = [set() for _ in range(rules.n)]
    own = [Fraction(1)] * rules.n
    for source, target, weight in weighted_edges(raw["strategy"]["rounds"][0]):
        counted = weight if gap["weights"] == "graph" else Fraction(1, rules.n)
        if counted < 0:
            return False
        own[target] -= counted
        if counted:
            into[target].add(source)
    if min(own) <= 0:
        return False
    closed = [
        set(members)
        for size in range(1, rules.n)
        for members in combinations(range(rules.n), size)
        if all(len(into[v].difference(members)) <= rules.backup[v] for v in members)
    ]
    return all(one & other for one in closed for other in closed)


def exchanges(raw: Document, listed: Groups) -> list[list[int]]:
    """Return permutations of workers that preserve groups, and generate all others that are used."""
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
    """Return all failures that exchanges make of one."""
    reached, new = {loss}, [loss]
    while new:
        one = new.pop()
        for swap in swaps:
            other = frozenset(swap[w] for w in one)
            if other not in reached:
                reached.add(other)
                new.append(other)
    return reached


def covered_failures(raw: Document) -> Iterator[tuple[int, ...]]:
    """Yield the failures that the plan covers, in the order of answers."""
    listed, failures = workers_of_nodes(raw), raw["failure_plan"]["failures"]
    n = sum(map(len, listed))
    for count in range(1, failures + 1):
        yield from combinations(range(n), count)
    for node in listed:
        if len(node) > failures and n - len(node) >= 2:
            yield tuple(sorted(node))


def on_nodes(raw: Document, count: int) -> Document:
    """Return the same rule on fewer nodes: each prime factor goes to the digit that is furthest below its old radix."""
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
    """Return the groups of each phase that survivors run."""
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
    """Return whether each covered failure leaves the stated groups, and is in one of the stated classes."""
    if "failure_plan" not in raw or entry["failures"] != raw["failure_plan"]["failures"]:
        return False
    n, text, norms = len(matrices[0]), hashlib.sha256(), dict[tuple[int, ...], float]()
    for failed in covered_failures(raw):
        m, period = n - len(failed), np.eye(n - len(failed))
        for phase in groups_after(raw, frozenset(failed), listed):
            period = averaging(m, phase) @ period
            text.update(_answers(phase, m).encode())
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


JUDGES = runs.JUDGES | payloads.JUDGES | tables.JUDGES | {"survives": _survives}
