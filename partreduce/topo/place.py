"""Format paths and values in error messages: on one line, short and printable."""

from __future__ import annotations

import json
import os
import re

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,60}")


def child(place: str, key: str | int) -> str:
    """Return the path of the item `key` of the value at `place`, such as `strategy.phases` or `phases[2]`."""
    if isinstance(key, int):
        return f"{place}[{key}]"
    if not _PLAIN.fullmatch(key):
        return f"{place}[{format_value(key)}]"
    return f"{place}.{key}" if place else key


def format_value(value: object) -> str:
    """Return a value as JSON text of at most 60 characters: cut, or only the size of a long list or object."""
    if isinstance(value, list | dict) and len(value) > 8:
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    if isinstance(value, str) and len(value) > 50:
        value = value[:47] + "..."
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return a file name as one printable line, and "standard input" for `-`."""
    text = os.fsdecode(os.fspath(path))
    if text == "-":
        return "standard input"
    if not text:
        return "a file with an empty name"
    return text if text.isprintable() else ascii(text)
