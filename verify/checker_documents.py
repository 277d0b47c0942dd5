# ruff: noqa: ANN401 - parsed JSON is Any until it is checked
"""What the checker stands on: strict JSON, the canonical form of a schedule, refusals, exact pivots."""

import hashlib
import json
import re
from collections.abc import Iterable
from fractions import Fraction
from itertools import chain, repeat
from math import lcm, prod
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

Rows = list[list[Any]]
ONE, LIMIT, NUMBER = Fraction(1), 2**31, object()
MAX_BYTES, MAX_COMMON_BITS, MAX_WORK = 2**27, 2**14, 10**10
PACE = {"pace?": object, "when?": object, "how?": object, "averaging?": {"mean", "step-normalised"}}
DEFAULTS = {"pace": 1, "when": "lockstep", "how": {"form": "ring"}, "averaging": "mean", "prologue": 0}


class Refusal(Exception):  # noqa: N818 - the message is the whole answer
    """A sentence, and the exit status: 65 for a file that is not what it must be, 1 for an entry that does not hold."""

    def __init__(self, sentence: str, status: int) -> None:
        """The sentence quotes strangers' text, so it is made one line of ASCII: no forged line, nothing unprintable."""
        super().__init__(one_line(sentence), status)


def one_line(text: str) -> str:
    """The text with everything but printable ASCII escaped."""
    return "".join(c if " " <= c <= "~" else f"\\u{ord(c):04x}" for c in text)


class Work:
    """What one claim may cost, counted rather than timed so that the answer is the same on every machine."""

    def __init__(self) -> None:
        """Nothing is spent yet."""
        self.spent = 0

    def spend(self, amount: int, place: str) -> None:
        """Refuse the claim once it costs more than MAX_WORK, some minutes of arithmetic."""
        self.spent += amount
        need(self.spent <= MAX_WORK, place, "too large for this check; use another method")


def need(ok: object, place: str, problem: object) -> None:
    """Refuse a file."""
    if not ok:
        raise Refusal(f"{place}: {problem}", 65)


def command_line(arguments: list[str]) -> tuple[int, str, str]:
    """The limit on the size of a file, then the paths of certificate and schedule."""
    limit = MAX_BYTES
    if len(arguments) == 4 and arguments[0] == "--max-bytes" and re.fullmatch("[0-9]{1,15}", arguments[1]):
        limit, arguments = int(arguments[1]), arguments[2:]
    usage = "python -I checker.py [--max-bytes N] certificate.json schedule.json"
    need(len(arguments) == 2 and not arguments[0].startswith("--"), "usage", usage)
    return limit, arguments[0], arguments[1]


def read(path: str, *, plain: bool, limit: int = MAX_BYTES) -> Any:
    """Strict JSON: UTF-8, no repeated key, no float; a certificate (`plain`) has no true, false or null either."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            raise Refusal(f"{path}: an object has a key twice", 65)
        return result

    def refuse(text: str) -> NoReturn:
        raise Refusal(f"{path}: {text[:40]}: numbers are integers or fraction strings", 65)

    with Path(path).open("rb") as file:  # a device or a pipe has no size to ask for
        data = file.read(limit + 1)
    need(len(data) <= limit, path, f"is larger than {limit} bytes; --max-bytes raises the limit")
    need(not plain or not re.search(rb"true|false|null", data), path, "true, false and null have no place here")
    return json.loads(data.decode(), object_pairs_hook=pairs, parse_float=refuse, parse_constant=refuse)


def match(value: Any, shape: Any, place: str) -> Any:
    """Shapes: {closed object, key? optional}, [list of], (low, high) integer, {one of}, a type, NUMBER."""
    if type(shape) is dict:
        need(type(value) is dict, place, "must be an object")
        unknown = [key for key in value if key not in shape and key + "?" not in shape]
        missing = [key for key in shape if key[-1] != "?" and key not in value]
        need(not unknown + missing, place, f"has unknown keys {unknown[:3]} or lacks {missing[:3]}"[:200])
        for key, item in value.items():
            match(item, shape.get(key, shape.get(key + "?")), f"{place}.{key}")
    elif type(shape) is list:
        need(type(value) is list, place, "must be a list")
        if type(shape[0]) is not tuple:
            return [match(item, shape[0], f"{place}[{i}]") for i, item in enumerate(value)]
        low, high = shape[0]
        fits = set(map(type, value)) <= {int} and (not value or (low <= min(value) and max(value) < high))
        need(fits, place, f"must hold integers {low}..{high - 1}")
    elif shape is NUMBER:
        good = type(value) is int or (type(value) is str and re.fullmatch(r"-?\d{1,64}(/\d{1,64})?", value, re.A))
        need(good and int(str(value).partition("/")[2] or 1), place, "must be an integer or a fraction such as 4/3")
    elif type(shape) is set:
        need(any(type(value) is type(x) and value == x for x in shape), place, f"must be one of {sorted(shape)}")
    elif type(shape) is tuple:
        match([value], [shape], place)
    else:
        need(shape is object or type(value) is shape, place, f"must be of type {shape.__name__}")
    return value


def brief(value: Fraction) -> int | str:
    """The shortest exact form."""
    return value.numerator if value.denominator == 1 and abs(value.numerator) < 2**53 else str(value)


def hold(ok: object, place: str, value: object, expected: object) -> None:
    """Refuse an entry of the certificate."""
    if not ok:
        raise Refusal(f"{place} is {json.dumps(value, default=str)[:120]}; expected {str(expected)[:200]}", 1)


def same(place: str, value: Any, expected: Any) -> None:
    """Equality, naming the first entry that differs. Certificates hold no floats and no true, so == is exact."""
    if type(value) is list is type(expected) and len(value) == len(expected) and value != expected:
        at = next(i for i, (a, b) in enumerate(zip(value, expected, strict=True)) if a != b)
        same(f"{place}[{at}]", value[at], expected[at])
    size = f"a list of {len(expected)}: " if type(expected) is list else ""
    hold(value == expected, place, value, size + json.dumps(expected)[:160])


def exact(value: Any, place: str) -> Fraction:
    """A fraction string of a certificate, which must be in lowest terms."""
    good = type(value) is str and re.fullmatch(r"-?\d{1,4000}(/[1-9]\d{0,3999})?", value, re.A)
    hold(good and str(Fraction(value)) == value, place, value, "a fraction string in lowest terms")
    return Fraction(value)


def common(values: Iterable[Fraction], place: str) -> None:
    """Refuse factors without a common denominator of reasonable length, whose sums would never end."""
    result = 1
    for denominator in {value.denominator for value in values}:
        result = lcm(result, denominator)
        need(result.bit_length() <= MAX_COMMON_BITS, place, f"the common denominator has over {MAX_COMMON_BITS} bits")


def pivots(rows: Rows, place: str, work: Work) -> list[Fraction]:
    """D of A = L D L^T: A has as many negative eigenvalues as D has negative entries (Sylvester's law of inertia)."""
    for k in range(len(rows)):
        below = [i for i in range(k + 1, len(rows)) if rows[i][k]]
        hold(rows[k][k] or not below, place, "indefinite", "a bound whose matrix has no zero pivot above other entries")
        for i in below:
            factor = rows[i][k] / rows[k][k]
            bits = factor.numerator.bit_length() + factor.denominator.bit_length()
            work.spend(len(below) * (100 + bits * bits // 10**4), place)
            for j in below:
                rows[i][j] -= factor * rows[k][j]
    return [row[k] for k, row in enumerate(rows)]


class Schedule:
    """What claims speak about: `form`, n, and phases as lists of (members or local ranks, digits, relax)."""

    def __init__(self, raw: Any) -> None:
        """Read the document and bring it into the canonical form, whose SHA-256 the certificate must name."""
        shape = {"format": {"preduce.schedule"}, "version": {1}, "name": str, "cluster": dict, "strategy": dict}
        match(raw, {**shape, "certificate?": dict}, "schedule")
        raw.pop("certificate", None)
        self.radices: list[int] = []
        self.phases: list[list[tuple[Any, Any, Fraction]]] = []
        raw["cluster"] = self.read_cluster(raw["cluster"])
        self.read_strategy(raw["strategy"])
        self.sha256 = hashlib.sha256(json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def read_cluster(self, raw: Any) -> dict[str, Any]:
        """Which worker runs where; `size` is 0 for unequal nodes."""
        if "nodes" in raw:
            nodes = match(raw, {"nodes": [[(0, LIMIT)]]}, "cluster")["nodes"]
            need(nodes and all(nodes), "cluster.nodes", "every node holds a worker")
            flat = list(chain.from_iterable(nodes))
            self.n, self.nodes, self.size = len(flat), len(nodes), len(nodes[0])
            need(sorted(flat) == list(range(self.n)), "cluster.nodes", "ranks are 0..n-1, each once")
            self.size *= len(set(map(len, nodes))) == 1 and flat == list(range(self.n))
        else:
            match(raw, {"num_nodes": (1, LIMIT), "workers_per_node": (1, LIMIT)}, "cluster")
            self.nodes, self.size = raw["num_nodes"], raw["workers_per_node"]
            self.n = self.nodes * self.size
        need(1 < self.n < LIMIT, "cluster", "needs 2 to 2147483647 workers")
        return {"num_nodes": self.nodes, "workers_per_node": self.size} if self.size else raw

    def read_strategy(self, raw: Any) -> None:
        """The phases, and the prologue; members that equal their default go."""
        kind = raw.get("kind")
        self.form = (
            "rule" if kind == "allreduce" or "node_radices" in raw else "graph" if kind == "neighbor" else "groups"
        )
        if kind == "allreduce":
            match(raw, {"kind": str, **PACE}, "strategy")
            self.size, self.radices, self.phases = 1, [self.n], [[([0], [0], ONE)]]
        else:
            own = "rounds" if match(kind, {"static", "neighbor"}, "strategy.kind") == "neighbor" else "phases"
            extra = {"prologue?": (0, 2**53), "node_radices?": [(2, LIMIT)]} if kind == "static" else {}
            match(raw, {"kind": str, own: list, **PACE, **extra}, "strategy")
            need(raw[own], f"strategy.{own}", "must hold at least 1")
            self.radices = raw.get("node_radices", [])
            if self.form == "rule":
                good = self.size and len(self.radices) < 32 and prod(self.radices) == self.nodes
                need(good, "strategy.node_radices", "needs equal nodes, and a product of num_nodes")
            reader = {"rule": self.read_blocks, "groups": self.read_groups, "graph": self.read_edges}[self.form]
            self.phases = [reader(item, f"strategy.{own}[{t}]") for t, item in enumerate(raw[own])]
        self.prologue = raw.get("prologue", 0)
        pace = raw.get("pace", 1)
        paces = match(pace if type(pace) is list else [pace], [(1, LIMIT)], "strategy.pace")
        need(len(paces) == (self.n if type(pace) is list else 1), "strategy.pace", "needs 1 number, or 1 a worker")
        raw["pace"] = paces if len(set(paces)) > 1 else paces[0]
        for key in [key for key in DEFAULTS if raw.get(key) == DEFAULTS[key]]:
            del raw[key]

    def read_groups(self, raw: Any, place: str) -> list[Any]:
        """One explicit phase, as fast as C loops go: files hold millions of groups."""
        keys = {("group",), ("group", "relax"), ("relax", "group")}
        need(type(raw) is list and set(map(type, raw)) <= {dict}, place, "must be a list of objects")
        need(set(map(tuple, raw)) <= keys, place, "the object of a group holds group and perhaps relax")
        groups = list(map(itemgetter("group"), raw))
        need(set(map(type, groups)) <= {list} and min(map(len, groups), default=2) > 1, place, "groups of 2 or more")
        flat = match(list(chain.from_iterable(groups)), [(0, self.n)], place)
        need(sum(map(len, map(set, groups))) == len(flat), place, "a worker stands twice in a group")
        for group in groups:
            group.sort()
        raw.sort(key=itemgetter("group"))
        relax = [self.relax(item, place) if len(item) > 1 else ONE for item in raw]
        common({*relax}, place)
        return list(zip(map(itemgetter("group"), raw), repeat([]), relax, strict=False))

    def relax(self, item: Any, place: str) -> Fraction:
        """A factor, put into canonical form where it stands."""
        value = Fraction(match(item.pop("relax", 1), NUMBER, place))
        item |= {"relax": brief(value)} if value != 1 else {}
        return value

    def read_blocks(self, raw: Any, place: str) -> list[Any]:
        """One rule phase."""
        shape = {"local": [(0, self.size)], "across": [(0, len(self.radices))], "relax?": NUMBER}
        for block in match(raw, [shape], place):
            need(block["local"], place, "a block names at least 1 local rank")
            for key in ("local", "across"):
                need(len(set(block[key])) == len(block[key]), place, f"{key} names one twice")
                block[key].sort()
        raw.sort(key=lambda block: (block["local"], block["across"], str(block.get("relax", 1))))
        blocks = [(block["local"], block["across"], self.relax(block, place)) for block in raw]
        common([relax for _, _, relax in blocks], place)
        return blocks

    def read_edges(self, raw: Any, place: str) -> list[Any]:
        """One round of weighted edges, as (target, source, weight)."""
        match(raw, {"edges": [[(0, self.n)]], "weights": object}, place)
        given, edges = raw["weights"], raw["edges"]
        listed = match(given if type(given) is list else [given] * len(edges), [NUMBER], place)
        need(len(listed) == len(edges) and {*map(len, edges)} <= {2}, place, "edges are pairs, each with a weight")
        found = sorted((t, s, Fraction(w)) for (s, t), w in zip(edges, listed, strict=True))
        need(len({edge[:2] for edge in found}) == len(found), place, "an edge is given twice")
        common([w for _, _, w in found], place)
        need(all(t != s for t, s, _ in found), place, "an edge joins a worker to itself")
        weights = [brief(w) for _, _, w in found]
        raw["edges"], raw["weights"] = [[s, t] for t, s, _ in found], weights[0] if len({*weights}) == 1 else weights
        return found
