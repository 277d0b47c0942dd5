"""Print the output of the command line: sentences for people, or one JSON document for machines."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING

from partreduce.runtime.environment import RANK
from partreduce.topo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import Console


_COLUMNS = re.compile("[1-9][0-9]{0,5}")
"""The values of the environment variable COLUMNS that are valid widths."""
_taken = ContextVar("_taken", default=False)


def console(*, errors: bool = False) -> Console:
    """Return rich's Console of standard output; of standard error with `errors`, or after `claim_stdout` claimed it."""
    return _console(errors or _taken.get())


@lru_cache(maxsize=2)
def _console(errors: bool) -> Console:
    from rich.console import Console

    environment = dict(os.environ)
    if not _COLUMNS.fullmatch(environment.get("COLUMNS", "")):
        environment.pop("COLUMNS", None)  # rich prints nothing at all in 0 columns, which some containers state
    terminal = Console(stderr=errors, highlight=False, soft_wrap=True, _environ=environment)
    if not terminal.is_terminal and "COLUMNS" not in environment:
        # A file or a pipe has no width; 80 columns would fold tables for no reason.
        return Console(stderr=errors, highlight=False, soft_wrap=True, width=120, _environ=environment)
    return terminal


@contextmanager
def fresh_terminal() -> Iterator[None]:
    """Context manager: forget which stream and terminal width an earlier command of this process used."""
    _console.cache_clear()
    token = _taken.set(False)
    try:
        yield
    finally:
        _taken.reset(token)


def claim_stdout(*outputs: Path | None, as_json: bool = False) -> None:
    """Make `console()` print on standard error from now on if one of the output paths is `-`, standard output.

    `outputs` are the files that a command will write (None: not asked for). `as_json`: it also writes JSON to standard
    output. Raises InputError for two documents on standard output, FileError for a path that cannot be written.
    """
    from partreduce.topo.document.reader import STDOUT, descriptor_to_write
    from partreduce.topo.document.writer import check_without_place

    count = sum(path is not None and descriptor_to_write(path) == STDOUT for path in outputs)
    if count + as_json > 1:
        raise InputError(
            "-: standard output takes one document; name a file for the other"
            + (", or leave out --json" if as_json else "")
        )
    _taken.set(count > 0)
    for path in outputs:
        if path is not None and os.environ.get(RANK, "0") == "0":  # other workers write nothing
            check_without_place(path)


def suggest_verify(output: Path | None, *, guarantees_consensus: bool = True) -> None:
    """Print the next command: verify the schedule file `output`, or add -o if that is None; print nothing for `-`.

    Without `guarantees_consensus` the suggested command has --allow-no-consensus.
    """
    option = "" if guarantees_consensus else " --allow-no-consensus"
    if output is None:
        console().print("Next: the same with -o schedule.json", style="dim")
    elif str(output) != "-":
        console().print(f"Next: partreduce verify{option} {output}", style="dim")


def emit_json(document: object) -> None:
    """Print `document` as JSON on standard output; NaN and infinite numbers become null."""
    # If the encoding lacks a character, JSON's escape replaces it.
    plain = not sys.stdout.encoding or not sys.stdout.encoding.lower().startswith("utf")
    sys.stdout.write(json.dumps(_finite(document), indent=2, ensure_ascii=plain) + "\n")
    sys.stdout.flush()


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def number(value: float | None, digits: int = 4) -> str:
    """Format a number with four significant digits (or `digits`); `-` for None."""
    return "-" if value is None else f"{value:.{digits}g}"


def seconds(value: float | None) -> str:
    """Format a duration, given in seconds, with four digits as s, ms or us; `-` for None."""
    if value is None:
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value * 1e6:.3g} us" if value else "0 s"


def size(value: float) -> str:
    """Format a number of bytes with four digits and a decimal unit (B, kB, MB or GB)."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.4g} B"


def write_text(path: Path, text: str) -> None:
    """Write `text` to a file atomically, or to standard output if `path` is `-`; raise FileError if that fails."""
    from partreduce.topo.document.writer import write_file

    sys.stdout.flush()
    write_file(path, text.encode())
