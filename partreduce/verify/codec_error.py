"""Claim `codec-error`: how far a coded mean may be from the exact one, as a part of what the members of a group give.

The theorem, the stages of every algorithm and the arithmetic stand in `verify/checker/codec_error.py`.
"""

from __future__ import annotations

from fractions import Fraction

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Codec, Transport
from partreduce.verify.base import Claim, Status, upper
from partreduce.verify.checker.codec_error import (
    FIRST_ROUNDINGS,
    ROUNDING,
    SINGLE,
    SMALLEST_SINGLE,
    FollowedSum,
    rounded_up,
)
from partreduce.verify.stated import Numbers, Stated

NAME = "codec-error"


def codec_error(schedule: Schedule, stated: Stated) -> Claim | None:
    """The largest error over all groups, None without a codec."""
    strategy = schedule.strategy
    averaged = "gradients" if strategy.averages_gradients else "what was added to parameters since all had the same"
    return stated.claim(NAME, lambda numbers: _in_words(strategy.transport, numbers, averaged))


def codec_error_of_a_server(schedule: Schedule) -> Claim | None:
    """The same for sums that hosts decode, add and code again: the checker reads no schedule of servers."""
    transport = schedule.strategy.transport
    if transport.codec is Codec.NONE:
        return None
    unit, count, added = ROUNDING[transport.codec.value], schedule.num_workers, FollowedSum()
    for _ in range(FIRST_ROUNDINGS):
        added.round(count, SINGLE, SMALLEST_SINGLE)
    added.round(count, *unit)
    added.add(count, SINGLE)
    added.round(1, *unit)
    relative, absolute = rounded_up(added)
    witness = {"relative": relative, "absolute": absolute, "roundings": 2}
    return Claim(NAME, Status.FACT, _in_words(transport, witness, "gradients"), witness)


def _in_words(transport: Transport, numbers: Numbers, averaged: str) -> str:
    each = "of each member's largest in its block" if transport.codec.has_blocks else "of the members' magnitudes"
    rest = " What error feedback adds from earlier steps counts as given." if transport.error_feedback else ""
    part, near_zero = upper(Fraction(numbers["relative"]), 3), upper(Fraction(numbers["absolute"]), 2)
    return (
        f"Each decoded number is off the exact mean of {averaged} by at most {part} times the mean {each}, and "
        f"{near_zero} near zero, after {numbers['roundings']} roundings by the codec {transport.codec}, or it is "
        f"not finite. Claims about averaging speak of the exact averages; rounding adds this much to each.{rest}"
    )
