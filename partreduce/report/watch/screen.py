"""Screen: shows the picture of a job below the lines that its workers print, or as lines where no terminal is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from partreduce.report.watch.picture import Picture
from partreduce.report.watch.words import picture_line, picture_table
from partreduce.runtime.watch.published_progress import PublishedProgress

LOOK_SECONDS = 0.05
DRAW_SECONDS = 1.0
LINE_SECONDS = 5.0
AFTER_LINES_SECONDS = 0.1
"""While workers print much the picture comes back below their lines so often only."""
NOT_FOR_ROWS = 5
"""Lines of a terminal for title, headers, rule and the cursor."""


class Screen:
    """An outlet that also shows how far each worker is: all of it on standard error, so that pipes stay clean.

    On a terminal the picture stands below what the workers print; their lines reach it byte for byte. Elsewhere it is
    one line every few seconds.
    """

    def __init__(self, picture: Picture, terminal: TextIO | None = None) -> None:
        self.published: PublishedProgress | None = picture.published
        self._picture = picture
        self._stream = terminal or sys.stderr
        self._is_terminal = self._stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        self._height = 0
        """Lines of the picture that stand on the terminal now."""
        self._text = ""
        self._looked = self._drawn = time.monotonic()
        self._codes: Mapping[int, int | None] = {}
        self._stage: Callable[[int], str] = lambda rank: ""  # noqa: ARG005 - until the first look

    def write(self, text: str, *, errors: bool) -> None:
        """Pass on complete lines, above the picture if they go to a terminal."""
        stream = sys.stderr if errors else sys.stdout
        if self._is_terminal and self._height and stream.isatty():
            self._erase()
            self._drawn = time.monotonic() - DRAW_SECONDS + AFTER_LINES_SECONDS
        stream.write(text)
        stream.flush()

    def look(self, codes: Mapping[int, int | None], stage: Callable[[int], str]) -> None:
        self._codes, self._stage = codes, stage
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        self._picture.look()
        if now - self._drawn >= (DRAW_SECONDS if self._is_terminal else LINE_SECONDS):
            self._show()

    def close(self) -> None:
        if self._codes:
            self._picture.look()
            self._show()

    def _show(self) -> None:
        self._drawn = time.monotonic()
        rows = self._picture.rows(self._codes, self._stage)
        if not self._is_terminal:
            self._stream.write(f"partreduce: {picture_line(rows, self._picture.seconds)}\n")
            self._stream.flush()
            return
        from rich.console import Console

        console = Console(file=self._stream, highlight=False, force_terminal=True)
        with console.capture() as drawn:
            console.print(picture_table(rows, self._picture.seconds, room=console.height - NOT_FOR_ROWS))
        self._erase()
        self._height = drawn.get().count("\n")
        self._stream.write(drawn.get())
        self._stream.flush()

    def _erase(self) -> None:
        """Take the picture away: the cursor goes to its first line, and everything below that is cleared."""
        if self._height:
            self._stream.write(f"\x1b[{self._height}F\x1b[J")
            self._stream.flush()
            self._height = 0
