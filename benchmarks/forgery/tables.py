"""Whether claims about tables are true: row by row and message by message, and by letting workers meet.

Shares nothing with prover or checker.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.forgery.payloads import add_up, bad_inputs, round_trip, single
from benchmarks.forgery.runs import nodes_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.forgery.dense import Groups, Matrix
    from benchmarks.forgery.payloads import Numbers

Raw = dict[str, Any]
SAID = ("rows", "gradients")
"""Nothing is drawn from it: rows are rounded to the nearest."""


def tables_of(raw: Raw) -> list[Raw]:
    listed = raw["strategy"].get("payload", {}).get("tables", [])
    return [{"way": "sharded", "hosts": [], "partitions": None, "codec": "none"} | table for table in listed]


def owners(raw: Raw, table: Raw) -> list[int]:
    """The owner of each row, by dealing parts to hosts and rows to parts in turn."""
    hosts = table["hosts"] or list(range(len(nodes_of(raw))))
    deals = [hosts[turn % len(hosts)] for turn in range(table["partitions"] or len(hosts))]
    return [deals[row % len(deals)] for row in range(table["rows"])]


def agrees(raw: Raw) -> bool:
    """Whether workers of a node agree on rows before these cross."""
    sizes = Counter(nodes_of(raw))
    is_local = raw["strategy"].get("payload", {}).get("local_aggregation", True)
    return is_local and len(sizes) > 1 and max(sizes.values()) > 1


def _one_owner(entry: Raw, raw: Raw, _: Groups, __: list[Matrix]) -> bool:
    expected = []
    for table in tables_of(raw):
        if table["way"] == "sharded":
            rows = Counter(owners(raw, table))
            hosts = table["hosts"] or range(len(nodes_of(raw)))
            counts = [rows[host] for host in hosts]
            expected.append([table["parameter"], len(hosts), min(counts), max(counts)])
    return bool(expected) and entry == {"claim": "one-owner", "tables": expected}


def _order(entry: Raw, raw: Raw, _: Groups, __: list[Matrix]) -> bool:
    """By writing down what each worker does in a step, letting all do it in any order, and seeing everybody through."""
    ways = {table["way"] for table in tables_of(raw)} - {"dense"}
    if not ways:
        return False
    node_of, local = nodes_of(raw), agrees(raw)
    lookup, gradients, step = [], ["tell all"], ["tell all"]
    if "sharded" in ways:
        lookup = ["tell all", "numbers to all", "rows from all"]
        gradients.append("gradients to all")
    if "gather" in ways:
        gradients.append("rows around all")
    if local:
        lookup = ["tell node", "numbers to node", *lookup, "rows from node"] if lookup else []
        gradients = ["tell node", "gradients to node", *gradients]
        step = ["tell node", *step]
    said = {"lookup": lookup, "gradients": gradients, "step": step}
    words = {name: [one.rpartition(" ")[2] for one in listed] for name, listed in said.items()}
    does = [*lookup, *lookup, *gradients, *step]
    programs = {
        worker: [one for one in does if not one.endswith("node") or node_of.count(node_of[worker]) > 1]
        for worker in range(len(node_of))
    }
    return entry == {"claim": "table-order", **words} and _all_end(programs, node_of)


def _all_end(programs: dict[int, list[str]], node_of: list[int]) -> bool:
    """Whether everybody comes to the end if an operation is over once all its members are at it."""
    moved = True
    while moved and any(programs.values()):
        moved = False
        for worker, left in programs.items():
            if not left:
                continue
            mates = [w for w in programs if node_of[w] == node_of[worker]] if left[0].endswith("node") else [*programs]
            if all(programs[mate] and programs[mate][0] == left[0] for mate in mates):
                for mate in mates:
                    programs[mate].pop(0)
                moved = True
    return not any(programs.values())


def _nic_bytes(entry: Raw, raw: Raw, _: Groups, __: list[Matrix]) -> bool:
    node_of, local = nodes_of(raw), agrees(raw)
    n, expected = len(node_of), []
    for table in tables_of(raw):
        row = {"none": 4, "int8": 1}.get(table["codec"], 2) * table["columns"] + 4 * (table["codec"] == "int8")
        lookups, gradients = Counter({0: 0}), Counter({0: 0})
        if table["way"] == "sharded":
            askers = [min(w for w in range(n) if node_of[w] == node) for node in set(node_of)] if local else range(n)
            for asking, owner in product(askers, owners(raw, table)):
                if node_of[asking] != node_of[owner]:
                    lookups[node_of[asking]] += 4
                    lookups[node_of[owner]] += row
                    gradients[node_of[asking]] += 4 + row
        elif table["way"] == "gather":
            sizes = Counter(node_of)
            shares = [Counter(r % size for r in range(table["rows"])) for size in (sizes.values() if local else [1])]
            longest = max(max(share.values()) for share in shares)
            for worker in range(n):
                if node_of[worker] != node_of[(worker + 1) % n]:
                    gradients[node_of[worker]] += (n - 1) * longest * (4 + row)
        else:
            continue
        expected.append([table["parameter"], max(lookups.values()), max(gradients.values())])
    return bool(expected) and entry == {"claim": "nic-bytes", "tables": expected}


def _row_error(entry: Raw, raw: Raw, _: Groups, __: list[Matrix]) -> bool:
    """By coding rows and adding them up as the run-time does, of numbers that are made to be rounded badly."""
    coded_ones = [table for table in tables_of(raw) if table["codec"] != "none"]
    bounds = {name: {one[0]: [float(Fraction(part)) for part in one[1:]] for one in entry[name]} for name in SAID}
    sharded = [table["parameter"] for table in coded_ones if table["way"] == "sharded"]
    if not coded_ones or [one[0] for one in entry["rows"]] != sharded:
        return False
    if [one[0] for one in entry["gradients"]] != [table["parameter"] for table in coded_ones]:
        return False
    node_of = nodes_of(raw)
    for table in coded_ones:
        transport = {"codec": table["codec"], "block": 2**20}
        for given in map(single, bad_inputs(len(node_of), transport)):
            sizes = np.abs(given)
            if table["codec"] == "int8":
                sizes[:] = sizes.max(axis=1, keepdims=True)
            of_nodes = [given[np.array(node_of) == node] for node in sorted(set(node_of))]
            terms = of_nodes if agrees(raw) else given[:, None]
            seen = add_up([round_trip(add_up(list(term), single), transport) for term in terms], single)
            wrong = _beyond(seen, given.sum(axis=0), sizes.sum(axis=0), bounds["gradients"][table["parameter"]])
            if table["way"] == "sharded":
                seen = round_trip(given[0], transport)
                wrong |= _beyond(seen, given[0], sizes[0], bounds["rows"][table["parameter"]])
            if wrong:
                return False
    return True


def _beyond(seen: Numbers, exact: Numbers, sizes: Numbers, bound: list[float]) -> bool:
    return bool((np.abs(seen - exact) > bound[0] * sizes + bound[1]).any())


JUDGES: dict[str, Callable[[Raw, Raw, Groups, list[Matrix]], bool]] = {
    "one-owner": _one_owner,
    "table-order": _order,
    "nic-bytes": _nic_bytes,
    "row-error": _row_error,
}
