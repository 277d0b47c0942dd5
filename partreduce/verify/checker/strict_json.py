"""Reading JSON strictly, and taking values out of it: each function returns a value of its kind or refuses the file."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from .refusal import UNREADABLE, Refusal, confirm, require

MAX_BYTES = 2**27
"""The largest file that is read unless `--max-bytes` says otherwise."""
MAX_DEPTH = 32
"""Objects and lists in one another, the outermost included."""
LONGEST = 2**53
"""Integers of a schedule are smaller, because not every reader of JSON keeps others."""


def read_file(path: str, *, is_certificate: bool, limit: int = MAX_BYTES) -> Any:  # noqa: ANN401 - parsed JSON
    """The value in a file: UTF-8, no key twice, no float, no half of a character, at most 32 levels.

    A certificate has no true, false or null either, and a schedule no integer that others would round.
    """

    def object_of(members: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(members)
        require(len(result) == len(members), path, "an object has a key twice")
        return result

    def check_failed(text: str) -> NoReturn:
        raise Refusal(f"{path}: {text[:40]}: numbers are integers or fraction strings", UNREADABLE)

    def integer(digits: str) -> int:
        value = int(digits)
        require(abs(value) < LONGEST, path, f"{digits[:40]}: is an integer that others would round")
        return value

    with Path(path).open("rb") as file:
        data = file.read(limit + 1)  # a device or a pipe has no size that could be asked for
    require(len(data) <= limit, path, f"is larger than {limit} bytes; --max-bytes raises the limit")
    if is_certificate:
        require(not re.search(rb"true|false|null", data), path, "true, false and null have no place here")
    may_be_long = not is_certificate and re.search(rb"[0-9]{16}", data)
    hooks: dict[str, Any] = {
        "object_pairs_hook": object_of,
        "parse_float": check_failed,
        "parse_constant": check_failed,
    }
    try:
        value = json.loads(data.decode(), parse_int=integer if may_be_long else None, **hooks)
        if re.search(rb"\\u[dD][89a-fA-F]", data):
            json.dumps(value, ensure_ascii=False).encode()  # half of a character is no text
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{path}: is not JSON in UTF-8: {error}", UNREADABLE) from None
    level: list[Any] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        parts = chain.from_iterable(part.values() if type(part) is dict else part for part in level)
        level = [part for part in parts if type(part) is dict or type(part) is list]
    require(not level, path, f"is nested deeper than {MAX_DEPTH} levels")
    return value


def require_members(given: Collection[str], place: str, needed: Iterable[str], optional: Iterable[str] = ()) -> None:
    """Of a closed object: every one of `needed`, perhaps some of `optional`, and nothing else."""
    needed = list(needed)
    unknown = [key for key in given if key not in {*needed, *optional}]
    missing = [key for key in needed if key not in given]
    require(not unknown, place, f"has unknown keys {unknown[:3]}"[:200])
    require(not missing, place, f"lacks {missing[:3]}")


def as_object(value: object, place: str, members: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Any]:
    """A closed object."""
    if not isinstance(value, dict):
        raise Refusal(f"{place}: must be an object", UNREADABLE)
    require_members(value, place, members, optional)
    return value


def as_list(value: object, place: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise Refusal(f"{place}: must be a list", UNREADABLE)
    return value


def as_choice(value: object, place: str, choices: Sequence[object]) -> None:
    """One of a few constants, and of its very type: 1 is neither `true` nor "1"."""
    fits = any(type(value) is type(choice) and value == choice for choice in choices)
    require(fits, place, f"must be one of {list(choices)}")


def as_integer(value: object, place: str, low: int, high: int) -> int:
    """An integer from `low` to `high` − 1; `true` is none."""
    if type(value) is not int or not low <= value < high:
        raise Refusal(f"{place}: must be an integer {low}..{high - 1}", UNREADABLE)
    return value


def as_integers(value: object, place: str, low: int, high: int) -> list[int]:
    """A list of integers from `low` to `high` − 1. Looks at millions of them in C."""
    integers = as_list(value, place)
    fits = set(map(type, integers)) <= {int} and (not integers or (low <= min(integers) and max(integers) < high))
    require(fits, place, f"must hold integers {low}..{high - 1}")
    return integers


def as_fraction(value: object, place: str) -> Fraction:
    """An exact number of a certificate: a text such as "4/3" in lowest terms, so that each number has one spelling."""
    well_formed = isinstance(value, str) and re.fullmatch(r"-?\d{1,4000}(/[1-9]\d{0,3999})?", value)
    confirm(well_formed and str(Fraction(str(value))) == value, place, value, "a fraction string in lowest terms")
    return Fraction(str(value))
