"""Prove claims about the payload: memory, bytes sent, codec errors, and separately exchanged embedding tables.

The theorems and the numbers are the checker's (`verify/checker/`). This module checks that the runtime's function for
the owner of a row agrees with the schedule: for all rows, or for random rows of large tables.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.strategies.payload import PLAIN, Placement, TablePlacement
from partreduce.verify.base import Claim, Status, refuted, upper
from partreduce.verify.checker import codec_error
from partreduce.verify.facts import If, Numbers, ScheduleFacts, Statement, fact, format_sentence
from partreduce.verify.rounds import has_codec

SENT = ("of_worker", "of_node", "in_flight")
ASKED = 2**12
"""Most rows of a table for which the owner is computed and compared."""

CODEC_ERROR_SENTENCE = (
    (
        "Each decoded number is off the exact mean of {averaged} by at most {part} times the mean {each}, and "
        "{near_zero} near zero, after {roundings} roundings by the codec {schedule.strategy.transport.codec}, or it is "
        "not finite. Other claims are about exact averages; rounding adds at most this to each."
    ),
    If(
        lambda s, _: s.strategy.transport.error_feedback,
        " What error feedback adds from earlier steps counts as input.",
    ),
)


def _of_codec(schedule: Schedule, numbers: Numbers) -> Mapping[str, object]:
    strategy = schedule.strategy
    is_gradients = strategy.averages_gradients or strategy.kind == "server"
    blocks = strategy.transport.codec.has_blocks
    return {
        "averaged": "gradients" if is_gradients else "the change of the parameters since all were equal",
        "each": "of each member's largest in its block" if blocks else "of the members' magnitudes",
        "part": upper(Fraction(numbers["relative"]), 3),
        "near_zero": upper(Fraction(numbers["absolute"]), 2),
    }


CODEC_ERROR = fact("codec-error", CODEC_ERROR_SENTENCE, _of_codec, essential=has_codec)


def _codec_error_of_server(facts: ScheduleFacts) -> Claim | None:
    """Bound the rounding error of parameter servers, which decode, add and encode again; None without a lossy codec.

    It is computed here because the checker reads no schedules of servers.
    """
    schedule, n = facts.schedule, facts.schedule.num_workers
    if not has_codec(schedule, {}):
        return None
    unit, added = codec_error.ROUNDING[schedule.strategy.transport.codec.value], codec_error.FollowedSum()
    for _ in range(codec_error.FIRST_ROUNDINGS):
        added.round(n, codec_error.SINGLE, codec_error.SMALLEST_SINGLE)
    added.round(n, *unit)
    added.add(n, codec_error.SINGLE)
    added.round(1, *unit)
    relative, absolute = codec_error.rounded_up(added)
    numbers: Numbers = {"relative": relative, "absolute": absolute, "roundings": 2}
    words = format_sentence(CODEC_ERROR_SENTENCE, schedule, numbers, _of_codec)
    return Claim("codec-error", Status.FACT, words, numbers)


CODEC_ERROR_OF_SERVER = Statement("codec-error", _codec_error_of_server, essential=has_codec)

ARRAYS = {
    If(
        lambda s, _: s.strategy.mixes_late or s.strategy.averaging is Averaging.STEP_NORMALIZED,
        ", and one for the parameters with which a round began",
    ): 1,
    If(
        lambda s, n: not s.strategy.averages_gradients and (has_codec(s, n) or not s.strategy.payload.outer.is_plain),
        (", and one for the reference from which ", If(has_codec, "coded "), "differences are taken"),
    ): 1,
    If(lambda s, _: s.strategy.payload.outer.momentum > 0, ", and one for the momentum of outer steps"): 1,
    If(lambda s, _: s.strategy.transport.error_feedback, ", and at most two for what error feedback keeps"): 2,
}
"""Clauses of the sentence on memory, one for each use of parameter-sized arrays besides sums, with their number."""


def _of_memory(schedule: Schedule, numbers: Numbers) -> Mapping[str, object]:
    sync = schedule.strategy.sync
    besides = sum(count for clause, count in ARRAYS.items() if clause.condition(schedule, numbers))
    return {
        "codec": schedule.strategy.transport.codec,
        "sources": numbers["arrays"] - 1 - besides,
        "sums": sync.lag + 1 if sync.delays_gradients else 1,
    }


MEMORY = fact(
    "memory",
    (
        "A worker ",
        If(
            lambda s, _: s.strategy.graphs,
            "exchanges with at most {connections} others",
            (
                "is in at most {groups} distinct groups",
                If(
                    lambda s, _: s.strategy.transport.codec.has_blocks,
                    " ({codec} has a second communicator for each that goes as a ring)",
                ),
                ", with {connections} other members together",
            ),
        ),
        (
            "; {splits} different rounds of the period exchange anything. Besides its parameters it keeps at most "
            "{arrays} arrays of their size ("
        ),
        If(
            lambda s, _: s.strategy.graphs,
            "one for the sums and {sources} for what its neighbors send",
            If(
                lambda s, _: s.strategy.sync.delays_gradients,
                "{sums} for the sums in flight and the one that is applied",
                "one for the sums",
            ),
        ),
        *ARRAYS,
        "), so {arrays} scratch bytes for each byte of parameters.",
    ),
    _of_memory,
)

SENT_BYTES = fact(
    "sent-bytes",
    "For each byte of {what} at most {of_worker} bytes leave a worker and {of_node} a node in one {turn}, of which a "
    "step begins at most one. Operations on at most {in_flight} bytes are in flight at a time; each counts once, "
    "however many workers it sends to. Rounding up to whole numbers and blocks is not counted, and sums go around one "
    "ring in the order of ranks.",
    lambda s, n: {
        "what": "the largest fragment" if n["parts"] > 1 else "gradients" if s.strategy.averages_gradients else
        "the model",
        "turn": "turn" if n["parts"] > 1 else "round",
        **{name: upper(Fraction(n[name])) for name in SENT},
    },
)  # fmt: skip


def in_bytes(numbers: Mapping[str, Any], model_bytes: int) -> dict[str, int]:
    """Convert the fact `sent-bytes` (keys `SENT`) to bytes, rounded up, for a model with equally large fragments."""
    return {name: ceil(Fraction(numbers[name]) * model_bytes / numbers["parts"]) for name in SENT}


def as_tables_only(schedule: Schedule) -> Schedule:
    """Return a copy of the schedule that exchanges only the embedding tables, by All-Reduce in every step.

    The copy has neither outer steps nor fragments, which concern only other parameters.
    """
    return replace(schedule, strategy=AllReduce(payload=replace(schedule.routes, outer=PLAIN, fragments=1)))


def _sharded_tables(schedule: Schedule) -> list[TablePlacement]:
    return [route for route in schedule.routes.tables if route.way is Placement.SHARDED]


def _prove_one_owner(facts: ScheduleFacts) -> Claim | None:
    rows = {route.parameter: route.rows for route in _sharded_tables(facts.schedule)}

    def owners(_: Schedule, numbers: Numbers) -> Mapping[str, object]:
        parts = (
            f"{name} has {owners} owners with {least} to {most} of {rows[name]} rows"
            for name, owners, least, most in numbers["tables"]
        )
        return {"owners": "; ".join(parts), "asked": ASKED}

    for route in _sharded_tables(facts.schedule):
        if (wrong := _wrong_owner(facts.schedule, route)) is not None:
            text = (
                f"row {wrong['row']} of {route.parameter} lies on worker {wrong['owner']}, not on the host of its part."
            )
            return refuted("one-owner", text, {"parameter": route.parameter, **wrong})
    sentence = (
        "Every row of a sharded table lies on exactly one worker, the host of its part: {owners}. The runtime's "
        "function for the owner was evaluated for all rows, or for {asked} random ones."
    )
    return facts.claim("one-owner", sentence, owners)


def _wrong_owner(schedule: Schedule, route: TablePlacement) -> dict[str, int] | None:
    """Return a row of a sharded table for which `Schedule.owner_of` is not the host of the row's part.

    The result, the witness of a refuted claim, has the row and the rank that was returned, −1 for none. None if all
    rows agree, or in a large table all that were drawn.
    """
    hosts = route.hosts or range(schedule.num_workers)
    parts = route.partitions or len(hosts)
    rows = range(route.rows) if route.rows <= ASKED else sorted(random.Random(0).sample(range(route.rows), ASKED))
    for row in rows:
        part = row - row // parts * parts
        owner = schedule.owner_of(route.parameter, row)
        if owner != hosts[part - part // len(hosts) * len(hosts)]:
            return {"row": row, "owner": -1 if owner is None else owner}
    return None


TABLES = (
    Statement("one-owner", _prove_one_owner, essential=lambda s, _: _sharded_tables(s)),
    fact(
        "table-order",
        "All workers do the same lookups, backward passes and steps in one order, each of them in the same operations "
        "of all workers or of those of each node, on separate communicators. So these operations have one order, and "
        "the first unfinished one has all its members ready. Assumed: all workers run one program. Before rows move, "
        "workers compare their next operation, and end together if they differ.",
        essential=lambda s, _: s.routes.apart,
    ),
    fact(
        "nic-bytes",
        "If every worker uses all rows in a step, a node's NICs send at most so many bytes for a lookup and its "
        "gradients, in float32 or the table's codec: {listed}. A step that uses a share of the rows, spread over the "
        "owners as all rows are, sends that share: of a worker on average, or of a node's workers together where they "
        "are merged first. Parallax's tables, without shared NICs, have for a share a of b bytes: 2ab for a GPU by "
        "servers and 2(N-1)ab by all-gather (2018, Table 3); 4ab(N-1)/N and 2ab(N-1) for a machine, in and out (2019).",
        lambda _, n: {"listed": "; ".join(f"{name} {lookup} + {sums}" for name, lookup, sums in n["tables"])},
    ),
)
"""Statements on separately exchanged embedding tables, about the schedule that `as_tables_only` returns."""
