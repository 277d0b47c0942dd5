"""Reading two axes of a strategy: `when`, how late what an average gives may be, and `how` it travels.

A merge (`when`) is late by steps inside a round. A gap is read in `kept_gap`, a quorum in `quorum`. A pipeline delays
gradients by `width` - 1 steps, after `warm_up` steps in lockstep. Of `how` the `codec` says what the numbers of a sum
are rounded to, and `where` in which of its stages.
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
HOW: dict[str, object] = {
    "form": "ring",
    "codec": "none",
    "where": "all",
    "block": 256,
    "error_feedback": False,
    "sending": "whole",
}
CHOICES: dict[str, tuple[object, ...]] = {
    "drain": ("apply", "drop"),
    "total": ("mean", "sum"),
    "form": ("ring", "hierarchical"),
    "codec": ("none", "float16", "bfloat16", "int8", "int4"),
    "where": ("all", "across-nodes"),
    "error_feedback": (False, True),
    "sending": ("whole", "layers"),
}
"""What a member of `when.pipeline` or of `how` may be; the others are numbers."""
BLOCKS = ("int8", "int4")
"""Codecs of which neighbouring numbers share a scale."""


class When(NamedTuple):
    """Whether averages of parameters are late, and what there is instead of rounds in lockstep or one late.

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


def read_when(raw: dict[str, Any], num_workers: int) -> When:
    """The value of the axis, which is brought into canonical form in place."""
    when = raw.get("when", "lockstep")
    if not isinstance(when, dict):
        as_choice(when, "strategy.when", ("lockstep",))
        return When()
    if "gap" in when:
        as_object(when, "strategy.when", ("gap",))
        gap = read_gap(when["gap"], "strategy.when.gap")
        return When(is_late=gap.order == "parallel", gap=gap)
    if "quorum" in when:
        as_object(when, "strategy.when", ("quorum",))
        return When(quorum=read_quorum(when["quorum"], "strategy.when.quorum", num_workers))
    if "merge" in when:
        return _read_merge(as_object(when, "strategy.when", ("merge",))["merge"], "strategy.when.merge")
    if "pipeline" not in when:
        as_object(when, "strategy.when", ("late",))
        as_choice(when["late"], "strategy.when.late", (1,))
        return When(is_late=True)
    as_object(when, "strategy.when", ("pipeline",))
    pipeline = PIPELINE | _read_members(when["pipeline"], "strategy.when.pipeline", PIPELINE)
    as_integer(pipeline["width"], "strategy.when.pipeline.width", 2, LIMIT)
    return When(pipeline=pipeline)


def _read_merge(raw: object, place: str) -> When:
    """A closed object; what equals its default is left out, in place."""
    members = as_object(raw, place, (), ("steps", "alpha"))
    steps = as_integer(members.pop("steps", 0), f"{place}.steps", 0, 2**53)
    kept = as_number(members.pop("alpha", 0), f"{place}.alpha")
    require(0 <= kept < 1, f"{place}.alpha", "at least 0 and below 1")
    require(steps > 0 or kept > 0, place, "without steps and alpha it is lockstep")
    members |= {"steps": steps} if steps else {}
    members |= {"alpha": shortest(kept)} if kept else {}
    return When(steps=steps, kept=kept)


def read_how(raw: dict[str, Any], *, averages_gradients: bool, repeats_sums: bool) -> dict[str, Any]:
    """All members of `how`, which must go together and with what is sent."""
    place = "strategy.how"
    how = HOW | _read_members(raw.setdefault("how", {}), place, HOW)
    changed = {name for name, value in how.items() if value != HOW[name]}
    require(raw["kind"] != "neighbor" or not changed, place, "parameters go to neighbours as they are")
    of_blocks = changed & {"block", "error_feedback"}
    require(how["codec"] in BLOCKS or not of_blocks, place, f"{sorted(of_blocks)}: only int8 and int4 have it")
    is_apart = how["form"] == "hierarchical" and how["codec"] != "none"
    require("where" not in changed or is_apart, place, "where: goes with a codec and the form hierarchical")
    require("sending" not in changed or averages_gradients, place, "sending: goes with gradients in each step")
    may_feed = "error_feedback" not in changed or repeats_sums
    require(may_feed, place, "error_feedback: goes with sums over all in each round, none of them late")
    return how


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
