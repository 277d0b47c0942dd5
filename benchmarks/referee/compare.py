"""Differences between a record and what a checkout does now, in words."""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .records import rounded
from .words import translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TABLE = Path(__file__).parent / "explained.toml"
TOLERANCE = 1e-9
"""Of numbers that come from floats, as a part of the larger one; and below 1e-12 all are the same."""
NOTHING = "nothing"
LONGEST = 160
"""Characters of a value that are printed."""
MOST = 8
"""Differences of one artefact that are printed, and fields that differ most often."""


@dataclass(frozen=True)
class Entry:
    """One line of the table: which differences it explains, and why."""

    part: str = "*"
    artefact: str = "*"
    field: str = "*"
    holds: str = ""
    """A text in the recorded input or outcome, in the words of the record."""
    was: str = "*"
    now: str = "*"
    """Patterns of the value in the record, in new words, and of today's."""
    reason: str = ""

    def covers(self, part: str, artefact: str, text: str) -> bool:
        """Whether it may explain a difference of an artefact, whose record is this text."""
        return fnmatchcase(part, self.part) and fnmatchcase(artefact, self.artefact) and self.holds in text

    def explains(self, place: str, before: Any, after: Any) -> bool:  # noqa: ANN401 - any JSON
        pairs = ((place, self.field), (str(before), self.was), (str(after), self.now))
        return all(fnmatchcase(value, pattern) for value, pattern in pairs)


@dataclass(frozen=True)
class Tables:
    """Differences on purpose, and artefacts and fields of what was removed."""

    explained: tuple[Entry, ...] = ()
    removed: tuple[Entry, ...] = ()

    @classmethod
    def read(cls) -> Tables:
        tables = tomllib.loads(TABLE.read_text(encoding="utf-8"))
        return cls(*(tuple(Entry(**entry) for entry in tables.get(name, ())) for name in ("explained", "removed")))

    def of(self, part: str, artefact: str, text: str) -> Tables:
        """The entries that may explain differences of one artefact."""
        return Tables(
            *(tuple(e for e in table if e.covers(part, artefact, text)) for table in (self.explained, self.removed))
        )

    def reason(self, place: str, before: Any, after: Any) -> tuple[str, str] | None:  # noqa: ANN401 - any JSON
        """Which table explains a difference, and its reason; None where none does."""
        for name, entries in (("explained", self.explained), ("removed", self.removed)):
            for entry in entries:
                if entry.explains(place, before, after):
                    return name, entry.reason
        return None


@dataclass
class Result:
    """What a comparison of one part has found."""

    num_artefacts: int = 0
    num_equal: int = 0
    num_different: int = 0
    """Artefacts with a difference that nothing explains."""
    because: Counter[tuple[str, str]] = field(default_factory=Counter)
    fields: Counter[str] = field(default_factory=Counter)
    """In how many places each field differs; where nothing explains it."""
    lines: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        reasons = [f"{count} {name} ({why})" for (name, why), count in self.because.items()]
        counts = [f"{self.num_equal} equal", f"{self.num_different} with unexplained differences", *reasons]
        most = ", ".join(f"{name} {count}" for name, count in self.fields.most_common(MOST))
        return (
            f"{self.num_artefacts} artefacts, " + ", ".join(counts) + (f"; most often differ: {most}" if most else "")
        )


def compare(part: str, recorded: dict[str, Any], observe: Callable[[Any], Any], tables: Tables) -> Result:
    """Take every recorded input again, in today's words, and compare what comes of it."""
    result = Result()
    for name, artefact in recorded.items():
        result.num_artefacts += 1
        was = translated(artefact["outcome"])
        try:
            now = rounded(observe(translated(artefact["input"])))
        except Exception as error:  # noqa: BLE001 - whatever ends it is the difference
            now = {"ended": f"{type(error).__name__}: {error}"}
        found, known_ones = list(differences(was, now)), tables.of(part, name, str(artefact))
        reasons = [known_ones.reason(*difference) for difference in found]
        known = {reason for reason in reasons if reason is not None}
        unexplained = [one for one, reason in zip(found, reasons, strict=True) if reason is None]
        result.num_equal += not found
        result.num_different += bool(unexplained)
        result.because.update(known)
        result.fields.update(re.sub(r"\[\d+\]$", "", place).split(".")[-1] for place, _, _ in unexplained)
        for place, before, after in unexplained[:MOST]:
            result.lines.append(f"{name}: {place or 'the whole'}: was {_shown(before)}, is {_shown(after)}")
        if len(unexplained) > MOST:
            result.lines.append(f"{name}: and {len(unexplained) - MOST} more")
    return result


def differences(was: Any, now: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:  # noqa: ANN401 - any JSON
    """(place, before, after) of all values that differ."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in [*was, *(key for key in now if key not in was)]:
            yield from differences(was.get(key, NOTHING), now.get(key, NOTHING), f"{place}.{key}" if place else key)
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for index, (before, after) in enumerate(zip(was, now, strict=True)):
            yield from differences(before, after, f"{place}[{index}]")
    elif not _same(was, now):
        yield place, was, now


def _same(was: Any, now: Any) -> bool:  # noqa: ANN401 - any JSON
    if isinstance(was, float | int) and isinstance(now, float | int) and float in (type(was), type(now)):
        return math.isclose(was, now, rel_tol=TOLERANCE, abs_tol=1e-12)
    return type(was) is type(now) and was == now


def _shown(value: Any) -> str:  # noqa: ANN401 - any JSON
    text = repr(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"
