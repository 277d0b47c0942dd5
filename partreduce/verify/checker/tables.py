"""Reading `payload`: tables of which a step touches few rows, which therefore go their own way; who owns their rows.

Way `sharded`: row r of a table lies in part r mod `partitions`, and part p on the worker `hosts[p mod len(hosts)]`; all
workers are hosts where none is named, and there are as many parts as hosts where no number is. Every worker holds a
whole table of way `gather`, and so of way `dense`, which goes by the strategy's own averages as everything else does.
`codec` says what the numbers of rows are rounded to where they cross, handed out or brought back as gradients.

`outer` says what a mean over all workers becomes before they go on from it, and `fragments` into which parts that take
turns the model is cut: their number, or the patterns of each one's parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from .refusal import require
from .strict_json import as_choice, as_integer, as_integers, as_list, as_number, as_object, as_text, shortest

LIMIT = 2**31
"""No number of rows, columns or parts reaches this."""

DEFAULTS: dict[str, object] = {"tables": [], "local_aggregation": True, "average": True, "average_dense": True}
OUTER: dict[str, object] = {"optimizer": "sgd", "lr": 1, "momentum": 0, "nesterov": False, "outer_params": "shared"}
TABLE: dict[str, object] = {"way": "sharded", "gradient": "dense", "hosts": [], "partitions": None, "codec": "none"}
ELEMENT = {"none": 4, "float16": 2, "bfloat16": 2, "int8": 1}
"""Bytes of a number as it travels."""


class Table(NamedTuple):
    """A table as read; `hosts` and `partitions` are filled in where the file leaves them out."""

    parameter: str
    rows: int
    columns: int
    way: str
    hosts: Sequence[int]
    partitions: int
    codec: str

    @property
    def row_bytes(self) -> int:
        """Of a row as it crosses, without its number; int8 has a scale of 4 bytes for each row."""
        return ELEMENT[self.codec] * self.columns + (4 if self.codec == "int8" else 0)

    def rows_of(self, place: int) -> int:
        """Rows on the host at that place of the list: of its parts p, p mod H = place, each has the rows r mod P = p.

        Part p has ⌊R/P⌋ rows, and one more if p < R mod P.
        """
        each, left = divmod(self.rows, self.partitions)
        return each * _numbers(self.partitions, place, len(self.hosts)) + _numbers(left, place, len(self.hosts))


class OuterStep(NamedTuple):
    """An outer step: with lr 1 and no momentum the mean itself is the next model."""

    lr: Fraction
    momentum: Fraction
    nesterov: bool
    has_own_outer_params: bool

    @property
    def is_plain(self) -> bool:
        """Whether it changes nothing."""
        return self.lr == 1 and self.momentum == 0


class Tables(NamedTuple):
    """All tables in the order in which they are exchanged; `is_local` where the workers of a node agree first."""

    listed: list[Table]
    is_local: bool
    outer: OuterStep
    num_fragments: int

    def by(self, way: str) -> list[Table]:
        """Those that go this way."""
        return [table for table in self.listed if table.way == way]


def _numbers(below: int, place: int, modulus: int) -> int:
    """How many of 0, 1, …, below − 1 are `place` modulo `modulus`."""
    return max(0, (below - place + modulus - 1) // modulus)


def read_payload(strategy: dict[str, Any], num_workers: int) -> Tables:
    """A closed object; members that equal their default are left out of it, in place."""
    place = "strategy.payload"
    members = as_object(strategy.setdefault("payload", {}), place, (), (*DEFAULTS, "outer", "fragments"))
    num_fragments = _read_fragments(members, f"{place}.fragments")
    outer = _read_outer(members, f"{place}.outer")
    is_local = members.get("local_aggregation", True)
    as_choice(is_local, f"{place}.local_aggregation", (False, True))
    for name in ("average", "average_dense"):
        as_choice(members.get(name, True), f"{place}.{name}", (False, True))
    raw = as_list(members.get("tables", []), f"{place}.tables")
    listed = [_read_table(table, num_workers, f"{place}.tables[{index}]") for index, table in enumerate(raw)]
    names = [table.parameter for table in listed]
    require(len(set(names)) == len(names), f"{place}.tables", "a parameter has one route")
    _drop_defaults(members, DEFAULTS)
    require(listed or set(members) <= {"outer", "fragments"}, place, "settings are for tables, and there is none")
    if not members:
        del strategy["payload"]
    return Tables(listed, bool(is_local), outer, num_fragments)


def _read_fragments(payload: dict[str, Any], place: str) -> int:
    """How many; one is left out, in place."""
    if not isinstance(payload.get("fragments", 1), list):
        count = as_integer(payload.get("fragments", 1), place, 1, LIMIT)
        _drop_defaults(payload, {"fragments": 1})
        return count
    listed = [as_list(patterns, place) for patterns in payload["fragments"]]
    require(len(listed) > 1 and all(listed), place, "has 2 or more, each with a pattern")
    patterns = [as_text(pattern, place) for patterns in listed for pattern in patterns]
    require(all(0 < len(pattern) <= 1000 for pattern in patterns), place, "a pattern has 1 to 1000 characters")
    require(len(set(patterns)) == len(patterns), place, "a pattern stands in one fragment, once")
    return len(listed)


def _read_outer(payload: dict[str, Any], place: str) -> OuterStep:
    """A closed object; what equals its default is left out, in place."""
    members = as_object(payload.get("outer", {}), place, (), OUTER)
    as_choice(members.get("optimizer", "sgd"), f"{place}.optimizer", ("sgd",))
    nesterov, outer_params = members.get("nesterov", False), members.get("outer_params", "shared")
    as_choice(nesterov, f"{place}.nesterov", (False, True))
    as_choice(outer_params, f"{place}.outer_params", ("shared", "per_worker"))
    numbers = {name: as_number(members.get(name, OUTER[name]), f"{place}.{name}") for name in ("lr", "momentum")}
    require(numbers["lr"] > 0, f"{place}.lr", "above 0")
    require(0 <= numbers["momentum"] < 1, f"{place}.momentum", "at least 0 and below 1")
    outer = OuterStep(**numbers, nesterov=bool(nesterov), has_own_outer_params=outer_params == "per_worker")
    require(outer.momentum > 0 or not nesterov, f"{place}.nesterov", "goes with a momentum")
    require(not (outer.is_plain and outer.has_own_outer_params), f"{place}.outer_params", "plain averaging has none")
    members |= {name: shortest(numbers[name]) for name in numbers}
    _drop_defaults(members, OUTER)
    if not members:
        payload.pop("outer", None)
    return outer


def _read_table(raw: object, num_workers: int, place: str) -> Table:
    members = as_object(raw, place, ("parameter", "rows", "columns"), TABLE)
    parameter = as_text(members["parameter"], f"{place}.parameter")
    require(0 < len(parameter) <= 1000, f"{place}.parameter", "has 1 to 1000 characters")
    rows = as_integer(members["rows"], f"{place}.rows", 1, LIMIT)
    columns = as_integer(members["columns"], f"{place}.columns", 1, LIMIT)
    way = members.get("way", "sharded")
    as_choice(way, f"{place}.way", ("sharded", "gather", "dense"))
    gradient = members.get("gradient", "dense")
    as_choice(gradient, f"{place}.gradient", ("dense", "sparse"))
    require(way != "dense" or gradient == "dense", f"{place}.gradient", "way dense has a dense gradient")
    named = as_integers(members.get("hosts", []), f"{place}.hosts", 0, num_workers)
    require(len(set(named)) == len(named), f"{place}.hosts", "names each worker once")
    hosts: Sequence[int] = named or range(num_workers)  # a range: there may be 2**31 of them
    partitions = len(hosts)
    if members.get("partitions") is not None:
        partitions = as_integer(members["partitions"], f"{place}.partitions", len(hosts), rows + 1)
    is_plain = not members.get("hosts") and members.get("partitions") is None
    require(way == "sharded" or is_plain, place, "only a sharded table has hosts and partitions")
    codec = members.get("codec", "none")
    as_choice(codec, f"{place}.codec", tuple(ELEMENT))
    require(way != "dense" or codec == "none", f"{place}.codec", "way dense has the strategy's own codec")
    _drop_defaults(members, TABLE)
    return Table(parameter, rows, columns, str(way), hosts, partitions, str(codec))


def _drop_defaults(members: dict[str, Any], defaults: dict[str, object]) -> None:
    for name, default in defaults.items():
        if name in members and members[name] == default:
            del members[name]
