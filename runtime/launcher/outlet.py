"""Outlet: through which everything goes that a launcher shows, so that one who draws on the terminal is not overrun."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Protocol, TextIO

from partreduce.runtime.watch.published_progress import PublishedProgress


class Outlet(Protocol):
    """Where lines go; asked again and again while workers run."""

    published: PublishedProgress | None
    """On which the workers say how far they are, if anybody reads it."""

    def write(self, text: str, *, errors: bool) -> None:
        """Pass on complete lines, of standard output or of the errors."""

    def look(self, codes: Mapping[int, int | None], stage: Callable[[int], str]) -> None:
        """Called at least twenty times a second: exit codes by rank, and how far one had come before its optimizer."""

    def close(self) -> None:
        """The run is over; called once."""


class PlainOutlet:
    """Passes lines on, and that is all.

    Args:
        output: where all lines go; standard output and error by default.
    """

    published: PublishedProgress | None = None

    def __init__(self, output: TextIO | None = None) -> None:
        self._output = output

    def write(self, text: str, *, errors: bool) -> None:
        """Pass on complete lines at once."""
        stream = self._output or (sys.stderr if errors else sys.stdout)
        stream.write(text)
        stream.flush()

    def look(self, codes: Mapping[int, int | None], stage: Callable[[int], str]) -> None:
        """Nothing to show."""

    def close(self) -> None:
        """Nothing to end."""
