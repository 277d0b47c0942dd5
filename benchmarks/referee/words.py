"""What is called otherwise since the record was made: old on the left, new on the right. All of it applies to records.

`KEYS` are JSON keys, in schedules as in what commands print. A key may be given with those above it, such as
`strategy.how`, where the same word stays elsewhere; lists count for nothing in that, and the longest match wins.
`VALUES` are words at a key, by the old key, with those above it or without. `PHRASES` are regular expressions for all
other strings: command lines, Python calls, messages, names of schedules; and for keys that are names, not words. They
are applied one after the other.
"""

from __future__ import annotations

import re
from typing import Any

KEYS: dict[str, str] = {}
VALUES: dict[str, dict[str, str]] = {}
PHRASES: dict[str, str] = {}


def translated(value: Any, above: tuple[str, ...] = ()) -> Any:  # noqa: ANN401 - any JSON
    """The same in new words."""
    if isinstance(value, dict):
        return {_key((*above, key)): translated(part, (*above, key)) for key, part in value.items()}
    if isinstance(value, list):
        return [translated(part, above) for part in value]
    if not isinstance(value, str):
        return value
    new = (_longest(VALUES, above) or {}).get(value)
    return _phrased(value) if new is None else new


def _key(path: tuple[str, ...]) -> str:
    new = _longest(KEYS, path)
    if new is not None:
        return new
    return path[-1] if path[-1].isidentifier() else _phrased(path[-1])


def _longest(table: dict[str, Any], path: tuple[str, ...]) -> Any:  # noqa: ANN401 - what the table holds
    """What a table says of a path's end; the longest that it knows."""
    ends = (".".join(path[start:]) for start in range(len(path)))
    return next((table[end] for end in ends if end in table), None)


def _phrased(text: str) -> str:
    for old, new in PHRASES.items():
        text = re.sub(old, new, text)
    return text
