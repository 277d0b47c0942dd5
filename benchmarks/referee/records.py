"""Records as files, and how large values become small ones that still say where two of them differ."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "records"
MOST_LISTED = 24
"""Entries of a list that are kept as they are."""
FIRST = 4
"""Of a longer one, that are kept with its summary."""


def load(part: str) -> dict[str, Any]:
    """The artefacts of a part, by name."""
    path = FOLDER / f"{part}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save(part: str, artefacts: dict[str, Any]) -> int:
    """Write one artefact a line; the size of the file."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(artefact, separators=(',', ':'), ensure_ascii=False)}"
        for name, artefact in sorted(artefacts.items())
    ]
    FOLDER.mkdir(exist_ok=True)
    return (FOLDER / f"{part}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def rounded(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Floats at 12 digits, and words for those that JSON does not have."""
    if isinstance(value, dict):
        return {str(key): rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return float(f"{value:.12g}") if math.isfinite(value) else str(value)
    return str(value)


def summary(values: Any) -> dict[str, Any]:  # noqa: ANN401 - what numpy takes
    """What tells two arrays of numbers apart, and says by how much: a sum that knows places is one of them."""
    array = np.asarray(values, dtype=float)
    flat = array.ravel()
    if not flat.size:
        return {"shape": list(array.shape)}
    places = np.arange(1, flat.size + 1) / flat.size
    numbers = {"sum": flat.sum(), "by_place": (flat * places).sum(), "least": flat.min(), "most": flat.max()}
    ends = {"first": flat[:FIRST].tolist(), "last": float(flat[-1])}
    return {"shape": list(array.shape)} | {name: float(number) for name, number in numbers.items()} | ends


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def shortened(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """The same with every long list as its summary."""
    if isinstance(value, dict):
        return {key: shortened(part) for key, part in value.items()}
    if not isinstance(value, list) or _count(value) <= MOST_LISTED:
        return value
    leaves = list(_leaves(value))
    numbers = [leaf for leaf in leaves if not isinstance(leaf, str)]
    words = [leaf for leaf in leaves if isinstance(leaf, str)]
    short: dict[str, Any] = {"length": len(value), "first": [shortened(part) for part in value[:2]]}
    if numbers and all(isinstance(number, int) for number in numbers):
        short["numbers"] = sha256(repr(numbers).encode())
    elif numbers:
        short["numbers"] = summary(numbers)
    return short | ({"words": len(words), "sha256": sha256("\n".join(words).encode())} if words else {})


def _count(value: Any) -> int:  # noqa: ANN401 - any JSON
    return sum(1 for _ in _leaves(value))


def _leaves(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Numbers and strings of a nested list, in order; without keys, which may be renamed."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    elif value is not None:
        yield value
