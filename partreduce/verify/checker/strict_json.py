"""Read JSON files strictly, and exact fractions from strings."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from .refusal import UNREADABLE, Refusal, confirm, require

MAX_BYTES = 2**27
"""The largest file that is read unless `--max-bytes` says otherwise."""
MAX_DEPTH = 32
"""Most levels of nested objects and lists, the outermost included."""
LONGEST = 2**53
"""Integers of a schedule are below this limit, because some readers of JSON round larger ones."""


def read_file(path: str, *, is_certificate: bool, limit: int = MAX_BYTES) -> Any:  # noqa: ANN401 - parsed JSON
    """Return the value in a JSON file; raise a Refusal for a duplicate key, a float, or an unpaired surrogate.

    It may have 32 levels of nesting. A certificate has no true, false or null, a schedule no integer of 2⁵³ or above.
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


def as_fraction(text: str, place: str) -> Fraction:
    """Return the number that a certificate states in lowest terms, such as "4/3"; raise a Refusal for other texts."""
    well_formed = re.fullmatch(r"-?\d{1,4000}(/[1-9]\d{0,3999})?", text)
    confirm(well_formed and str(Fraction(text)) == text, place, text, "a fraction string in lowest terms")
    return Fraction(text)
