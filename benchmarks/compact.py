"""Writes results that stay in the repository: JSON with one row a line and rounded numbers, to be read and compared."""

from __future__ import annotations

import json
from typing import Any

DIGITS = 6
"""Significant digits that are kept: with 5, last digits of some tables changed."""


def text(content: dict[str, Any], *, digits: int = DIGITS) -> str:
    """A line for each member of `content`, for each member of an object in it, and for each row of a list of rows."""
    lines = ",\n".join(f" {json.dumps(key)}: {_member(_rounded(value, digits))}" for key, value in content.items())
    return f"{{\n{lines}\n}}\n"


def _member(value: Any) -> str:  # noqa: ANN401 - any JSON value
    if isinstance(value, dict) and value:
        lines = ",\n".join(f"  {json.dumps(key)}: {_rows(inner, 3)}" for key, inner in value.items())
        return f"{{\n{lines}\n }}"
    return _rows(value, 2)


def _rows(value: Any, indent: int) -> str:  # noqa: ANN401 - as above
    if isinstance(value, list) and any(isinstance(row, dict | list) for row in value):
        lines = ",\n".join(" " * indent + json.dumps(row) for row in value)
        return f"[\n{lines}\n{' ' * (indent - 1)}]"
    return json.dumps(value)


def _rounded(value: Any, digits: int) -> Any:  # noqa: ANN401 - as above
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: _rounded(inner, digits) for key, inner in value.items()}
    return [_rounded(inner, digits) for inner in value] if isinstance(value, list | tuple) else value
