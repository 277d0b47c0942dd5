"""Claims about tables that go their own way: one route, one owner, one order, bytes of a NIC, errors of codecs.

The theorems stand in `verify/checker/facts/tables.py`. That the code which says who owns a row says the same is shown
here by asking it: for all rows, or for rows drawn at random where there are many.
"""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np

from partreduce.topo.codec_numbers import row_bytes
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.routes import Route, TableWay
from partreduce.verify.base import Claim, fact, follows, not_proved, refuted
from partreduce.verify.checker.facts.codec_error import rounded_up
from partreduce.verify.checker.facts.tables import rounded_rows

ONE_ROUTE, ONE_OWNER, ORDER, NIC_BYTES = "one-route", "one-owner", "table-order", "nic-bytes"
ROW_ERROR = "row-error"

ASKED = 2**12
"""Rows of a table whose owner is asked for."""

NUMBER = 4
"""Bytes of a row's number."""


def essential_of_tables(schedule: Schedule) -> frozenset[str]:
    """What must be proved where tables go their own way."""
    routes = schedule.routes
    names = {ONE_ROUTE} if routes else set()
    names |= {ORDER} if routes.apart else set()
    names |= {ROW_ERROR} if _coded(schedule) else set()
    return frozenset(names | ({ONE_OWNER} if _sharded(schedule) else set()))


def prove_tables(schedule: Schedule, *, rests_on: str = "") -> tuple[Claim, ...]:
    """All claims about the tables, none where there are none. O(tables · (num_workers + rows that are asked for)).

    `rests_on` is why nothing is proved, if so.
    """
    if not schedule.routes:
        return ()
    makers = {ONE_ROUTE: _one_route}
    if _sharded(schedule):
        makers[ONE_OWNER] = _one_owner
    if schedule.routes.apart:
        makers |= {ORDER: _order, NIC_BYTES: _nic_bytes}
    if _coded(schedule):
        makers[ROW_ERROR] = _row_error
    if rests_on:
        return tuple(not_proved(name, rests_on) for name in makers)
    return tuple(make(schedule) for make in makers.values())


def _sharded(schedule: Schedule) -> list[Route]:
    return [route for route in schedule.routes.tables if route.way is TableWay.SHARDED]


def _coded(schedule: Schedule) -> list[Route]:
    return [route for route in schedule.routes.tables if route.codec.rounds]


def _one_route(schedule: Schedule) -> Claim:
    ways = [[route.parameter, str(route.way)] for route in schedule.routes.tables]
    listed = ", ".join(f"{name} {way}" for name, way in ways)
    text = f"Each parameter goes one way: {listed}; everything else, and what is dense, by the strategy's own averages."
    return fact(ONE_ROUTE, text, ways=ways)


def _one_owner(schedule: Schedule) -> Claim:
    entries, words = [], []
    for route in _sharded(schedule):
        hosts = route.hosts or range(schedule.num_workers)
        parts = route.partitions or len(hosts)
        if (wrong := _wrong_owner(schedule, route)) is not None:
            text = f"row {wrong['row']} of {route.parameter} lies on worker {wrong['owner']}, not where its part does."
            return refuted(ONE_OWNER, text, {"parameter": route.parameter, **wrong})
        least, most = (
            _rows_at(route.rows, parts, len(hosts), len(hosts) - 1),
            _rows_at(route.rows, parts, len(hosts), 0),
        )
        entries.append([route.parameter, len(hosts), least, most])
        words.append(f"{route.parameter} has {len(hosts)} owners with {least} to {most} of {route.rows} rows")
    text = (
        f"Every row of a sharded table lies on exactly one worker, the host of its part: {'; '.join(words)}. The code "
        f"that says so was asked for all rows, or {ASKED} drawn at random."
    )
    return fact(ONE_OWNER, text, tables=entries)


def _wrong_owner(schedule: Schedule, route: Route) -> dict[str, int] | None:
    """A row of which `Schedule.owner_of` does not give the host of its part."""
    hosts = route.hosts or range(schedule.num_workers)
    parts = route.partitions or len(hosts)
    rows = range(route.rows) if route.rows <= ASKED else sorted(random.Random(0).sample(range(route.rows), ASKED))
    for row in rows:
        part = row - row // parts * parts
        owner = schedule.owner_of(route.parameter, row)
        if owner != hosts[part - part // len(hosts) * len(hosts)]:
            return {"row": row, "owner": -1 if owner is None else owner}
    return None


def _rows_at(rows: int, parts: int, num_hosts: int, place: int) -> int:
    """Rows of the host at a place, part by part: each has rows // parts, and the first rows % parts one more."""
    mine = range(place, parts, num_hosts)
    return len(mine) * (rows // parts) + len(range(place, rows % parts, num_hosts))


def _order(schedule: Schedule) -> Claim:
    ways = {route.way for route in schedule.routes.apart}
    node = ["node"] if _aggregates(schedule) else []
    everyone = ["all"] * (1 + len(ways))
    lookup = [*node, *node, "all", "all", "all", *node] if TableWay.SHARDED in ways else []
    text = (
        "All workers do the same lookups, backward passes and steps in one order, each of them in the same operations "
        f"of {'nodes and of ' if node else ''}all workers, on communicators of their own; so these have one order in "
        "all, and the first that is not over has all its members ready. Assumed: all run one program. Before rows move "
        "workers compare what they are about to do, and end together where they differ."
    )
    return follows(ORDER, text, lookup=lookup, gradients=[*node, *node, *everyone], step=[*node, "all"])


def _nic_bytes(schedule: Schedule) -> Claim:
    entries = [[route.parameter, *_most_bytes(schedule, route)] for route in schedule.routes.apart]
    listed = "; ".join(f"{name} {lookup} + {gradients}" for name, lookup, gradients in entries)
    text = (
        "Out of a node's NICs go in a step, if every worker touches all rows, at most so many bytes for a lookup and "
        f"its gradients, in float32 or the table's codec: {listed}. A step that touches a share of them, spread over "
        "the owners as all rows are, sends that share: of a worker on average, or of a node's workers together where "
        "they agree first. "
        "Parallax's tables, which know no shared NICs, say for a share a of b bytes: 2ab for a GPU by servers and "
        "2(N-1)ab by all-gather (2018, Table 3); 4ab(N-1)/N and 2ab(N-1) for a machine, in and out (2019)."
    )
    return fact(NIC_BYTES, text, tables=entries)


def _row_error(schedule: Schedule) -> Claim:
    sizes, aggregates = schedule.cluster.node_sizes(), _aggregates(schedule)
    inside, count = (int(sizes.max()), len(sizes)) if aggregates else (1, schedule.num_workers)
    rows, gradients, words = [], [], []
    for route in _coded(schedule):
        row, total = rounded_rows(route.codec.value, inside, count)
        if route.way is TableWay.SHARDED:
            rows.append([route.parameter, *rounded_up(row)])
        relative, absolute = rounded_up(total)
        gradients.append([route.parameter, relative, absolute])
        off = f"{float(Fraction(relative)):.3g} and {float(Fraction(absolute)):.2g}"
        words.append(f"{route.parameter} in {route.codec} {off}")
    text = (
        "A row is rounded once, by its owner for whoever looks it up; where it lives it stays exact, and so does the "
        "optimizer's state. The sum of the gradients that workers bring for a row is off the exact one by at most so "
        "large a part of the sum of their magnitudes (int8: of each one's largest in the row), and so much near zero, "
        f"after one rounding of each, or it is not finite: {'; '.join(words)}."
    )
    return fact(ROW_ERROR, text, rows=rows, gradients=gradients)


def _aggregates(schedule: Schedule) -> bool:
    sizes = schedule.cluster.node_sizes()
    return schedule.routes.local_aggregation and 1 < int(sizes.max()) < schedule.num_workers


def _most_bytes(schedule: Schedule, route: Route) -> tuple[int, int]:
    """(of a lookup, of gradients) out of the busiest node. Vectorised over nodes, in exact integers."""
    cluster, row, rows = schedule.cluster, row_bytes(route.codec.value, route.columns), route.rows
    if cluster.num_nodes == 1:
        return 0, 0
    aggregates, sizes = _aggregates(schedule), cluster.node_sizes().astype(object)
    if route.way is TableWay.GATHER:
        longest = -(-rows // int(min(sizes))) if aggregates else rows
        node_of = cluster.node_of()
        crossings = np.bincount(node_of[node_of != np.roll(node_of, -1)], minlength=1)
        return 0, int(crossings.max()) * (schedule.num_workers - 1) * longest * (row + NUMBER)
    hosts = np.array(route.hosts or range(schedule.num_workers))
    parts = route.partitions or len(hosts)
    places = np.arange(len(hosts))
    mine = (parts - places + len(hosts) - 1) // len(hosts)  # parts of each host, shape (hosts,)
    longer = np.maximum(0, (rows % parts - places + len(hosts) - 1) // len(hosts))  # of these with one row more
    held = np.zeros(cluster.num_nodes, dtype=np.int64)  # rows fit: a table has fewer than 2**31
    np.add.at(held, cluster.node_of()[hosts], mine * (rows // parts) + longer)
    held = held.astype(object)  # products do not
    asking = np.ones_like(sizes) if aggregates else sizes
    asked, given = asking * (rows - held), (asking.sum() - asking) * held
    return int(max(NUMBER * asked + row * given)), int(max((NUMBER + row) * asked))
