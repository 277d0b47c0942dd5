"""Check a certificate against a schedule, trusting neither: python -I checker.py certificate.json schedule.json

Needs nothing but Python 3.11 and shares no code with the prover. Prints `proved` for every claim, or the first entry
that is wrong: place, value and what was expected. Exit status: 0 every claim holds, 1 one is refuted, 65 a file cannot
be read. What each claim means, and why these checks suffice, stands in docs/certificates.md.
"""

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import chain, combinations, repeat
from math import lcm, prod
from operator import itemgetter, mul
from pathlib import Path
from typing import Any, NoReturn

OPERATOR = "W_T...W_1 - J, one period from phase 0"
ONE, GROUND, LIMIT, MAX_WORK = Fraction(1), -1, 2**31, 10**9


class Refusal(Exception):  # noqa: N818 - the message is the whole answer
    """A sentence, and the exit status: 65 for a file that is not what it must be, 1 for an entry that does not hold."""


def need(ok: object, place: str, problem: str) -> None:
    if not ok:
        raise Refusal(f"{place}: {problem}", 65)


def hold(ok: object, place: str, value: object, expected: object) -> None:
    if not ok:
        raise Refusal(f"{place} is {json.dumps(value, default=str)[:120]}; expected {str(expected)[:200]}", 1)


def same(place: str, value: Any, expected: Any) -> None:
    """Equality, naming the first entry that differs. Certificates hold no floats and no true, so == is exact."""
    if type(value) is list is type(expected) and len(value) == len(expected) and value != expected:
        at = next(i for i, (a, b) in enumerate(zip(value, expected, strict=True)) if a != b)
        same(f"{place}[{at}]", value[at], expected[at])
    size = f"a list of {len(expected)}: " if type(expected) is list else ""
    hold(value == expected, place, value, size + json.dumps(expected)[:160])


def read(path: str, *, plain: bool) -> Any:
    """Strict JSON: UTF-8, no repeated key, no float; a certificate (`plain`) has no true, false or null either."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        need(len(result) == len(items), path, "an object has a key twice")
        return result

    def refuse(text: str) -> NoReturn:
        raise Refusal(f"{path}: {text[:40]}: numbers are integers or fraction strings", 65)

    data = Path(path).read_bytes()
    need(not plain or not re.search(rb"true|false|null", data), path, "true, false and null have no place here")
    return json.loads(data.decode(), object_pairs_hook=pairs, parse_float=refuse, parse_constant=refuse)


def fields(value: Any, place: str, required: str, optional: str = "") -> Any:
    need(type(value) is dict, place, "must be an object")
    wrong = [f"lacks {key!r}" for key in required.split() if key not in value]
    wrong += [f"has the unknown key {key[:40]!r}" for key in value if key not in (required + " " + optional).split()]
    need(not wrong, place, "; ".join(wrong[:1]))
    return value


def integers(value: Any, place: str, low: int, high: int) -> list[int]:
    need(type(value) is list and set(map(type, value)) <= {int}, place, "must be a list of integers")
    need(not value or (low <= min(value) and max(value) < high), place, f"holds a number outside {low}..{high - 1}")
    return list(value)


def number(value: Any, place: str, digits: int = 64) -> Fraction:
    """An exact number of a schedule: an integer or a fraction string."""
    good = type(value) is int or (
        type(value) is str and re.fullmatch(rf"-?\d{{1,{digits}}}(/\d{{1,{digits}}})?", value, re.A)
    )
    need(
        good and int(str(value).partition("/")[2] or 1), place, 'must be an integer or a fraction string such as "4/3"'
    )
    return Fraction(value)


def exact(value: Any, place: str) -> Fraction:
    """A fraction string of a certificate, which must be in lowest terms."""
    hold(
        type(value) is str and len(value) < 8000 and value == str(number(value, place, 4000)),
        place,
        value,
        "a fraction string in lowest terms",
    )
    return Fraction(value)


class Schedule:
    """What claims speak about: `form`, n, and phases as lists of (members or local ranks, digits, relax)."""

    def __init__(self, raw: Any) -> None:
        fields(raw, "schedule", "format version name cluster strategy", "certificate")
        need(raw["format"] == "preduce.schedule", "format", "must be 'preduce.schedule'")
        need(integers([raw["version"]], "version", 1, 2) and type(raw["name"]) is str, "name", "must be a text")
        document = {key: raw[key] for key in ("format", "version", "name")}
        document |= {"cluster": self.cluster(raw["cluster"]), "strategy": self.strategy(raw["strategy"])}
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        self.sha256 = hashlib.sha256(text.encode()).hexdigest()

    def cluster(self, raw: Any) -> dict[str, Any]:
        if type(raw) is dict and "nodes" in raw:
            nodes = fields(raw, "cluster", "nodes")["nodes"]
            need(type(nodes) is list and nodes and all(nodes), "cluster.nodes", "must be a list of filled lists")
            flat = list(chain.from_iterable(integers(node, "cluster.nodes", 0, LIMIT) for node in nodes))
            self.n, self.nodes, self.size = len(flat), len(nodes), len(nodes[0])
            need(sorted(flat) == list(range(self.n)), "cluster.nodes", "ranks are 0..n-1, each once")
            if len(set(map(len, nodes))) > 1 or flat != list(range(self.n)):
                self.size = 0
        else:
            values = fields(raw, "cluster", "num_nodes workers_per_node")
            self.nodes, self.size = integers([values["num_nodes"], values["workers_per_node"]], "cluster", 1, LIMIT)
            self.n = self.nodes * self.size
        need(1 < self.n < LIMIT, "cluster", "needs 2 to 2147483647 workers")
        return {"num_nodes": self.nodes, "workers_per_node": self.size} if self.size else {"nodes": nodes}

    def strategy(self, raw: Any) -> dict[str, Any]:
        fields(raw, "strategy", "kind", "pace overlap averaging phases node_radices prologue rounds")
        kind, place = raw["kind"], "strategy"
        need(kind in ("static", "allreduce", "neighbor"), "strategy.kind", "must be static, allreduce or neighbor")
        own = {"static": "phases", "allreduce": "", "neighbor": "rounds"}[kind]
        fields(raw, place, "kind " + own, "pace overlap averaging" + " node_radices prologue" * (kind == "static"))
        need(not own or (type(raw[own]) is list and raw[own]), f"{place}.{own}", "must be a list of at least 1")
        self.form = "graph" if kind == "neighbor" else "rule" if "node_radices" in raw or not own else "groups"
        self.radices, self.phases, result = [], [[([0], [0], ONE)]], {"kind": kind}
        self.prologue = integers([raw.get("prologue", 0)], "strategy.prologue", 0, 2**53)[0]
        if kind == "allreduce":
            self.size, self.radices = 1, [self.n]
        elif self.form == "rule":
            need(self.size, "cluster", "a rule needs equally sized nodes")
            self.radices = result["node_radices"] = integers(raw["node_radices"], "node_radices", 2, LIMIT)
            need(
                len(self.radices) < 32 and prod(self.radices) == self.nodes, "node_radices", "product is not num_nodes"
            )
        if own:
            reader = {"rule": self.blocks, "groups": self.groups, "graph": self.edges}[self.form]
            self.phases, listed = [], []
            for t, item in enumerate(raw[own]):
                listed.append(reader(item, f"strategy.{own}[{t}]"))
            result[own] = listed
        pace = raw.get("pace", 1)
        paces = integers(pace if type(pace) is list else [pace], "strategy.pace", 1, LIMIT)
        need(
            len(paces) == (self.n if type(pace) is list else 1), "strategy.pace", "needs 1 number, or 1 for each worker"
        )
        averaging, overlap = raw.get("averaging", "mean"), raw.get("overlap", False)
        need(averaging in ("mean", "step-normalised") and type(overlap) is bool, place, "averaging or overlap is wrong")
        full = {"pace": paces if len(set(paces)) > 1 else paces[0], "prologue": self.prologue}
        full |= {"averaging": averaging, "overlap": overlap}
        default = {"pace": 1, "prologue": 0, "averaging": "mean", "overlap": False}
        return result | {key: value for key, value in full.items() if value != default[key]}

    def groups(self, raw: Any, place: str) -> Any:
        need(type(raw) is list and set(map(type, raw)) <= {dict}, place, "must be a list of objects")
        keys = {("group",), ("group", "relax"), ("relax", "group")}
        need(set(map(tuple, raw)) <= keys, place, "a group's object holds group and perhaps relax")
        lists = list(map(itemgetter("group"), raw))
        need(set(map(type, lists)) <= {list}, place, "a group must be a list")
        flat = integers(list(chain.from_iterable(lists)), place, 0, self.n)
        need(min(map(len, lists), default=2) > 1, place, "a group has at least 2 workers")
        need(sum(map(len, map(set, lists))) == len(flat), place, "a worker stands twice in a group")
        for group in lists:
            group.sort()
        raw.sort(key=itemgetter("group"))
        relax = [number(item["relax"], place) if "relax" in item else ONE for item in raw]
        self.phases.append(list(zip(map(itemgetter("group"), raw), repeat([]), relax, strict=False)))
        return [plain({"group": group}, factor) for group, _, factor in self.phases[-1]]

    def blocks(self, raw: Any, place: str) -> Any:
        need(type(raw) is list, place, "must be a list of blocks")
        found = []
        for block in raw:
            fields(block, place, "local across", "relax")
            local = sorted(integers(block["local"], place, 0, self.size))
            across = sorted(integers(block["across"], place, 0, len(self.radices)))
            distinct = local and len({*local}) == len(local) and len({*across}) == len(across)
            need(distinct, place, "names at least 1 local rank, and local ranks and digits once each")
            found.append((local, across, number(block.get("relax", 1), place)))
        found.sort(key=lambda block: (block[0], block[1], str(block[2])))
        self.phases.append(found)
        return [plain({"local": local, "across": across}, relax) for local, across, relax in found]

    def edges(self, raw: Any, place: str) -> Any:
        fields(raw, place, "edges weights")
        need(type(raw["edges"]) is list and set(map(type, raw["edges"])) <= {list}, place, "edges must be pairs")
        need(set(map(len, raw["edges"])) <= {2}, place, "edges must be pairs")
        ends, given = integers(list(chain.from_iterable(raw["edges"])), place, 0, self.n), raw["weights"]
        weights = [number(w, place) for w in (given if type(given) is list else [given] * len(raw["edges"]))]
        need(len(weights) == len(raw["edges"]), place, "needs 1 weight, or 1 for each edge")
        found = sorted(zip(ends[1::2], ends[::2], weights, strict=True))
        need(len({edge[:2] for edge in found}) == len(found), place, "an edge is given twice")
        need(all(target != source for target, source, _ in found), place, "an edge joins a worker to itself")
        self.phases.append(found)
        used = [plain({}, weight, "w").get("w", 1) for _, _, weight in found]
        return {"edges": [[s, t] for t, s, _ in found], "weights": used[0] if len({*weights}) == 1 else used}

    def on_class(self, digits: Sequence[int]) -> Iterator[list[tuple[list[int], bool, Fraction]]]:
        """The averages (members, vanishes, relax) of every phase on the class of characters varying along `digits`."""
        for phase in self.phases:
            used = [block for block in phase if len(block[0]) > 1 or block[1]]
            yield [(members, bool({*digits} & {*across}), relax) for members, across, relax in used]

    @property
    def width(self) -> int:
        return self.size if self.form == "rule" else self.n

    def power(self, digits: Sequence[int], periods: int, place: str) -> tuple[list[list[int]], int]:
        """P^periods - J on one class: integer rows over a common denominator."""
        n = self.width
        need(n * n * periods * len(self.phases) <= MAX_WORK, place, "too large for this check; use another method")
        rows, scale = [[int(i == j) for j in range(n)] for i in range(n)], 1
        for phase in (self.phases if self.form == "graph" else list(self.on_class(digits))) * periods:
            pairs = [(w.denominator if self.form == "graph" else w.denominator * len(m)) for m, _, w in phase]
            factor = lcm(*pairs)
            new, scale = [[factor * x for x in row] for row in rows], scale * factor
            for first, second, weight in phase:
                if self.form == "graph":
                    w = int(weight * factor)
                    pull = [w * (x - y) for x, y in zip(rows[second], rows[first], strict=True)]
                    new[first] = list(map(sum, zip(new[first], pull, strict=True)))
                    continue
                own, off = int(factor * (1 - weight)), 0 if second else int(factor * weight / len(first))
                mean = [off * sum(column) for column in zip(*(rows[i] for i in first), strict=True)]
                for i in first:
                    new[i] = [own * x + m for x, m in zip(rows[i], mean, strict=True)]
            rows = new
        return ([[n * x - scale for x in row] for row in rows], n * scale) if not digits else (rows, scale)


def plain(item: dict[str, Any], value: Fraction, key: str = "relax") -> dict[str, Any]:
    """The canonical document of a group or block: a factor of 1 is left out."""
    whole = value.denominator == 1 and abs(value.numerator) < 2**53
    return item if value == 1 else item | {key: value.numerator if whole else str(value)}


def pivots(rows: list[list[Fraction]], place: str) -> list[Fraction]:
    """D of A = L D L^T. A is positive semidefinite iff this succeeds without a negative number (Sylvester's law)."""
    result = []
    for k in range(len(rows)):
        pivot, below = rows[k][k], [i for i in range(k + 1, len(rows)) if rows[i][k]]
        hold(pivot or not below, place, "the bound", "a larger one: the matrix is indefinite")
        for i in below:
            factor = rows[i][k] / pivot
            for j in below:
                rows[i][j] -= factor * rows[k][j]
        result.append(pivot)
    return result


def classes(s: Schedule) -> list[list[int]]:
    """One class for every pattern of blocks that vanish; for explicit phases and graphs just one."""
    need(len(s.radices) <= 12, "classes", "over 12 digits")
    first: dict[tuple[bool, ...], list[int]] = {}
    every = chain.from_iterable(combinations(range(len(s.radices)), size) for size in range(len(s.radices) + 1))
    for digits in every:
        blocks = chain.from_iterable(s.phases) if digits else ()
        first.setdefault((bool(digits), *(bool({*digits} & {*b[1]}) for b in blocks)), list(digits))
    return list(first.values())


def squeeze(s: Schedule, entry: dict[str, Any], periods: int, place: str) -> Fraction:
    """c^2 I - M^T M is positive semidefinite on every class, shown by its pivots."""
    squared, listed = exact(entry["squared"], f"{place}.squared"), classes(s)
    same(f"{place}.classes", entry["classes"], listed)
    hold(type(entry["pivots"]) is list and len(entry["pivots"]) == len(listed), f"{place}.pivots", "…", "one per class")
    need(s.width**3 * len(listed) <= MAX_WORK, place, "too large for exact pivots; use another method")
    for c, digits in enumerate(listed):
        rows, scale = s.power(digits, periods, place)
        columns = list(zip(*rows, strict=True))
        gram = [[Fraction(sum(map(mul, a, b)), scale * scale) for b in columns] for a in columns]
        matrix = [[squared * (i == j) - x for j, x in enumerate(row)] for i, row in enumerate(gram)]
        found = pivots(matrix, f"{place}.squared")
        same(f"{place}.pivots[{c}]", entry["pivots"][c], [str(pivot) for pivot in found])
        hold(min(found) >= 0, f"{place}.squared", entry["squared"], "a larger one: the matrix is indefinite")
    return squared


def conflict_free(s: Schedule, entry: dict[str, Any], place: str) -> None:
    expected: list[list[int]] = []
    for t, phase in enumerate(s.phases):
        flat = list(chain.from_iterable(map(itemgetter(0), phase)))
        if len(set(flat)) != len(flat):
            twice = next(w for i, w in enumerate(flat) if w in flat[:i])
            hold(False, f"schedule: phase {t}", [m for m, _, _ in phase if twice in m][:2], f"{twice} in one of them")
        owner = {rank: b for b, block in enumerate(phase) for rank in block[0]} if s.form == "rule" else {}
        table = [owner.get(rank, -1) for rank in range(s.size)]
        expected.append(table if s.form == "rule" else [len(phase), len(flat)])
    same(f"{place}.phases", entry["phases"], expected)


def membership(s: Schedule, entry: dict[str, Any], place: str) -> None:
    hold(s.form == "rule", place, entry["claim"], "no such claim: explicit groups are read from one list")
    k, across = len(s.radices), sorted({tuple(block[1]) for phase in s.phases for block in phase})
    steps = [
        {"digit": d, "quotient": list(range(d + 1)), "remainder": list(range(d + 1, k))}
        for d in sorted({*chain.from_iterable(across)})
    ]
    for key, expected in (("digits", k), ("across", [list(a) for a in across]), ("steps", steps), ("to", 64)):
        same(f"{place}.{key}", entry[key], expected)


def smallest_weight(s: Schedule) -> Fraction:
    if s.form != "graph":
        sizes = {(len(m) * prod(s.radices[d] for d in a), r) for p in s.phases for m, a, r in p if len(m) > 1 or a}
        return min((min(r / k, 1 - r + r / k) for k, r in sizes), default=Fraction(0))
    smallest = ONE
    for phase in s.phases:
        taken = dict.fromkeys(range(s.n), Fraction(0))
        for target, _, weight in phase:
            taken[target] += weight
        smallest = min(smallest, 1 - max(taken.values()), *(w for _, _, w in phase))
    return smallest


def unit_sums(s: Schedule, entry: dict[str, Any], place: str) -> None:
    for t, phase in enumerate(s.phases if s.form == "graph" else ()):
        net = dict.fromkeys(range(s.n), Fraction(0))
        for target, source, weight in phase:
            net[target], net[source] = net[target] - weight, net[source] + weight
        hold(not any(net.values()), f"schedule: round {t}", [w for w in net if net[w]][:1], "columns that sum to 1")
    same(f"{place}.smallest_weight", entry["smallest_weight"], str(smallest_weight(s)))


def doubly_stochastic(s: Schedule, entry: dict[str, Any], place: str) -> None:
    unit_sums(s, entry, place)
    hold(smallest_weight(s) >= 0, f"{place}.smallest_weight", entry["smallest_weight"], "no negative weight")


def trees(s: Schedule, entry: dict[str, Any], place: str) -> None:
    """A spanning tree of contracting groups on functions constant on nodes, and on those varying along each digit."""
    relax = [r for phase in s.on_class(()) for _, _, r in phase]
    hold(s.form != "graph" and all(0 <= r < 2 for r in {*relax}), place, "trees", "0 <= relax < 2 in every group")
    listed: list[list[int]] = [[], *([d] for d in range(len(s.radices)))]
    hold(len(entry["trees"]) == len(listed), f"{place}.trees", len(entry["trees"]), f"{len(listed)} trees")
    for c, digits in enumerate(listed):
        phases = list(s.on_class(digits))
        root = list(range(GROUND if digits else 0, s.width))
        parent, now, home, last = {v: v for v in root}, -1, {}, [-1]
        same(f"{place}.trees[{c}] has edges", len(entry["trees"][c]), len(parent) - 1)
        for e, edge in enumerate(entry["trees"][c]):
            here = (f"{place}.trees[{c}][{e}]", edge)
            hold(type(edge) is list and list(map(type, edge)) == [int] * 3 and edge > last, *here, "the next witness")
            (t, u, v), last = edge, edge
            hold(now <= t < len(phases), *here, "a phase of the period")
            if t != now:
                used = [(members, vanishes) for members, vanishes, r in phases[t] if 0 < r < 2]
                home = {w: GROUND if vanishes else min(members) for members, vanishes in used for w in members}
                now = t
            hold(u != v and home.get(v) == u, *here, f"a group of phase {t} with smallest member {u} that holds {v}")
            ends = []
            for w in (u, v):
                while parent[w] != w:
                    parent[w] = w = parent[parent[w]]
                ends.append(w)
            hold(ends[0] != ends[1], *here, "workers that no earlier witness joins")
            parent[ends[1]] = ends[0]


def graph(s: Schedule, entry: dict[str, Any], place: str) -> None:
    """No negative weight, a positive one on oneself, and a root that reaches everyone."""
    hold(s.form == "graph", place, "graph", "trees")
    for t, phase in enumerate(s.phases):
        own = dict.fromkeys(range(s.n), ONE)
        for target, _, weight in phase:
            own[target] -= weight
            hold(weight >= 0, f"schedule: round {t}", str(weight), "no negative weight")
        hold(min(own.values()) > 0, f"schedule: round {t}", "own weights", "a positive weight on oneself")
    edges = [{(source, target) for target, source, weight in phase if weight > 0} for phase in s.phases]
    reached = {*integers([entry["root"]], f"{place}.root", 0, s.n)}
    same(f"{place}.tree has edges", len(entry["tree"]), s.n - 1)
    for e, edge in enumerate(entry["tree"]):
        here = (f"{place}.tree[{e}]", edge)
        hold(type(edge) is list and list(map(type, edge)) == [int] * 3, *here, "round, source, target")
        hold(0 <= edge[0] < len(edges) and (*edge[1:],) in edges[edge[0]], *here, "an edge of positive weight")
        hold(edge[1] in reached and edge[2] not in reached, *here, "an edge from a reached worker to a new one")
        reached.add(edge[2])


def power(s: Schedule, entry: dict[str, Any], place: str) -> None:
    periods = integers([entry["periods"]], f"{place}.periods", 1, LIMIT)[0]
    hold(squeeze(s, entry, periods, place) < 1, f"{place}.squared", entry["squared"], "below 1")


def deadlock_free(s: Schedule, entry: dict[str, Any], place: str) -> None:
    last, expected = [0] * s.width, []
    for phase in s.on_class(()):
        ticks = []
        for members, _, _ in phase:
            ticks.append(1 + max(map(last.__getitem__, members)))
            for w in members:
                last[w] = ticks[-1]
        expected.append(ticks[0] if len(set(ticks)) == 1 else ticks)
    for key, value in (("ticks", expected), ("height", max(last)), ("prologue", s.prologue)):
        same(f"{place}.{key}", entry[key], value)


def contraction(s: Schedule, entry: dict[str, Any], place: str) -> None:
    same(f"{place}.operator", entry["operator"], OPERATOR)
    squeeze(s, entry, 1, place)


def norms(s: Schedule, entry: dict[str, Any], place: str) -> None:
    same(f"{place}.operator", entry["operator"], OPERATOR)
    hold(s.form != "rule", place, "norms", "the classes of a rule")
    rows, scale = s.power((), 1, place)
    one, infinity = (max(sum(map(abs, row)) for row in m) for m in (zip(*rows, strict=True), rows))
    same(f"{place}.one", entry["one"], str(Fraction(one, scale)))
    same(f"{place}.infinity", entry["infinity"], str(Fraction(infinity, scale)))
    same(f"{place}.squared", entry["squared"], str(Fraction(one * infinity, scale**2)))


CLAIMS: dict[str, tuple[Callable[[Schedule, dict[str, Any], str], None], str]] = {
    "conflict-free": (conflict_free, "phases"),
    "membership": (membership, "digits across steps to"),
    "doubly-stochastic": (doubly_stochastic, "smallest_weight"),
    "unit-sums": (unit_sums, "smallest_weight"),
    "consensus/trees": (trees, "trees"),
    "consensus/graph": (graph, "root tree"),
    "consensus/power": (power, "periods squared classes pivots"),
    "deadlock-free": (deadlock_free, "ticks height prologue"),
    "contraction/pivots": (contraction, "squared classes pivots operator"),
    "contraction/norms": (norms, "squared one infinity operator"),
}


def check(certificate: Any, s: Schedule) -> Iterator[str]:
    """The name of each claim once it holds."""
    fields(certificate, "certificate", "format version schedule_sha256 num_workers period claims")
    listed = (("format", "preduce.certificate"), ("version", 1), ("schedule_sha256", s.sha256))
    for key, expected in (*listed, ("num_workers", s.n), ("period", len(s.phases))):
        same(key, certificate[key], expected)
    claims, seen = certificate["claims"], []
    need(type(claims) is list and claims, "claims", "must be a list of at least 1")
    for i, entry in enumerate(claims):
        place = f"claims[{i}]"
        need(type(entry) is dict and type(entry.get("claim")) is str, place, "must name a claim")
        name = "/".join(str(entry[key]) for key in ("claim", "method") if key in entry)
        need(name in CLAIMS and entry["claim"] not in seen, place, f"unknown or repeated claim {name[:60]!r}")
        hold(
            seen or s.form == "graph" or name == "conflict-free", place, name, "conflict-free, on which all else rests"
        )
        function, keys = CLAIMS[name]
        fields(entry, place, "claim " + keys, "method")
        function(s, entry, f"{place} ({name})")
        seen.append(entry["claim"])
        yield entry["claim"]


def main(arguments: list[str]) -> int:
    try:
        need(len(arguments) == 2, "usage", "python -I checker.py certificate.json schedule.json")
        certificate, schedule = read(arguments[0], plain=True), Schedule(read(arguments[1], plain=False))
        for claim in check(certificate, schedule):
            print(f"{claim}: proved", flush=True)  # noqa: T201 - this is a program
    except Refusal as refusal:
        print(("unreadable: ", "refuted: ")[refusal.args[1] == 1] + refusal.args[0])  # noqa: T201
        return int(refusal.args[1])
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        print(f"unreadable: {type(error).__name__}: {error}"[:300])  # noqa: T201
        return 65
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
