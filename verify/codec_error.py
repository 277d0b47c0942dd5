"""Claim `codec-error`: how far a coded mean may be from the exact one, as a part of what the members of a group give.

Theorem, and the stages of every form: `verify/checker/facts/codec_error.py`. The arithmetic here is the same, on its
own, from the numbers of `topo.codec_numbers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil

import numpy as np

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Codec, CodecScope, How
from partreduce.verify.base import Claim, Status, fact
from partreduce.verify.forms import Spread, of_block, of_everybody
from partreduce.verify.view import explicit_view, rule_view

NAME = "codec-error"
SINGLE = Fraction(1, 2**24)
SMALLEST_SINGLE = Fraction(1, 2**150)
FIRST_ROUNDINGS = 3
"""In float32, of what a member gives: a difference, a division, a conversion."""

Pair = tuple[Fraction, Fraction]


def prove_codec_error(schedule: Schedule) -> Claim | None:
    """The largest error over all groups, None without a codec. O(size of the schedule)."""
    strategy = schedule.strategy
    if strategy.how.codec is Codec.NONE:
        return None
    sums = [coded_sum(strategy.how, spread) for spread in set(_spreads(schedule))]
    relative, absolute = rounded_up(max(one[0] for one in sums), max(one[1] for one in sums))
    roundings = max(one[2] for one in sums)
    what = "gradients" if strategy.averages_gradients else "what was added to parameters since all had the same"
    text = in_words(strategy.how, relative, absolute, roundings, what)
    return fact(NAME, text, relative=str(relative), absolute=str(absolute), roundings=roundings)


def codec_error_of_a_server(schedule: Schedule) -> Claim | None:
    """The same for sums that hosts decode, add and code again: they have no entry in a certificate."""
    how = schedule.strategy.how
    if how.codec is Codec.NONE:
        return None
    relative, absolute = rounded_up(*through_hosts(how, schedule.num_workers))
    text = in_words(how, relative, absolute, 2, "gradients")
    witness = {"relative": str(relative), "absolute": str(absolute), "roundings": 2}
    return Claim(NAME, Status.FACT, text, witness)


def in_words(how: How, relative: Fraction, absolute: Fraction, roundings: int, what: str) -> str:
    """A bound as a sentence."""
    each = "of each member's largest in its block" if how.codec is Codec.INT8 else "of the members' magnitudes"
    rest = " What error feedback adds from earlier steps counts as given." if how.error_feedback else ""
    return (
        f"Each decoded number is off the exact mean of {what} by at most {float(relative):.3g} times the mean {each}, "
        f"and {float(absolute):.2g} near zero, after {roundings} roundings by the codec {how.codec}, or it is not "
        f"finite. Claims about averaging speak of the exact averages; rounding adds this much to each.{rest}"
    )


def coded_sum(how: How, spread: Spread) -> tuple[Fraction, Fraction, int]:
    """(relative, absolute, roundings) of one group's sum."""
    count, unit = spread.size, error_of(how)
    inside, nodes = (spread.inside, spread.nodes) if spread.has_stages(how) else (1, count)
    steps: list[Pair] = [(SINGLE, count * SMALLEST_SINGLE)] * FIRST_ROUNDINGS
    if not spread.is_coded(how):
        return (*_followed([*steps, _adding(count, SINGLE)]), 0)
    eight = how.codec is Codec.INT8
    own = SINGLE if eight else unit[0]
    if how.where is CodecScope.ACROSS_NODES:
        steps += [_adding(inside, SINGLE), _rounding(nodes, unit)]
        inside = 1
    else:
        steps += [_rounding(count, unit), _adding(inside, own)]
        if eight and inside > 1:
            steps.append(_rounding(nodes, unit))
    steps.append(_adding(nodes, own))
    if eight:
        steps.append(_rounding(1, unit))
    return (*_followed(steps), 2 + int(inside > 1) if eight else inside + nodes - 1)


def of_rows(codec: Codec) -> Pair:
    """(relative, absolute) of a table's row that its owner hands out: one rounding, int8 with one scale for the row."""
    return error_of(How(codec=codec))


def of_gradients(codec: Codec, count: int, inside: int) -> Pair:
    """(relative, absolute) of a sum of `count` coded rows in float32, each the sum of `inside` workers' at most."""
    unit = error_of(How(codec=codec))
    return _followed([_adding(inside, SINGLE), _rounding(count, unit), _adding(count, SINGLE)])


def through_hosts(how: How, count: int) -> Pair:
    """(relative, absolute) of a sum of `count` numbers that a host adds in float32."""
    unit = error_of(how)
    steps = [(SINGLE, count * SMALLEST_SINGLE)] * FIRST_ROUNDINGS
    return _followed([*steps, _rounding(count, unit), _adding(count, SINGLE), _rounding(1, unit)])


def rounded_up(relative: Fraction, absolute: Fraction) -> Pair:
    """Simple numbers that are no smaller: a multiple of 2^-32, and a power of 2 (both are positive)."""
    least = Fraction(2) ** (ceil(absolute).bit_length())
    while least / 2 >= absolute:
        least /= 2
    return Fraction(ceil(relative * 2**32), 2**32), least


def error_of(how: How) -> Pair:
    """(e, t) of one rounding: it is off by at most e times the number (int8: the block's largest), plus t."""
    match how.codec:
        case Codec.FLOAT16:
            return Fraction(1, 2**11), Fraction(1, 2**25)
        case Codec.BFLOAT16:
            return Fraction(1, 2**8), Fraction(1, 2**134)
        case _:
            return Fraction(1, 254) + Fraction(1, 2**21), Fraction(1, 2**119)


def _rounding(count: int, unit: Pair) -> Pair:
    return unit[0], count * unit[1]


def _adding(count: int, unit: Fraction) -> Pair:
    return (count - 1) * unit, Fraction(0)


def _followed(steps: Sequence[Pair]) -> Pair:
    """The error after all steps: each adds a part of the size that there is, and something.

    The size grows by what the error does, so it is 1 and the error's own relative part, and its absolute part.
    """
    relative, absolute = Fraction(0), Fraction(0)
    for part, more in steps:
        relative, absolute = relative + part * (1 + relative), absolute + part * absolute + more
    return relative, absolute


def _spreads(schedule: Schedule) -> Iterator[Spread]:
    """Of all groups, or one of a kind."""
    rule = rule_view(schedule)
    if schedule.prologue:
        yield of_everybody(schedule)
    if rule is not None:
        for block in {block for phase in rule.phases for block in phase if block.makes_groups}:
            yield of_block(rule, schedule, block.local, block.across)
    node_of = schedule.cluster.node_of()
    for phase in filter(len, explicit_view(schedule) or ()):
        for members in np.split(phase.members, phase.offsets[1:-1]):
            yield Spread.of(node_of[members])
