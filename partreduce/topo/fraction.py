"""Exact numbers in documents: an integer, or a fraction string such as "4/3"; never a float."""

from __future__ import annotations

import re
from fractions import Fraction

from partreduce.topo.place import format_value

MAX_DIGITS = 64
_DIGITS = rf"[1-9][0-9]{{0,{MAX_DIGITS - 1}}}"
PATTERN = rf"^-?(0|{_DIGITS})(/{_DIGITS})?$"
_FRACTION = re.compile(rf"(-?(?:0|{_DIGITS}))(?:/({_DIGITS}))?")


def parse_fraction(value: object) -> Fraction:
    """The exact number that a document gives; the message of a ValueError completes "<place>: "."""
    if type(value) is int:
        return Fraction(value)
    if not isinstance(value, str):
        raise ValueError(f'is {format_value(value)}; it must be exact: an integer or a fraction string such as "4/3"')  # noqa: TRY004
    match = _FRACTION.fullmatch(value)
    if match is None:
        raise ValueError(
            f'is {format_value(value)}; a fraction string is such as "4/3": at most {MAX_DIGITS} digits each, '
            "no spaces, no leading zeros, no zero below"
        )
    return Fraction(int(match[1]), int(match[2] or 1))


def dump_fraction(value: Fraction) -> int | str:
    """An integer where it is one and short enough to stay exact everywhere, a fraction string otherwise."""
    if value.denominator == 1 and abs(value.numerator) < 2**53:
        return value.numerator
    if max(abs(value.numerator), value.denominator) >= 10**MAX_DIGITS:
        raise ValueError(f"is a fraction of more than {MAX_DIGITS} digits; round it with Fraction.limit_denominator")
    return str(value)
