"""Outlet: through which everything goes that a launcher shows, so that one who draws on the terminal is not overrun."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TextIO

from partreduce.runtime.watch.published_progress import PublishedProgress
from partreduce.topo.errors import DocumentError, HandshakeError, InputError, ScheduleError

ALIKE = tuple(f"{kind.__name__}: " for kind in (InputError, DocumentError, HandshakeError, ScheduleError))
"""How lines begin that tell a mistake of the script, which all workers make."""
ALIKE_SECONDS = 0.3
"""How long the first such line waits for the others."""


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


class AlikeErrors:
    """Shows one mistake that several workers tell in the same words once: `[0-3] InputError: …`."""

    def __init__(self, outlet: Outlet, num_workers: int) -> None:
        self._outlet, self._num_workers = outlet, num_workers
        self._held: dict[str, tuple[float, set[int]]] = {}

    def hold(self, rank: int, line: str) -> bool:
        """Keep a worker's line until `show`, if it is of this kind."""
        if not line.startswith(ALIKE):
            return False
        self._held.setdefault(line, (time.monotonic() + ALIKE_SECONDS, set()))[1].add(rank)
        return True

    def show(self, *, everything: bool = False) -> None:
        """Pass on what has waited long enough, or what all workers have said."""
        for line, (until, ranks) in list(self._held.items()):
            if everything or len(ranks) == self._num_workers or time.monotonic() > until:
                del self._held[line]
                self._outlet.write(f"[{_ranges(ranks)}] {line}\n", errors=True)


def _ranges(ranks: set[int]) -> str:
    """As in `0-3,6`."""
    starts = sorted(rank for rank in ranks if rank - 1 not in ranks)
    ends = sorted(rank for rank in ranks if rank + 1 not in ranks)
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
