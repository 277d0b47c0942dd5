"""Write the output of all workers to the launcher's streams; an error that all workers report is printed once."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from partreduce.topo.errors import DocumentError, HandshakeError, InputError, ScheduleError

MISTAKES = tuple(f"{kind.__name__}: " for kind in (InputError, DocumentError, HandshakeError, ScheduleError))
"""Beginnings of error lines about mistakes in the script, which all workers report."""
ALIKE_SECONDS = 0.3  # how long the first such line is held back for the other workers'


class LogMultiplexer:
    """A launcher's output: writes whole lines to standard output and error, or both to the stream `output`."""

    def __init__(self, output: TextIO | None = None) -> None:
        self._output = output

    def write(self, text: str, *, errors: bool) -> None:
        stream = self._output or (sys.stderr if errors else sys.stdout)
        stream.write(text)
        stream.flush()

    def log_line(self, text: str) -> None:
        self.write(f"partreduce: {text}\n", errors=True)


def write_line(text: str) -> None:
    """Print a line of the launcher itself to standard error."""
    LogMultiplexer().log_line(text)


class ErrorDeduplicator:
    """Filter that prints a mistake only once if several of `num_workers` workers report it: `[0-3] InputError: …`."""

    def __init__(self, outlet: LogMultiplexer, num_workers: int) -> None:
        self._outlet, self._num_workers = outlet, num_workers
        self._held: dict[str, tuple[float, set[int]]] = {}

    def hold(self, rank: int, line: str) -> bool:
        if not line.startswith(MISTAKES):
            return False
        self._held.setdefault(line, (time.monotonic() + ALIKE_SECONDS, set()))[1].add(rank)
        return True

    def show(self, *, everything: bool = False) -> None:
        """Print errors that were held back long enough or that all workers report; with `everything`, all held ones."""
        for line, (until, ranks) in list(self._held.items()):
            if everything or len(ranks) == self._num_workers or time.monotonic() > until:
                del self._held[line]
                self._outlet.write(f"[{_ranges(ranks)}] {line}\n", errors=True)


def _ranges(ranks: set[int]) -> str:
    """Format ranks as ranges, such as `0-3,6`."""
    starts = sorted(rank for rank in ranks if rank - 1 not in ranks)
    ends = sorted(rank for rank in ranks if rank + 1 not in ranks)
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
