"""What the command line prints: tables and sentences for people, one JSON document for machines."""

from __future__ import annotations

import json
import math
import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

from preduce.topo.errors import FileProblem

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table


@lru_cache(maxsize=2)
def console(*, errors: bool = False) -> Console:
    """The terminal; with `errors` the standard error stream, for notes beside machine-readable output."""
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            # rich would exit with 1, which means "refuted" here; the entry point knows what a reader's leaving means.
            raise BrokenPipeError

    terminal = Terminal(stderr=errors, highlight=False, soft_wrap=True)
    if not terminal.is_terminal and "COLUMNS" not in os.environ:
        # A file or a pipe has no width of its own; 80 columns would fold tables for no reason.
        return Terminal(stderr=errors, highlight=False, soft_wrap=True, width=120)
    return terminal


def emit_json(document: object) -> None:
    """Print one JSON document on standard output. Infinite and undefined numbers become null, as JSON has none."""
    text = json.dumps(_finite(document), indent=2, ensure_ascii=False) + "\n"
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Without its number, by which typer would recognise it and exit with 1 before the entry point sees it.
        raise BrokenPipeError from None


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def table(title: str, *columns: str) -> Table:
    """An empty table in the house style; columns after the first are right-aligned."""
    from rich import box
    from rich.table import Table

    result = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        result.add_column(column, justify="left" if index == 0 else "right")
    return result


def number(value: float | None, digits: int = 4) -> str:
    """A figure for people: four significant digits, `-` when there is none."""
    return "-" if value is None else f"{value:.{digits}g}"


def seconds(value: float | None) -> str:
    """A duration for people."""
    if value is None:
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value * 1e6:.3g} us" if value else "0 s"


def size(value: float) -> str:
    """A number of bytes for people, in decimal units."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.4g} B"


def write_text(path: Path, text: str) -> None:
    """Write a file.

    Raises:
        FileProblem: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileProblem(f"{path}: cannot be written: {error.strerror or error}") from None
