"""Whether what a certificate's entry says is true: dense floats and simulations, straight from the document.

Shares nothing with prover or checker.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.forgery import kept_gaps, losses, payloads, quorums, runs, tables
from benchmarks.forgery.dense import dense, steady_distance

if TYPE_CHECKING:
    from benchmarks.forgery.dense import Document, Groups, Matrix

JUDGES = runs.JUDGES | payloads.JUDGES | tables.JUDGES | losses.JUDGES
OF_EVENTS = ("deadlock-free", "queues", "gap", "gap-of-pairs", "skip", "memory")
"""What is said of who waits for whom where workers keep a gap."""

OF_MATRICES = ("doubly-stochastic", "unit-sums", "consensus", "contraction", "exact-consensus", "consensus-distance")
"""What is said of the matrices of a period."""


def is_true(entry: Document, raw: Document) -> bool:
    """Whether the statement that an entry makes about a schedule is true."""
    return Truth(raw).says(entry)


class Truth:
    """What is true of one schedule, for several entries."""

    def __init__(self, raw: Document) -> None:
        self.raw = raw
        self.listed, self.matrices = dense(raw)
        self.is_delayed = self.listed is not None and any(
            len({w for g, _ in p for w in g}) != sum(len(g) for g, _ in p) for p in self.listed
        )
        self.quorum, gap = quorums.quorum_of(raw), kept_gaps.gap_of(raw)
        self.rules = None if gap is None else kept_gaps.Rules(raw, gap, len(self.matrices[0]))

    def says(self, entry: Document) -> bool:
        """Whether an entry is true of it."""
        n, name, rules = len(self.matrices[0]), entry["claim"], self.rules
        if self.is_delayed:
            return False
        if self.quorum is not None:
            return quorums.is_true(entry, self.quorum, n)
        if rules is not None and (name in OF_EVENTS or kept_gaps.is_lossy(rules.gap)):
            return kept_gaps.is_true(entry, self.raw, rules)
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
        return is_rule and listed is not None and entry["answers"] == _answers(n, listed)
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


def _answers(n: int, listed: Groups) -> str:
    """The hash of what every worker answers, from the groups one by one; here they are all small enough."""
    lines = []
    for phase in listed:
        home = {
            worker: f"{min(group)} {Fraction(t).limit_denominator(10**6)}" for group, t in phase for worker in group
        }
        lines += [home.get(worker, "-") for worker in range(n)]
    return hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()
