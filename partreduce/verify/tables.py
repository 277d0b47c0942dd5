"""Claims about tables that go their own way: one route, one owner, one order, bytes of a NIC, errors of codecs.

The theorems stand in `verify/checker/tables.py`. That the code which says who owns a row says the same is shown
here by asking it: for all rows, or for rows drawn at random where there are many.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.outer import PLAIN
from partreduce.topo.strategies.payload import Placement, TablePlacement
from partreduce.verify.base import Claim, not_proved, refuted, upper
from partreduce.verify.stated import Numbers, Stated

ONE_ROUTE, ONE_OWNER, ORDER, NIC_BYTES = "one-route", "one-owner", "table-order", "nic-bytes"
ROW_ERROR = "row-error"

ASKED = 2**12
"""Rows of a table whose owner is asked for."""


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
    # Tables go their way in every step, whatever a strategy averages; so those of servers are read as All-Reduce's,
    # without the outer steps and fragments of everything else, which All-Reduce may not have.
    alone = replace(schedule.routes, outer=PLAIN, fragments=1)
    stated = Stated(replace(schedule, strategy=AllReduce(payload=alone)))
    words: dict[str, Callable[[Numbers], str]] = {
        ONE_ROUTE: _one_route,
        ONE_OWNER: lambda numbers: _one_owner(schedule, numbers),
        ORDER: _order,
        NIC_BYTES: _nic_bytes,
        ROW_ERROR: lambda numbers: _row_error(schedule, numbers),
    }
    made = {name: stated.claim(name, told) for name, told in words.items()}
    due = {name: claim for name, claim in made.items() if claim is not None}
    if rests_on:
        return tuple(not_proved(name, rests_on) for name in due)
    for route in _sharded(schedule):
        if (wrong := _wrong_owner(schedule, route)) is not None:
            text = f"row {wrong['row']} of {route.parameter} lies on worker {wrong['owner']}, not where its part does."
            due[ONE_OWNER] = refuted(ONE_OWNER, text, {"parameter": route.parameter, **wrong})
    return tuple(due.values())


def _sharded(schedule: Schedule) -> list[TablePlacement]:
    return [route for route in schedule.routes.tables if route.way is Placement.SHARDED]


def _coded(schedule: Schedule) -> list[TablePlacement]:
    return [route for route in schedule.routes.tables if route.codec.rounds]


def _one_route(numbers: Numbers) -> str:
    listed = ", ".join(f"{name} {way}" for name, way in numbers["ways"])
    return f"Each parameter goes one way: {listed}; everything else, and what is dense, by the strategy's own averages."


def _one_owner(schedule: Schedule, numbers: Numbers) -> str:
    rows = {route.parameter: route.rows for route in _sharded(schedule)}
    told = "; ".join(
        f"{name} has {owners} owners with {least} to {most} of {rows[name]} rows"
        for name, owners, least, most in numbers["tables"]
    )
    return (
        f"Every row of a sharded table lies on exactly one worker, the host of its part: {told}. The code "
        f"that says so was asked for all rows, or {ASKED} drawn at random."
    )


def _wrong_owner(schedule: Schedule, route: TablePlacement) -> dict[str, int] | None:
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


def _order(numbers: Numbers) -> str:
    return (
        "All workers do the same lookups, backward passes and steps in one order, each of them in the same operations "
        f"of {'nodes and of ' * ('node' in numbers['step'])}all workers, on communicators of their own; so these "
        "have one order in all, and the first that is not over has all its members ready. Assumed: all run one "
        "program. Before rows move workers compare what they are about to do, and end together where they differ."
    )


def _nic_bytes(numbers: Numbers) -> str:
    listed = "; ".join(f"{name} {lookup} + {gradients}" for name, lookup, gradients in numbers["tables"])
    return (
        "Out of a node's NICs go in a step, if every worker touches all rows, at most so many bytes for a lookup and "
        f"its gradients, in float32 or the table's codec: {listed}. A step that touches a share of them, spread over "
        "the owners as all rows are, sends that share: of a worker on average, or of a node's workers together where "
        "they agree first. Parallax's tables, which know no shared NICs, say for a share a of b bytes: 2ab for a GPU "
        "by servers and 2(N-1)ab by all-gather (2018, Table 3); 4ab(N-1)/N and 2ab(N-1) for a machine, in and out "
        "(2019)."
    )


def _row_error(schedule: Schedule, numbers: Numbers) -> str:
    codecs = {route.parameter: route.codec for route in _coded(schedule)}
    told = "; ".join(
        f"{name} in {codecs[name]} {upper(Fraction(relative), 3)} and {upper(Fraction(absolute), 2)}"
        for name, relative, absolute in numbers["gradients"]
    )
    return (
        "A row is rounded once, by its owner for whoever looks it up; where it lives it stays exact, and so does the "
        "optimizer's state. The sum of the gradients that workers bring for a row is off the exact one by at most so "
        "large a part of the sum of their magnitudes (int8: of each one's largest in the row), and so much near zero, "
        f"after one rounding of each, or it is not finite: {told}."
    )
