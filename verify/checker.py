# ruff: noqa: ANN401, D102 - parsed JSON is Any until it is checked; a claim's meaning stands in docs
"""Check a certificate against a schedule, trusting neither: `python -I checker.py certificate.json schedule.json`.

Needs nothing but Python 3.11 and the two files checker_*.py beside it; shares no code with the prover. Prints `proved`
for every claim, or the first entry that is wrong: place, value and what was expected. Exit status: 0 every claim holds,
1 one is refuted, 65 a file cannot be read. Why these checks suffice stands in docs/certificates.md.
"""

import gc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain, combinations, repeat
from math import lcm, prod
from operator import mul
from pathlib import Path
from typing import Any


def load(name: str) -> Any:
    """A file beside this one, by its path: an isolated Python (-I) looks nowhere near a script."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


documents = load("checker_documents")
bounds = load("checker_bounds")
exact, hold, match, need, same = documents.exact, documents.hold, documents.match, documents.need, documents.same
ONE, GROUND, LIMIT, MAX_SIZE, MAX_BITS = Fraction(1), -1, 2**31, 64, 2**32
OPERATOR = "W_T...W_1 - J, one period from phase 0"
Entry = dict[str, Any]
Rows = list[list[Any]]


class Check:
    """One method for every claim; each raises Refusal unless the claim holds for schedule `s`."""

    def __init__(self, s: Any) -> None:
        self.s, self.phases, self.work = s, s.phases, documents.Work()
        self.is_graph, self.is_rule = s.form == "graph", s.form == "rule"
        self.width = s.size if self.is_rule else s.n

    def on_class(self, digits: Sequence[int] = ()) -> list[list[tuple[Any, Any, Fraction]]]:
        """The averages (members, vanishes, relax) of every phase on characters that vary along `digits`."""
        if not self.is_rule:  # an explicit group has no digits, so nothing vanishes
            return list(self.phases)
        used = [[b for b in phase if len(b[0]) > 1 or b[1]] for phase in self.phases]
        return [[(m, bool({*digits} & {*across}), relax) for m, across, relax in phase] for phase in used]

    def classes(self, place: str) -> list[list[int]]:
        """The first class of every pattern of blocks that vanish; explicit phases and graphs have one."""
        k, first = len(self.s.radices), dict[tuple[bool, ...], list[int]]()
        need(k <= 12, place, "over 12 digits")
        across = {frozenset(b[1]) for p in self.phases for b in p} if self.is_rule else set()
        for digits in chain.from_iterable(combinations(range(k), size) for size in range(k + 1)):
            pattern = [bool(digits), *map(bool, map({*digits}.intersection, across))]
            first.setdefault(tuple(pattern), list(digits))
        return list(first.values())

    def power(self, digits: Sequence[int], periods: int, place: str) -> tuple[Rows, int]:
        """P^periods - J on one class: integer rows over a common denominator."""
        n, graph = self.width, self.is_graph
        self.work.spend(n**3, place)
        rows, scale = [[int(i == j) for j in range(n)] for i in range(n)], 1
        for phase in chain.from_iterable(repeat(self.on_class(digits), periods)):
            bits = scale.bit_length()
            need(n * n * bits <= MAX_BITS and bits < 2**17, place, "too large for this check; use another method")
            self.work.spend(max(n * n, 16) * (32 + bits // 32), place)
            factor = lcm(*(w.denominator * (1 if graph else len(m)) for m, _, w in phase))
            new = [[factor * x for x in row] for row in rows]
            for to, second, weight in phase:
                share = int(factor * weight / (1 if graph else len(to)))
                if graph:
                    trio = zip(new[to], rows[second], rows[to], strict=True)
                    new[to] = [x + share * (theirs - mine) for x, theirs, mine in trio]
                    continue
                pull = [0] * n if second else [share * sum(c) for c in zip(*(rows[i] for i in to), strict=True)]
                for i in to:
                    new[i] = [int(factor * (1 - weight)) * x + m for x, m in zip(rows[i], pull, strict=True)]
            rows, scale = new, scale * factor
        return ([[n * x - scale for x in row] for row in rows], n * scale) if not digits else (rows, scale)

    def sizes(self) -> list[set[tuple[int, Fraction]]]:
        """The different (workers in a group, relax) of every phase; the factor 1 is one object, told apart cheaply."""
        radices, result = self.s.radices, []
        for phase in self.phases:
            plain = {(len(m), *a) for m, a, r in phase if r is documents.ONE}
            found = {(size * prod(radices[d] for d in a), documents.ONE) for size, *a in plain}
            found |= {(len(m) * prod(radices[d] for d in a), r) for m, a, r in phase if r is not documents.ONE}
            result.append({pair for pair in found if pair[0] > 1})
        return result

    def squeeze(self, entry: Entry, periods: int, place: str) -> Fraction:
        """c^2 I - M^T M is positive semidefinite on every class, shown by its pivots."""
        squared: Fraction = exact(entry["squared"], f"{place}.squared")
        listed = self.classes(place)
        same(f"{place}.classes", entry["classes"], listed)
        need(self.width <= MAX_SIZE, place, "too large for exact pivots; use another method")
        found = []
        for digits in listed:
            rows, scale = self.power(digits, periods, place)
            columns = list(zip(*rows, strict=True))
            gram = [[Fraction(-sum(map(mul, a, b)), scale * scale) for b in columns] for a in columns]
            for i, row in enumerate(gram):
                row[i] += squared
            found.append(documents.pivots(gram, f"{place}.squared", self.work))
            hold(min(found[-1]) >= 0, f"{place}.squared", entry["squared"], "a larger one: the matrix is indefinite")
        same(f"{place}.pivots", entry["pivots"], [list(map(str, one)) for one in found])
        return squared

    def conflict_free(self, entry: Entry, place: str) -> None:
        expected = []
        for t, phase in enumerate(self.phases):
            flat = list(chain.from_iterable(b[0] for b in phase))
            if len(set(flat)) < len(flat):
                met: set[int] = set()
                twice = next(w for w in flat if w in met or met.add(w))  # type: ignore[func-returns-value]
                both = [b[0] for b in phase if twice in b[0]][:2]
                hold(False, f"schedule: phase {t}", both, f"groups that do not share worker {twice}")
            given = entry["phases"][t] if type(entry["phases"]) is list and t < len(entry["phases"]) else 0
            sized = not self.is_rule or (type(given) is list and len(given) == self.width)
            hold(sized, f"{place}.phases[{t}]", "…", f"a list of {self.width}")  # before one as long is built
            owner = {rank: b for b, block in enumerate(phase) for rank in block[0]} if self.is_rule else {}
            table = [owner.get(rank, -1) for rank in range(self.width)] if self.is_rule else [len(phase), len(flat)]
            expected.append(table)
        same(f"{place}.phases", entry["phases"], expected)

    def membership(self, entry: Entry, place: str) -> None:
        hold(self.is_rule, place, "membership", "a rule; explicit groups are read from one list")
        k, across = len(self.s.radices), sorted({tuple(block[1]) for phase in self.phases for block in phase})
        used = sorted({*chain.from_iterable(across)})
        steps = [{"digit": d, "quotient": [*range(d + 1)], "remainder": [*range(d + 1, k)]} for d in used]
        for key, expected in (("digits", k), ("across", list(map(list, across))), ("steps", steps), ("to", 64)):
            same(f"{place}.{key}", entry[key], expected)

    def sums(self, entry: Entry, place: str) -> Fraction:
        smallest, sizes = [], [] if self.is_graph else self.sizes()
        for t, phase in enumerate(self.phases):
            if not self.is_graph:
                smallest += [min(r / k, 1 - r + r / k) for k, r in sizes[t]]
                continue
            own, net = dict[int, Fraction](), dict[int, Fraction]()  # of the workers with edges
            for target, source, weight in phase:
                own[target], net[target] = own.get(target, ONE) - weight, net.get(target, 0) - weight
                net[source] = net.get(source, 0) + weight
            bad = sorted(i for i, x in net.items() if x)[:1]
            hold(not bad, f"schedule: round {t}", bad, "columns that sum to 1")
            smallest += [min(own.values(), default=ONE), *(w for _, _, w in phase)]
        same(f"{place}.smallest_weight", entry["smallest_weight"], str(min(smallest, default=0)))
        return Fraction(min(smallest, default=0))

    def doubly_stochastic(self, entry: Entry, place: str) -> None:
        least = self.sums(entry, place)
        hold(least >= 0, f"{place}.smallest_weight", str(least), "no negative weight")

    def trees(self, entry: Entry, place: str) -> None:
        """A spanning tree of contracting groups on functions constant on nodes, and on those varying along a digit."""
        tame = not self.is_graph and all(0 <= r < 2 for sizes in self.sizes() for _, r in sizes)
        hold(tame, place, "trees", "0 <= relax < 2 in every group")
        listed: list[list[int]] = [[], *([d] for d in range(len(self.s.radices)))]
        hold(
            type(entry["trees"]) is list and len(entry["trees"]) == len(listed), place, "trees", f"{len(listed)} trees"
        )
        for c, (digits, tree) in enumerate(zip(listed, entry["trees"], strict=True)):
            phases, at = self.on_class(digits), f"{place}.trees[{c}]"
            count = self.width - (not digits)
            hold(type(tree) is list and len(tree) == count, at, "…", f"{count} witnesses")
            parent = {v: v for v in range(GROUND if digits else 0, self.width)}
            now, last, home = -1, [-1], {}
            for e, edge in enumerate(tree):
                good = (
                    type(edge) is list
                    and [*map(type, edge)] == [int] * 3
                    and last < edge
                    and -1 < edge[0] < len(phases)
                )
                hold(good, f"{at}[{e}]", edge, "a later [phase, worker, worker]")
                (t, u, v), last = edge, edge
                if t != now:
                    used = [
                        (members, vanishes) for members, vanishes, r in phases[t] if r is documents.ONE or 0 < r < 2
                    ]
                    home = {w: GROUND if vanishes else m[0] for m, vanishes in used for w in m}
                    now = t
                hold(u != v and home.get(v) == u, f"{at}[{e}]", edge, f"workers of one contracting group of phase {t}")
                ends = [u, v]
                for i in (0, 1):
                    while parent[ends[i]] != ends[i]:
                        parent[ends[i]] = ends[i] = parent[parent[ends[i]]]
                hold(ends[0] != ends[1], f"{at}[{e}]", edge, "workers that no earlier witness joins")
                parent[ends[1]] = ends[0]

    def shrinks(self, entry: Entry, place: str) -> None:
        squared = self.squeeze(entry, match(entry["periods"], (1, 1001), f"{place}.periods"), place)
        hold(squared < 1, f"{place}.squared", entry["squared"], "below 1")

    def deadlock_free(self, entry: Entry, place: str) -> None:
        last, expected = dict[int, int](), []
        for phase in self.on_class():
            ticks = []
            for members, _, _ in phase:
                ticks.append(1 + max(last.get(w, 0) for w in members))
                for w in members:
                    last[w] = ticks[-1]
            expected.append(ticks[0] if len(set(ticks)) == 1 else ticks)
        for key, value in (
            ("ticks", expected),
            ("height", max(last.values(), default=0)),
            ("prologue", self.s.prologue),
        ):
            same(f"{place}.{key}", entry[key], value)

    def contraction(self, entry: Entry, place: str) -> None:
        same(f"{place}.operator", entry["operator"], OPERATOR)
        if "one" not in entry:
            self.squeeze(entry, 1, place)
            return
        hold(not self.is_rule, place, "norms", "pivots on the classes of a rule")
        rows, scale = self.power((), 1, place)
        one, infinity = (Fraction(max(sum(map(abs, x)) for x in m), scale) for m in (zip(*rows, strict=True), rows))
        for key, value in (("one", one), ("infinity", infinity), ("squared", one * infinity)):
            same(f"{place}.{key}", entry[key], str(value))

    def is_mean(self, entry: Entry, place: str) -> None:
        same(f"{place}.classes", entry["classes"], self.classes(place))
        zero = all(not any(row) for digits in entry["classes"] for row in self.power(digits, 1, place)[0])
        hold(zero, place, "the product", "exactly the mean")


CLAIMS: dict[str, tuple[Any, str]] = {
    "conflict-free": (Check.conflict_free, "phases"),
    "membership": (Check.membership, "digits across steps to"),
    "doubly-stochastic": (Check.doubly_stochastic, "smallest_weight"),
    "unit-sums": (Check.sums, "smallest_weight"),
    "consensus/trees": (Check.trees, "trees"),
    "consensus/graph": (bounds.graph, "root tree"),
    "consensus/power": (Check.shrinks, "periods squared classes pivots"),
    "deadlock-free": (Check.deadlock_free, "ticks height prologue"),
    "contraction/pivots": (Check.contraction, "squared classes pivots operator"),
    "contraction/norms": (Check.contraction, "squared one infinity operator"),
    "exact-consensus/product": (Check.is_mean, "classes"),
    "exact-consensus/labels": (bounds.labels, "first radices labels"),
    "exact-consensus-probable": (bounds.probable, "trials"),
    "rounds": (bounds.rounds, "group bound at_least prime"),
    "spectral-gap-hop": (bounds.gap, "at_least less_than measure"),
    "spectral-gap-slem": (bounds.gap, "at_least less_than measure"),
    "spectral-gap-sigma": (bounds.gap, "at_least less_than measure"),
}


def check(certificate: Any, s: Any) -> Iterator[str]:
    """The name of each claim once it holds."""
    shape = {key: object for key in ("schedule_sha256", "num_workers", "period", "claims")}
    match(certificate, {"format": {"preduce.certificate"}, "version": {1}, **shape}, "certificate")
    for key, expected in (("schedule_sha256", s.sha256), ("num_workers", s.n), ("period", len(s.phases))):
        same(key, certificate[key], expected)
    need(type(certificate["claims"]) is list and certificate["claims"], "claims", "must be a list of at least 1")
    seen: list[str] = []
    for i, entry in enumerate(certificate["claims"]):
        match(entry, {"claim": str, **{key: object for key in entry if key != "claim"}}, f"claims[{i}]")
        name = "/".join(str(entry[key]) for key in ("claim", "method") if key in entry)
        place = f"claims[{i}] ({name[:60]})"
        need(
            "/" not in entry["claim"] and name in CLAIMS and entry["claim"] not in seen, place, "is unknown or repeated"
        )
        hold(
            seen or s.form == "graph" or name == "conflict-free", place, name, "conflict-free, on which all else rests"
        )
        method, keys = CLAIMS[name]
        match(entry, {"claim": str, "method?": str, **{key: object for key in keys.split()}}, place)
        method(Check(s), entry, place)
        seen.append(entry["claim"])
        yield entry["claim"]


def main(arguments: list[str]) -> int:
    """Run on two files; returns the exit status."""
    gc.disable()  # nothing here is cyclic, and a large file holds millions of objects
    try:
        limit, first, second = documents.command_line(arguments)
        certificate = documents.read(first, plain=True, limit=limit)
        for claim in check(certificate, documents.Schedule(documents.read(second, plain=False, limit=limit))):
            print(f"{claim}: proved", flush=True)  # noqa: T201 - this is a program
    except documents.Refusal as refusal:
        print(("unreadable: ", "refuted: ")[refusal.args[1] == 1] + refusal.args[0])  # noqa: T201
        return int(refusal.args[1])
    except Exception as error:  # noqa: BLE001 - whatever a stranger's file holds, the answer is one sentence
        print(documents.one_line(f"unreadable: {type(error).__name__}: {error}"[:300]))  # noqa: T201
        return 65
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
