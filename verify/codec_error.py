"""Claim `codec-error`: how far a coded mean may be from the exact one, as a part of what the members of a group give.

The theorem, the stages of every form and the arithmetic stand in `verify/checker/facts/codec_error.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Codec, How
from partreduce.verify.base import Claim, Status, fact
from partreduce.verify.checker.facts.codec_error import (
    FIRST_ROUNDINGS,
    ROUNDING,
    SINGLE,
    SMALLEST_SINGLE,
    FollowedSum,
    coded_sum,
    rounded_up,
)
from partreduce.verify.forms import Spread, of_block, of_everybody
from partreduce.verify.view import explicit_view, rule_view

NAME = "codec-error"


def prove_codec_error(schedule: Schedule) -> Claim | None:
    """The largest error over all groups, None without a codec. O(size of the schedule)."""
    strategy = schedule.strategy
    if strategy.how.codec is Codec.NONE:
        return None
    how = {"codec": strategy.how.codec.value, "where": strategy.how.where.value}
    sums = [coded_sum(how, *_shape(strategy.how, spread)) for spread in set(_spreads(schedule))]
    relative, absolute = rounded_up(*sums)
    roundings = max(one.roundings for one in sums)
    what = "gradients" if strategy.averages_gradients else "what was added to parameters since all had the same"
    text = in_words(strategy.how, relative, absolute, roundings, what)
    return fact(NAME, text, relative=relative, absolute=absolute, roundings=roundings)


def codec_error_of_a_server(schedule: Schedule) -> Claim | None:
    """The same for sums that hosts decode, add and code again: they have no entry in a certificate."""
    how = schedule.strategy.how
    if how.codec is Codec.NONE:
        return None
    unit, count, added = ROUNDING[how.codec.value], schedule.num_workers, FollowedSum()
    for _ in range(FIRST_ROUNDINGS):
        added.round(count, SINGLE, SMALLEST_SINGLE)
    added.round(count, *unit)
    added.add(count, SINGLE)
    added.round(1, *unit)
    relative, absolute = rounded_up(added)
    text = in_words(how, relative, absolute, 2, "gradients")
    witness = {"relative": relative, "absolute": absolute, "roundings": 2}
    return Claim(NAME, Status.FACT, text, witness)


def in_words(how: How, relative: str, absolute: str, roundings: int, what: str) -> str:
    """A bound as a sentence."""
    each = "of each member's largest in its block" if how.codec.has_blocks else "of the members' magnitudes"
    rest = " What error feedback adds from earlier steps counts as given." if how.error_feedback else ""
    part, near_zero = float(Fraction(relative)), float(Fraction(absolute))
    return (
        f"Each decoded number is off the exact mean of {what} by at most {part:.3g} times the mean {each}, "
        f"and {near_zero:.2g} near zero, after {roundings} roundings by the codec {how.codec}, or it is not "
        f"finite. Claims about averaging speak of the exact averages; rounding adds this much to each.{rest}"
    )


def _shape(how: How, spread: Spread) -> tuple[int, int]:
    """(members on each node, nodes) of its stages: 1 on each where it goes as a ring, 1 node where nothing is coded."""
    if not spread.is_coded(how):
        return spread.size, 1
    return (spread.inside, spread.nodes) if spread.has_stages(how) else (1, spread.size)


def _spreads(schedule: Schedule) -> Iterator[Spread]:
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
