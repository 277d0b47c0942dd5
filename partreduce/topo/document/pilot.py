"""Pilot files in JSON: the cost of averaging less often or later, measured on the user's job (`partreduce measure`)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from partreduce.topo.argument_types import check_arguments
from partreduce.topo.closed_model import dump_fields, read_value
from partreduce.topo.document.reader import in_file, read_json
from partreduce.topo.document.schedule import check_header
from partreduce.topo.document.writer import pretty, write_file
from partreduce.topo.errors import DocumentError
from partreduce.topo.pilot import Pilot, Price
from partreduce.topo.place import child, format_value, shown_path

FORMAT = "partreduce.pilot"
VERSION = 1


@check_arguments
def load_pilot(path: str | os.PathLike[str]) -> Pilot:
    """Read a pilot file strictly.

    Args:
        path: the file, or `-` for standard input.

    Returns:
        The Pilot: prices and measurements of `partreduce measure`.

    Raises:
        FileError: the file is absent or cannot be read.
        DocumentError: the file breaks the format.
    """
    with in_file(shown_path(path)):
        return pilot_of(read_json(path))


def pilot_of(raw: object) -> Pilot:
    """Build a Pilot from a parsed document; raise DocumentError if the document breaks the format."""
    header = check_header(raw, FORMAT, VERSION)
    members = {key: value for key, value in header.items() if key not in ("format", "version")}
    pilot = read_value(Pilot, members, "")
    for place, problem in _problems(pilot):
        raise DocumentError(place, problem)
    return pilot


def _problems(pilot: Pilot) -> Iterator[tuple[str, str]]:
    """Yield every contradiction between fields of a pilot, as (path of the member, error text)."""
    if (pilot.prices.drift is None) != (pilot.data == "shuffled"):
        yield "prices.drift", f"is for data that differ, and exactly for these; the data are {pilot.data}"
    for name in ("consensus_distance", "late", "drift", "averaging", "later"):
        price: Price | None = getattr(pilot.prices, name)
        if price is not None and not price.low <= price.value <= price.high:
            interval = f"[{price.low}, {price.high}]"
            yield f"prices.{name}", f"is {price.value} in {interval}; a price lies in its interval"
    for word, probes, count in (("probes", pilot.probes, len(pilot.seeds)), ("unstable", pilot.unstable, 0)):
        for index, probe in enumerate(probes):
            place, number = child(word, index), len(probe.steps_ratios)
            if number != count:
                yield child(place, "steps_ratios"), f"has {number} numbers for {count} seeds; it has one for each"
            if not re.fullmatch("([0-9a-f]{64})?", probe.sha256):
                yield child(place, "sha256"), f"is {format_value(probe.sha256)}; it must be 64 hexadecimal digits"


def dump_pilot(pilot: Pilot) -> dict[str, Any]:
    """Return the JSON object of a pilot; `pilot_of` reads it back to an equal Pilot."""
    return {"format": FORMAT, "version": VERSION, **dump_fields(pilot)}


def write_pilot(path: str | os.PathLike[str], pilot: Pilot) -> None:
    """Write a pilot file atomically, with one line for each key, price and probe; raise FileError if that fails."""
    write_file(path, pretty(dump_pilot(pilot)).encode())
