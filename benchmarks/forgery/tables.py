"""Decides whether claims about tables are true: row by row, message by message, and by letting workers communicate.

It shares nothing with prover or checker.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Any

from benchmarks.forgery.runs import nodes_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.forgery.dense import Groups, Matrix

Raw = dict[str, Any]


def tables_of(raw: Raw) -> list[Raw]:
    listed = raw["strategy"].get("payload", {}).get("tables", [])
    return [{"way": "sharded", "hosts": [], "partitions": None, "codec": "none"} | table for table in listed]


def owners(raw: Raw, table: Raw) -> list[int]:
    """Return the owner of each row: parts are dealt to hosts, and rows to parts, in turn."""
    hosts = table["hosts"] or list(range(len(nodes_of(raw))))
    deals = [hosts[turn % len(hosts)] for turn in range(table["partitions"] or len(hosts))]
    return [deals[row % len(deals)] for row in range(table["rows"])]


def agrees(raw: Raw) -> bool:
    """Return whether workers of a node add up rows before these are sent to other nodes."""
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
    """Check by listing each worker's operations of a step, and executing them in any order to the end."""
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
    does = [*lookup, *lookup, *gradients, *step]
    programs = {
        worker: [one for one in does if not one.endswith("node") or node_of.count(node_of[worker]) > 1]
        for worker in range(len(node_of))
    }
    return entry == {"claim": "table-order"} and _all_end(programs, node_of)


def _all_end(programs: dict[int, list[str]], node_of: list[int]) -> bool:
    """Return whether all workers reach the end if an operation is over once all its members are at it."""
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


JUDGES: dict[str, Callable[[Raw, Raw, Groups, list[Matrix]], bool]] = {
    "one-owner": _one_owner,
    "table-order": _order,
    "nic-bytes": _nic_bytes,
}
