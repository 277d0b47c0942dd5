"""Parse quantities with units as people write them, exactly: `10GB/s`, `25Gbit/s`, `5us`, `552MB`, `5x`.

Prefixes are decimal (`kB` = 1,000 bytes); binary prefixes have an i (`KiB` = 1,024 bytes). Units are case-sensitive,
because `b` and `B` differ by a factor of eight.
"""

from __future__ import annotations

import re
from fractions import Fraction

from partreduce.topo.errors import InputError

_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,24})?(?:[eE](?:-[0-9]{1,3}|\+?[0-9]{1,2}))?)\s{0,4}(\S{0,12})")

_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

SIZES = {f"{name}B": Fraction(scale) for name, scale in (_PREFIXES | _BINARY).items()}
TIMES = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "μs": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
}
BANDWIDTHS = (
    {f"{name}/s": scale for name, scale in SIZES.items()}
    | {f"{name}bit/s": Fraction(scale, 8) for name, scale in _PREFIXES.items()}
    | {f"{name}bps": Fraction(scale, 8) for name, scale in _PREFIXES.items() if name}
)
LARGEST_SIZE = 2**53
"""The largest size in bytes: up to here floats, and every reader of JSON, are exact."""
FACTORS = {"x": Fraction(1), "": Fraction(1)}


def _parse(text: str, units: dict[str, Fraction], what: str, example: str) -> Fraction:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None and text.strip().startswith("-"):
        raise InputError(f"{_shorten(text)} is negative; write a positive number such as {example}")
    if match is None:
        raise InputError(f"{_shorten(text)} is not {what}; write a number and a unit, such as {example}")
    number, unit = Fraction(match[1]), match[2]
    if unit in units:
        return number * units[unit]
    if re.match(r"([eE][-+]?)?[0-9]", unit):
        raise InputError(f"{_shorten(text)} is too large or too small for {what}; write it such as {example}")
    written = match[0][: len(match[0]) - len(unit)].rstrip()
    if readings := _bits_or_bytes(unit, units):
        choice = " or ".join(f"{written}{name} for {'bits' if 'bit' in name else 'bytes'}" for name in readings)
        only = "" if len(readings) > 1 else f", and {what} is in bytes"
        raise InputError(f"{_shorten(text)} could mean bits or bytes{only}; write {choice}")
    if unit and (near := _near(unit, units)):
        raise InputError(f"{_shorten(text)} has an unknown unit; did you mean {written}{near}?")
    if not unit:
        raise InputError(f"{_shorten(text)} has no unit; {what} needs one, such as {example}")
    known = ", ".join(name for name in units if name not in ("", "μs"))
    raise InputError(f"{_shorten(text)} has an unknown unit; {what} is written such as {example}, in one of {known}")


def _parse_positive(text: str, units: dict[str, Fraction], what: str, example: str) -> float:
    if not (value := _parse(text, units, what, example)):
        raise InputError(f"{_shorten(text)} is {what.replace('a ', 'no ', 1)}; it must be > 0")
    return float(value)


def _bits_or_bytes(unit: str, units: dict[str, Fraction]) -> list[str]:
    """Return the `units` that an ambiguous `unit` with lower-case b may mean: GB/s and Gbit/s for `Gb/s`, else none."""
    prefix, _, rest = unit.partition("b")
    endings = (rest, "/s") if rest in ("", "/s") and "b" in unit else ()
    return list(
        dict.fromkeys(name for end in endings for name in (f"{prefix}B{end}", f"{prefix}bit{end}") if name in units)
    )


def _near(unit: str, units: dict[str, Fraction]) -> str | None:
    """Return the only one of `units` that equals `unit` up to case and ending (MB/s for MBps); None if not unique."""
    if unit.endswith("Bps"):
        unit = f"{unit.removesuffix('ps')}/s"
    written = {unit.casefold(), f"{unit}b".casefold(), f"{unit}/s".casefold()}
    same = [name for name in units if name.casefold() in written]
    return same[0] if len(same) == 1 else None


def _shorten(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:37] + "...")


def parse_bandwidth(text: str) -> float:
    """Read a bandwidth > 0 in bytes per second, such as `10GB/s`, `25Gbit/s`, `800Mbps`; else raise InputError."""
    return _parse_positive(text, BANDWIDTHS, "a bandwidth", "10GB/s or 25Gbit/s")


def parse_time(text: str) -> float:
    """Read a time >= 0 in seconds, such as `50ms`, `5us`, `1.5s`, `2min`; else raise InputError."""
    return float(_parse(text, TIMES, "a time", "50ms or 5us"))


def parse_size(text: str) -> int:
    """Read a whole number of bytes >= 0, such as `552MB`, `1.5GiB`; else raise InputError."""
    value = _parse(text, SIZES, "a size", "552MB or 2GiB")
    if value.denominator != 1:
        raise InputError(f"{_shorten(text)} is not a whole number of bytes")
    if value > LARGEST_SIZE:
        raise InputError(f"{_shorten(text)} is more than 9 PB; sizes go up to {LARGEST_SIZE} bytes")
    return value.numerator


def parse_factor(text: str) -> float:
    """Read a factor > 0, such as `5x` or `1.25`; else raise InputError."""
    return _parse_positive(text, FACTORS, "a factor", "5x")


def parse_number(text: str) -> float | Fraction:
    """Read a number >= 0: a fraction such as `8/7` exactly, a decimal as the nearest float; else raise InputError."""
    match = re.fullmatch(r"([0-9]{1,18})/([0-9]{1,18})", text.strip())
    if match is None:
        return float(_parse(text, {"": Fraction(1)}, "a number", "0.5 or 8/7"))
    if int(match[2]) == 0:
        raise InputError(f"{_shorten(text)} has the denominator 0; write a fraction such as 8/7")
    return Fraction(int(match[1]), int(match[2]))


def parse_share(text: str) -> float:
    """Read a share of a whole, such as `0.8%` or `0.008`, as a number from 0 to 1; else raise InputError."""
    units = {"": Fraction(1), "%": Fraction(1, 100)}
    share = float(_parse(text, units, "a share", "0.8% or 0.008"))
    if not share <= 1:
        raise InputError(f"{_shorten(text)} is more than a whole; a share lies in 0..1")
    return share


def format_quantity(value: float, units: dict[str, Fraction]) -> str | None:
    """Return the shortest exact text of `value` with one of the `units`, such as `10GB/s`; None above 6 digits."""
    if value and not 1e-12 <= value <= 1e18:
        return None
    exact, best = Fraction(value), ""
    for unit, scale in units.items():
        if not unit.isascii():
            continue
        shown = f"{float(exact / scale):.6g}"
        if "e" not in shown and float(Fraction(shown) * scale) == value and (not best or len(shown + unit) < len(best)):
            best = shown + unit
    return best or None
