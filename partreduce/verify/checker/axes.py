"""Reading two axes of a strategy: `sync`, how late what an average gives may be, and `transport`, how it travels.

A merge (`sync`) is late by steps inside a round. A gap is read in `kept_gap`, a quorum in `quorum`. A pipeline delays
gradients by `width` - 1 steps, after `warm_up` synchronous steps. Of `transport` the `codec` says what the numbers of
a sum are rounded to, and `where` in which of its stages.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

from .kept_gap import KeptGap, read_gap
from .quorum import StartedRounds, read_quorum
from .refusal import require
from .strict_json import as_choice, as_integer, as_number, as_object, shortest

LIMIT = 2**31
"""No width and no block reaches this."""

PIPELINE: dict[str, object] = {"width": 2, "warm_up": 0, "drain": "apply", "total": "mean"}
TRANSPORT: dict[str, object] = {
    "algorithm": "ring",
    "codec": "none",
    "where": "all",
    "block": 256,
    "error_feedback": False,
    "gradient_buckets": "single",
}
CHOICES: dict[str, tuple[object, ...]] = {
    "drain": ("apply", "drop"),
    "total": ("mean", "sum"),
    "algorithm": ("ring", "hierarchical"),
    "codec": ("none", "float16", "bfloat16", "int8", "int4"),
    "where": ("all", "across-nodes"),
    "error_feedback": (False, True),
    "gradient_buckets": ("single", "per_layer"),
}
"""What a member of `sync.pipeline` or of `transport` may be; the others are numbers."""
BLOCKS = ("int8", "int4")
"""Codecs of which neighboring numbers share a scale."""


class Sync(NamedTuple):
    """Whether averages of parameters are late, and what there is instead of rounds that are synchronous or one late.

    With `steps` or `kept` the average is of what workers had so many steps before a round's end, and there they keep
    that share of their own. `pipeline` has all members of a pipeline of gradients, or none; `gap` is one that is kept,
    `quorum` starts rounds.
    """

    is_late: bool = False
    pipeline: dict[str, Any] = {}  # noqa: RUF012 - never changed
    gap: KeptGap | None = None
    quorum: StartedRounds | None = None
    steps: int = 0
    kept: Fraction = Fraction(0)


def read_sync(raw: dict[str, Any], num_workers: int) -> Sync:
    """The value of the axis, which is brought into canonical form in place."""
    sync = raw.get("sync", "synchronous")
    if not isinstance(sync, dict):
        as_choice(sync, "strategy.sync", ("synchronous",))
        return Sync()
    if "iteration_gap" in sync:
        as_object(sync, "strategy.sync", ("iteration_gap",))
        gap = read_gap(sync["iteration_gap"], "strategy.sync.iteration_gap")
        return Sync(is_late=gap.update_order == "dpsgd", gap=gap)
    if "partial" in sync:
        as_object(sync, "strategy.sync", ("partial",))
        return Sync(quorum=read_quorum(sync["partial"], "strategy.sync.partial", num_workers))
    if "merge" in sync:
        return _read_merge(as_object(sync, "strategy.sync", ("merge",))["merge"], "strategy.sync.merge")
    if "pipeline" not in sync:
        as_object(sync, "strategy.sync", ("delay",))
        as_choice(sync["delay"], "strategy.sync.delay", (1,))
        return Sync(is_late=True)
    as_object(sync, "strategy.sync", ("pipeline",))
    pipeline = PIPELINE | _read_members(sync["pipeline"], "strategy.sync.pipeline", PIPELINE)
    as_integer(pipeline["width"], "strategy.sync.pipeline.width", 2, LIMIT)
    return Sync(pipeline=pipeline)


def _read_merge(raw: object, place: str) -> Sync:
    """A closed object; what equals its default is left out, in place."""
    members = as_object(raw, place, (), ("steps", "alpha"))
    steps = as_integer(members.pop("steps", 0), f"{place}.steps", 0, 2**53)
    kept = as_number(members.pop("alpha", 0), f"{place}.alpha")
    require(0 <= kept < 1, f"{place}.alpha", "at least 0 and below 1")
    require(steps > 0 or kept > 0, place, "without steps and alpha it is synchronous")
    members |= {"steps": steps} if steps else {}
    members |= {"alpha": shortest(kept)} if kept else {}
    return Sync(steps=steps, kept=kept)


def read_transport(raw: dict[str, Any], *, averages_gradients: bool, repeats_sums: bool) -> dict[str, Any]:
    """All members of `transport`, which must go together and with what is sent."""
    place = "strategy.transport"
    transport = TRANSPORT | _read_members(raw.setdefault("transport", {}), place, TRANSPORT)
    changed = {name for name, value in transport.items() if value != TRANSPORT[name]}
    require(raw["kind"] != "neighbor" or not changed, place, "parameters go to neighbors as they are")
    of_blocks = changed & {"block", "error_feedback"}
    require(transport["codec"] in BLOCKS or not of_blocks, place, f"{sorted(of_blocks)}: only int8 and int4 have it")
    is_apart = transport["algorithm"] == "hierarchical" and transport["codec"] != "none"
    require("where" not in changed or is_apart, place, "where: goes with a codec and the algorithm hierarchical")
    may_bucket = "gradient_buckets" not in changed or averages_gradients
    require(may_bucket, place, "gradient_buckets: goes with gradients in each step")
    may_feed = "error_feedback" not in changed or repeats_sums
    require(may_feed, place, "error_feedback: goes with sums over all in each round, none of them late")
    return transport


def _read_members(raw: object, place: str, defaults: dict[str, object]) -> dict[str, Any]:
    """An object of optional members, without those that equal their default."""
    members = as_object(raw, place, (), defaults)
    for name, value in list(members.items()):
        if name in CHOICES:
            as_choice(value, f"{place}.{name}", CHOICES[name])
        else:
            as_integer(value, f"{place}.{name}", 0 if name == "warm_up" else 1, 2**53 if name == "warm_up" else LIMIT)
        if value == defaults[name]:
            del members[name]
    return members
