"""Whether claims about workers that keep a gap are true: by running Hop's rules with one worker held back.

Shares nothing with prover or checker. The rules are those of the paper, over counts of entered, sent and reduced steps:
no event graph and no distances. Sets of workers that can go on by themselves are found by trying all.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any

from benchmarks.forgery.dense import weighted_edges

if TYPE_CHECKING:
    from benchmarks.forgery.dense import Document

Edges = list[tuple[int, int]]


def gap_of(raw: Document) -> dict[str, Any] | None:
    """The members of a gap with their defaults, None where there is none."""
    sync = raw["strategy"].get("sync")
    if not isinstance(sync, dict) or "iteration_gap" not in sync:
        return None
    setting = {"max_ig": None, "staleness": 0, "backup": 0, "notify_ack": False, "skip": None, "weights": "graph"}
    return setting | {"update_order": "adapt_then_combine"} | sync["iteration_gap"]


def is_lossy(gap: dict[str, Any]) -> bool:
    """Whether a reduce may take something else than the updates of its step of all in-neighbors."""
    return bool(gap["staleness"] or gap["skip"] or _any(gap["backup"]))


def _any(backup: object) -> bool:
    return any(backup) if isinstance(backup, list) else bool(backup)


class Rules:
    """A graph and a setting."""

    def __init__(self, raw: Document, gap: dict[str, Any], n: int) -> None:
        self.gap, self.n = gap, n
        self.edges: Edges = sorted((s, t) for s, t in map(tuple, raw["strategy"]["rounds"][0]["edges"]))
        self.into = [[s for s, t in self.edges if t == v] for v in range(n)]
        self.out = [[t for s, t in self.edges if s == v] for v in range(n)]
        backup = gap["backup"]
        self.backup = backup if isinstance(backup, list) else [backup] * n
        self.cap = 4 * n * (gap["staleness"] + (gap["max_ig"] or 0) + 2)

    @cached_property
    def columns(self) -> list[list[int | None]]:
        """How far everybody gets while a worker is held, by that worker."""
        return [self.ahead_of(held) for held in range(self.n)]

    def ahead_of(self, held: int | None) -> list[int | None]:
        """How far everybody gets while one worker stays in step 0, None for without end."""
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


def is_true(entry: Document, raw: Document, rules: Rules) -> bool:
    """Whether what an entry says of workers that keep a gap is true; numbers may be larger than they need."""
    gap, n = rules.gap, rules.n
    if entry["claim"] == "deadlock-free":
        return rules.ahead_of(None) == [None] * n
    if entry["claim"] == "consensus":
        return agrees(raw, gap, rules)
    columns = rules.columns
    true = [(columns[t][s], columns[s][t]) for s, t in rules.edges]
    late = int(gap["update_order"] == "dpsgd")
    ahead = [_number(pair[0]) for pair in true]
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
        case "gap-of-pairs":
            return _says(entry["bound"], [columns[entry["from"]][entry["to"]]])
        case "skip":
            return all(map(int.__ge__, entry["longest"], _skips(gap, rules, columns)))
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


def _number(bound: int | None) -> float:
    return float("inf") if bound is None else bound


def _says(claimed: int, true: list[int | None]) -> bool:
    """A bound is not too small, and where none is said to be there is none."""
    return None in true if claimed == -1 else claimed >= max(map(_number, true), default=0)


def _tokens(gap: dict[str, Any], true: list[tuple[int | None, int | None]]) -> list[int | None]:
    return [None if back is None else back + (gap["max_ig"] or 0) for _, back in true]


def _skips(gap: dict[str, Any], rules: Rules, columns: list[list[int | None]]) -> list[int]:
    """The longest skip of everybody: held back, who could go how far when all others have come to rest."""
    longest = []
    for v in range(rules.n):
        most = gap["skip"]["limit"] if rules.out[v] else 0
        for by in range(most, 0, -1):
            behind = all(_number(columns[v][w]) >= max(by, gap["skip"].get("behind", 2)) for w in rules.out[v])
            there = sum(_number(columns[v][u]) >= by - 1 - gap["staleness"] for u in rules.into[v])
            if behind and there >= len(rules.into[v]) - rules.backup[v]:
                break
        else:
            by = 0
        longest.append(by if by >= gap["skip"].get("trigger", 2) else 0)
    return longest


def agrees(raw: Document, gap: dict[str, Any], rules: Rules) -> bool:
    """Whether no two disjoint sets of workers can go on by themselves, every set tried, and weights are positive."""
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
